"""Which device each module of a placed model is on."""

from doppler.extensions.modules import Binding
from doppler.graph import DataflowGraph
from doppler.problem import Placement
from doppler.support.errors import InputError


def device_map(graph: DataflowGraph, placement: Placement, binding: Binding) -> dict[str, int]:
    """The largest modules, by their paths, whose parameters are read on one device each.

    Source: the form is that of accelerate's ``dispatch_model``; a key may be a parameter, too.

    Raises:
        InputError: a parameter is read on several devices.
    """
    devices: dict[str, set[int]] = {}
    for node, consumers in zip(graph.inputs.node.tolist(), graph.inputs.consumers, strict=True):
        name = binding.from_state.get(graph.tensors[node].name)
        if name is not None:
            own = {int(placement.device[op]) for op in consumers}
            devices.setdefault(name, set()).update(own)
    for name, own in devices.items():
        if len(own) > 1:
            raise InputError(
                f"device_map: {name!r} is on devices {', '.join(map(str, sorted(own)))}: what is "
                "placed is finer than modules; run() executes it"
            )
    return _largest({name: own.pop() for name, own in devices.items() if own}, "")


def _largest(devices: dict[str, int], path: str) -> dict[str, int]:
    """Of parameters under a path: the path itself if they are together, else those of its parts."""
    if len(set(devices.values())) == 1:
        return {path: next(iter(devices.values()))}
    parts: dict[str, dict[str, int]] = {}
    for name, device in devices.items():
        inner = name.removeprefix(f"{path}.") if path else name
        head = inner.partition(".")[0]
        parts.setdefault(f"{path}.{head}" if path else head, {})[name] = device
    return {key: one for part, own in parts.items() for key, one in _largest(own, part).items()}
