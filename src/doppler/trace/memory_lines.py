"""Describes an execution within memory limits: what was offloaded, when, and at what cost."""

from doppler.trace.events import Trace
from doppler.trace.usage import busy_seconds, bytes_text, time_text

_LARGEST = 3


def memory_lines(trace: Trace) -> list[str]:
    """Return a few lines about memory; empty if memory was not planned.

    Args:
        trace: of the execution.
    """
    more = trace.memory
    if more is None:
        return []
    peaks = ", ".join(
        f"{device.name} {bytes_text(float(peak))}"
        for device, peak in zip(trace.problem.cluster.devices, trace.peak_bytes, strict=True)
    )
    evicts, loads, again = more.of("evict"), more.of("load"), more.of("recompute")
    found = [f"memory at most: {peaks}"]
    if more.offloaded_bytes:
        busy_s = busy_seconds(more.start_s[~again], more.finish_s[~again])
        found.append(
            f"offloaded: {bytes_text(more.offloaded_bytes)}; {int(evicts.sum())} evictions "
            f"({bytes_text(float(more.bytes[evicts].sum()))}), {int(loads.sum())} loads "
            f"({bytes_text(float(more.bytes[loads].sum()))}), copying for {time_text(busy_s)}"
        )
        found += [f"largest offloaded: {', '.join(_largest(trace))}"]
    if again.any():
        seconds = float((more.finish_s - more.start_s)[again].sum())
        found.append(f"computed again: {int(again.sum())} ops, {time_text(seconds)}")
    return found


def _largest(trace: Trace) -> list[str]:
    """The largest loads, and from when to when their data was away."""
    more = trace.memory
    assert more is not None
    loads = [i for i, kind in enumerate(more.kinds) if kind == "load"]
    found = []
    for i in sorted(loads, key=lambda i: (-more.bytes[i], more.start_s[i]))[:_LARGEST]:
        left = [
            float(more.finish_s[j])
            for j, kind in enumerate(more.kinds)
            if kind == "evict"
            and (more.names[j], more.device[j]) == (more.names[i], more.device[i])
            and more.finish_s[j] <= more.start_s[i]
        ]
        since = time_text(max(left)) if left else "the start"
        found.append(
            f"{more.names[i]} {bytes_text(float(more.bytes[i]))} (device {more.device[i]}, from "
            f"{since} until {time_text(float(more.finish_s[i]))})"
        )
    return found or ["outputs, which stay there"]
