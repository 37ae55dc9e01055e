"""Which device each submodule of a placed model is on, as accelerate's ``dispatch_model`` takes it.

accelerate moves tensors where a submodule of the map is called. A map is therefore made of *parts*:
submodules that are on one device each, with all that they hold. What holds a parameter or buffer of
its own is never divided, and results of parts on two devices must not meet in the forward of what
is divided (see `Structure`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from doppler.extensions.modules import Binding
from doppler.extensions.modules.structure import INPUT, Structure
from doppler.graph import DataflowGraph
from doppler.problem import Placement
from doppler.support.errors import InputError

_REMEDY = "device_map(nearest=True) puts every such module where most of it is"


def device_map(
    graph: DataflowGraph, placement: Placement, binding: Binding, *, nearest: bool = False
) -> dict[str, int]:
    """The largest submodules, by their paths, that are on one device each, with all they hold.

    Args:
        graph: of the module.
        placement: of its ops.
        binding: of its tensors.
        nearest: where modules cannot be divided as the placement is, each goes where most of it is.

    Raises:
        InputError: the placement is no map of modules: which one is divided.
    """
    wanted = _devices(graph, placement, binding)
    for name, devices in {} if nearest else wanted.items():
        if len(devices) > 1:
            raise InputError(
                f"device_map: {name!r} is on devices {_listed(devices)}: what is placed is finer "
                f"than modules. decomposition=doppler.einsum.Given() splits none; {_REMEDY}"
            )
    parts = _Parts(binding.structure, wanted, nearest)
    parts.keep_wholes_together()
    parts.keep_results_together()
    return parts.largest()


def _devices(
    graph: DataflowGraph, placement: Placement, binding: Binding
) -> dict[str, Counter[int]]:
    """Per parameter and buffer that is read, the operations of its readers on every device."""
    found: dict[str, Counter[int]] = {}
    of_op = graph.ops.node.tolist()
    tied = {name: names for names in binding.structure.tied for name in names}
    for node, consumers in zip(graph.inputs.node.tolist(), graph.inputs.consumers, strict=True):
        first = binding.from_state.get(graph.tensors[node].name)
        for name in tied.get(first, (first,)) if first is not None else ():
            holder = _holder(name)
            ops = [
                op for op in consumers if _is_in(graph.tensors[of_op[op]].name, holder)
            ] or consumers
            for op in ops:
                wanted = found.setdefault(name, Counter())
                wanted[int(placement.device[op])] += int(graph.ops.flops[op]) + 1
    return found


class _Parts:
    """Submodules that are on one device each, on the way to such that a forward can run."""

    def __init__(
        self, structure: Structure, wanted: Mapping[str, Counter[int]], nearest: bool
    ) -> None:
        self._structure, self._nearest = structure, nearest
        self._bytes: Counter[str] = Counter()
        held: dict[str, Counter[int]] = {}  # by what holds them, bytes on every device
        for name, size in structure.tensors.items():
            holder = _holder(name)
            self._bytes[holder] += size + 1
            if name in wanted:
                held.setdefault(holder, Counter())[_most(wanted[name])] += size + 1
        for holder, devices in held.items():
            self._expect_one(devices, f"{_told(holder)} holds tensors on")
        self._device = {holder: _most(devices) for holder, devices in held.items()}

    def keep_wholes_together(self) -> None:
        """What holds a tensor itself is one part, with all of its submodules."""
        for holder in self._bytes:
            if holder not in self._device:  # nothing reads it: with what is next to it
                near = max(self._device, key=lambda one: _common(one, holder), default=None)
                self._device[holder] = 0 if near is None else self._device[near]
        for holder in sorted(self._device, key=len):
            if holder in self._device:
                inside = self._inside(holder)
                devices = {self._device[one] for one in inside}
                self._expect_one(devices, f"{_told(holder)} holds tensors, and submodules, on")
                self._join(holder, inside)

    def keep_results_together(self) -> None:
        """Results that meet in the forward of what is divided are on one device.

        Either all of that module becomes one part: where what it is given meets what its parts
        return, as in the blocks of transformers, unless it is most of the whole. Or the parts that
        meet go to one device, and stay together from then on: embeddings that are added.
        """
        together: dict[str | int, set[str | int]] = {}
        for _ in range(4 * len(self._device) + 1):
            broken = self._broken()
            if broken is None:
                return
            path, units = broken
            self._expect_one(
                {self._on(one) for one in units}, f"the forward of {_told(path)} joins results of"
            )
            merged = {other for one in units for other in together.get(one, {one})}
            parts = [one for one in merged if isinstance(one, str) and one in self._device]
            inside = self._inside(path)
            given = not set(units) <= set(inside)
            if given and self._held(path) < self._held("") / 2:
                self._join(path, inside)
                continue
            device = self._main if INPUT in merged else self._majority(parts)
            together |= dict.fromkeys(merged, merged)
            self._device |= dict.fromkeys(parts, device)
        self._device = {"": self._majority(self._device)}

    def largest(self) -> dict[str, int]:
        """The map: parts that are together, and on one device, are one key."""

        def under(path: str, own: list[str]) -> dict[str, int]:
            if path in own or len({self._device[one] for one in own}) == 1:
                return {path: self._device[own[0]]}
            heads: dict[str, list[str]] = {}
            for one in own:
                head = one[len(path) + 1 if path else 0 :].partition(".")[0]
                heads.setdefault(f"{path}.{head}" if path else head, []).append(one)
            found: dict[str, int] = {}
            for head, each in heads.items():
                found |= under(head, each)
            return found

        # In the order of the module's tensors, which is that of its submodules.
        parts = dict.fromkeys(map(self._part, self._bytes))
        return under("", [one for one in parts if one is not None]) if parts else {}

    @property
    def _main(self) -> int:
        """The device of the module's own inputs: accelerate takes the first one of the map."""
        return min(self._device.values())

    def _broken(self) -> tuple[str, list[str | int]] | None:
        """In whose forward results on several devices meet, and the parts that they are in."""
        for path, holder in self._structure.reads:
            units = [self._part(path), self._part(holder)]
            known = [one for one in units if one is not None]
            if len({self._device[one] for one in known}) > 1:
                return path, list(known)
        for path, homes in self._structure.joins:
            if self._part(path) is None:
                units = list(dict.fromkeys(map(self._unit, homes)))
                if len({self._on(unit) for unit in units}) > 1:
                    return path, units
        return None

    def _unit(self, number: int) -> str | int:
        """The part that a result is in, or that it comes from."""
        while number != INPUT:
            path, source = self._structure.homes[number]
            part = self._part(path)
            if part is not None:
                return part
            number = source
        return INPUT

    def _on(self, unit: str | int) -> int:
        return self._device[unit] if isinstance(unit, str) else self._main

    def _part(self, path: str) -> str | None:
        """The part that a submodule belongs to; None if it is divided."""
        while path not in self._device:
            if not path:
                return None
            path = path.rpartition(".")[0]
        return path

    def _inside(self, path: str) -> list[str]:
        return [one for one in self._device if _is_in(one, path)]

    def _join(self, path: str, parts: list[str]) -> None:
        """Make parts of a submodule one part, where most of them is."""
        device = self._majority(parts)
        for one in parts:
            del self._device[one]
        self._device[path] = device

    def _majority(self, parts: Iterable[str]) -> int:
        held: Counter[int] = Counter()
        for one in parts:
            held[self._device[one]] += self._held(one)
        return _most(held)

    def _held(self, part: str) -> int:
        return 1 + sum(size for holder, size in self._bytes.items() if _is_in(holder, part))

    def _expect_one(self, devices: Iterable[int], what: str) -> None:
        numbers = set(devices)
        if len(numbers) > 1 and not self._nearest:
            raise InputError(
                f"device_map: {what} devices {_listed(numbers)}, which its forward cannot do; "
                f"{_REMEDY}"
            )


def _holder(name: str) -> str:
    return name.rpartition(".")[0]


def _is_in(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _common(one: str, other: str) -> int:
    """How many names two paths begin with in common."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _most(wanted: Counter[int]) -> int:
    return max(sorted(wanted), key=wanted.__getitem__)


def _listed(devices: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(devices)))


def _told(path: str) -> str:
    return f"module {path!r}" if path else "the module itself"
