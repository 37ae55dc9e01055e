"""Draws a cluster: hosts as boxes with their devices, links and network interfaces.

Shape suffix: D devices.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyBboxPatch

from doppler.cluster import Cluster
from doppler.report.cluster_description import (
    LinkClass,
    device_figures,
    interface_figures,
    link_classes,
    link_figures,
)
from doppler.trace.gantt import GREY, INK, PALETTE
from doppler.trace.pictures import new_figure, save_figure, shorten

_DEVICE_IN, _TALL_IN, _GAP_IN, _PAD_IN, _TITLE_IN = 0.86, 0.36, 0.14, 0.16, 0.34
_BAR_IN, _NIC_IN, _ROW_GAP_IN, _TOP_IN, _LINE_IN, _SIDE_IN = 0.26, 0.26, 0.42, 0.5, 0.2, 0.25
_MAX_WIDTH_IN, _RING_IN = 17.8, 0.26
_MAX_NICS, _MAX_HOSTS, _MAX_CLASSES, _PER_ROW, _MAX_RING, _MAX_DEVICES = 8, 32, 8, 8, 24, 64
_NETWORK = "#4a5568"

Point = tuple[float, float]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Machine:
    """What is drawn, and whether links are drawn as a ring of lines or as a bar."""

    cluster: Cluster
    links: list[LinkClass]
    colours: dict[str, str]
    is_ring: bool


@dataclass(frozen=True, kw_only=True)
class _HostBox:
    """A host and those of its devices that are drawn; corner and size in inches, y downward."""

    host: int
    num_devices: int
    devices: list[int]
    corner: Point
    size: Point


def save_cluster_picture(cluster: Cluster, path: str | Path) -> None:
    """Draw a cluster into a PNG file.

    If all links of a host are equal, they are one bar. Otherwise they are lines between devices in
    a ring, wider for faster links, with one colour per speed. Interfaces are below each host,
    joined by the network. If there are very many hosts or devices, only the first are drawn.

    Args:
        cluster: to draw.
        path: of the file.
    """
    machine = _look_at(cluster)
    boxes, size_in = _places(machine)
    legend = _legend(machine)
    size_in = (max(size_in[0], 9.0), size_in[1] + _LINE_IN * len(legend) + 0.15)
    figure = new_figure(*size_in, dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, size_in[0]), ylim=(size_in[1], 0))
    axes.set_axis_off()
    hosts = f"{cluster.num_hosts} hosts" if cluster.num_hosts > 1 else "one host"
    more = f", {len(boxes)} of them drawn" if len(boxes) < cluster.num_hosts else ""
    devices = f"{cluster.num_devices} device" + ("s" if cluster.num_devices > 1 else "")
    title = f"{shorten(cluster.name, 60)}: {devices} on {hosts}{more}"
    _write(axes, (_SIDE_IN, 0.27), title, size=12, align="left")
    for box in boxes:
        _draw_host(axes, machine, box)
    if cluster.num_hosts > 1:
        _draw_network(axes, cluster, boxes)
    top = size_in[1] - _LINE_IN * len(legend) - 0.05
    for i, (text, colour) in enumerate(legend):
        y = top + _LINE_IN * i
        axes.plot([_SIDE_IN, _SIDE_IN + 0.25], [y, y], color=colour, linewidth=5)
        _write(axes, (_SIDE_IN + 0.38, y), text, size=9, align="left")
    save_figure(figure, path)


def _look_at(cluster: Cluster) -> _Machine:
    links = link_classes(cluster)
    kinds = dict.fromkeys(device.kind for device in cluster.devices)
    most = max(Counter(cluster.hosts or (0,) * cluster.num_devices).values())
    return _Machine(
        cluster=cluster,
        links=links,
        colours={kind: PALETTE[i % len(PALETTE)] for i, kind in enumerate(kinds)},
        is_ring=sum(not one.apart for one in links) > 1 and most <= _MAX_RING,
    )


def _legend(machine: _Machine) -> list[tuple[str, str]]:
    """The lines below the hosts, and their colours."""
    cluster, lines = machine.cluster, []
    kinds = {device.kind: device for device in reversed(cluster.devices)}
    for kind, colour in machine.colours.items():
        speed, memory, launch = device_figures(kinds[kind])
        lines.append((f"{kind}: {speed}, {memory}, {launch} to launch", colour))
    for i, one in enumerate(machine.links[:_MAX_CLASSES]):
        what = "link to another host" if one.apart else "link"
        figures = link_figures(one.bytes_per_s, one.latency_s)
        colour = _link_colour(i) if machine.is_ring and not one.apart else GREY
        lines.append((f"{what}: {figures} ({len(one.pairs)} pairs)", colour))
    if len(machine.links) > _MAX_CLASSES:
        lines.append((f"{len(machine.links) - _MAX_CLASSES} more kinds of links", GREY))
    if cluster.num_hosts > 1:
        each = f"{cluster.nics} network interfaces" if cluster.nics > 1 else "a network interface"
        lines.append((f"{each} a host, {interface_figures(cluster)} either way", _NETWORK))
    return lines


def _link_colour(number: int) -> str:
    return PALETTE[(number + 5) % len(PALETTE)]


def _places(machine: _Machine) -> tuple[list[_HostBox], Point]:
    """The boxes of the hosts in rows, and the size of the picture in inches."""
    cluster = machine.cluster
    members: list[list[int]] = [[] for _ in range(cluster.num_hosts)]
    for d, host in enumerate(cluster.hosts or (0,) * cluster.num_devices):
        members[host].append(d)
    boxes, x, y, tallest, width_in = [], _SIDE_IN, _TOP_IN, 0.0, 0.0
    for host, devices in enumerate(members[:_MAX_HOSTS]):
        shown = devices[:_MAX_DEVICES]
        size = _host_size(machine, len(shown))
        if boxes and x + size[0] > _MAX_WIDTH_IN:
            x, y, tallest = _SIDE_IN, y + tallest + _ROW_GAP_IN, 0.0
        boxes.append(
            _HostBox(host=host, num_devices=len(devices), devices=shown, corner=(x, y), size=size)
        )
        x, tallest = x + size[0] + 2 * _GAP_IN, max(tallest, size[1])
        width_in = max(width_in, x)
    return boxes, (width_in + _SIDE_IN, y + tallest + _ROW_GAP_IN)


def _host_size(machine: _Machine, num: int) -> Point:
    inside = _inside_size(machine, num)
    nics = _NIC_IN / 2 if machine.cluster.num_hosts > 1 else 0.0
    return max(inside[0], 1.5) + 2 * _PAD_IN, _TITLE_IN + inside[1] + nics + _PAD_IN


def _inside_size(machine: _Machine, num: int) -> Point:
    """The size of a host's devices and links."""
    if machine.is_ring:
        across = 2 * _radius(num)
        return across + _DEVICE_IN, across + _TALL_IN
    rows, columns = -(-num // _PER_ROW), min(num, _PER_ROW)
    bar = _BAR_IN + _GAP_IN if num > 1 else 0.0
    width = columns * (_DEVICE_IN + _GAP_IN) - _GAP_IN
    return width, rows * (_TALL_IN + _GAP_IN) - _GAP_IN + bar


def _radius(num: int) -> float:
    return max(0.8, _RING_IN * num)


def _draw_host(axes: Axes, machine: _Machine, box: _HostBox) -> None:
    cluster, (x, y), width = machine.cluster, box.corner, box.size[0]
    _box(axes, box.corner, box.size, face="#f4f5f7", edge="#aab2bd")
    title = f"host {box.host}" if cluster.num_hosts > 1 else "host"
    if len(box.devices) < box.num_devices:
        title += f", the first of {box.num_devices} devices"
    _write(axes, (x + _PAD_IN, y + 0.18), title, size=9, align="left")
    spots = _device_spots(machine, box)
    if machine.is_ring:
        _draw_links(axes, machine.links, spots)
    for d, (middle_x, middle_y) in spots.items():
        corner = (middle_x - _DEVICE_IN / 2, middle_y - _TALL_IN / 2)
        colour = machine.colours[cluster.devices[d].kind]
        _box(axes, corner, (_DEVICE_IN, _TALL_IN), face=_pale(colour), edge=colour)
        _write(axes, (middle_x, middle_y), shorten(cluster.devices[d].name, 11), size=8)
    if not machine.is_ring and len(spots) > 1:
        inside = _inside_size(machine, len(box.devices))
        corner = (x + _PAD_IN, y + _TITLE_IN + inside[1] - _BAR_IN)
        _box(axes, corner, (width - 2 * _PAD_IN, _BAR_IN), face="#e3e6ea", edge=GREY)
        own = [one for one in machine.links if not one.apart]
        text = "links as below"
        if len(own) == 1:
            text = f"each pair: {link_figures(own[0].bytes_per_s, own[0].latency_s)}"
        _write(axes, (x + width / 2, corner[1] + _BAR_IN / 2), text, size=8)


def _device_spots(machine: _Machine, box: _HostBox) -> dict[int, Point]:
    """The centre of each device of a host."""
    left, top, num = box.corner[0] + _PAD_IN, box.corner[1] + _TITLE_IN, len(box.devices)
    if not machine.is_ring:
        pitch_x, pitch_y = _DEVICE_IN + _GAP_IN, _TALL_IN + _GAP_IN
        return {
            d: (
                left + i % _PER_ROW * pitch_x + _DEVICE_IN / 2,
                top + i // _PER_ROW * pitch_y + _TALL_IN / 2,
            )
            for i, d in enumerate(box.devices)
        }
    radius, middle = _radius(num), box.corner[0] + box.size[0] / 2
    angles = [2 * pi * i / num - pi / 2 for i in range(num)]
    return {
        d: (middle + radius * cos(angle), top + _TALL_IN / 2 + radius * (1 + sin(angle)))
        for d, angle in zip(box.devices, angles, strict=True)
    }


def _draw_links(axes: Axes, links: Sequence[LinkClass], spots: dict[int, Point]) -> None:
    """Draw lines between the devices of a host, the slowest at the bottom."""
    for i, one in reversed(list(enumerate(links))):
        for s, d in one.pairs.tolist() if not one.apart else ():
            if s in spots and d in spots:
                (x0, y0), (x1, y1) = spots[s], spots[d]
                width = 0.6 + 3.0 * (one.bytes_per_s / links[0].bytes_per_s)
                axes.plot([x0, x1], [y0, y1], color=_link_colour(i), linewidth=width, alpha=0.8)


def _draw_network(axes: Axes, cluster: Cluster, boxes: Sequence[_HostBox]) -> None:
    """Draw the interfaces below every host, and the network that joins them."""
    shown = min(cluster.nics, _MAX_NICS)
    bars: dict[float, list[float]] = {}
    for box in boxes:
        (x, y), (width, height) = box.corner, box.size
        foot, pitch = y + height, (width - 2 * _PAD_IN) / shown
        bar_y = max(one.corner[1] + one.size[1] for one in boxes if one.corner[1] == y) + 0.2
        for i in range(shown):
            middle = x + _PAD_IN + (i + 0.5) * pitch
            corner = (middle - 0.4 * pitch, foot - _NIC_IN / 2)
            axes.plot([middle, middle], [foot, bar_y], color=_NETWORK, linewidth=1.2, zorder=1)
            _box(axes, corner, (0.8 * pitch, _NIC_IN), face="#d5dae3", edge=_NETWORK)
            text = "nic" if cluster.nics == 1 else f"nic {i}"
            if i == shown - 1 and shown < cluster.nics:
                text = f"to {cluster.nics - 1}"
            _write(axes, (middle, foot), text, size=7)
            bars.setdefault(bar_y, []).append(middle)
    left = _SIDE_IN / 2
    for bar_y, middles in bars.items():
        axes.plot([left, max(middles)], [bar_y, bar_y], color=_NETWORK, linewidth=3.5, zorder=1)
    axes.plot([left, left], [min(bars), max(bars)], color=_NETWORK, linewidth=3.5, zorder=1)


def _box(
    axes: Axes, corner: Point, size: Point, *, face: str | tuple[float, ...], edge: str
) -> None:
    shape = FancyBboxPatch(
        corner,
        *size,
        boxstyle="round,pad=0,rounding_size=0.05",
        facecolor=face,
        edgecolor=edge,
        linewidth=1.0,
        zorder=2,
    )
    axes.add_patch(shape)


def _write(axes: Axes, at: Point, text: str, *, size: float, align: str = "center") -> None:
    axes.text(*at, text, fontsize=size, color=INK, ha=align, va="center", zorder=4)


def _pale(colour: str) -> tuple[float, float, float]:
    red, green, blue = (0.65 + 0.35 * one for one in to_rgb(colour))
    return red, green, blue
