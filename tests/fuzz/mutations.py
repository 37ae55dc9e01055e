"""Documents that are nearly right: one of ours, damaged in one place, or its bytes damaged."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st

# What a hurried or hostile hand puts in the place of a value.
JUNK = (
    None,
    True,
    False,
    -1,
    0,
    1,
    0.5,
    -0.5,
    1e308,
    2**63,
    10**400,
    "",
    "abc",
    "1",
    "-",
    "[/b]",
    "<b>",
    "ü\u202e",
    "a" * 300,
    "../../x",
    "${oc.env:HOME}",
    "$(touch witness)",
    [],
    [[]],
    [-1],
    [0.5],
    {},
    {"a": 1},
)
junk = st.sampled_from(JUNK) | st.floats(allow_nan=True) | st.integers() | st.text(max_size=20)
Path = tuple[str | int, ...]
Check = Callable[[Any], bool]

# Their keys are kinds of devices, kernels and the like: any is as good as another.
_NAMED_BY_USERS = ("free", "tables.*.kernels", "edges.*.given_seconds")


class Damaged(NamedTuple):
    """A text, and why no reader may accept it; None where one may."""

    text: str
    wrong: str | None


def places(document: Any, at: Path = ()) -> Iterator[Path]:
    """Of everything in a document, the whole first."""
    yield at
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        yield from places(value, (*at, key))


def pattern(at: Path) -> str:
    """``ops.*.flops``: the place, whichever of a list's entries it is in."""
    return ".".join("*" if isinstance(key, int) else key for key in at)


@st.composite
def damaged(draw: st.DrawFn, documents: list[Any], right: Mapping[str, Check]) -> Damaged:
    """A JSON document that is damaged in one place.

    Args:
        documents: right ones.
        right: by pattern of a place, whether a value may stand there. Where there is no such
            pattern any value may; keys beside those of `documents` never may.
    """
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    how = draw(
        st.sampled_from(["value", "value", "value", "gone", "key", "twice", "bytes", "deep"])
    )
    text = json.dumps(document)
    if how == "bytes":
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 8)))
        return Damaged(text[:begin] + draw(st.text(max_size=4)) + text[end:], None)
    every = list(places(document))[1:]
    at = draw(st.sampled_from(every))
    holder = document
    for key in at[:-1]:
        holder = holder[key]
    last = at[-1]
    if how == "value":
        value = draw(junk)
        holder[last] = value
        check = right.get(pattern(at))
        wrong = None if check is None or check(value) else f"{pattern(at)} = {value!r:.40}"
        return Damaged(json.dumps(document), wrong)
    if how == "gone":
        del holder[last]
        return Damaged(json.dumps(document), None)
    if how == "deep":
        holder[last] = "HERE"
        depth = draw(st.sampled_from([50, 5000, 200_000]))
        deep = "[" * depth + "]" * depth
        return Damaged(json.dumps(document).replace('"HERE"', deep), None)
    if not isinstance(holder, dict) or pattern(at[:-1]).startswith(_NAMED_BY_USERS):
        return Damaged(text, None)
    if how == "key":
        holder[f"{last}z"] = holder[last]
        return Damaged(json.dumps(document), f"the unknown key {pattern(at)}z")
    holder["TWICE"] = holder[last]
    twice = json.dumps(document).replace('"TWICE"', json.dumps(last))
    return Damaged(twice, f"{pattern(at)} twice")


def finite(value: Any) -> bool:
    """A number that is no truth value, not negative, and has an end.

    A bandwidth of 1e308 is one; of seconds a problem's pricing says that they are too many.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < float("inf")


def whole(value: Any) -> bool:
    """An integer that is no truth value and not negative; 2.0 may be one."""
    return finite(value) and value == int(value)


def text(value: Any) -> bool:
    """Some words."""
    return isinstance(value, str)


def bytes_of(original: bytes) -> st.SearchStrategy[bytes]:
    """A file's bytes, some of which are gone or others."""

    def change(at: tuple[int, int, bytes]) -> bytes:
        begin, num, other = at
        return original[:begin] + other + original[begin + num :]

    return st.tuples(
        st.integers(0, len(original)), st.integers(0, len(original)), st.binary(max_size=6)
    ).map(change)
