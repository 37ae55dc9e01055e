"""The time-aware decomposition, judged by a quick search."""

import math
from dataclasses import replace

import numpy as np
import pytest

from doppler.baselines import Judge
from doppler.baselines.clustering import Clustering
from doppler.cluster import preset
from doppler.einsum import Auto, FewestElements, load_program, lower, parse_program
from doppler.errors import InputError
from doppler.problem import build
from doppler.simulator import WorkConserving

JUDGE = Judge(baseline=Clustering(evaluations=64), system=WorkConserving())


def auto(cluster, judge=JUDGE, grains=(1, 2)):
    return Auto(cluster=cluster, judge=judge, grains=grains)


@pytest.mark.parametrize(
    ("name", "parts", "at_most"),
    [("chainmm", 16, 1.0), ("ffnn", 16, 1.0), ("llama_block", 4, 0.85), ("llama_layer", 4, 0.9)],
)
def test_it_is_never_worse_than_the_published_one(name, parts, at_most):
    program, cluster = (
        load_program(f"workloads/{name}.einsum"),
        preset(name="p100x4", num_devices=4),
    )
    ours = auto(cluster).splits(program, parts)
    theirs = FewestElements().splits(program, parts)
    seconds = [JUDGE(build(lower(program, splits), cluster)) for splits in (ours, theirs)]
    assert seconds[0] <= at_most * seconds[1]


def test_splits_follow_the_number_of_devices():
    text = "program p\ninput A[600, 600] f32\ninput B[600, 600] f32\n"
    text += "C[i, k] = sum(j) A[i, j] * B[j, k]\nD[i, k] = C[i, k] * C[i, k]\n"
    program = parse_program(text)
    for num_devices in (3, 5, 6):
        cluster = preset(name="p100x4", num_devices=num_devices)
        splits = auto(cluster, grains=(1,)).splits(program, parts=num_devices)
        assert math.prod(splits["C"]) == num_devices
        assert math.prod(splits["D"]) == num_devices


def test_rows_that_need_nothing_from_each_other_stay_apart():
    # Inputs lie everywhere: splitting rows moves nothing, splitting the sum moves partial results.
    text = "program p\ninput A[4096, 4096] f32\ninput B[4096, 64] f32\n"
    text += "C[i, k] = sum(j) A[i, j] * B[j, k]\nD[i, k] = exp(C[i, k])\n"
    cluster = preset(name="p100x4", num_devices=4)
    assert auto(cluster, grains=(1,)).splits(parse_program(text), 1) == {
        "C": (4, 1, 1),
        "D": (4, 1),
    }


def test_finer_splits_are_taken_where_coarse_ones_do_not_fit():
    text = "program p\ninput A[1024, 1024] f32\nB[i, j] = exp(A[i, j])\nC[i, j] = exp(B[i, j])\n"
    program, whole = parse_program(text), 1024 * 1024 * 4

    def cluster(memory_bytes):
        full = preset(name="p100x4", num_devices=2)
        devices = tuple(replace(one, memory_bytes=float(memory_bytes)) for one in full.devices)
        return replace(full, devices=devices)

    # On two devices, a half of A and of B and one result are alive at a time.
    sizes = []
    for memory in (8 * whole, 1.2 * whole):
        splits = auto(cluster(memory), grains=(1,)).splits(program, 1)
        sizes.append(math.prod(splits["B"]))
        assert np.isfinite(JUDGE(build(lower(program, splits), cluster(memory))))
    assert sizes[0] < sizes[1]
    with pytest.raises(InputError, match="no splits of 'p' that were tried fit in the memory of"):
        auto(cluster(0.1 * whole), grains=(1, 2)).splits(program, 1)


def test_slow_devices_are_counted_in():
    program = load_program("workloads/ffnn.einsum")
    cluster = preset(name="mixed", num_devices=4)
    splits = auto(cluster, grains=(1, 2)).splits(program, 16)
    ours, theirs = (
        JUDGE(build(lower(program, one), cluster))
        for one in (splits, FewestElements().splits(program, 16))
    )
    assert ours <= theirs
