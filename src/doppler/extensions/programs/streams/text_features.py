"""Features of a text: its shape, and the words that it shares with earlier texts.

Shape suffixes: N texts, S shape features, F features.
"""

import re
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppler.support.errors import InputError

_WORDS, _FEWEST = 2**14, 50
_PATTERNS = tuple(map(re.compile, (r"\d", r"[\\$^=+*/]", r"\?", r"\n", r"[A-Z]")))


def check_scikit_learn(what: str) -> None:
    """Refuse a choice that needs scikit-learn if that is not installed.

    Args:
        what: the choice, for the message.

    Raises:
        InputError: says how to install it.
    """
    from importlib.util import find_spec

    if find_spec("sklearn") is None:
        raise InputError(f"{what}: scikit-learn is not installed (pip install '.[streams]')")


def shape_features(text: str) -> list[float]:
    """Return the length of a text, and its numbers of digits, signs, questions, lines and capitals.

    Args:
        text: of any length.
    """
    counts = [len(pattern.findall(text)) for pattern in _PATTERNS]
    return [np.log1p(len(text)) / 5, *(np.log1p(count) / 5 for count in counts)]


@lru_cache
def _counter() -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    make: Any = HashingVectorizer  # its stubs know norm as a text alone
    return make(n_features=_WORDS, alternate_sign=False, norm=None)


@lru_cache(maxsize=100_000)
def words(text: str) -> Any:
    """Count the words of a text by their hash, as a sparse row.

    Args:
        text: of any length.
    """
    return _counter().transform([text])


class TextFeatures:
    """Shapes of texts, and the main directions of the words of the texts so far.

    `fit` computes these directions anew, without any outcome.

    Args:
        num: number of directions.
        seed: of their computation.

    Source: latent semantic analysis, Deerwester and others, 1990.
    """

    def __init__(self, num: int, seed: int) -> None:
        from sklearn.feature_extraction.text import TfidfTransformer

        self._num, self._seed = num, seed
        self._weigh: Any = TfidfTransformer(sublinear_tf=True)
        self._directions_WF: Any = None

    @property
    def size(self) -> int:
        """Number of features, F."""
        return 2 + len(_PATTERNS) + self._num

    def fit(self, counts: Any) -> None:
        """Compute the main directions of the words; too few texts change nothing.

        Args:
            counts: a sparse row of words for each text, see `words`.
        """
        from sklearn.decomposition import TruncatedSVD

        if counts.shape[0] < _FEWEST:
            return
        weighed = self._weigh.fit_transform(counts)
        num = min(self._num, counts.shape[0] - 1)
        found: Any = TruncatedSVD(num, n_iter=1, random_state=self._seed).fit(weighed)
        self._directions_WF = np.ascontiguousarray(found.components_.T) * self._weigh.idf_[:, None]

    def numbers(self, shapes_NS: NDArray[np.float64], counts: Any) -> NDArray[np.float64]:
        """Return the features [N, F] of texts.

        Args:
            shapes_NS: shape features of each text.
            counts: a sparse row of words for each text.
        """
        features_NF = np.zeros((len(shapes_NS), self.size))
        features_NF[:, 0] = 1.0
        features_NF[:, 1 : 1 + shapes_NS.shape[1]] = shapes_NS
        if self._directions_WF is not None:
            first = 1 + shapes_NS.shape[1]
            for n in range(len(shapes_NS)):  # row by row, because most calls have one text
                used = slice(counts.indptr[n], counts.indptr[n + 1])
                weight = np.log(counts.data[used]) + 1.0
                along = weight @ self._directions_WF[counts.indices[used]]
                length = max(float(np.linalg.norm(along)), 1e-12)
                features_NF[n, first : first + len(along)] = along / length
        return features_NF
