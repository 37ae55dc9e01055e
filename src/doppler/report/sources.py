"""What found a placement, in the words of tables."""

from collections import Counter
from collections.abc import Iterable

# A search notes what it began with, and behind commas what made it better (`doppler.search`).
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
    """What found a row's placement: ``policy + estimates``.

    Args:
        source: as a row has it, ``episode, estimates``; empty of a method that finds alone.
    """
    first, *later = source.split(", ")
    return " + ".join([_WORDS.get(first, first), *later])


def found_by_seeds(sources: Iterable[str]) -> str:
    """The same over several seeds: ``policy + estimates (3), clustering (2)``."""
    counts = Counter(map(found_by, sources)).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(f"{words} ({number})" for words, number in counts)
