"""Tables of measured costs: which kernels share an entry, and what files keep."""

import json
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from problems import cluster_of, graph_of

from doppler.cluster import SharedResource
from doppler.graph import DataflowGraph, KernelSpec
from doppler.graph.dataflow import Edges, Inputs, Ops
from doppler.problem import build
from doppler.problem.costs import CostTable, kernel_key, load_costs, save_costs
from doppler.support.errors import InputError

PAIR = ("cpu:0", "cpu:1")


def spec(expression: str, *shapes, output=(2, 2), dtype="f32") -> KernelSpec:
    return KernelSpec(
        expression=expression,
        operand_shapes=shapes,
        operand_dtypes=(dtype,) * len(shapes),
        output_shape=output,
        dtype=dtype,
    )


PRODUCT = spec("ij,jk->ik", (2, 3), (3, 2))


def table(kernels=None, devices=PAIR, latency=np.nan, slope=np.nan) -> CostTable:
    num = len(devices)
    links = [np.where(np.eye(num) == 1, np.nan, value) for value in (latency, slope)]
    return CostTable(
        devices=devices,
        kernels={key: np.array(row, dtype=float) for key, row in (kernels or {}).items()},
        latency_s=links[0],
        seconds_per_byte=links[1],
    )


@pytest.mark.parametrize(
    "same",
    [
        spec("ab,bc->ac", (2, 3), (3, 2)),
        spec("zy,yx->zx", (2, 3), (3, 2)),
    ],
)
def test_kernels_that_differ_by_the_names_of_indices_share_an_entry(same):
    assert kernel_key(same) == kernel_key(PRODUCT)


@pytest.mark.parametrize(
    "other",
    [
        spec("ij,kj->ik", (2, 3), (3, 2)),
        spec("ij,jk->ki", (2, 3), (3, 2)),
        spec("ij,jk->ik", (2, 4), (4, 2)),
        spec("ij,jk->ik", (2, 3), (3, 2), dtype="f16"),
        spec("ij,jk->ik:mul(x0,x1):add", (2, 3), (3, 2)),
        spec("ij,jk->ik:mul(x0,x1):max", (2, 3), (3, 2)),
    ],
)
def test_kernels_that_do_other_work_do_not(other):
    assert kernel_key(other) != kernel_key(PRODUCT)


def test_scalar_functions_and_words_are_not_taken_for_indices():
    assert "exp(x0)" in kernel_key(spec("ij->i:exp(x0):max", (2, 3), output=(2,)))
    assert kernel_key(spec("formation:add", (2, 2))) != kernel_key(spec("formation:max", (2, 2)))


def test_a_file_keeps_the_tables_of_several_sets_of_devices(tmp_path):
    path = tmp_path / "costs/host.json"
    save_costs(path, table({"a": [1.0, 2.0]}, latency=0.5, slope=0.25), replace=False)
    save_costs(path, table({"a": [7.0] * 3}, devices=("x", "y", "z")), replace=False)
    pair, triple = load_costs(path, PAIR), load_costs(path, ("x", "y", "z"))
    assert pair.kernels["a"].tolist() == [1.0, 2.0]
    assert (pair.latency_s[0, 1], pair.seconds_per_byte[1, 0]) == (0.5, 0.25)
    assert np.isnan(pair.latency_s[0, 0])
    assert pair.has_links and not triple.has_links
    assert triple.kernels["a"].tolist() == [7.0] * 3
    assert load_costs(path, ("other",)).kernels == {}
    json.loads(path.read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(("replace", "kept"), [(False, 1.0), (True, 9.0)])
def test_what_a_file_has_stays_unless_it_is_to_be_replaced(tmp_path, replace, kept):
    path = tmp_path / "host.json"
    save_costs(path, table({"a": [1.0, np.nan]}, latency=1.0, slope=1.0), replace=False)
    new = table({"a": [9.0, 3.0], "b": [4.0, 5.0]}, latency=9.0, slope=9.0)
    merged = save_costs(path, new, replace=replace)
    assert merged.kernels["a"].tolist() == [kept, 3.0], "gaps are filled"
    assert merged.kernels["b"].tolist() == [4.0, 5.0]
    assert merged.latency_s[0, 1] == kept
    assert load_costs(path, PAIR).kernels["a"].tolist() == [kept, 3.0]


def _save_one(path: Path, number: int) -> None:
    save_costs(path, table({f"kernel{number}": [1.0, 2.0]}), replace=False)


def test_processes_that_save_at_one_time_lose_nothing(tmp_path):
    path, context = tmp_path / "host.json", get_context("fork")
    processes = [context.Process(target=_save_one, args=(path, i)) for i in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(load_costs(path, PAIR).kernels) == 8


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"format": "other", "version": 1, "tables": []}',
        '{"format": "doppler-costs", "version": 1, "tables": [{"devices": ["a"]}]}',
        '{"format": "doppler-costs", "version": 1, "tables": [{"devices": ["a"], "kernels": '
        '{"k": [1, 2]}, "latency_s": [[null]], "seconds_per_byte": [[null]]}]}',
        '{"format": "doppler-costs", "version": 1, "tables": [{"devices": ["a"], "kernels": '
        '{"k": [-1]}, "latency_s": [[null]], "seconds_per_byte": [[null]]}]}',
    ],
)
def test_a_file_that_is_none_of_costs_is_named_and_not_overwritten(tmp_path, text):
    path = tmp_path / "host.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"host\.json:"):
        load_costs(path, PAIR)
    with pytest.raises(InputError, match=r"host\.json"):
        save_costs(path, table(), replace=True)
    assert path.read_text() == text
    with pytest.raises(InputError, match=r"none\.json: No such file"):
        load_costs(tmp_path / "none.json", PAIR)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/host\.json: (Not a directory|File exists)"):
        save_costs(tmp_path / "file/host.json", table(), replace=True)


