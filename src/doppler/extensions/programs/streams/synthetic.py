"""workload=synthetic_stream: inputs for which the best policy is known."""

import numpy as np

from doppler.extensions.programs.streams.recording import stream_graph
from doppler.extensions.programs.streams.stream import Stream, StreamGraph
from doppler.support.options import Amount, Count, Seed, checked

_MIDDLE, _SPREAD = (0.55, 0.6), 0.35


@checked
def synthetic_stream(
    *,
    name: str = "synthetic_stream",
    num_inputs: Count = 10_000,
    num_features: Count = 5,
    modules: Count = 1,
    large: Amount = 1.0,
    seed: Seed = 0,
) -> StreamGraph:
    """Return a stream of random inputs: each backend's probability of being right is linear.

    `Stream.expected` holds these probabilities. The best policy runs the large model where it gains
    more than it costs, according to them.

    Args:
        name: of the graph.
        num_inputs: of the stream.
        num_features: of an input.
        modules: number of modules of the program, each with probabilities of its own.
        large: cost of the large model; the small one costs nothing.
        seed: of probabilities, features and outcomes.
    """
    rng = np.random.default_rng(seed)
    features_NF = rng.uniform(-1.0, 1.0, size=(num_inputs, num_features))
    slope_FMK = rng.normal(size=(num_features, modules, 2))
    slope_FMK *= _SPREAD / np.abs(slope_FMK).sum(axis=0)
    chance_NMK = np.array(_MIDDLE) + np.einsum("nf,fmk->nmk", features_NF, slope_FMK)
    chance_NMK = np.clip(chance_NMK, 0.0, 1.0)
    right_NMK = (rng.random(chance_NMK.shape) < chance_NMK).astype(np.float64)
    stream = Stream(
        backends=("small", "large"),
        right=right_NMK,
        cost=np.array([0.0, large]),
        features=features_NF,
        group=(features_NF[:, 0] > 0).astype(np.int64),
        expected=chance_NMK,
    )
    return stream_graph(name, [f"module{m}" for m in range(modules)], stream)
