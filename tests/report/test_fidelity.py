"""Figures of fidelity and paired ratios against what they must be."""

import csv

import numpy as np
import pytest

from doppler.report.fidelity import FIDELITY_FILE, Fidelity, fidelity_verdict, write_fidelity
from doppler.report.paired import paired_ratios, read_paired, write_paired


def fidelity(simulated, measured, order=None) -> Fidelity:
    rounds = np.array(measured, float)
    if rounds.ndim == 1:
        rounds = rounds[:, None]
    if order is None:
        order = np.tile(np.arange(len(rounds)), (rounds.shape[1], 1))
    simulated_s = np.array(simulated, float)
    return Fidelity(label="model", simulated_s=simulated_s, rounds_s=rounds, order=order)


def test_ranks_may_agree_where_seconds_do_not():
    one = fidelity([1, 8, 27, 64], [1, 2, 3, 4])
    assert one.spearman == pytest.approx(1.0)
    assert 0.9 < one.pearson < 1.0
    assert one.mean_error == pytest.approx((0 + 3 + 8 + 15) / 4)
    assert one.ratio == pytest.approx((4 + 9) / 2)


def test_errors_are_relative_to_what_is_measured_and_do_not_cancel():
    assert fidelity([1.5, 5.0], [1.0, 10.0]).mean_error == pytest.approx(0.5)
    reversed_ = fidelity([3, 2, 1], [1, 2, 3])
    assert reversed_.spearman == reversed_.pearson == pytest.approx(-1.0)


def test_the_median_of_the_rounds_counts():
    one = fidelity([1, 2, 3], [[1, 1, 90], [2, 2, 0], [3, 5, 3]])
    assert one.measured_s.tolist() == [1, 2, 3]
    assert one.spearman == pytest.approx(1.0)


def test_the_even_rounds_rank_the_placements_more_or_less_as_the_odd_ones_do():
    assert fidelity([1, 2, 3], [1, 2, 3]).split_half is None
    assert fidelity([3, 2, 1], [[1, 1], [2, 2], [3, 3]]).split_half == pytest.approx(1.0)
    assert fidelity([1, 2, 3], [[1, 3], [2, 2], [3, 1]]).split_half == pytest.approx(-1.0)
    # Even rounds have the medians 2, 3, 1, odd ones 1, 2, 3.
    rounds = [[2, 1, 9, 1, 1], [3, 2, 3, 2, 3], [1, 3, 1, 3, 9]]
    assert fidelity([1, 2, 3], rounds).split_half == pytest.approx(-0.5)
    rng, true_s = np.random.default_rng(0), np.linspace(1, 2, 60)
    quiet, noisy_ = (true_s[:, None] * rng.lognormal(0, s, (60, 9)) for s in (0.01, 0.5))
    assert fidelity(true_s, quiet).split_half > 0.99 > 0.8 > fidelity(true_s, noisy_).split_half
    many = np.stack([true_s[:, None] * rng.lognormal(0, 0.5, (60, 9)) for _ in range(50)])
    found = [fidelity(true_s, rounds) for rounds in many]
    halves = np.mean([one.split_half for one in found])
    reached = np.mean([one.spearman for one in found])
    assert reached == pytest.approx(np.sqrt(2 * halves / (1 + halves)), abs=0.03)


def test_changes_of_the_speed_of_the_machine_are_taken_out():
    rng, true_s = np.random.default_rng(0), np.linspace(1, 1.2, 60)
    order = np.stack([rng.permutation(60) for _ in range(30)])
    # For 40 runs at a time whatever runs is slower by one factor.
    slowness = np.repeat(rng.lognormal(0, 0.2, 45), 40).reshape(30, 60)
    seconds = true_s[order] * slowness * rng.lognormal(0, 0.01, (30, 60))
    rounds = np.empty((60, 30))
    np.put_along_axis(rounds, order.T, seconds.T, axis=0)
    one = fidelity(true_s, rounds, order)
    plain = fidelity(true_s, np.median(rounds, axis=1))
    assert one.spearman > 0.97 > 0.9 > plain.spearman
    assert one.split_half > 0.95
    steady = fidelity(true_s, true_s[:, None] * np.ones((60, 9)))
    assert steady.measured_s == pytest.approx(true_s)


def test_the_report_has_a_row_per_placement_and_a_picture(tmp_path):
    before, after = fidelity([2, 4, 6], [1, 2, 3]), fidelity([1, 2, 3], [1, 2, 3])
    write_fidelity(tmp_path, [before, after], ["random", "random", "heuristic"])
    with (tmp_path / FIDELITY_FILE).open(newline="") as file:
        header, *rows = csv.reader(file)
    measured = ["measured_s", "measured_median_s", "measured_std_s"]
    assert header == ["placement", *measured, "model", "model"]
    assert rows == [
        ["random", "1", "1", "0", "2", "1"],
        ["random", "2", "2", "0", "4", "2"],
        ["heuristic", "3", "3", "0", "6", "3"],
    ]
    assert (tmp_path / "fidelity.png").read_bytes().startswith(b"\x89PNG")


def noisy(scale: float, rng: np.random.Generator, num: int = 31) -> np.ndarray:
    return scale * rng.lognormal(0.0, 0.05, num)


def test_the_interval_of_a_ratio_has_the_truth_in_it_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        seconds_MR = np.stack([noisy(0.9, rng), noisy(1.0, rng)])
        (ratio,) = paired_ratios(["fast", "slow"], seconds_MR, rng)
        assert ratio.low <= ratio.ratio <= ratio.high
        hits += ratio.low <= 0.9 <= ratio.high
    assert 0.90 <= hits / 200 <= 0.995


def test_the_first_method_stands_against_each_other_one(tmp_path):
    seconds_MR = np.array([[2.0, 2.0, 2.0], [4.0, 4.0, 400.0], [1.0, 1.0, 1.0]])
    ratios = paired_ratios(["a", "b", "c"], seconds_MR, np.random.default_rng(0))
    assert [(one.method, one.other, one.ratio) for one in ratios] == [
        ("a", "b", 0.5),
        ("a", "c", 2),
    ]
    assert (ratios[0].method_s, ratios[0].other_s, ratios[0].rounds) == (2.0, 4.0, 3)
    assert ratios[0].low < 0.5 == ratios[0].high, "rounds without the outlier all tell 0.5"
    write_paired(tmp_path / "paired.csv", ratios)
    assert read_paired(tmp_path / "paired.csv") == ratios


def test_an_interval_is_between_the_percentiles_of_resampled_medians():
    """By the binomial: of seven rounds, the second and the sixth; the first has only 1.0%."""
    seconds_R = np.array([4.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0])
    seconds_MR = np.stack([seconds_R, np.full(7, 2.0)])
    (one,) = paired_ratios(["a", "b"], seconds_MR, np.random.default_rng(0))
    assert (one.low, one.ratio, one.high) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("spearman", "halves", "said"),
    [
        (0.91, None, "ranks placements as this machine does (rank correlation 0.91)."),
        (0.75, None, "ranks placements roughly as this machine does (rank correlation 0.75)."),
        (0.2, None, "does not rank placements as this machine does (rank correlation 0.20):"),
        (0.91, 0.6, "(rank correlation 0.91, at most 0.87 with this noise)."),
        (0.91, -0.1, "(rank correlation 0.91)."),
    ],
)
def test_a_verdict_on_fidelity_follows_the_correlation(spearman, halves, said):
    assert said in fidelity_verdict({"spearman": spearman, "split_half": halves})
