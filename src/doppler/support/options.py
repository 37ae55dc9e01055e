"""Describes by annotations what values options may have, for configurations and Python callers.

``streams: Annotated[int, within(1, 60)]`` is the only description of an option. `fault` says why a
value does not fit an annotation, `checked` makes a class or function refuse such values, and
experiment/checking.py checks a whole configuration by the signatures of the functions it names.

pydantic cannot replace `fault`: it refuses NumPy's numbers, and classes that implement a protocol
without naming it, unless each annotation is rewritten first, which is as much work.
"""

import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from doppler.support.errors import InputError

# Counts and seeds must fit into the integers of compiled code and torch.
MOST = 2**62
# File names have at most 255 bytes, including suffixes.
_LONGEST_NAME = 150
_CONTAINERS = (Mapping, dict, Sequence, list, tuple)
# Largest number of characters of a value in a message.
_SHOWN = 60


@dataclass(frozen=True)
class Rule:
    """A condition on a value, in addition to its type.

    Attributes:
        says: the words after "must be".
        holds: returns whether a value meets the condition.
    """

    says: str
    holds: Callable[[Any], bool]


def at_least(least: int) -> Rule:
    """Return a rule for whole numbers with a lower bound.

    Args:
        least: smallest allowed number.
    """
    return Rule(f"a whole number of at least {least}", lambda value: value >= least)


def at_most(most: int) -> Rule:
    """Return a rule for whole numbers with an upper bound.

    Args:
        most: largest allowed number.
    """
    return Rule(f"at most {most:,}", lambda value: value <= most)


def within(least: float, most: float) -> Rule:
    """Return a rule for numbers between two bounds, which are allowed themselves.

    Args:
        least: smallest allowed number; an integer if only whole numbers are allowed.
        most: largest allowed number.
    """
    kind = "whole number" if isinstance(least, int) else "number"
    return Rule(
        f"a {kind} from {least:,.10g} to {most:,.10g}", lambda value: least <= value <= most
    )


def one_of(choices: Sequence[str] | Mapping[str, Any]) -> Rule:
    """Return a rule for texts with a list of choices.

    Args:
        choices: allowed texts.
    """
    return Rule(f"one of {', '.join(choices)}", lambda value: value in choices)


_FITS_64_BITS = Rule("at most 2**62", lambda value: value <= MOST)
_FOR_A_FILE = Rule(
    f"a name for a directory, without / and of at most {_LONGEST_NAME} bytes",
    lambda name: (
        0 < len(name.encode(errors="replace")) <= _LONGEST_NAME
        and name.isprintable()
        and "/" not in name
        and not name.startswith(".")
    ),
)

Count = Annotated[int, at_least(1), _FITS_64_BITS]
Natural = Annotated[int, at_least(0), _FITS_64_BITS]
Seed = Annotated[int, Rule("a whole number from 0 to 2**63 - 1", lambda n: 0 <= n < 2**63)]
# Number of things that are in memory at the same time.
Batch = Annotated[int, at_least(1), at_most(10**6)]
BatchOrNone = Annotated[int, at_least(0), at_most(10**6)]
# Sizes and numbers of layers.
Width = Annotated[int, at_least(1), at_most(4096)]
WidthOrNone = Annotated[int, at_least(0), at_most(4096)]
Depth = Annotated[int, at_least(1), at_most(100)]
DepthOrNone = Annotated[int, at_least(0), at_most(100)]
# Devices of a cluster, which has a link for each pair of them.
Devices = Annotated[int, at_least(1), at_most(1024)]
Share = Annotated[float, within(0.0, 1.0)]
Amount = Annotated[float, Rule("a number of at least 0", lambda value: value >= 0)]
Positive = Annotated[float, Rule("a number above 0", lambda value: value > 0)]
# Threads cannot wait for longer than about 9e9 s.
Seconds = Annotated[float, within(0.0, 1e9)]
PositiveSeconds = Annotated[
    float, Rule("a number above 0, at most 1e9", lambda value: 0 < value <= 1e9)
]
# The first and the last learning rate; with 0 nothing is learned.
Rates = Annotated[
    Sequence[Amount],
    Rule("two numbers of at least 0, [first, last]", lambda rates: len(rates) == 2),
    # Adam computes steps in 32 bits.
    Rule("two numbers of at most 1e36", lambda rates: max(rates) <= 1e36),
]
Name = Annotated[str, _FOR_A_FILE]
# A path, or a word in place of one, such as `auto`.
FilePath = Annotated[str, Rule("a path", lambda path: path != "" and "\0" not in path)]


