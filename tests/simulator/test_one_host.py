"""Clusters of one host: what is simulated, estimated and named is what it was before hosts."""

import hashlib

import numpy as np
from problems import random_placement, random_problem, restricted_problem

from doppler.simulator import BulkSynchronous, Published, WorkConserving
from doppler.simulator.estimates import open_estimates

SYSTEMS = (
    *(WorkConserving(contention=rule, queue="priority") for rule in ("none", "fifo", "engines")),
    *(WorkConserving(contention="fifo", queue=queue) for queue in ("fifo", "strict")),
    WorkConserving(contention="engines", queue="fifo", streams=2),
    Published(),
    BulkSynchronous(),
)
# Seconds, peaks but those of estimates, and names of the problems below, before there were hosts.
RECORDED = "3e5c01bae9b13d652b8c2ebd8f9831107c913f4929c2a637f9dd843c6bb9dae3"


def test_results_on_one_host_are_those_of_the_version_before_hosts():
    digest = hashlib.sha256()
    problems = [random_problem(seed) for seed in range(60)]
    problems += [restricted_problem(seed, num_ops=15, num_devices=3) for seed in range(20)]
    for seed, problem in enumerate(problems):
        placement = random_placement(problem, seed)
        digest.update(problem.hash.encode())
        estimates = open_estimates(problem)
        for session in (*(system.open(problem) for system in SYSTEMS), estimates):
            measured = session.measure(placement.device[None], placement.priority[None])
            digest.update(np.ascontiguousarray(measured.seconds).tobytes())
            if session is not estimates:  # peaks of estimates have become those of their schedule
                digest.update(np.ascontiguousarray(measured.peak_bytes).tobytes())
    assert digest.hexdigest() == RECORDED
