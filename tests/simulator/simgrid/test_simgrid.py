"""The work-conserving engine against recorded results of SimGrid (record.py produced them)."""

import json
from pathlib import Path

import numpy as np
import pytest
from problems import cluster_of, graph_of

from doppler.problem import Placement, build
from doppler.simulator import WorkConserving
from doppler.trace import check

CASES = json.loads((Path(__file__).parent / "recorded.json").read_text())["cases"]


def test_ten_graphs_are_recorded_and_the_rules_matter_to_them():
    assert len(CASES) >= 10
    differing = {"contention": 0, "queue": 0, "streams": 0}
    for case in CASES:
        free, fifo, priority, two_streams = case["results"]
        differing["contention"] += free["finish"] != fifo["finish"]
        differing["queue"] += priority["finish"] != fifo["finish"]
        differing["streams"] += two_streams["finish"] != fifo["finish"]
    assert min(differing.values()) >= 6, differing


@pytest.mark.parametrize("number", range(len(CASES)))
def test_engine_equals_simgrid(number):
    graph = CASES[number]["graph"]
    problem = build(
        graph_of(graph["flops"], graph["edges"]),
        cluster_of(
            graph["speed"],
            latency_s=np.array(graph["latency_s"]),
            bytes_per_s=np.array(graph["bytes_per_s"]),
        ),
    )
    placement = Placement.make(problem, graph["device"], graph["rank"])
    for result in CASES[number]["results"]:
        system = WorkConserving(
            contention=result["contention"], queue=result["queue"], streams=result["streams"]
        )
        with system.open(problem) as session:
            trace = session.trace(placement)
        assert trace.op_start_s == pytest.approx(result["start"], rel=1e-6), system
        assert trace.op_finish_s == pytest.approx(result["finish"], rel=1e-6), system
        check(trace)