def fault(kind: Any, value: Any) -> str | None:
    """Return why a value does not fit an annotation.

    Whole numbers, including NumPy's, are numbers. True, false, infinity and NaN are not. An object
    fits a protocol if it has at least one of the protocol's methods, because its author then meant
    to implement it.

    Args:
        kind: an annotation: int, float, bool, str, None, a union, Literal, Sequence, tuple,
            Mapping, a class, a protocol, or any of these Annotated with Rules.
        value: of any type.

    Returns:
        "must be ..., got ...", or None if it fits.
    """
    lacking = _lacking(kind, value)
    return None if lacking is None else f"must be {lacking}, got {shown(value)}"


def check(key: str, kind: Any, value: Any) -> None:
    """Refuse a value that does not fit an annotation.

    Args:
        key: names the value in the message.
        kind: see `fault`.
        value: see `fault`.

    Raises:
        InputError: "KEY: must be ..., got ...".
    """
    if line := fault(kind, value):
        raise InputError(f"{key}: {line}")


_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def checked(target: _Callable) -> _Callable:
    """Make a class or function refuse arguments that do not fit its annotations.

    Args:
        target: class or function with annotations.
    """
    function: Any = target.__init__ if inspect.isclass(target) else target
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        known, given = parameters(target).known, {}
        with suppress(TypeError):  # too many arguments: Python's own message names the function
            given = signature.bind_partial(*args, **kwargs).arguments
        for key, value in given.items():
            if key in known:
                check(f"{target.__name__}.{key}", known[key], value)
        return function(*args, **kwargs)

    result: Any = wrapper
    if inspect.isclass(target):
        result = target
        result.__init__ = wrapper
    return result


@dataclass(frozen=True)
class Parameters:
    """The keyword arguments of a class or function.

    Attributes:
        known: annotations by name.
        required: names without a default.
        takes_any: whether it also takes other keywords.
    """

    known: Mapping[str, Any]
    required: frozenset[str]
    takes_any: bool


@functools.cache
def parameters(target: Callable[..., Any]) -> Parameters:
    """Return the keyword arguments of a class or function, or the keys of a TypedDict.

    Args:
        target: class, function or TypedDict.
    """
    if is_typeddict(target):
        keys: Any = target
        hints = {
            key: get_args(hint)[0] if get_origin(hint) is NotRequired else hint
            for key, hint in get_type_hints(target, include_extras=True).items()
        }
        return Parameters(hints, keys.__required_keys__, takes_any=False)
    function: Any = target.__init__ if inspect.isclass(target) else target
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # names that are imported for type checkers only
        hints = {}
    known, required, takes_any = {}, set(), False
    for name, each in inspect.signature(target).parameters.items():
        kind = hints.get(name, Any)
        if each.kind == each.VAR_KEYWORD:
            if get_origin(kind) is Unpack:
                others = parameters(get_args(kind)[0])
                known |= others.known
                required |= others.required
            else:
                takes_any = True
        elif each.kind != each.VAR_POSITIONAL:
            known[name] = kind
            if each.default is each.empty:
                required.add(name)
    return Parameters(known, frozenset(required), takes_any)


