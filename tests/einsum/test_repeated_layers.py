"""Texts with ``repeat``: a few of their layers are split for all."""

import numpy as np
import pytest

from doppler.baselines import Clustering, Judge
from doppler.cluster import preset
from doppler.einsum import Auto, load_program, lower
from doppler.einsum.decomposition.repeats import shorten
from doppler.einsum.differentiation import training_program
from doppler.problem import build
from doppler.simulator import WorkConserving


def llama(layers: int, *, training: bool = False):
    path = "workloads/llama_layer.einsum"
    program = load_program(path, params={"layers": layers}, training=training)
    return training_program(program, learning_rate=1e-3) if training else program


@pytest.mark.parametrize("training", [False, True])
def test_few_layers_stand_for_all(training):
    few, many = (llama(layers, training=training) for layers in (6, 12))
    short = shorten(many)
    assert len(short.program.nodes) == len(shorten(few).program.nodes)
    assert len(short.program.nodes) + len(short.stand_ins) == len(many.nodes)
    kept = {node.name: node for node in short.program.nodes}
    for node in many.nodes:
        stand_in = kept[short.stand_ins.get(node.name, node.name)]
        assert (stand_in.shape, stand_in.kind) == (node.shape, node.kind)


def test_what_is_not_repeated_stays():
    program = llama(2)
    assert shorten(program).program == program


def test_splits_of_few_layers_serve_all():
    cluster = preset(name="p100x4")
    judge = Judge(baseline=Clustering(evaluations=64), system=WorkConserving())
    program = llama(6)
    splits = Auto(cluster=cluster, judge=judge, grains=[1]).splits(program, 4)
    assert splits["q.3"] == splits["q.5"] and splits["z.2"] == splits["z.4"]
    problem = build(lower(program, splits), cluster)
    with WorkConserving().open(problem) as session:
        seconds = Clustering(evaluations=64).place(session, np.random.default_rng(0)).makespan_s
    whole_s = judge(build(lower(program, {}), cluster))
    assert seconds < whole_s / 2


def test_splits_fit_with_the_weights_of_all_layers():
    """What is fastest keeps weights several times: with a few layers there would be room."""
    path, sizes = "workloads/llama_layer.einsum", {"layers": 16, "seq": 1024, "heads": 32}
    program, roomy = load_program(path, params=sizes), preset(name="h100x8")
    judge = Judge(baseline=Clustering(evaluations=64), system=WorkConserving())
    small = roomy.with_memory(2e9)
    seconds = [
        judge(
            build(
                lower(program, Auto(cluster=one, judge=judge, grains=[1]).splits(program, 8)), small
            )
        )
        for one in (small, roomy)
    ]
    assert seconds[0] < 0.8 * seconds[1]
