"""Assigns the submodules of a placed model to devices, as accelerate's ``dispatch_model`` takes it.

accelerate moves tensors when a submodule of the map is called. A map therefore consists of *parts*:
submodules that are on one device each, with all tensors that they hold. A module that holds a
parameter or buffer itself is never divided. If a module is divided, results of parts on different
devices must not meet in its forward (see `Structure`).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from doppler.extensions.modules import Binding
from doppler.extensions.modules.structure import INPUT, Structure
from doppler.graph import DataflowGraph
from doppler.problem import Placement
from doppler.support.errors import InputError

_REMEDY = "device_map(nearest=True) puts each such module on the device with most of it"


def device_map(
    graph: DataflowGraph, placement: Placement, binding: Binding, *, nearest: bool = False
) -> dict[str, int]:
    """Return the device of each part, by its path; parts are the largest submodules on one device.

    A warning says so and why if all parts are on one device, but the ops of the placement are not.

    Args:
        graph: of the module.
        placement: of its ops.
        binding: of its tensors.
        nearest: if the placement divides a module that cannot be divided, put the module on the
            device with most of it.

    Raises:
        InputError: names a module that the placement divides and that cannot be divided.
    """
    wanted = _devices(graph, placement, binding)
    divided = {name: devices for name, devices in wanted.items() if len(devices) > 1}
    for name, devices in {} if nearest else divided.items():
        raise InputError(
            f"device_map: {name!r} is on devices {_listed(devices)}: the placement divides "
            f"modules. decomposition=doppler.einsum.Given() splits no op; {_REMEDY}"
        )
    parts = _Parts(binding.structure, wanted, nearest)
    parts.keep_wholes_together()
    parts.keep_results_together()
    found = parts.largest()
    used = set(placement.device.tolist())
    if len(set(found.values())) == 1 < len(used):
        reasons = [f"{name!r} is on devices {_listed(one)}" for name, one in divided.items()]
        reasons = [*parts.joined, *reasons, "ops on the others read no parameters"]
        logging.getLogger(__name__).warning(
            "device_map: all modules are on device %d, though the placement uses devices %s: %s",
            next(iter(found.values())),
            _listed(used),
            reasons[0],
        )
    return found


def _devices(
    graph: DataflowGraph, placement: Placement, binding: Binding
) -> dict[str, Counter[int]]:
    """Sum the operations of the readers on each device, for each parameter and buffer."""
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
    """Submodules that are on one device each; merged until a forward can run.

    Attributes:
        joined: why parts on several devices were put on one, a line each.
    """

    def __init__(
        self, structure: Structure, wanted: Mapping[str, Counter[int]], nearest: bool
    ) -> None:
        self._structure, self._nearest = structure, nearest
        self.joined: list[str] = []
        self._bytes: Counter[str] = Counter()
        held: dict[str, Counter[int]] = {}  # bytes on each device, by the submodule with them
        for name, size in structure.tensors.items():
            holder = _holder(name)
            self._bytes[holder] += size + 1
            if name in wanted:
                held.setdefault(holder, Counter())[_most(wanted[name])] += size + 1
        for holder, devices in held.items():
            self._expect_one(devices, f"{_told(holder)} holds tensors on")
        self._device = {holder: _most(devices) for holder, devices in held.items()}

    def keep_wholes_together(self) -> None:
        """Make every module that holds a tensor itself one part, with all its submodules."""
        for holder in self._bytes:
            if holder not in self._device:  # no op reads it: put it with the nearest part
                near = max(self._device, key=lambda one: _common(one, holder), default=None)
                self._device[holder] = 0 if near is None else self._device[near]
        for holder in sorted(self._device, key=len):
            if holder in self._device:
                inside = self._inside(holder)
                devices = {self._device[one] for one in inside}
                self._expect_one(devices, f"{_told(holder)} holds tensors, and submodules, on")
                self._join(holder, inside)

    def keep_results_together(self) -> None:
        """Put results that meet in the forward of a divided module on one device.

        There are two ways. If an input of the module meets results of its parts, as in the blocks
        of transformers, the whole module becomes one part, unless it is most of the model.
        Otherwise the parts whose results meet, such as embeddings that are added, move to one
        device and stay together from then on.
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
        """Return the map; parts that are together on one device become one key."""

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
        """The device of the module's inputs: accelerate takes the first device of the map."""
        return min(self._device.values())

    def _broken(self) -> tuple[str, list[str | int]] | None:
        """Find a forward in which results on several devices meet, and their parts."""
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
        """Return the part that a result is in, or that it comes from."""
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
        """Return the part that a submodule belongs to; None if it is divided."""
        while path not in self._device:
            if not path:
                return None
            path = path.rpartition(".")[0]
        return path

    def _inside(self, path: str) -> list[str]:
        return [one for one in self._device if _is_in(one, path)]

    def _join(self, path: str, parts: list[str]) -> None:
        """Make parts of a submodule one part, on the device with most of them."""
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
        if len(numbers) > 1:
            why = f"{what} devices {_listed(numbers)}, which accelerate cannot run"
            if not self._nearest:
                raise InputError(f"device_map: {why}; {_REMEDY}")
            self.joined.append(why)


def _holder(name: str) -> str:
    return name.rpartition(".")[0]


def _is_in(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _common(one: str, other: str) -> int:
    """Return how many leading names two paths share."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _most(wanted: Counter[int]) -> int:
    return max(sorted(wanted), key=wanted.__getitem__)


def _listed(devices: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(devices)))


def _told(path: str) -> str:
    return f"module {path!r}" if path else "the module itself"
