"""What options may be: one description, an annotation, for configurations and Python callers alike.

``streams: Annotated[int, within(1, 60)]`` says all that there is to say. `fault` tells why a value
is not of a kind, `checked` lets a class or function refuse it, and the command line walks a whole
configuration by the signatures that it names (experiment/configuration.py).
"""

import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
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

# Counts and seeds stay numbers that compiled code and torch can hold.
MOST = 2**62
# Longer names make no file: 255 bytes, suffixes included.
_LONGEST_NAME = 150
_CONTAINERS = (Mapping, dict, Sequence, list, tuple)
# Of a value in a message.
_SHOWN = 60


@dataclass(frozen=True)
class Rule:
    """What a value must be beside its type. says: what stands behind "must be"."""

    says: str
    holds: Callable[[Any], bool]


def at_least(least: int) -> Rule:
    """Of whole numbers."""
    return Rule(f"a whole number of at least {least}", lambda value: value >= least)


def within(least: float, most: float) -> Rule:
    """Of numbers, whole ones if these are; both ends included."""
    kind = "whole number" if isinstance(least, int) else "number"
    return Rule(
        f"a {kind} from {least:,.10g} to {most:,.10g}", lambda value: least <= value <= most
    )


def one_of(choices: Sequence[str] | Mapping[str, Any]) -> Rule:
    """Of texts."""
    return Rule(f"one of {', '.join(choices)}", lambda value: value in choices)


_NOT_TOO_MANY = Rule("at most 2**62", lambda value: value <= MOST)
_FOR_A_FILE = Rule(
    f"a name for a directory, without / and of at most {_LONGEST_NAME} bytes",
    lambda name: (
        0 < len(name.encode(errors="replace")) <= _LONGEST_NAME
        and name.isprintable()
        and "/" not in name
        and not name.startswith(".")
    ),
)

Count = Annotated[int, at_least(1), _NOT_TOO_MANY]
Natural = Annotated[int, at_least(0), _NOT_TOO_MANY]
Seed = Annotated[int, Rule("a whole number from 0 to 2**63 - 1", lambda n: 0 <= n < 2**63)]
# Of what as much memory is taken at once.
Batch = Annotated[int, at_least(1), Rule("at most 1,000,000", lambda value: value <= 10**6)]
BatchOrNone = Annotated[int, at_least(0), Rule("at most 1,000,000", lambda value: value <= 10**6)]
# Layers and their sizes.
Width = Annotated[int, at_least(1), Rule("at most 4,096", lambda value: value <= 4096)]
Depth = Annotated[int, at_least(1), Rule("at most 100", lambda value: value <= 100)]
DepthOrNone = Annotated[int, at_least(0), Rule("at most 100", lambda value: value <= 100)]
# Devices of a cluster: all pairs of them have links.
Devices = Annotated[int, at_least(1), Rule("at most 1,024", lambda value: value <= 1024)]
Share = Annotated[float, within(0.0, 1.0)]
Amount = Annotated[float, Rule("a number of at least 0", lambda value: value >= 0)]
Positive = Annotated[float, Rule("a number above 0", lambda value: value > 0)]
# A thread cannot wait longer than some 9e9 s.
Seconds = Annotated[float, within(0.0, 1e9)]
PositiveSeconds = Annotated[
    float, Rule("a number above 0, at most 1e9", lambda value: 0 < value <= 1e9)
]
# First and last learning rate; of 0 nothing is learned.
Rates = Annotated[
    Sequence[Amount],
    Rule("two numbers of at least 0, [first, last]", lambda rates: len(rates) == 2),
]
Name = Annotated[str, _FOR_A_FILE]
# Also what stands in place of a path, as `auto`. The command line takes it as it is (main.py).
FilePath = Annotated[str, Rule("a path", lambda path: path != "" and "\0" not in path)]


def fault(kind: Any, value: Any) -> str | None:
    """Why a value is not of a kind: "must be ..., got ..."; None if it is.

    Whole numbers are numbers, true and false are not; infinity and NaN are none. What has anything
    that a protocol names is meant to be of it.

    Args:
        kind: an annotation: int, float, bool, str, None, a union, Literal, Sequence, tuple,
            Mapping, a class or protocol, any of these Annotated with Rules.
        value: of any type.
    """
    return None if _fits(kind, value) else f"must be {_words(kind, value)}, got {shown(value)}"


