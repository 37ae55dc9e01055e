"""YAML as data: no tags, unique keys, and a limited size even with all aliases expanded."""

import re
from pathlib import Path
from typing import Any

import yaml

from doppler.support.errors import InputError
from doppler.support.files.reading import read_text

_MAX_MB = 1.0  # configurations have kilobytes, and reading a megabyte takes seconds
_MAX_VALUES = 100_000  # an alias counts as many values as it expands to
_MAX_DEPTH = 100  # the time of a scan grows with the square of the depth
_FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


class _Loader(yaml.SafeLoader):
    """A safe loader in which ``1e9`` is a number and a date is text, as in OmegaConf."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise RecursionError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _at(key, "a key that is not text")
            if key.value in seen:
                raise _at(key, f"the key {key.value!r} appears twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file.

    Args:
        path: of the file.

    Raises:
        InputError: names the file and the line; it cannot be read, is not YAML, has a key twice, or
            has aliases that expand to more values than a configuration has.
    """
    text = read_text(path, max_mb=_MAX_MB)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _num_values(node, {}) > _MAX_VALUES:
            raise InputError(f"more than {_MAX_VALUES:,} values with all aliases expanded")
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: {error.problem or error.context}") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply") from None
    except (ValueError, OverflowError, yaml.YAMLError) as error:  # includes bad numbers
        raise InputError(f"{path}: {str(error).splitlines()[0][:100]}") from None


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values of a node with all aliases expanded; refuse an alias within itself."""
    if id(node) not in known:
        known[id(node)] = 0  # being counted
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [one for pair in node.value for one in pair]
        known[id(node)] = 1 + sum(_num_values(part, known) for part in parts)
    if known[id(node)] == 0:
        raise _at(node, "an alias within the value that it refers to")
    return known[id(node)]


def _at(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
