"""Searches alternatives and devices together; controls fix the alternatives first.

Shape suffixes: V ops, K alternatives, D devices, C columns.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from doppler.baselines import Annealing, LowerBound, QueuedETF, lower_bound
from doppler.env import make_view
from doppler.extensions.programs.choices.system import ChoosingSystem, PricedChoices
from doppler.policies import Policy
from doppler.problem import Placement
from doppler.search import Evaluator, search_settings
from doppler.support.errors import InputError
from doppler.support.options import Amount, Count, Seed, checked

IntArray = NDArray[np.int64]
CONTROLS = ("cheapest", "best", "best_fixed", "smallest")


@dataclass(frozen=True, eq=False, kw_only=True)
class ChosenPlacement:
    """A placement that also chooses alternatives.

    Attributes:
        alternative: [V] of each op.
        device: [V] of each op.
        placement: on columns, see `PricedChoices`.
        makespan_s: of one execution, seconds.
        loss: sum over all ops.
        cost_s: makespan + price x loss, which the search minimises, seconds.
        bound: no choice has a lower cost.
        source: method that found the placement.
        controls: cost of each control, seconds, by name.
    """

    alternative: IntArray
    device: IntArray
    placement: Placement
    makespan_s: float
    loss: float
    cost_s: float
    bound: LowerBound
    source: str
    controls: dict[str, float]


@checked
def choose(
    choices: PricedChoices,
    *,
    price: Amount,
    evaluations: Count = 2_000,
    policy: Policy | None = None,
    system: ChoosingSystem | None = None,
    seed: Seed = 0,
) -> ChosenPlacement:
    """Choose an alternative and a device for each op of a graph.

    The search tries a list schedule of each control, then an episode of the policy over columns,
    and then anneals the best of them.

    Args:
        choices: alternatives and devices to choose from.
        price: seconds that a loss of 1 is worth.
        evaluations: number of executions in total.
        policy: places ops on columns. The weights in the package treat columns as devices.
        system: executes placements, with its own rules and price; made from ``choices`` and
            ``price`` unless given.
        seed: of all random choices.

    Raises:
        InputError: no placement that was tried fits in the devices' memory.
    """
    system = ChoosingSystem(choices=choices, price=price) if system is None else system
    rng, problem = np.random.default_rng(seed), choices.problem
    controls: dict[str, float] = {}
    with system.open(problem) as session:
        best = Evaluator(session=session, confirmations=0, seed=seed)
        for name in CONTROLS:
            placement = control(choices, name, system.price, rng)
            rows = placement.device[None], placement.priority[None]
            controls[name] = float(best.measure(*rows, rng, [name]).cost_s()[0])
        if policy is not None:
            drawn = policy.rollout(make_view(problem), 1, 0.0, rng).placements()
            best.measure(*drawn, rng, ["policy"])
        left = evaluations - best.evaluations
        if left > 0:
            anneal = search_settings().anneal
            annealing = Annealing(
                evaluations=left, order=True, starts=1, draws=1, hot=anneal.hot, cold=anneal.cold
            )
            result = annealing.place(session, rng, initial=best.placement)
            best.add(result, f"{best.found.source}, annealing")
    return _told(choices, best, system.price, controls)


def _told(
    choices: PricedChoices, best: Evaluator, price: float, controls: dict[str, float]
) -> ChosenPlacement:
    if best.placement is None:
        most = choices.backend_bytes.max()
        raise InputError(
            f"graph {choices.graph.name!r}: none of {best.evaluations} choices fits in the memory "
            f"of {choices.cluster.name}; a backend holds up to {most:g} bytes"
        )
    column_V = best.placement.device
    alternative_V, device_V = choices.chosen(column_V)
    loss = choices.total_loss(column_V)
    return ChosenPlacement(
        alternative=alternative_V,
        device=device_V,
        placement=best.placement,
        makespan_s=best.seconds - price * loss,
        loss=loss,
        cost_s=best.seconds,
        bound=bound_of(choices, price),
        source=best.found.source,
        controls=controls,
    )


def bound_of(choices: PricedChoices, price: float) -> LowerBound:
    """Return a lower bound of the cost of all choices: fastest alternatives, and least loss.

    Args:
        choices: alternatives and devices to choose from.
        price: seconds that a loss of 1 is worth.
    """
    fast = lower_bound(choices.fastest)
    loss = float(choices.loss.min(axis=1).sum())
    return LowerBound(seconds=fast.seconds + price * loss, name=f"{fast.name}, least loss")


def control(choices: PricedChoices, name: str, price: float, rng: np.random.Generator) -> Placement:
    """Choose alternatives op by op with a rule, and devices with a list scheduler.

    Args:
        choices: alternatives and devices to choose from.
        name: the rule. ``cheapest`` takes the fewest seconds on any device, ``best`` the least
            loss, ``best_fixed`` the least seconds + price x loss, ``smallest`` the least memory.
            Among equals it takes the fewest seconds.
        price: seconds that a loss of 1 is worth.
        rng: breaks ties of the list scheduler.
    """
    num_ops, num = choices.graph.num_ops, choices.num_devices
    seconds_VKD = choices.problem.arrays.op_seconds.reshape(num_ops, -1, num)
    fastest_VK = seconds_VKD.min(axis=2)
    loss_VK = choices.loss.reshape(num_ops, -1, num).min(axis=2)
    # The seconds of an alternative that cannot run are inf already.
    lost_VK = price * np.where(np.isfinite(loss_VK), loss_VK, 0.0)
    bytes_VK = np.append(choices.backend_bytes, 0.0)[choices.backend]  # 0 where it is -1
    cost_VK = {
        "cheapest": fastest_VK,
        "best": loss_VK,
        "best_fixed": fastest_VK + lost_VK,
        "smallest": np.where(np.isfinite(fastest_VK), bytes_VK, np.inf),
    }[name]
    least_VK = cost_VK <= cost_VK.min(axis=1, keepdims=True)
    alternative_V = np.where(least_VK, fastest_VK, np.inf).argmin(axis=1)
    alternative_VD = np.repeat(alternative_V[:, None], num, axis=1)
    able_VKD = np.isfinite(seconds_VKD)
    fixed, every_V = choices.fastest, np.arange(num_ops)
    # A group whose alternatives have no common device takes the best alternative on each device.
    if fixed.has_groups:
        able_VD = np.ones((num_ops, num), dtype=bool)
        group_V = fixed.arrays.group
        np.logical_and.at(able_VD, group_V, able_VKD[every_V, alternative_V])
        apart_V = ~able_VD[group_V].any(axis=1)
        cost_VKD = np.where(able_VKD, cost_VK[:, :, None], np.inf)
        alternative_VD[apart_V] = cost_VKD.argmin(axis=1)[apart_V]
    chosen_VD = np.take_along_axis(seconds_VKD, alternative_VD[:, None], axis=1)[:, 0]
    fixed = replace(fixed, arrays=fixed.arrays._replace(op_seconds=np.ascontiguousarray(chosen_VD)))
    ops, devices = QueuedETF(evaluations=1).decide(fixed, 1, rng)
    device_V, priority_V = np.empty((2, num_ops), np.int64)
    device_V[ops[0]], priority_V[ops[0]] = devices[0], np.arange(num_ops)
    taken_V = alternative_VD[every_V, device_V]
    return Placement.make(choices.problem, taken_V * num + device_V, priority_V)
