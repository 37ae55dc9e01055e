"""Reads and writes a cluster as ``cluster.json`` in a directory."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from doppler.cluster.device import Device, Efficiency
from doppler.cluster.machine import Cluster
from doppler.cluster.sharing import read_shared
from doppler.graph.formats import write_atomically
from doppler.support.errors import InputError
from doppler.support.files import read_json
from doppler.support.files.values import read_flag, read_list, read_object, read_text

_FILE = "cluster.json"
# Fields that are left out for a machine of one host.
_OF_HOSTS = ("hosts", "nics", "nic_bytes_per_s", "nic_latency_s")
# Missing in older files.
_OF_HOST_MEMORY = ("host_bytes_per_s", "host_latency_s")
# Written only if true.
_WHERE_SO = ("cores", "shared")


def save_cluster(cluster: Cluster, directory: Path) -> None:
    """Write a cluster as JSON; null means no limit.

    Args:
        cluster: to write.
        directory: of the file.
    """
    data = {key: _plain(value) for key, value in asdict(cluster).items()}
    if cluster.hosts is None:
        data = {key: value for key, value in data.items() if key not in _OF_HOSTS}
    for key in _WHERE_SO:
        if not getattr(cluster, key):
            del data[key]
    write_atomically(directory / _FILE, json.dumps(data, indent=1) + "\n")


def load_cluster(directory: Path) -> Cluster:
    """Read what `save_cluster` wrote.

    Args:
        directory: of the file.

    Raises:
        InputError: names the file.
    """
    path = directory / _FILE
    try:
        optional = (*_OF_HOSTS, *_OF_HOST_MEMORY, *_WHERE_SO)
        known = [one.name for one in fields(Cluster) if one.name not in optional]
        row = read_object(read_json(path), "", known, optional)
        devices = read_list(row.pop("devices"), "devices", _device)
        read_flag(row.get("cores", False), "cores")
        read_text(row["name"], "name")
        if row.get("hosts", 0) is None:  # one host, whose fields are left out
            del row["hosts"]
        shared = read_shared("cluster", row.pop("shared", None), len(devices))
        return Cluster(devices=devices, shared=shared, **_with_limits(row))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"{path}: describes no cluster") from None


def _device(value: object, where: str) -> Device:
    row = read_object(value, where, [one.name for one in fields(Device)])
    read_text(row["name"], f"{where}.name")
    reached = row.pop("efficiency")
    if reached is not None:
        known = [one.name for one in fields(Efficiency)]
        reached = read_object(reached, f"{where}.efficiency", known)
    efficiency = None if reached is None else Efficiency(**reached)
    return Device(**_with_limits(row), efficiency=efficiency)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(row) for row in value.tolist()]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return None if value == float("inf") else value


def _with_limits(value: Any) -> Any:
    """Replace null by infinity."""
    if isinstance(value, list):
        return [_with_limits(one) for one in value]
    if isinstance(value, dict):
        return {key: _with_limits(one) for key, one in value.items()}
    return np.inf if value is None else value
