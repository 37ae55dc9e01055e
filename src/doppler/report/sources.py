"""Describes in the words of tables which steps found a placement."""

from collections import Counter
from collections.abc import Iterable

# A source is the first step, then after commas the steps that improved it (`doppler.search`).
_WORDS = {
    "": "itself",
    "given": "the start",
    "episode": "policy",
    "greedy episode": "policy",
    "merged episode": "policy, in groups",
}
SOURCES_NOTE = (
    "found by: what made the placement, + what improved it (itself: the method of the row)"
)


def found_by(source: str) -> str:
    """Describe what found a row's placement: ``policy + estimates``.

    Args:
        source: of the row, such as ``episode, estimates``; empty if the method found it alone.
    """
    first, *later = source.split(", ")
    return " + ".join([_WORDS.get(first, first), *later])


def found_by_seeds(sources: Iterable[str]) -> str:
    """Describe what found the placements of seeds: ``policy + estimates (3), clustering (2)``.

    Args:
        sources: one per seed.
    """
    counts = Counter(map(found_by, sources)).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{words} ({number})" for words, number in counts)
