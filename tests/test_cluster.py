"""Clusters: presets, links, and what is refused."""

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest
from problems import cluster_of, graph_of

from doppler.baselines import SingleDevice
from doppler.cluster import (
    INFINIBAND,
    NVLINK2,
    P100,
    PCIE3,
    PRESETS,
    Cluster,
    Link,
    SharedResource,
    connected,
    custom,
    host,
    preset,
)
from doppler.cluster.device import Device
from doppler.cluster.json_format import load_cluster, save_cluster
from doppler.cluster.this_machine import shared_by_streams
from doppler.problem import build
from doppler.problem.pricing import op_cost_s
from doppler.simulator import WorkConserving
from doppler.support.errors import InputError


def p100s(num: int) -> tuple[Device, ...]:
    """Equal devices with names of their own."""
    return tuple(replace(P100, name=f"p100:{d}") for d in range(num))


def cluster_with(**columns) -> Cluster:
    """Three equal devices, one column replaced."""
    good = {
        "devices": p100s(3),
        "bytes_per_s": np.full((3, 3), 1e9),
        "latency_s": np.zeros((3, 3)),
    }
    return Cluster(name="three", **{**good, **columns})


def matrix_with(value: float, *, at: tuple[int, int], elsewhere: float) -> np.ndarray:
    matrix = np.full((3, 3), elsewhere)
    matrix[at] = value
    return matrix


# --- Presets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_devices", range(1, 11))
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_composes_with_any_number_of_devices(name, num_devices):
    cluster = preset(name=name, num_devices=num_devices)
    assert cluster.name == name
    assert cluster.num_devices == num_devices
    assert len({device.name for device in cluster.devices}) == num_devices
    between = ~np.eye(num_devices, dtype=bool)
    assert np.isfinite(cluster.bytes_per_s[between]).all()
    assert (cluster.bytes_per_s[between] > 0).all()
    assert (cluster.latency_s[between] > 0).all()


@pytest.mark.parametrize(
    ("name", "num_devices"),
    [
        *(("p100x4", 4), ("v100x8", 8), ("a100x8", 8), ("h100x8", 8), ("mixed", 4)),
        *(("dgx_h100x16", 16), ("dgx_h100x32", 32), ("dgx_a100x64", 64), ("ethernet_4x1", 4)),
    ],
)
def test_a_preset_has_the_number_of_devices_of_its_machine(name, num_devices):
    assert preset(name=name).num_devices == num_devices


def test_every_v100_of_the_cube_mesh_has_six_nvlinks():
    cluster = preset(name="v100x8")
    links = cluster.bytes_per_s / NVLINK2.bytes_per_s
    np.fill_diagonal(links, 0)
    links[cluster.bytes_per_s == PCIE3.bytes_per_s] = 0
    assert set(np.unique(links)) == {0, 1, 2}
    assert links.sum(axis=0).tolist() == [6] * 8
    np.testing.assert_array_equal(links, links.T)


def test_a_cube_mesh_of_ten_reaches_its_second_node_by_infiniband():
    cluster = preset(name="v100x8", num_devices=10)
    assert (cluster.bytes_per_s[:8, 8:] == INFINIBAND.bytes_per_s).all()
    assert (cluster.latency_s[8:, :8] == INFINIBAND.latency_s).all()
    assert cluster.bytes_per_s[8, 9] == cluster.bytes_per_s[0, 1]


def test_the_mixed_preset_alternates_two_generations():
    rates = [device.flop_per_s["f32"] for device in preset(name="mixed").devices]
    assert rates == [10.6e12, 15.7e12, 10.6e12, 15.7e12]


def test_an_unknown_preset_lists_the_choices():
    with pytest.raises(InputError) as error:
        preset(name="p100")
    assert str(error.value) == (
        "preset.name: must be one of p100x4, v100x8, a100x8, h100x8, identical, mixed, "
        "dgx_h100x16, dgx_h100x32, dgx_a100x64, ethernet_4x1, got 'p100'"
    )


@pytest.mark.parametrize("num_devices", [0, -1])
def test_a_preset_without_devices_is_refused(num_devices):
    with pytest.raises(InputError) as error:
        preset(name="p100x4", num_devices=num_devices)
    assert str(error.value) == (
        f"preset.num_devices: must be a whole number of at least 1 or null, got {num_devices}"
    )


