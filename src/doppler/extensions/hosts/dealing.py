"""Assigns a GPU to each device, and decides which devices of different agents NCCL connects.

Shape suffix: D devices.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from doppler.support.errors import InputError


class Seen(NamedTuple):
    """What an agent sees of its machine.

    Attributes:
        boot: identifies the machine.
        gpus: names of its GPUs, in the agent's order.
        nccl: whether torch was built with NCCL.
    """

    boot: str
    gpus: tuple[str, ...]
    nccl: bool


class Dealt(NamedTuple):
    """The GPUs of devices.

    Attributes:
        gpu_D: [D] number of each device's GPU in its agent's order.
        locks: for each agent, what no other process may use during the session.
        direct: channels that use NCCL because their ends have different GPUs. Messages of all
            other channels are copied through the memory of the hosts.
        num_others: number of these other channels.
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
    """Assign GPUs from the agents' answers, and log how messages will be sent.

    Args:
        agent_of: [D] rank of the agent that has each device.
        boots: identifies the machine of each agent.
        told: fields ``gpus`` and ``nccl`` of each agent's answer.
        host: returns the name of an agent by its rank, for errors.

    Raises:
        InputError: names an agent that sees no GPU.
    """
    for rank, fields in enumerate(told):
        if not fields["gpus"]:
            raise InputError(f"system.devices: torch sees no GPU on {host(rank)}")
    dealt = deal(
        agent_of,
        [
            Seen(boot, tuple(map(str, fields["gpus"])), bool(fields["nccl"]))
            for boot, fields in zip(boots, told, strict=True)
        ],
    )
    logging.getLogger(__name__).info(
        "pairs of devices of different agents: %d use NCCL, %d use the hosts' memory",
        len(dealt.direct),
        dealt.num_others,
    )
    return dealt


def deal(agent_of: Sequence[int], seen: Sequence[Seen]) -> Dealt:
    """Assign the GPUs of each machine to its devices.

    Devices of agents that see the same GPUs get one each, in the order of agents. If there are
    more devices than GPUs, they share the GPUs as evenly as possible. GPUs that only one agent
    sees belong to that agent.

    Args:
        agent_of: [D] rank of the agent that has each device.
        seen: what each agent sees; at least one GPU.
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
    """Return each agent's locks, named as for system=cuda; the first agent holds a shared one."""
    held: set[tuple[str, str]] = set()
    locks: list[list[str]] = [[] for _ in seen]
    for agent, gpu in sorted(set(zip(agent_of, gpu_D, strict=True))):
        lock = f"cuda-{gpu}"
        if (seen[agent].boot, lock) not in held:
            held.add((seen[agent].boot, lock))
            locks[agent].append(lock)
    return locks
