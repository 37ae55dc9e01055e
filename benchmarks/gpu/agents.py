"""The part of `make gpu` that has two agents, each with half of the devices."""

import numpy as np
import torch
import torch.distributed
from benchmarks.gpu.executing import ERROR_FACTOR, Findings
from benchmarks.gpu.parts import Fault, Figure, Settings
from executions import WORKLOADS, check_runs, ordered_placement, problem

from doppler.executor import Cuda, Threads
from doppler.extensions.hosts import Hosts
from doppler.problem import Placement, Problem
from doppler.system import System
from doppler.trace import Trace

PLACEMENTS, ROUNDS, SEEDS = {False: 5, True: 2}, {False: 9, True: 2}, {False: 5, True: 1}


def agents(settings: Settings) -> Findings:
    """Results are plain torch's; what a message adds to a run, against one process."""
    on_gpus = settings.executor == "cuda"
    many = Hosts(agents=2, devices="gpus" if on_gpus else "cores")
    one = Cuda() if on_gpus else Threads()
    for name in WORKLOADS[:2] if settings.small else ("chainmm", "llama_layer"):
        try:
            share = check_runs(
                name,
                settings.num_devices,
                many,
                range(SEEDS[settings.small]),
                factor=ERROR_FACTOR if on_gpus else 1.0,
            )
        except Exception as error:
            yield Fault.of(error, f"{name}, two agents")
            continue
        yield Figure(name, "way", _way() if on_gpus else "cores")
        yield Figure(name, "error over what is tolerated", share)
        yield from _per_message(name, settings, one, many)


def _way() -> str:
    """By which messages go."""
    is_direct = torch.cuda.device_count() > 1 and torch.distributed.is_nccl_available()
    return "NCCL" if is_direct else "memory of the host"


def _per_message(name: str, settings: Settings, one: System, many: System) -> Findings:
    of = problem(name, settings.num_devices)
    placements = [ordered_placement(of, seed) for seed in range(PLACEMENTS[settings.small])]
    alone_P, _ = _medians_s(of, one, placements, settings)
    agents_P, messages_P = _medians_s(of, many, placements, settings)
    yield Figure(name, "ms in one process", float(np.median(alone_P)) * 1e3)
    yield Figure(name, "ms by two agents", float(np.median(agents_P)) * 1e3)
    yield Figure(name, "messages", float(messages_P.mean()))
    per_message_s = (agents_P - alone_P) / np.maximum(messages_P, 1)
    yield Figure(name, "ms a message", float(np.median(per_message_s)) * 1e3)


def _medians_s(
    of: Problem, system: System, placements: list[Placement], settings: Settings
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each placement [P], and how many transfers would go between agents [P]."""
    with system.open(of) as session:
        traces = [[session.trace(one) for one in placements] for _ in range(ROUNDS[settings.small])]
    seconds_RP = np.array([[trace.makespan_s for trace in each] for each in traces])
    return np.median(seconds_RP, axis=0), np.array([_num_crossing(trace) for trace in traces[0]])


def _num_crossing(trace: Trace) -> int:
    half = trace.problem.num_devices // 2
    return int(((trace.transfer_src < half) != (trace.transfer_dst < half)).sum())
