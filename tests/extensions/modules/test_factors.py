"""Factors of dimensions: what reshapes and slices ask for, and what they cannot have."""

from doppler.extensions.modules.factors import Factors, Reshape, Same, Slice
from doppler.extensions.modules.views import spans_of


def test_a_split_spreads_to_every_tensor_that_has_the_dimension():
    """x[4, 6] W[6, 24] = y[4, 24], seen as [4, 2, 3, 4]; the bias has y's last dimension."""
    factors = Factors(
        {"x": (4, 6), "w": (6, 24), "y": (4, 24), "heads": (4, 2, 3, 4), "bias": (24,)},
        [
            *(Same(("x", 0), ("y", 0)), Same(("x", 1), ("w", 0)), Same(("w", 1), ("y", 1))),
            Same(("bias", 0), ("y", 1)),
            Reshape("view", (("y", 0), ("y", 1)), tuple(("heads", dim) for dim in range(4))),
        ],
    )
    assert factors.of("w", 1) == factors.of("bias", 0) == factors.of("y", 1) == (2, 3, 4)
    assert factors.of("w", 0) == (6,)
    assert [factors.of("heads", dim) for dim in range(4)] == [(4,), (2,), (3,), (4,)]
    assert not factors.refused


def test_merging_and_splitting_elsewhere_meet_in_common_factors():
    """[6, 8] -> 48 -> [2, 24]: 48 = 2 x 3 x 8."""
    factors = Factors(
        {"a": (6, 8), "b": (48,), "c": (2, 24), "one": (1,)},
        [
            Reshape("merge", (("a", 0), ("a", 1)), (("b", 0),)),
            Reshape("split", (("b", 0),), (("c", 0), ("c", 1))),
        ],
    )
    assert [factors.of("a", 0), factors.of("a", 1)] == [(2, 3), (8,)]
    assert factors.of("b", 0) == (2, 3, 8)
    assert [factors.of("c", 0), factors.of("c", 1)] == [(2,), (3, 8)]
    assert factors.of("one", 0) == ()


def test_what_has_no_common_factors_is_refused_and_leaves_nothing_behind():
    """24 = 4 x 6 cannot also be 3 x 8: the first stays, and the second changes nothing."""
    factors = Factors(
        {"a": (24,), "b": (4, 6), "c": (3, 8), "d": (8,)},
        [
            Same(("c", 1), ("d", 0)),
            Reshape("first", (("a", 0),), (("b", 0), ("b", 1))),
            Reshape("second", (("a", 0),), (("c", 0), ("c", 1))),
        ],
    )
    assert factors.refused == {"second"}
    assert factors.of("a", 0) == (4, 6)
    assert factors.of("c", 0) == (3,) and factors.of("d", 0) == (8,)


def test_a_conflict_far_away_refuses_the_reshape_that_causes_it():
    """12 = 2 x 6 = 3 x 4 of two dimensions that are the same through a third."""
    factors = Factors(
        {"a": (12,), "b": (12,), "two": (2, 6), "three": (3, 4)},
        [
            Same(("a", 0), ("b", 0)),
            Reshape("one", (("a", 0),), (("two", 0), ("two", 1))),
            Reshape("other", (("b", 0),), (("three", 0), ("three", 1))),
        ],
    )
    assert factors.refused == {"other"}
    assert factors.of("b", 0) == (2, 6)


def test_parts_share_the_factors_that_fit_into_them():
    """Queries, keys and values of one product are seen as 4 x 5: so is all of it, as 3 x 4 x 5."""
    ties = [Slice(("qkv", 0), (name, 0), 20 * k, 1) for k, name in enumerate("qkv")]
    ties.append(Reshape("heads", (("q", 0),), (("split", 0), ("split", 1))))
    factors = Factors({"qkv": (60,), "q": (20,), "k": (20,), "v": (20,), "split": (4, 5)}, ties)
    assert factors.of("qkv", 0) == (3, 4, 5)
    assert factors.of("k", 0) == (4, 5)


def test_every_other_element_is_a_factor():
    factors = Factors(
        {"x": (24,), "even": (12,), "split": (3, 4)},
        [
            Slice(("x", 0), ("even", 0), 0, 2),
            Reshape("view", (("even", 0),), (("split", 0), ("split", 1))),
        ],
    )
    assert factors.of("x", 0) == (3, 4, 2)
    assert factors.of("even", 0) == (3, 4)


def test_spans_are_the_elements_that_they_stand_for():
    """Against counting, for all slices of 2 x 3 x 2 elements."""
    for step in (1, 2, 3, 4, 6):
        for start in range(12):
            for num in range(1, (12 - start - 1) // step + 2):
                wanted = [start + step * i for i in range(num)]
                spans = spans_of((2, 3, 2), start, step, num)
                if spans is not None:
                    (a, b), (c, d), (e, f) = spans
                    found = [
                        6 * i + 2 * j + k
                        for i in range(a, b)
                        for j in range(c, d)
                        for k in range(e, f)
                    ]
                    assert found == wanted, (start, step, num, spans)
    assert spans_of((2, 3, 2), 6, 1, 6) == [(1, 2), (0, 3), (0, 2)]
    assert spans_of((2, 3, 2), 8, 1, 2) == [(1, 2), (1, 2), (0, 2)]
    assert spans_of((2, 3, 2), 1, 2, 6) == [(0, 2), (0, 3), (1, 2)]
    assert spans_of((2, 3, 2), 5, 1, 2) is None, "it begins in one half and ends in the other"
