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
# Seconds, peaks and names of the problems below, of the version before hosts.
RECORDED = "8c873f9b3726603aa77d1488f59fcc5ffc398722349db54f057847a76288cfab"


def test_results_on_one_host_are_those_of_the_version_before_hosts():
    digest = hashlib.sha256()
    problems = [random_problem(seed) for seed in range(60)]
    problems += [restricted_problem(seed, num_ops=15, num_devices=3) for seed in range(20)]
    for seed, problem in enumerate(problems):
        placement = random_placement(problem, seed)
        digest.update(problem.hash.encode())
        sessions = [system.open(problem) for system in SYSTEMS]
        for session in (*sessions, open_estimates(problem)):
            measured = session.measure(placement.device[None], placement.priority[None])
            digest.update(np.ascontiguousarray(measured.seconds).tobytes())
            digest.update(np.ascontiguousarray(measured.peak_bytes).tobytes())
    assert digest.hexdigest() == RECORDED