# --- Clusters -----------------------------------------------------------------------------------


def test_names_of_devices_are_their_own():
    spec = {**SPEC, "name": "gpu"}
    other = {**SPEC, "name": "slow"}
    links = {"bytes_per_s": 1.0, "latency_s": 0.0}
    three = custom(name="mine", devices=[spec, other, spec], **links)
    assert [device.name for device in three.devices] == ["gpu:0", "slow", "gpu:2"]
    repeated = custom(name="mine", devices=[spec], num_devices=2, **links)
    assert [device.name for device in repeated.devices] == ["gpu:0", "gpu:1"]
    with pytest.raises(InputError, match="cluster 'three': 3 devices are called 'p100'"):
        cluster_with(devices=(P100,) * 3)
    with pytest.raises(InputError, match="device 0: name must be a text"):
        custom(name="mine", devices=[{**SPEC, "name": 0}], **links)


def test_links_are_directed():
    cluster = connected(
        name="one way",
        devices=p100s(2),
        link=lambda s, d: Link(bytes_per_s=1.0 + s, latency_s=10.0 * d),
    )
    assert (cluster.bytes_per_s[0, 1], cluster.bytes_per_s[1, 0]) == (1, 2)
    assert (cluster.latency_s[0, 1], cluster.latency_s[1, 0]) == (10, 0)


def test_a_cluster_without_devices_is_refused():
    with pytest.raises(InputError, match="cluster 'none': needs at least one device, has 0"):
        Cluster(name="none", devices=(), bytes_per_s=np.ones((0, 0)), latency_s=np.ones((0, 0)))


@pytest.mark.parametrize("column", ["bytes_per_s", "latency_s"])
@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (9,)])
def test_a_matrix_of_the_wrong_shape_is_named(column, shape):
    with pytest.raises(InputError) as error:
        cluster_with(**{column: np.ones(shape)})
    assert str(error.value) == f"cluster 'three': {column} has shape {shape} for 3 devices"


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, np.nan])
def test_a_link_without_bandwidth_names_the_pair(bandwidth):
    with pytest.raises(InputError) as error:
        cluster_with(bytes_per_s=matrix_with(bandwidth, at=(2, 0), elsewhere=1e9))
    assert str(error.value) == (
        f"cluster 'three': link 2 -> 0 has bandwidth {bandwidth:g} bytes/s: must be positive"
    )


@pytest.mark.parametrize("latency", [-1e-6, np.nan])
def test_a_negative_latency_names_the_pair(latency):
    with pytest.raises(InputError) as error:
        cluster_with(latency_s=matrix_with(latency, at=(0, 2), elsewhere=0.0))
    assert str(error.value) == (
        f"cluster 'three': link 0 -> 2 has latency {latency:g} s: must not be negative"
    )


DIAGONALS = [0.0, -1.0, np.nan, np.inf, None, 5.0]


@pytest.mark.parametrize("own", DIAGONALS)
def test_a_machine_is_the_same_whatever_stands_on_the_diagonals(own):
    """Matrices of bandwidth that others print have zeros there, those of topologies infinity."""

    def machine(own):
        speed, latency = ([[own, x], [x, own]] for x in (1e9, 1e-6))
        device = {"flop_per_s": {"f32": 1e12}, "memory_bytes_per_s": 1e9}
        device |= {"launch_overhead_s": 1e-6, "memory_bytes": 16e9}
        devices = [device, device]
        return custom(name="two", devices=devices, bytes_per_s=speed, latency_s=latency)

    graph = graph_of([1, 2], [(0, 1, 1.0)])
    modelled = dataclasses.replace(graph, given_costs=None)
    for each in (graph, modelled):
        problem, like = build(each, machine(own)), build(each, machine(1e9))
        assert problem.hash == like.hash
        assert problem.arrays.latency_s.tolist() == like.arrays.latency_s.tolist()
    alone = SingleDevice().place(
        WorkConserving().open(build(modelled, machine(own))), np.random.default_rng(0)
    )
    assert np.isfinite(alone.makespan_s)


