"""A Gymnasium environment in which other people's algorithms learn to place.

    import gymnasium
    env = gymnasium.make("doppler/Placement-v0", workload="llama_block", cluster="v100x8")

Needs ``pip install '.[gym]'``. Shape suffixes: V ops, D devices, F features, E edges.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray
from omegaconf import OmegaConf

from doppler.baselines import lower_bound
from doppler.cluster import preset
from doppler.einsum import FewestElements, load_workload
from doppler.env.problem_view import OP_FEATURES, make_view
from doppler.graph import DataflowGraph, load_graph
from doppler.problem import Placement, Problem, build
from doppler.problem.transfer_kernels import move_seconds
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError
from doppler.support.resources import resource
from doppler.system import System

ENVIRONMENT = "doppler/Placement-v0"
# Columns of ``ops`` after those of OP_FEATURES.
STATE_FEATURES = ("is_candidate", "is_placed", "finish")
# Observations are clipped to this.
MOST = 10.0
_FAILED = -100.0  # the reward where nothing was placed, if no placement has a lower one
Observation = dict[str, Any]  # of arrays; Gymnasium's own types say no more


class PlacementEnv(gymnasium.Env[Observation, np.int64]):
    """An episode places one op after another; each action chooses an op and its device.

    *Action*: a number below V x D, ``op * D + device``. A candidate is an op whose producers are
    all placed. `action_masks` says which actions are allowed; any other ends the episode.

    *Observation*: a dictionary of float32 arrays of fixed shapes. Times are in lower bounds of the
    makespan, at most `MOST`.

    - ``ops`` [V, F]: the features `doppler.env.OP_FEATURES`, which do not change, then whether the
      op is a candidate, whether it is placed, and when it finishes by a simple estimate.
    - ``device`` [V, D]: 1 where an op is placed.
    - ``finish`` [V, D]: when a candidate would finish on each device by that estimate; else 0.
    - ``devices`` [D, 2]: when the device is free by that estimate, and its share of the ops.

    The estimate runs ops in the order of decisions and lets transfers wait for nothing.

    *Reward*: 0, and at the last step minus the makespan over the lower bound, -1 being the best
    that could be. Where the placement does not fit in memory, or the action was not allowed,
    ``failed``: -100, or less if all ops and transfers one after another take more than 100 lower
    bounds, so that failing never pays. ``info`` of the last step has ``seconds``, the makespan;
    every ``info`` has ``action_mask``.

    Args:
        workload: a program of ``workloads/`` by its name, the file of a graph, or a graph.
        cluster: a preset of `doppler.cluster`.
        num_devices: of the cluster; None: all that it has.
        problem: instead of workload and cluster.
        system: what executes the finished placement; the work-conserving simulator by default.

    Raises:
        InputError: no such workload or cluster, or neither these nor a problem.

    Source: the SEL and PLC decisions of DOPPLER (Yao et al., ICLR 2026) as one action. Deviation:
    observations are simpler than what the policies of this package see.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        workload: str | Path | DataflowGraph | None = None,
        cluster: str | None = None,
        *,
        num_devices: int | None = None,
        problem: Problem | None = None,
        system: System | None = None,
    ) -> None:
        self.problem = _problem(workload, cluster, num_devices) if problem is None else problem
        self.system: Any = WorkConserving() if system is None else system
        self._session = self.system.open(self.problem)
        shares = getattr(self.system, "shares", False)
        bound = lower_bound(self.problem, streams=self.system.streams, shares=shares)
        self.bound_s = bound.seconds or 1.0
        self._describe(self.problem)
        self.failed = min(_FAILED, -self._longest_s() / self.bound_s)
        num_ops, num_devices = self.problem.num_ops, self.problem.num_devices
        num_features = len(OP_FEATURES) + len(STATE_FEATURES)
        self.action_space = Discrete(num_ops * num_devices)
        self.observation_space = Dict(
            {
                "ops": Box(-MOST, MOST, (num_ops, num_features), np.float32),
                "device": Box(0.0, 1.0, (num_ops, num_devices), np.float32),
                "finish": Box(0.0, MOST, (num_ops, num_devices), np.float32),
                "devices": Box(0.0, MOST, (num_devices, 2), np.float32),
            }
        )

    def _describe(self, problem: Problem) -> None:
        """Compute what does not change from episode to episode."""
        view, arrays = make_view(problem), problem.arrays
        self._features_VF = np.clip(view.op_features, -MOST, MOST)
        self._able_VD, self._group_V = view.arrays.able, view.arrays.group
        edges, num_devices = problem.graph.edges, problem.num_devices
        self._num_producers_V = np.bincount(edges.dst, minlength=problem.num_ops)
        by_src = np.argsort(edges.src, kind="stable")
        self._consumers = np.split(
            edges.dst[by_src],
            np.cumsum(np.bincount(edges.src, minlength=problem.num_ops))[:-1],
        )
        regions = problem.graph.regions.of_edge[by_src]
        # Seconds from the producer's device to each other, of each edge: [E, D, D].
        self._move_EDD = np.array(
            [
                [
                    [
                        0.0 if src == dst else move_seconds(arrays, r, src, dst)
                        for dst in range(num_devices)
                    ]
                    for src in range(num_devices)
                ]
                for r in regions
            ]
        ).reshape(-1, num_devices, num_devices)
        self._first_edge_V = np.searchsorted(edges.src[by_src], np.arange(problem.num_ops))

    def _longest_s(self) -> float:
        """Seconds that no placement exceeds: all ops and transfers, one after another."""
        seconds_VD = np.where(self._able_VD, self.problem.arrays.op_seconds, 0.0)
        return float(seconds_VD.max(axis=1).sum() + self._move_EDD.max(axis=(1, 2)).sum())

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode (see gymnasium.Env)."""
        super().reset(seed=seed)
        num_ops, num_devices = self.problem.num_ops, self.problem.num_devices
        self._device_V = np.full(num_ops, -1)
        self._step_V = np.zeros(num_ops, np.int64)
        self._num_placed = 0
        self._waits_for_V = self._num_producers_V.copy()
        self._home_V = np.full(num_ops, -1)  # by the first op of each group
        self._ready_VD = np.zeros((num_ops, num_devices))
        self._finish_V, self._free_D = np.zeros(num_ops), np.zeros(num_devices)
        self._mask = self._allowed()
        return self._observe(), self._info()

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are allowed [V x D]; the name that sb3-contrib asks for."""
        return self._mask

    def _allowed(self) -> NDArray[np.bool_]:
        allowed_VD = self._able_VD & self._candidates()[:, None]
        home_V = self._home_V[self._group_V]
        elsewhere_VD = home_V[:, None] != np.arange(self.problem.num_devices)
        return (allowed_VD & ~((home_V >= 0)[:, None] & elsewhere_VD)).ravel()

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place an op (see gymnasium.Env)."""
        op, device = divmod(int(action), self.problem.num_devices)
        if not self.action_masks()[int(action)]:
            info = {**self._info(), "seconds": np.inf, "is_allowed": False}
            return self._observe(), self.failed, True, False, info
        self._place(op, device)
        if self._num_placed < self.problem.num_ops:
            return self._observe(), 0.0, False, False, self._info()
        placement = self.placement()
        seconds = float(
            self._session.measure(
                placement.device[None], placement.priority[None], rng=self.np_random
            ).cost_s()[0]
        )
        reward = -seconds / self.bound_s if np.isfinite(seconds) else self.failed
        return self._observe(), reward, True, False, {**self._info(), "seconds": seconds}

    def placement(self) -> Placement:
        """The placement of a finished episode; priorities are the order of decisions."""
        return Placement.make(self.problem, self._device_V, self._step_V)

    def close(self) -> None:
        """Close the system's session."""
        self._session.__exit__(None, None, None)

    def _candidates(self) -> NDArray[np.bool_]:
        """Whether each op [V] is a candidate: not placed, and all of its producers are."""
        return (self._waits_for_V == 0) & (self._device_V < 0)

    def _place(self, op: int, device: int) -> None:
        seconds = self.problem.arrays.op_seconds[op, device]
        finish = max(self._ready_VD[op, device], self._free_D[device]) + seconds
        self._device_V[op], self._step_V[op] = device, self._num_placed
        self._finish_V[op] = self._free_D[device] = finish
        self._home_V[self._group_V[op]] = device
        self._num_placed += 1
        first = self._first_edge_V[op]
        for i, consumer in enumerate(self._consumers[op]):
            self._waits_for_V[consumer] -= 1
            there_D = finish + self._move_EDD[first + i, device]
            np.maximum(self._ready_VD[consumer], there_D, out=self._ready_VD[consumer])
        self._mask = self._allowed()

    def _observe(self) -> Observation:
        is_candidate_V, placed_V = self._candidates(), self._device_V >= 0
        state_VF = np.stack([is_candidate_V, placed_V, self._scaled(self._finish_V)], axis=1)
        start_VD = np.maximum(self._ready_VD, self._free_D)
        finish_VD = np.where(
            is_candidate_V[:, None] & self._able_VD,
            start_VD + self.problem.arrays.op_seconds,
            0.0,
        )
        devices = np.arange(self.problem.num_devices)
        device_VD = self._device_V[:, None] == devices
        shares_D = device_VD.sum(axis=0) / self.problem.num_ops
        return {
            "ops": np.concatenate([self._features_VF, state_VF], axis=1, dtype=np.float32),
            "device": device_VD.astype(np.float32),
            "finish": self._scaled(finish_VD),
            "devices": np.stack([self._scaled(self._free_D), shares_D], axis=1).astype(np.float32),
        }

    def _scaled(self, seconds: NDArray[np.float64]) -> NDArray[np.float32]:
        return np.clip(seconds / self.bound_s, 0.0, MOST).astype(np.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks().astype(np.int8)}


