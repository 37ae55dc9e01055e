"""A placed model in a directory, and from there into another process."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from doppler.cluster import Cluster, Device, Efficiency
from doppler.errors import InputError
from doppler.files import check_size, read_json
from doppler.files.values import read_object
from doppler.graph.formats import write_atomically
from doppler.importing import Binding
from doppler.importing.saving import binding_as_data, binding_of

_MODULE, _CLUSTER = "module.pt", "cluster.json"
# What a machine of one host has no use for.
_OF_HOSTS = ("hosts", "nics", "nic_bytes_per_s", "nic_latency_s")
# Parameters of large models.
_MAX_MB = 1e6


def save_cluster(cluster: Cluster, directory: Path) -> None:
    """Write a machine as JSON; null is no limit."""
    data = {key: _plain(value) for key, value in asdict(cluster).items()}
    if cluster.hosts is None:
        data = {key: value for key, value in data.items() if key not in _OF_HOSTS}
    write_atomically(directory / _CLUSTER, json.dumps(data, indent=1) + "\n")


def load_cluster(directory: Path) -> Cluster:
    """Read what `save_cluster` wrote.

    Raises:
        InputError: names the file.
    """
    path = directory / _CLUSTER
    try:
        known = [one.name for one in fields(Cluster) if one.name not in _OF_HOSTS]
        row = read_object(read_json(path), "", known, _OF_HOSTS)
        row["devices"] = tuple(map(_device, row["devices"]))
        for key in ("bytes_per_s", "latency_s"):
            row[key] = np.array(row[key], dtype=np.float64)
            row[key][np.isnan(row[key])] = np.inf
        if row.get("nic_bytes_per_s", 0) is None:
            row["nic_bytes_per_s"] = np.inf
        return Cluster(**row)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"{path}: describes no cluster") from None


def _device(row: dict[str, Any]) -> Device:
    reached = row.pop("efficiency")
    return Device(**row, efficiency=None if reached is None else Efficiency(**reached))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(row) for row in value.tolist()]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return None if value == float("inf") else value


def save_binding(binding: Binding, directory: Path) -> None:
    """Write how a module's tensors are those of its program, and its parameters."""
    path = directory / _MODULE
    torch.save(binding_as_data(binding), path)


def load_binding(directory: Path, *, trust: bool) -> Binding | None:
    """Read what `save_binding` wrote; None if what was placed is no module.

    Raises:
        InputError: names the file.
    """
    path = directory / _MODULE
    if not path.exists():
        return None
    check_size(path, max_mb=_MAX_MB)
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a file of any content can raise anything; torch's line tells how to run it
        raise InputError(f"{path}: unreadable (damaged, or not plain data)") from None
    try:
        return binding_of(data, trust=trust)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