def test_a_device_that_no_link_reaches_is_named():
    unreached = np.full((3, 3), 1e9)
    unreached[:, 1] = 0
    with pytest.raises(InputError) as error:
        cluster_with(bytes_per_s=unreached)
    assert str(error.value) == "cluster 'three': no link reaches device 1 (p100:1)"


def test_matrices_cannot_be_changed():
    given = np.full((3, 3), 1e9)
    cluster = cluster_with(bytes_per_s=given)
    given[:] = 0
    assert (cluster.bytes_per_s[~np.eye(3, dtype=bool)] == 1e9).all()
    with pytest.raises(ValueError, match="read-only"):
        cluster.bytes_per_s[0, 1] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        cluster.name = "other"


# --- Devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flop_per_s": {}}, "device 'p100': flop_per_s names no dtype"),
        ({"flop_per_s": {"f16": 0}}, "device 'p100': flop_per_s[f16] must be positive, got 0"),
        (
            {"flop_per_s": {"f16": 1, "f32": -2}},
            "device 'p100': flop_per_s[f32] must be positive, got -2",
        ),
        (
            {"memory_bytes_per_s": float("nan")},
            "device 'p100': memory_bytes_per_s must be positive, got nan",
        ),
        (
            {"launch_overhead_s": -1e-6},
            "device 'p100': launch_overhead_s must not be negative, got -1e-06",
        ),
        (
            {"memory_bytes": float("nan")},
            "device 'p100': memory_bytes must not be negative, got nan",
        ),
    ],
)
def test_a_device_with_an_impossible_number_is_named(changes, message):
    with pytest.raises(InputError) as error:
        dataclasses.replace(P100, **changes)
    assert str(error.value) == message


# --- Clusters written out -----------------------------------------------------------------------

SPEC = {
    "flop_per_s": {"f32": 1e12},
    "memory_bytes_per_s": 1e11,
    "launch_overhead_s": 0,
    "memory_bytes": 1e9,
}