def executable(*kernels: KernelSpec) -> DataflowGraph:
    """Ops without edges, which say what they compute."""
    return DataflowGraph(
        name="kernels",
        ops=Ops.make(flops=[8.0] * len(kernels), kernels=kernels),
        edges=Edges.make(src=[], dst=[], bytes=[]),
        inputs=Inputs.make(),
    )


def test_measured_seconds_replace_modelled_ones_and_the_rest_is_modelled():
    graph = executable(PRODUCT, spec("ij->ij:exp(x0)", (2, 2)))
    cluster = cluster_of([1.0, 2.0], latency_s=3.0, bytes_per_s=4.0)
    devices = tuple(device.name for device in cluster.devices)
    modelled = build(graph, cluster)
    costs = table({kernel_key(PRODUCT): [0.5, np.nan]}, devices=devices, latency=1.0)
    problem = build(graph, cluster, costs)
    assert modelled.arrays.op_seconds.tolist() == [[8.0, 4.0], [8.0, 4.0]]
    assert problem.arrays.op_seconds.tolist() == [[0.5, 4.0], [8.0, 4.0]]
    assert problem.is_measured().tolist() == [[True, False], [False, False]]
    assert not modelled.is_measured().any()
    assert (problem.arrays.latency_s[0, 1], problem.arrays.latency_s[1, 1]) == (1.0, 0.0)
    assert problem.arrays.seconds_per_size[0, 1] == 0.25, "no bandwidth was measured"
    assert problem.hash != modelled.hash


def test_devices_that_cannot_run_an_op_do_not_begin_to_by_being_measured():
    cluster = cluster_of([1.0, 2.0], unsupported_kinds=[["op"], []])
    devices = tuple(device.name for device in cluster.devices)
    costs = table({kernel_key(PRODUCT): [0.5, 0.5]}, devices=devices)
    problem = build(executable(PRODUCT), cluster, costs)
    assert problem.arrays.op_seconds.tolist() == [[np.inf, 0.5]]
    assert problem.is_measured().tolist() == [[False, True]]


def test_costs_of_other_devices_are_refused():
    with pytest.raises(InputError, match="measured on cpu:0, cpu:1 are not its"):
        build(graph_of([1.0]), cluster_of([1.0, 2.0]), table())


def test_demands_are_kept_and_replace_what_is_modelled(tmp_path):
    demands = {kernel_key(PRODUCT): np.array([[0.25, 0.5], [np.nan, np.nan]])}
    measured = replace(table({kernel_key(PRODUCT): [1.0, 2.0]}), demands=demands)
    path = tmp_path / "costs.json"
    save_costs(path, measured, replace=False)
    found = load_costs(path, PAIR)
    np.testing.assert_array_equal(found.demand(PRODUCT), demands[kernel_key(PRODUCT)])
    assert np.isnan(found.demand(None)).all()
    shared = (
        SharedResource(name="processors", devices=(0, 1)),
        SharedResource(name="memory", bytes_per_s=8.0, devices=(0, 1)),
    )
    cluster = cluster_of([1, 1], shared=shared)
    devices = [replace(one, name=name) for one, name in zip(cluster.devices, PAIR, strict=True)]
    cluster = replace(cluster, devices=tuple(devices))
    graph = DataflowGraph(
        name="one",
        ops=Ops.make(flops=[6], read_bytes=[4], output_bytes=[4], kernels=[PRODUCT]),
        edges=Edges.make(src=[], dst=[], bytes=[]),
        inputs=Inputs.make(),
    )
    sharing = build(graph, cluster, found).sharing
    # The second is modelled: 6 flop at 1 flop/s, and 8 bytes, in the 2 s that were measured.
    assert sharing.op_processors.tolist() == [[0.25, 1.0]]
    assert sharing.op_bytes.tolist() == [[0.5, 0.5]]


def test_a_share_above_one_is_refused(tmp_path):
    path = tmp_path / "costs.json"
    save_costs(path, replace(table({"a": [1, 2]}), demands={"a": np.ones((2, 2))}), replace=False)
    content = json.loads(path.read_text())
    content["tables"][0]["demands"]["a"][1][0] = 1.5
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"demands\['a'\]: must be two lists of shares"):
        load_costs(path, PAIR)
