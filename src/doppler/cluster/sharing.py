"""Resources that several devices or links share: a switch, a memory, the processors of a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from doppler.cluster.device import is_number
from doppler.support.errors import InputError
from doppler.support.files.values import fault, unknown_key

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class SharedResource:
    """A resource that several tasks can use at once; each is slower the more there are.

    Only ``contention=shared`` uses it, see `simulator.WorkConserving`.

    Attributes:
        name: in explanations.
        bytes_per_s: its total bandwidth; None: it is processors, and an op uses a share of them.
        devices: whose ops use it.
        links: ordered pairs (sender, receiver) of devices whose transfers use it. A pair that is
            listed twice uses it twice: a copy within one memory reads and writes there.
    """

    name: str
    bytes_per_s: float | None = None
    devices: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()

    def check(self, where: str, num_devices: int) -> None:
        """Raise an InputError if it does not fit a machine with so many devices.

        Args:
            where: start of the message.
            num_devices: of the machine.
        """
        where = f"{where}: shared {self.name!r}"
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"{where}: the name must be text")
        if not self.devices and not self.links:
            raise InputError(f"{where}: names neither devices nor links that use it")
        rate = self.bytes_per_s
        if rate is None and self.links:
            raise InputError(f"{where}: transfers use no processors: bytes_per_s is missing")
        if rate is not None and not (is_number(rate) and 0 < rate < float("inf")):
            raise InputError(f"{where}: bytes_per_s must be positive and finite, got {rate!r}")
        for d in (*self.devices, *(end for pair in self.links for end in pair)):
            if not (type(d) is int and 0 <= d < num_devices):
                raise InputError(f"{where}: device {d!r}, there are 0 to {num_devices - 1}")
        if len(set(self.devices)) < len(self.devices):
            raise InputError(f"{where}: a device is listed twice")
        for src, dst in self.links:
            if src == dst:
                raise InputError(f"{where}: link {src} -> {dst} does not exist")

    def among(self, devices: Sequence[int]) -> "SharedResource | None":
        """Restrict it to some devices, renumbered in their order; None if they do not use it.

        Args:
            devices: numbers of the devices to keep.
        """
        number = {d: i for i, d in enumerate(devices)}
        links = [(number[s], number[d]) for s, d in self.links if s in number and d in number]
        kept = tuple(number[d] for d in self.devices if d in number)
        return replace(self, devices=kept, links=tuple(links)) if kept or links else None


def shares_alike(shared: Sequence[SharedResource], a: int, b: int) -> bool:
    """Whether swapping two devices leaves all shared resources the same.

    Args:
        shared: the resources.
        a: a device.
        b: the other device.
    """
    swapped = {a: b, b: a}

    def users(one: SharedResource, names: Mapping[int, int]) -> tuple:
        devices = sorted(names.get(d, d) for d in one.devices)
        links = sorted((names.get(s, s), names.get(d, d)) for s, d in one.links)
        return (one.bytes_per_s or 0.0, devices, links)

    before, after = ([users(one, names) for one in shared] for names in ({}, swapped))
    return sorted(before) == sorted(after)


# One resource in a configuration: a mapping of the fields above; devices and links may be "all".
SharedSpec = Mapping[str, Any]


def read_shared(
    where: str, specs: Sequence[SharedSpec] | None, num_devices: int
) -> tuple[SharedResource, ...]:
    """Read shared resources from a configuration.

    Args:
        where: start of messages.
        specs: a mapping of `SharedResource` fields for each; ``devices`` and ``links`` are lists or
            ``all``.
        num_devices: of the machine.

    Raises:
        InputError: not such mappings.
    """
    if specs is None:
        return ()
    if isinstance(specs, str | Mapping) or not isinstance(specs, Sequence):
        raise fault(f"{where}: shared", "a list", specs)
    known = [one.name for one in fields(SharedResource)]
    found = []
    for i, spec in enumerate(specs):
        here = f"{where}: shared[{i}]"
        if not isinstance(spec, Mapping):
            raise fault(here, f"a mapping of {', '.join(known)}", spec)
        for key in spec:
            if key not in known:
                raise InputError(unknown_key(here, key, known))
        if "name" not in spec:
            raise InputError(f"{here}: 'name' is missing")
        found.append(
            SharedResource(
                name=spec["name"],
                bytes_per_s=spec.get("bytes_per_s"),
                devices=_members(f"{here}.devices", spec.get("devices", ()), num_devices, 1),
                links=_members(f"{here}.links", spec.get("links", ()), num_devices, 2),
            )
        )
    return tuple(found)


def _members(where: str, given: Any, num: int, size: Literal[1, 2]) -> Any:
    """Devices, or pairs of them."""
    if given == ALL:
        if size == 1:
            return tuple(range(num))
        return tuple((s, d) for s in range(num) for d in range(num) if s != d)
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise fault(where, f"a list or {ALL!r}", given)
    if size == 1:
        return tuple(given)
    for pair in given:
        if isinstance(pair, str | Mapping) or not isinstance(pair, Sequence) or len(pair) != size:
            raise fault(where, "a list of pairs [sender, receiver]", pair)
    return tuple(tuple(pair) for pair in given)
