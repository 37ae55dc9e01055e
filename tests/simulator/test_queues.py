"""The queues of the compiled engines against sorted lists."""

import numpy as np
import pytest

from doppler.simulator.queue_kernels import insert, remove
from doppler.simulator.state import NONE, TASK
from doppler.simulator.state_kernels import by_key
from doppler.support.compiled import compiled


@compiled
def run_queue(tasks, steps, order):
    """Do ``steps``: insert the task of that number, or, at -1, take the first one, into order."""
    first, num_taken = NONE, 0
    for step in steps:
        if step >= 0:
            first = insert(tasks, first, np.uint32(step), NONE, by_key)
        else:
            order[num_taken] = first
            num_taken += 1
            first = remove(tasks, first, NONE, by_key)
    return first


def make_tasks(rng: np.random.Generator, num: int, num_keys: int) -> np.ndarray:
    tasks = np.zeros(num, TASK)
    tasks["key"] = rng.integers(0, num_keys, num)
    tasks["number"] = rng.permutation(num)
    tasks["child"] = tasks["sibling"] = rng.integers(0, num, num)  # of a queue it was in before
    return tasks


def by_hand(tasks: np.ndarray, steps: list[int]) -> list[int]:
    waiting, taken = [], []
    for step in steps:
        if step >= 0:
            waiting.append(step)
        else:
            waiting.sort(key=lambda i: (tasks["key"][i], tasks["number"][i]))
            taken.append(waiting.pop(0))
    return taken


@pytest.mark.parametrize("num_keys", [1, 3, 1_000_000])
@pytest.mark.parametrize("take", [0.1, 0.5, 0.9])
def test_the_first_is_taken_first(num_keys, take):
    rng = np.random.default_rng(0)
    for num in (1, 2, 3, 10, 300):
        tasks = make_tasks(rng, num, num_keys)
        steps, num_waiting = [], 0
        for i in rng.permutation(num):
            steps.append(int(i))
            num_waiting += 1
            while num_waiting > 0 and rng.random() < take:
                steps.append(-1)
                num_waiting -= 1
        steps += [-1] * num_waiting
        order = np.zeros(num, dtype=np.int64)
        assert run_queue(tasks, np.array(steps), order) == NONE
        assert order.tolist() == by_hand(tasks, steps)


def test_a_task_can_be_in_a_queue_again():
    tasks = make_tasks(np.random.default_rng(1), 3, 3)
    steps = [2, 0, 1, -1, -1, -1] * 2
    order = np.zeros(6, dtype=np.int64)
    assert run_queue(tasks, np.array(steps), order) == NONE
    assert order.tolist() == by_hand(tasks, steps)
