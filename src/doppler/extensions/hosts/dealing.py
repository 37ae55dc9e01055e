"""Which GPU each device of an agent is, and which of two agents NCCL connects.

Shape suffix: D devices.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from doppler.support.errors import InputError


class Seen(NamedTuple):
    """What an agent sees. boot: of its machine. gpus: their names, in its order. nccl: has it."""

    boot: str
    gpus: tuple[str, ...]
    nccl: bool


class Dealt(NamedTuple):
    """GPUs of devices.

    gpu_D: the number of each in its agent's order. locks: of each agent, what no other process may
    use meanwhile. direct: channels whose ends have different GPUs, and NCCL; messages of the others
    go by way of the memory of the hosts. num_others: how many these are.
    """

    gpu_D: list[int]
    locks: list[list[str]]
    direct: list[tuple[int, int]]
    num_others: int


def deal_among(
    agent_of: Sequence[int],
    boots: Sequence[str],
    told: Sequence[Mapping[str, Any]],
    host: Callable[[int], str],
) -> Dealt:
    """Deal out what agents tell of their GPUs, and say which way messages will go.

    agent_of: [D]. boots, told: of each agent. host: names one.

    Raises:
        InputError: names an agent that has none.
    """
    for rank, fields in enumerate(told):
        if not fields["gpus"]:
            raise InputError(f"system.devices: torch knows no GPU on {host(rank)}")
    dealt = deal(
        agent_of,
        [
            Seen(boot, tuple(map(str, fields["gpus"])), bool(fields["nccl"]))
            for boot, fields in zip(boots, told, strict=True)
        ],
    )
    logging.getLogger(__name__).info(
        "pairs of devices of different agents: %d by NCCL, %d by way of the hosts' memory",
        len(dealt.direct),
        dealt.num_others,
    )
    return dealt


def deal(agent_of: Sequence[int], seen: Sequence[Seen]) -> Dealt:
    """Deal out the GPUs of each machine.

    Devices of agents that see the same GPUs have one each, in the order of agents, or share them in
    parts as equal as may be. What other processes do not see is an agent's own.

    agent_of: [D]. seen: of each agent, one GPU at least.
    """
    sharing: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    for device, agent in enumerate(agent_of):
        sharing[seen[agent].boot, seen[agent].gpus].append(device)
    gpu_D = [0] * len(agent_of)
    for (_, gpus), devices in sharing.items():
        devices.sort(key=lambda d: (agent_of[d], d))
        for i, device in enumerate(devices):
            shares = len(devices) > len(gpus)
            gpu_D[device] = i * len(gpus) // len(devices) if shares else i
    # NCCL refuses two members on one GPU.
    names = [(seen[a].boot, seen[a].gpus[gpu]) for a, gpu in zip(agent_of, gpu_D, strict=True)]
    between = [
        (src, dst)
        for src in range(len(agent_of))
        for dst in range(len(agent_of))
        if agent_of[src] != agent_of[dst]
    ]
    direct = [
        (src, dst)
        for src, dst in between
        if names[src] != names[dst] and all(seen[agent_of[d]].nccl for d in (src, dst))
    ]
    return Dealt(gpu_D, _locks(agent_of, seen, gpu_D), direct, len(between) - len(direct))


def _locks(agent_of: Sequence[int], seen: Sequence[Seen], gpu_D: Sequence[int]) -> list[list[str]]:
    """By the names that system=cuda takes; one that agents share is held by the first of them."""
    held: set[tuple[str, str]] = set()
    locks: list[list[str]] = [[] for _ in seen]
    for agent, gpu in sorted(set(zip(agent_of, gpu_D, strict=True))):
        lock = f"cuda-{gpu}"
        if (seen[agent].boot, lock) not in held:
            held.add((seen[agent].boot, lock))
            locks[agent].append(lock)
    return locks