def arms(kind: Any) -> Sequence[Any]:
    """Return the alternatives of a union; rules are dropped.

    Args:
        kind: an annotation; one that is not a union is its only alternative.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, NotRequired):
        return arms(args[0])
    if origin in (Union, types.UnionType):
        return [arm for one in args for arm in arms(one)]
    return [kind]


def is_plain(arm: Any) -> bool:
    """Return whether an alternative is plain data: a number, text, list or the like.

    Args:
        arm: see `arms`.
    """
    origin = get_origin(arm)
    if origin is Literal or is_typeddict(arm):
        return True
    if inspect.isclass(origin) and issubclass(origin, _CONTAINERS):
        return True
    return arm in (*_SIMPLE, bytes, *_CONTAINERS)


def shown(value: Any) -> str:
    """Return a value as messages show it.

    Args:
        value: of any type.
    """
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _lacking(kind: Any, value: Any) -> str | None:
    """Return the words after "must be" if a value does not fit an annotation, else None."""
    if kind is Any or kind is object or isinstance(kind, TypeVar):
        return None
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        rules = [rule for rule in args[1:] if isinstance(rule, Rule)]
        if lacking := _lacking(args[0], value):
            return rules[0].says if rules else lacking
        return next((rule.says for rule in rules if not rule.holds(value)), None)
    if origin in (Union, types.UnionType):
        lacking = [_lacking(one, value) for one in args]
        return None if None in lacking else " or ".join(dict.fromkeys(map(str, lacking)))
    if origin is Literal:
        if any(type(value) is type(one) and value == one for one in args):
            return None
        return f"one of {', '.join(map(str, args))}" if len(args) > 1 else str(*args)
    if inspect.isclass(origin) and issubclass(origin, _CONTAINERS):
        return _lacking_inside(origin, args, value)
    says, holds = _SIMPLE.get(kind) or (f"a {getattr(kind, '__name__', kind)}", None)
    return None if (holds(value) if holds else _is_instance(kind, value)) else says


def _lacking_inside(origin: type, args: Sequence[Any], value: Any) -> str | None:
    """Do the same as `_lacking` for containers whose contents have annotations."""
    if issubclass(origin, Mapping):
        fits = isinstance(value, Mapping) and all(
            _lacking(args[0], key) is _lacking(args[1], one) is None for key, one in value.items()
        )
        return None if fits else f"keys and values{_each(args[1])}"
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if origin is tuple and args[-1:] != (...,):
        fits = is_list and len(value) == len(args)
        fits = fits and all(_lacking(*pair) is None for pair in zip(args, value, strict=True))
    else:
        fits = is_list and all(_lacking(args[0], one) is None for one in value)
    return None if fits else f"a list{_each(args[0])}"


def _each(kind: Any) -> str:
    words = _lacking(kind, _NOTHING)
    return f", each {words}" if words else ""


def _is_instance(kind: Any, value: Any) -> bool:
    """Whether a value is an instance of a class, or implements a protocol."""
    if not inspect.isclass(kind):  # a callable, for example
        is_setting = isinstance(value, str | Real | Mapping | list) or type(value) is tuple
        return value is not None and not is_setting and value is not _NOTHING
    if getattr(kind, "_is_protocol", False):
        public = {name: one for name, one in vars(kind).items() if not name.startswith("_")}
        methods = [name for name, one in public.items() if inspect.isfunction(one)]
        return any(callable(getattr(value, name, None)) for name in methods or public)
    return isinstance(value, kind)


def _is_finite_number(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that is too large for a float
        return False


# A value that fits no annotation, used to get the words of an error.
_NOTHING = object()
# Name of each kind of value, and a test for it.
_SIMPLE: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number", lambda v: isinstance(v, Integral) and not isinstance(v, bool)),
    float: ("a number", _is_finite_number),
    bool: ("true or false", lambda v: isinstance(v, bool)),
    str: ("a text", lambda v: isinstance(v, str)),
    None: ("null", lambda v: v is None),
    types.NoneType: ("null", lambda v: v is None),
    Path: ("a path", lambda v: isinstance(v, str | Path)),
}