def check(key: str, kind: Any, value: Any) -> None:
    """Refuse what is not of a kind.

    Raises:
        InputError: names the key.
    """
    if said := fault(kind, value):
        raise InputError(f"{key}: {said}")


_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def checked(target: _Callable) -> _Callable:
    """Let a class or function refuse arguments that its annotations do not allow."""
    function: Any = target.__init__ if inspect.isclass(target) else target
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kinds = parameters(target)
        for key, value in signature.bind_partial(*args, **kwargs).arguments.items():
            if key in kinds.known:
                check(f"{target.__name__}.{key}", kinds.known[key], value)
        return function(*args, **kwargs)

    made: Any = wrapper
    if inspect.isclass(target):
        made = target
        made.__init__ = wrapper
    return made


@dataclass(frozen=True)
class Parameters:
    """What a class or function takes by keyword.

    known: annotations by name. required: those without a default. takes_any: others too.
    """

    known: Mapping[str, Any]
    required: frozenset[str]
    takes_any: bool


@functools.cache
def parameters(target: Callable[..., Any]) -> Parameters:
    """What a class or function takes; TypedDicts are what their keys say."""
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
    except (NameError, TypeError):  # of others' packages: names for type checkers alone
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
    """The alternatives of an annotation, without what is said beside them."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, NotRequired):
        return arms(args[0])
    if origin in (Union, types.UnionType):
        return [arm for one in args for arm in arms(one)]
    return [kind]


def is_plain(arm: Any) -> bool:
    """Whether an alternative is a number, a text or the like: no object to be made."""
    origin = get_origin(arm)
    if origin is Literal or is_typeddict(arm):
        return True
    if inspect.isclass(origin) and issubclass(origin, Mapping | Sequence | tuple):
        return True
    return arm in (None, types.NoneType, bool, int, float, str, bytes, Path, *_CONTAINERS)


def _fits(kind: Any, value: Any) -> bool:
    if kind is Any or kind is object or isinstance(kind, TypeVar):
        return True
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        rules = (rule for rule in args[1:] if isinstance(rule, Rule))
        return _fits(args[0], value) and all(rule.holds(value) for rule in rules)
    if origin in (Union, types.UnionType):
        return any(_fits(one, value) for one in args)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in args)
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if origin is tuple and args[-1:] != (...,):
        return is_list and len(value) == len(args) and all(map(_fits, args, value))
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(args[0], key) and _fits(args[1], one) for key, one in value.items()
        )
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return is_list and all(_fits(args[0], one) for one in value)
    return _is_of(kind, value)


def _is_of(kind: Any, value: Any) -> bool:
    """The same for what has no arguments."""
    if kind is None or kind is types.NoneType:
        return value is None
    if kind in (bool, str):
        return isinstance(value, kind)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and _is_finite(value)
    if kind is Path:
        return isinstance(value, str | Path)
    if kind in _CONTAINERS:
        return isinstance(value, kind)
    if not inspect.isclass(kind):
        is_plain = isinstance(value, str | Real | Mapping | list) or type(value) is tuple
        return value is not None and not is_plain
    if getattr(kind, "_is_protocol", False):
        public = {name: one for name, one in vars(kind).items() if not name.startswith("_")}
        methods = [name for name, one in public.items() if inspect.isfunction(one)]
        return any(callable(getattr(value, name, None)) for name in methods or public)
    return isinstance(value, kind)


def _is_finite(value: Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


_PLAIN_WORDS = {
    **{int: "a whole number", float: "a number", bool: "true or false", str: "a text"},
    **{None: "null", types.NoneType: "null", Path: "a path"},
}


def _words(kind: Any, value: Any) -> str:
    """What a value of a kind is, or what this one lacks."""
    origin: Any = get_origin(kind)
    args: Sequence[Any] = get_args(kind)
    if origin is Annotated:
        rules = [rule for rule in args[1:] if isinstance(rule, Rule)]
        if rules and _fits(args[0], value):
            return next((rule for rule in rules if not rule.holds(value)), rules[0]).says
        return rules[0].says if rules else _words(args[0], value)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(one, value) for one in args))
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}" if len(args) > 1 else str(*args)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return f"keys and values, each {_words(args[1], value)}"
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return f"a list, each {' or '.join(_words(one, None) for one in args[:1])}"
    return _PLAIN_WORDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"


def shown(value: Any) -> str:
    """A value in a message."""
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
