"""The work-conserving engine against recorded results of SimGrid (record.py produced them)."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from problems import cluster_of, graph_of

from doppler.cluster import SharedResource
from doppler.problem import Placement, Problem, build
from doppler.simulator import WorkConserving
from doppler.trace import check

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
CASES, HOSTED, SHARED = RECORDED["cases"], RECORDED["hosted"], RECORDED["shared"]


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


def shared_problem_of(case: dict) -> Problem:
    """Two switches on the ways of several pairs, and a memory that all ops read and write."""
    graph = case["graph"]
    devices = tuple(range(len(graph["speed"])))
    shared = [
        SharedResource(
            name=f"switch{i}",
            bytes_per_s=switch["bytes_per_s"],
            links=tuple((s, d) for s, d in switch["links"]),
        )
        for i, switch in enumerate(graph["switches"])
    ]
    rate = graph["memory_bytes_per_s"]
    shared.append(SharedResource(name="memory", bytes_per_s=rate, devices=devices))
    problem = problem_of(graph, shared=tuple(shared))
    ops = replace(problem.graph.ops, read_bytes=np.array(graph["moved"], dtype=float))
    ops = replace(ops, output_bytes=np.zeros(len(ops)))
    return build(replace(problem.graph, ops=ops), problem.cluster)


@pytest.mark.parametrize("number", range(len(SHARED)))
def test_sharing_equals_simgrid(number):
    case = SHARED[number]
    problem = shared_problem_of(case)
    placement = Placement.make(problem, case["graph"]["device"], case["graph"]["rank"])
    for result in case["results"]:
        with WorkConserving(contention="shared", queue=result["queue"]).open(problem) as session:
            trace = session.trace(placement)
        assert trace.op_start_s == pytest.approx(result["start"], rel=1e-6)
        assert trace.op_finish_s == pytest.approx(result["finish"], rel=1e-6)
        check(trace)


def test_a_dozen_graphs_that_share_are_recorded_and_sharing_slows_them_down():
    assert len(SHARED) == 12
    late = 0
    for case in SHARED:
        problem = shared_problem_of(case)
        placement = Placement.make(problem, case["graph"]["device"], case["graph"]["rank"])
        with WorkConserving(queue="fifo").open(problem) as session:
            alone_s = session.trace(placement).makespan_s
        late += max(case["results"][0]["finish"]) > alone_s * 1.02
    assert late >= 10, late


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
