"""What is kept of the best so far, and that a checkpoint may hold it."""

import numpy as np
import torch
from problems import random_placement, random_problem

from doppler.baselines import Clustering
from doppler.search import NOTHING, BestSoFar, Found
from doppler.simulator import WorkConserving

PROBLEM = random_problem(3, num_ops=30, num_devices=4, costs="distinct")


def is_plain(value) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(each) for key, each in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) in (int, float, str, type(None))


def test_a_checkpoint_that_executes_no_code_holds_it(tmp_path):
    rng = np.random.default_rng(0)
    with WorkConserving(noise=0.1).open(PROBLEM) as session:
        told = []
        best = BestSoFar(
            session=session,
            confirmations=2,
            seed=1,
            on_best=lambda placement, seconds: told.append(seconds),
        )
        assert is_plain(best.state())
        best.add(Clustering(evaluations=10).place(session, rng))
        best.confirm(random_placement(PROBLEM, 0))
        assert best.evaluations == session.evaluations == 14
        assert told == [best.seconds]
        state = best.state()
        assert is_plain(state)
        torch.save({"best": state, "rng": rng.bit_generator.state}, tmp_path / "x.ckpt")
        loaded = torch.load(tmp_path / "x.ckpt", weights_only=True)
        assert loaded["rng"] == rng.bit_generator.state
        again = BestSoFar(session=session, confirmations=2, seed=1)
        again.restore(loaded["best"])
        assert (again.evaluations, again.seconds) == (14, best.seconds)
        assert again.placement.device.tolist() == best.placement.device.tolist()
        assert again.placement.priority.tolist() == best.placement.priority.tolist()


def test_what_was_found_for_another_problem_is_nothing():
    found = Found(random_placement(PROBLEM, 0), 1.0)
    assert Found.restored(found.plain(), PROBLEM).seconds == 1.0
    other = random_problem(4, num_ops=30, num_devices=4)
    assert Found.restored(found.plain(), other) == NOTHING