def _problem(
    workload: str | Path | DataflowGraph | None, cluster: str | None, num_devices: int | None
) -> Problem:
    """Build the problem that names stand for, as ``doppler run workload=... cluster=...`` does."""
    if workload is None or cluster is None:
        raise InputError("PlacementEnv: needs workload and cluster, or problem")
    machine = preset(name=cluster, num_devices=num_devices)
    if isinstance(workload, DataflowGraph):
        return build(workload, machine)
    conf = resource("conf") / "workload" / f"{workload}.yaml"
    if not conf.exists():
        return build(load_graph(workload), machine)
    cfg = OmegaConf.create(
        {"cluster": {"num_devices": machine.num_devices}, "workload": OmegaConf.load(conf)}
    )
    if "program" not in cfg.workload:
        raise InputError(f"workload {workload!r}: has no program; give its graph")
    graph = load_workload(
        program=str(resource("workloads").parent / cfg.workload.program),
        decomposition=FewestElements(),
        parts=cfg.workload.parts,
        name=str(workload),
    )
    return build(graph, machine)


def register() -> None:
    """Register the id with Gymnasium, which calls this through an entry point of the package."""
    if ENVIRONMENT not in gymnasium.registry:
        gymnasium.register(ENVIRONMENT, entry_point=f"{__name__}:{PlacementEnv.__name__}")


register()  # gymnasium.make("doppler.env.placement_env:doppler/Placement-v0") imports this module
