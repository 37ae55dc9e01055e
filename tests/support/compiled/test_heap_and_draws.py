"""The compiled heap and random draws against plain Python."""

import heapq

import numpy as np
import plain_draws
import pytest

from doppler.support.compiled.draws import jitter, uniform
from doppler.support.compiled.heap import ENTRY, heap_pop, heap_push


@pytest.mark.parametrize("seed", [0, 1, 2**61, 2**62 - 1])
def test_draws_equal_splitmix_in_plain_integers(seed):
    for counter in (0, 1, 2, 1000, -2, -77):
        assert uniform(seed, counter) == plain_draws.uniform(seed, counter)


def test_jitter_is_lognormal_with_mean_one():
    factors = [jitter(5, counter, 0.3) for counter in range(4000)]
    plain = [plain_draws.jitter(5, counter, 0.3) for counter in range(4000)]
    np.testing.assert_allclose(factors, plain, rtol=1e-13)
    assert np.mean(factors) == pytest.approx(1.0, abs=0.02)
    assert np.std(np.log(factors)) == pytest.approx(0.3, rel=0.05)


def test_heap_gives_entries_in_the_order_of_heapq():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        heap, base, plain = np.zeros(200, ENTRY), int(rng.integers(100)), []
        for task in rng.permutation(100).tolist():
            if plain and rng.random() < 0.4:
                assert heap_pop(heap, base, len(plain)) == heapq.heappop(plain)[1]
            key = float(rng.integers(10))
            heap_push(heap, base, len(plain), key, task)
            heapq.heappush(plain, (key, task))
        while plain:
            assert heap_pop(heap, base, len(plain)) == heapq.heappop(plain)[1]
