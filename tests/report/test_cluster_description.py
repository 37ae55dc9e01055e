"""A machine in words and in a picture."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from doppler.cluster import custom, preset
from doppler.report.cluster_description import cluster_counts, describe_cluster, link_classes
from doppler.report.cluster_picture import save_cluster_picture
from doppler.trace import pictures
from doppler.trace.gantt import PALETTE


def words(cluster) -> list[str]:
    return [" ".join(line.split()) for line in describe_cluster(cluster) if line]


def test_words_about_two_hosts():
    assert words(preset(name="dgx_h100x16")) == [
        "cluster dgx_h100x16: 16 devices on 2 hosts",
        "network interfaces of a host: 8, each 50 GB/s, 5 us either way",
        "transfers between hosts, link and interfaces together: 50 GB/s, 15 us",
        "device number speed memory launch",
        "h100 16 494 TFLOP/s f32 80 GB, 3.35 TB/s 5 us",
        "link pairs bytes/s latency",
        "of a host 112 450 GB/s 6 us",
        "to another host 128 64 GB/s 10 us",
    ]


def test_words_about_one_host():
    said = words(preset(name="v100x8"))
    assert said[0] == "cluster v100x8: 8 devices on one host"
    assert said[-3:] == ["any 16 50 GB/s 8 us", "any 16 25 GB/s 8 us", "any 24 12 GB/s 10 us"]
    assert words(preset(name="mixed", num_devices=1))[-1].startswith("p100 1 10.6 TFLOP/s f32")


def test_numbers_about_machines():
    assert cluster_counts(preset(name="ethernet_4x1")) == {
        **{"num_devices": 4, "num_hosts": 4, "device_kinds": {"v100": 4}, "nics": 1}
    }
    assert cluster_counts(preset(name="mixed")) == {
        **{"num_devices": 4, "num_hosts": 1, "device_kinds": {"p100": 2, "v100": 2}, "nics": 0}
    }


def test_every_link_is_of_one_class():
    for name in ("v100x8", "dgx_h100x16", "ethernet_4x1"):
        cluster = preset(name=name)
        classes = link_classes(cluster)
        pairs = np.concatenate([one.pairs for one in classes])
        assert (
            len(np.unique(pairs, axis=0))
            == len(pairs)
            == cluster.num_devices * (cluster.num_devices - 1)
        )
        for one in classes:
            s, d = one.pairs.T
            assert (cluster.bytes_per_s[s, d] == one.bytes_per_s).all()
            assert (cluster.latency_s[s, d] == one.latency_s).all()
            assert (cluster.between_hosts[s, d] == one.apart).all()


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures that are drawn."""
    drawn = []

    def remember(*args, **kwargs):
        drawn.append(Figure(*args, **kwargs))
        return drawn[-1]

    monkeypatch.setattr(pictures, "Figure", remember)
    return drawn


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_picture_has_hosts_devices_interfaces_and_their_figures(figures, tmp_path):
    cluster = preset(name="dgx_h100x16")
    save_cluster_picture(cluster, tmp_path / "machine.png")
    said = texts(figures[0])
    assert said[0] == "dgx_h100x16: 16 devices on 2 hosts"
    assert {"host 0", "host 1", *(device.name for device in cluster.devices)} <= set(said)
    assert said.count("each pair: 450 GB/s, 6 us") == 2
    assert [said.count(f"nic {i}") for i in range(8)] == [2] * 8
    assert "8 network interfaces a host, 50 GB/s, 5 us either way" in said
    assert "h100: 494 TFLOP/s f32, 80 GB, 3.35 TB/s, 5 us to launch" in said
    boxes = {tuple(np.round(one.get_bbox().bounds, 6)) for one in figures[0].axes[0].patches}
    assert len(boxes) == 2 + 16 + 2 + 16  # hosts, devices, bars, interfaces
    width, height = figures[0].get_size_inches()
    for x, y, wide, high in boxes:
        assert 0 <= x < x + wide <= width and 0 <= y < y + high <= height
    image = imread(tmp_path / "machine.png")
    pixels = (image[..., :3] * 255).round().astype(np.int64) @ [1 << 16, 1 << 8, 1]
    assert int(PALETTE[0].removeprefix("#"), 16) in pixels


def test_links_of_several_speeds_are_lines(figures, tmp_path):
    save_cluster_picture(preset(name="v100x8"), tmp_path / "machine.png")
    lines = [one for one in figures[0].axes[0].lines if one.get_alpha() == 0.8]
    assert len(lines) == 8 * 7
    widths = {round(one.get_linewidth(), 3) for one in lines}
    assert len(widths) == 3 and max(widths) == 3.6
    assert "link: 50 GB/s, 8 us (16 pairs)" in texts(figures[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "v100x8", "num_devices": 100}, "host, the first of 100 devices"),
        (
            {"name": "ethernet_4x1", "num_devices": 40},
            "ethernet_4x1: 40 devices on 40 hosts, 32 of",
        ),
        ({"name": "p100x4", "num_devices": 1}, "p100x4: 1 device on one host"),
        ({"name": "p100x4", "hosts": 2, "nics": 20, "nic_bytes_per_s": 1e9}, "to 19"),
    ],
)
def test_machines_of_any_size_are_drawn(figures, tmp_path, options, said):
    save_cluster_picture(preset(**options), tmp_path / "machine.png")
    assert any(text.startswith(said) for text in texts(figures[0]))
    assert max(figures[0].get_size_inches()) < 60


def test_devices_without_limits_are_described(tmp_path):
    device = {"flop_per_s": {"f16": 1e12}, "launch_overhead_s": 0.0, "memory_bytes": 1e9}
    cluster = custom(
        name="$odd_{name}$",
        devices=[{**device, "memory_bytes_per_s": 1e9}] * 2,
        bytes_per_s=[[1, 1e9], [2e9, 1]],
        latency_s=0.0,
    )
    assert "device0 1 1 TFLOP/s f16 1 GB, 1 GB/s 0 s" in words(cluster)
    save_cluster_picture(cluster, tmp_path / "machine.png")