def test_a_custom_cluster_takes_one_number_for_all_links_or_a_matrix():
    cluster = custom(
        name="mine",
        devices=[SPEC, {**SPEC, "name": "fast", "flop_per_s": {"f32": 2e12}}],
        bytes_per_s=5e9,
        latency_s=[[0, 1e-6], [2e-6, 0]],
    )
    assert [device.name for device in cluster.devices] == ["device0", "fast"]
    assert cluster.devices[1].flop_per_s["f32"] == 2e12
    assert cluster.bytes_per_s[0, 1] == cluster.bytes_per_s[1, 0] == 5e9
    assert (cluster.latency_s[0, 1], cluster.latency_s[1, 0]) == (1e-6, 2e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"devices": [{**SPEC, "flops": 1}]},
            "devices[0].flops: no such key, did you mean 'flop_per_s'?",
        ),
        ({"devices": [{"name": "bare"}]}, "missing"),
        ({"devices": [SPEC, SPEC], "bytes_per_s": [[1]]}, "shape (1, 1) for 2 devices"),
        ({"devices": [SPEC, SPEC], "bytes_per_s": [[1, 1], [1]]}, "bytes_per_s"),
        ({"devices": [SPEC, SPEC], "latency_s": [["a", 1], [1, 1]]}, "latency_s"),
        ({"devices": []}, "needs at least one device, has 0"),
    ],
)
def test_a_bad_custom_cluster_is_named_in_one_line(changes, message):
    good = {"name": "mine", "devices": [SPEC], "bytes_per_s": 1e9, "latency_s": 0.0}
    with pytest.raises(InputError) as error:
        custom(**{**good, **changes})
    assert str(error.value).startswith("cluster 'mine': ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_memory_of_a_preset_can_be_limited():
    limited = preset(name="mixed", memory_bytes=1e9)
    assert [device.memory_bytes for device in limited.devices] == [1e9] * 4
    assert preset(name="mixed").devices[0].memory_bytes == 16e9


def test_memory_is_one_number_or_one_per_device_of_every_cluster():
    made = {
        "mixed": lambda memory: preset(name="mixed", num_devices=2, memory_bytes=memory),
        "host": lambda memory: host(num_devices=2, memory_bytes=memory),
        "mine": lambda memory: custom(
            name="mine", devices=[SPEC] * 2, bytes_per_s=1.0, latency_s=0.0, memory_bytes=memory
        ),
    }
    for name, make in made.items():
        assert [device.memory_bytes for device in make(7.0).devices] == [7, 7]
        assert [device.memory_bytes for device in make([7, 8]).devices] == [7, 8]
        with pytest.raises(InputError) as error:
            make([7, 8, 9])
        assert str(error.value) == (
            f"cluster {name!r}: memory_bytes must be a number or 2, one per device, got [7, 8, 9]"
        )
    assert [device.kind for device in preset(name="mixed").devices] == ["p100", "v100"] * 2


# --- Hosts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "devices_each", "gbit_per_s", "nics", "link_bytes_per_s"),
    [
        ("dgx_h100x16", [8] * 2, 400, 8, 450e9),
        ("dgx_h100x32", [8] * 4, 400, 8, 450e9),
        ("dgx_a100x64", [8] * 8, 200, 8, 300e9),
        ("ethernet_4x1", [1] * 4, 10, 1, None),
    ],
)
def test_presets_of_hosts_have_the_figures_of_their_sources(
    name, devices_each, gbit_per_s, nics, link_bytes_per_s
):
    cluster = preset(name=name)
    assert np.bincount(cluster.hosts).tolist() == devices_each
    assert list(cluster.hosts) == sorted(cluster.hosts)
    assert (cluster.nics, cluster.nic_bytes_per_s) == (nics, gbit_per_s / 8 * 1e9)
    apart_DD, between = cluster.between_hosts, ~np.eye(cluster.num_devices, dtype=bool)
    # The interface is the narrowest part of the way to another host.
    assert (cluster.bytes_per_s[apart_DD] > cluster.nic_bytes_per_s).all()
    assert (cluster.path_bytes_per_s[apart_DD] == cluster.nic_bytes_per_s).all()
    within = cluster.path_bytes_per_s[between & ~apart_DD]
    assert set(within.tolist()) == ({link_bytes_per_s} if link_bytes_per_s else set())
    latency_s = cluster.latency_s[apart_DD] + cluster.nic_latency_s
    np.testing.assert_array_equal(cluster.path_latency_s[apart_DD], latency_s)


def test_a_preset_of_hosts_with_other_numbers_of_devices_fills_one_host_after_another():
    assert preset(name="dgx_h100x16", num_devices=20).hosts == (0,) * 8 + (1,) * 8 + (2,) * 4
    one = preset(name="dgx_h100x16", num_devices=8)
    assert (one.num_hosts, one.hosts) == (1, None)
    np.testing.assert_array_equal(one.path_bytes_per_s, preset(name="h100x8").bytes_per_s)
    np.testing.assert_array_equal(one.path_latency_s, preset(name="h100x8").latency_s)
    halves = preset(name="dgx_h100x16", hosts=4, nics=2)
    assert (np.bincount(halves.hosts).tolist(), halves.nics) == ([4] * 4, 2)
    assert halves.bytes_per_s[0, 3] == 450e9 and halves.bytes_per_s[3, 4] == 64e9


def test_any_preset_and_written_out_cluster_can_be_on_hosts():
    for cluster in (
        preset(name="p100x4", hosts=2, nics=3, nic_bytes_per_s=1e9, nic_latency_s=1e-6),
        custom(
            name="mine",
            devices=[SPEC] * 4,
            bytes_per_s=12e9,
            latency_s=10e-6,
            hosts=[0, 0, 1, 1],
            nics=3,
            nic_bytes_per_s=1e9,
            nic_latency_s=1e-6,
        ),
    ):
        assert (cluster.hosts, cluster.num_hosts, cluster.nics) == ((0, 0, 1, 1), 2, 3)
        assert cluster.path_bytes_per_s[0, 1:].tolist() == [12e9, 1e9, 1e9]
        assert cluster.path_latency_s[0, 1:] == pytest.approx([10e-6, 11e-6, 11e-6], rel=1e-12)


