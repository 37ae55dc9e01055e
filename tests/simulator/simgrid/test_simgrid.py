"""The work-conserving engine against recorded results of SimGrid (record.py produced them)."""

import json
from pathlib import Path

import numpy as np
import pytest
from problems import cluster_of, graph_of

from doppler.problem import Placement, Problem, build
from doppler.simulator import WorkConserving
from doppler.trace import check

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
CASES, HOSTED = RECORDED["cases"], RECORDED["hosted"]


def test_ten_graphs_are_recorded_and_the_rules_matter_to_them():
    assert len(CASES) >= 10
    differing = {"contention": 0, "queue": 0, "streams": 0}
    for case in CASES:
        free, fifo, priority, two_streams = case["results"]
        differing["contention"] += free["finish"] != fifo["finish"]
        differing["queue"] += priority["finish"] != fifo["finish"]
        differing["streams"] += two_streams["finish"] != fifo["finish"]
    assert min(differing.values()) >= 6, differing


def problem_of(graph: dict, **hosts) -> Problem:
    cluster = cluster_of(
        graph["speed"],
        latency_s=np.array(graph["latency_s"]),
        bytes_per_s=np.array(graph["bytes_per_s"]),
        **hosts,
    )
    return build(graph_of(graph["flops"], graph["edges"]), cluster)


def hosts_of(graph: dict) -> dict:
    """As `Cluster` takes them; none where there is one."""
    keys = ("hosts", "nics", "nic_bytes_per_s", "nic_latency_s")
    return {key: graph[key] for key in keys if key in graph}


def test_a_dozen_graphs_between_hosts_are_recorded_and_interfaces_matter_to_them():
    assert len(HOSTED) == 12
    assert {case["graph"]["nics"] for case in HOSTED} == {1, 2}
    late = 0
    for case in HOSTED:
        graph = case["graph"]
        problem = problem_of(graph, **{**hosts_of(graph), "nics": 60})
        placement = Placement.make(problem, graph["device"], graph["rank"])
        with WorkConserving(queue="fifo").open(problem) as session:
            free_s = session.trace(placement).op_finish_s
        late += bool(np.any(np.array(case["results"][0]["finish"]) > free_s * (1 + 1e-6)))
    assert late >= 6, late


@pytest.mark.parametrize("number", range(len(CASES + HOSTED)))
def test_engine_equals_simgrid(number):
    case = (CASES + HOSTED)[number]
    graph = case["graph"]
    problem = problem_of(graph, **hosts_of(graph))
    placement = Placement.make(problem, graph["device"], graph["rank"])
    for result in case["results"]:
        system = WorkConserving(
            contention=result["contention"], queue=result["queue"], streams=result["streams"]
        )
        with system.open(problem) as session:
            trace = session.trace(placement)
        assert trace.op_start_s == pytest.approx(result["start"], rel=1e-6), system
        assert trace.op_finish_s == pytest.approx(result["finish"], rel=1e-6), system
        check(trace)