def test_devices_that_are_all_on_one_host_are_on_none():
    for hosts in (None, 1, [0] * 4):
        cluster = preset(name="p100x4", hosts=hosts, nics=2, nic_bytes_per_s=1.0)
        assert (cluster.hosts, cluster.num_hosts) == (None, 1)
        assert not cluster.between_hosts.any()
        np.testing.assert_array_equal(cluster.path_bytes_per_s, cluster.bytes_per_s)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": 3}, "cluster 'p100x4': hosts=3 cannot share 4 devices equally; give the host"),
        ({"hosts": 2, "nic_bytes_per_s": None}, "cluster 'p100x4': 2 hosts need nic_bytes_per_s"),
        ({"hosts": [0, 1]}, "hosts must be 4 numbers, one per device, got [0, 1]"),
        ({"hosts": [0, 0, 2, 2]}, "numbered from 0 on, got [0, 0, 2, 2]: host 1 has no device"),
        ({"hosts": 0}, "preset.hosts: must be a whole number of at least 1"),
        ({"hosts": [0, 0, -1, -1]}, "preset.hosts"),
        ({"hosts": 1.5}, "preset.hosts"),
        ({"nics": 61}, "cluster 'p100x4': nics must be a whole number from 1 to 60, got 61"),
        ({"nics": 0}, "preset.nics: must be a whole number of at least 1"),
        ({"nic_bytes_per_s": 0.0}, "preset.nic_bytes_per_s: must be a number above 0"),
        ({"nic_latency_s": -1.0}, "preset.nic_latency_s: must be a number of at least 0"),
    ],
)
def test_hosts_that_cannot_be_are_named_in_one_line(changes, message):
    with pytest.raises(InputError) as error:
        preset(**{"name": "p100x4", "hosts": 2, "nic_bytes_per_s": 1e9, **changes})
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": (0, 1)}, "cluster 'three': hosts must be 3 numbers, one per device, got (0, 1)"),
        ({"hosts": "012"}, "hosts must be 3 numbers, one per device, got '012'"),
        ({"hosts": 2}, "hosts must be 3 numbers, one per device, got 2"),
        ({"hosts": (0, 1, -1)}, "hosts must be numbered from 0 on, got (0, 1, -1): negative"),
        ({"nics": 1.0}, "nics must be a whole number from 1 to 60, got 1.0"),
        ({"nic_bytes_per_s": np.nan}, "nic_bytes_per_s must be positive, got nan"),
        ({"nic_bytes_per_s": "fast"}, "nic_bytes_per_s must be positive, got 'fast'"),
        ({"nic_latency_s": np.inf}, "nic_latency_s must not be negative, got inf"),
    ],
)
def test_a_cluster_checks_its_hosts(changes, message):
    with pytest.raises(InputError) as error:
        cluster_with(**changes)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_machine_without_limits_is_read_from_the_file_that_was_written(tmp_path):
    without = cluster_of([np.inf, 2.0], bytes_per_s=np.inf, host_bytes_per_s=np.inf)
    save_cluster(without, tmp_path)
    again = load_cluster(tmp_path)
    assert again.devices[0].memory_bytes == again.devices[0].memory_bytes_per_s == np.inf
    assert [one.flop_per_s for one in again.devices] == [{"f32": np.inf}, {"f32": 2.0}]
    assert again.host_bytes_per_s == np.inf
    np.testing.assert_array_equal(again.bytes_per_s, without.bytes_per_s)


@pytest.mark.parametrize("place", [("name",), ("devices", 0, "name")])
def test_a_name_has_a_text_and_no_limit(place, tmp_path):
    save_cluster(preset(name="p100x4"), tmp_path)
    path = tmp_path / "cluster.json"
    data = json.loads(path.read_text())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = None
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"cluster.json: .*name.*: expected text"):
        load_cluster(tmp_path)


def test_hosts_may_be_said_to_be_none(tmp_path):
    save_cluster(preset(name="p100x4"), tmp_path)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hosts": None}))
    assert load_cluster(tmp_path).num_hosts == 1


def test_a_machine_of_hosts_is_read_from_the_file_that_was_written(tmp_path):
    for cluster in (preset(name="dgx_h100x16"), preset(name="mixed")):
        save_cluster(cluster, tmp_path)
        again = load_cluster(tmp_path)
        assert [one.name for one in again.devices] == [one.name for one in cluster.devices]
        for key in ("hosts", "nics", "nic_bytes_per_s", "nic_latency_s"):
            assert getattr(again, key) == getattr(cluster, key)
        np.testing.assert_array_equal(again.path_bytes_per_s, cluster.path_bytes_per_s)
    assert "nics" not in json.loads((tmp_path / "cluster.json").read_text())
    data = {**json.loads((tmp_path / "cluster.json").read_text()), "hosts": [0, 1]}
    (tmp_path / "cluster.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"cluster.json: cluster 'mixed': hosts must be 4 numbers"):
        load_cluster(tmp_path)


# --- What devices reach of their peaks ----------------------------------------------------------


def seconds(device, flops: float, moved_bytes: float = 0.0, dtype: str = "f32") -> float:
    return float(
        op_cost_s(
            flops=np.array([flops]),
            moved_bytes=np.array([moved_bytes]),
            dtypes=(dtype,),
            device=device,
        )[0]
    )


@pytest.mark.parametrize(
    ("dtype", "allow_tf32", "rows", "measured_s"),
    [
        ("f32", False, 1024, 56.8e-6),
        ("f32", False, 2048, 342e-6),
        ("f32", False, 8192, 21.3e-3),
        ("f32", True, 4096, 347e-6),
        ("f32", True, 8192, 2.73e-3),
        ("f16", False, 2048, 25.7e-6),
        ("f16", False, 8192, 1.45e-3),
        ("f64", False, 4096, 2.33e-3),
    ],
)
def test_square_products_take_on_h100_what_was_measured(dtype, allow_tf32, rows, measured_s):
    machine = preset(name="h100x8", num_devices=1, allow_tf32=allow_tf32, efficiency="measured")
    num_bytes = 3 * rows**2 * {"f16": 2, "f32": 4, "f64": 8}[dtype]
    predicted_s = seconds(machine.devices[0], 2.0 * rows**3, num_bytes, dtype)
    assert predicted_s == pytest.approx(measured_s, rel=0.15)


@pytest.mark.parametrize(
    ("elements", "measured_s"), [(2**18, 9.5e-6), (2**24, 48e-6), (2**28, 713e-6)]
)
def test_products_of_elements_take_on_h100_what_was_measured(elements, measured_s):
    machine = preset(name="h100x8", num_devices=1, efficiency="measured")
    predicted_s = seconds(machine.devices[0], elements, 8.0 * elements)
    assert predicted_s == pytest.approx(measured_s, rel=0.15)


def test_peaks_and_tf32_are_what_presets_have_unless_told():
    for name in PRESETS:
        assert all(one.efficiency is None for one in preset(name=name).devices)
    assert preset(name="h100x8").devices[0].flop_per_s["f32"] == 494e12
    assert preset(name="h100x8", allow_tf32=False).devices[0].flop_per_s["f32"] == 67e12
    assert preset(name="a100x8", allow_tf32=False).devices[0].flop_per_s["f32"] == 19.5e12
    assert preset(name="v100x8", allow_tf32=False).devices == preset(name="v100x8").devices


def test_an_efficiency_is_read_from_a_file_and_checked():
    def devices(efficiency):
        rates = {"flop_per_s": {"f32": 1e12}, "memory_bytes_per_s": 1e12}
        return [{**rates, "launch_overhead_s": 0.0, "memory_bytes": 1e9, "efficiency": efficiency}]

    def made(efficiency):
        return custom(name="c", devices=devices(efficiency), bytes_per_s=1e9, latency_s=0.0)

    good = {"compute": 0.5, "memory": 0.5, "half_flops": 1e6, "half_bytes": 0}
    # A kernel of the size of half_flops reaches half of what large ones reach.
    assert seconds(made(good).devices[0], 1e6) == pytest.approx(1e6 / 1e12 / 0.5 * 2)
    for bad, said in (
        ({**good, "compute": 2}, "efficiency.compute: must be above 0 and at most 1, got 2"),
        ({**good, "half_flops": -1}, "efficiency.half_flops: must be 0 or more, got -1"),
        ({**good, "memry": 1}, "memry"),
        ({"compute": 1}, "efficiency: 'memory' is missing"),
        (0.5, "efficiency"),
    ):
        with pytest.raises(InputError, match=said):
            made(bad)


def test_shared_resources_are_written_as_lists_or_all(tmp_path):
    shared = [
        {"name": "switch", "bytes_per_s": 1e9, "links": [[0, 1], [0, 1], [2, 3]]},
        {"name": "memory", "bytes_per_s": 2e9, "devices": "all", "links": "all"},
        {"name": "processors", "devices": [0, 2]},
    ]
    cluster = preset(name="p100x4", shared=shared)
    assert cluster.shared[0].links == ((0, 1), (0, 1), (2, 3))
    assert cluster.shared[1].devices == (0, 1, 2, 3)
    assert len(cluster.shared[1].links) == 12
    assert cluster.shared[2] == SharedResource(name="processors", devices=(0, 2))
    save_cluster(cluster, tmp_path)
    assert load_cluster(tmp_path).shared == cluster.shared


def test_the_first_of_several_hosts_keeps_what_its_devices_share():
    switch = SharedResource(name="switch", bytes_per_s=1e9, links=((0, 2), (1, 2), (0, 1)))
    cluster = dataclasses.replace(
        preset(name="p100x4", hosts=[0, 1, 0, 1], nic_bytes_per_s=1e9),
        shared=(switch, SharedResource(name="others", devices=(1, 3))),
    )
    (kept,) = cluster.first_host.shared
    assert kept.links == ((0, 1),)  # between what were devices 0 and 2


def test_streams_of_one_gpu_share_its_processors_and_twice_its_memory():
    shared = shared_by_streams(3, [P100, P100])  # devices 0 and 2 are on the first GPU
    assert [one.name for one in shared] == ["processors of GPU 0", "memory of GPU 0"]
    assert all(one.devices == (0, 2) for one in shared)
    assert shared[1].links == ((0, 2), (0, 2), (2, 0), (2, 0))
    assert shared[1].bytes_per_s == P100.memory_bytes_per_s
    assert shared_by_streams(2, [P100, P100]) == ()


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        ("all", "shared: must be a list"),
        ([{"bytes_per_s": 1}], r"shared\[0\]: 'name' is missing"),
        ([{"name": "a", "rate": 1}], r"shared\[0\].*rate"),
        ([{"name": "a"}], "shared 'a': names neither devices nor links"),
        ([{"name": "a", "links": [[0, 1]]}], "shared 'a': transfers use no processors"),
        ([{"name": "a", "bytes_per_s": 0, "links": [[0, 1]]}], "bytes_per_s must be positive"),
        ([{"name": "a", "bytes_per_s": 1, "links": [[0, 9]]}], "device 9, there are 0 to 3"),
        ([{"name": "a", "bytes_per_s": 1, "links": [[1, 1]]}], "link 1 -> 1 does not exist"),
        ([{"name": "a", "bytes_per_s": 1, "links": [0, 1]}], "list of pairs"),
        ([{"name": "a", "devices": [0, 0]}], "a device is listed twice"),
        ([{"name": "a", "devices": [0]}, {"name": "a", "devices": [1]}], "two shared resources"),
    ],
)
def test_a_bad_shared_resource_is_named_in_one_line(shared, message):
    with pytest.raises(InputError, match=message) as error:
        preset(name="p100x4", shared=shared)
    assert "\n" not in str(error.value)


def test_devices_are_alike_only_if_they_share_alike():
    graph = graph_of([1, 1])
    pairs = [
        {"name": "first", "devices": [0, 1]},
        {"name": "second", "devices": [2, 3]},
    ]
    problem = build(graph, preset(name="p100x4", shared=pairs))
    alike = [problem.same_when_swapped(0, d) for d in (1, 2)]
    assert alike == [True, False]
    whole = build(graph, preset(name="p100x4", shared=[{"name": "all", "devices": "all"}]))
    assert whole.same_when_swapped(0, 3)
    link = [{"name": "link", "bytes_per_s": 1e9, "links": [[0, 1], [0, 2]]}]
    linked = build(graph, preset(name="p100x4", shared=link))
    assert [linked.same_when_swapped(1, d) for d in (2, 3)] == [True, False]
