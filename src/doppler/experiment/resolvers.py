"""Registers Doppler's ``${...}`` functions and its plugins' config folders with Hydra.

Heavy modules are imported only when a configuration needs them.
"""

import atexit
import re
import shutil
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from doppler.hooks import contributed
from doppler.support.resources import resource


def _host_device_type(system: str, *, _root_: Any) -> str:
    from doppler.executor import host_device_type

    return host_device_type(system, _devices(_root_))


def _num_host_devices(system: str, *, _root_: Any) -> int:
    from doppler.executor import num_host_devices

    return num_host_devices(system, _devices(_root_))


def _devices(root: Any) -> str:
    """The option ``devices`` of the system."""
    return str((root.get("system") or {}).get("devices") or "cores")


def _default_preset(cluster: str, system: str, *, _root_: Any) -> str:
    """Default size of a workload: ``small`` if CPUs compute it, else ``paper``.

    Args:
        cluster: its name; ``host`` is this machine.
        system: target of the system. Simulators and emulations compute nothing.
    """
    computes = not system.startswith("doppler.simulator.") and not system.endswith(".Emulated")
    if not computes and cluster != "host":
        return "paper"
    return "small" if _host_device_type(system, _root_=_root_) == "cpu" else "paper"


def _costs_of(system: str) -> str:
    """Costs with which a system is compared with the paper: the released ones, or those of ops.

    Args:
        system: target of the system.
    """
    return "published" if system == "doppler.simulator.Published" else "roofline"


def _num_processors(path: str | None) -> int | None:
    from doppler.graph.optima import num_processors

    return num_processors(path)


def _share(share: float, number: int) -> int:
    """A share of a number of evaluations, at least one."""
    return max(1, int(share * number))


def _choices(*, _root_: Any) -> str:
    """All choices of all groups, with the first line of their files; the defaults are marked."""
    lines = []
    for group in groups():
        lines += ["", group]
        chosen = _root_.hydra.runtime.choices.get(group) or []
        chosen = [chosen] if isinstance(chosen, str) else list(chosen)
        for name, file in _files(group).items():
            mark = "*" if name in chosen else " "
            lines.append(f" {mark} {name:<22} {description_of(file)}")
    return "\n".join(lines[1:])


def groups() -> list[str]:
    """Return the names of all config groups, sorted."""
    return sorted(
        {path.name for folder in _folders() for path in folder.iterdir() if path.is_dir()}
    )


def choices_of(group: str) -> list[str]:
    """Return the choices of a config group; empty if there is no such group.

    Args:
        group: its name.
    """
    return list(_files(group))


def _folders() -> list[Path]:
    return [resource("conf"), *chain(*contributed("config_folders"))]


def _files(group: str) -> dict[str, Path]:
    """The files of a group by the names of their choices."""
    return {
        file.relative_to(folder / group).with_suffix("").as_posix(): file
        for folder in _folders()
        for file in sorted((folder / group).rglob("*.yaml"))
    }


def description_of(file: Path) -> str:
    """Return the first comment line of a choice's file, without the comment sign.

    Args:
        file: of the choice.
    """
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# @package"):
            return line.lstrip("# ") if line.startswith("#") else ""
    return ""


# What Hydra reads as a value, like numbers, and not as the name of a choice.
_NO_NAMES = ("true", "false", "null", "inf", "nan")
# The folder for choices given as files on the command line, once there is one.
_given: list[Path] = []


def choice_of_file(group: str, path: Path) -> str:
    """Make a file a choice of a config group for this process; return the name of the choice.

    Args:
        group: in conf/.
        path: a file like those of the group.
    """
    if not _given:
        folder = Path(tempfile.mkdtemp(prefix="doppler-conf-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _given.append(folder)
    name = re.sub(r"\W", "_", path.stem, flags=re.ASCII)
    if not name[:1].isalpha() or name.lower() in _NO_NAMES:
        name = f"file_{name}"
    while name in choices_of(group):
        name += "_of_file"
    (_given[0] / group).mkdir(exist_ok=True)
    shutil.copyfile(path, _given[0] / group / f"{name}.yaml")
    return name


class _PluginFolders(SearchPathPlugin):
    """Adds the choices of plugins and of given files to the groups of conf/."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folders after conf/.

        Args:
            search_path: of Hydra.
        """
        for folder in chain(*contributed("config_folders"), _given):
            search_path.append(provider="doppler", path=f"file://{folder}")


def register_resolvers() -> None:
    """Register everything with Hydra; calling it again does no harm."""
    Plugins.instance().register(_PluginFolders)
    # conf/workload/, conf/cluster/host.yaml
    OmegaConf.register_new_resolver("stem", lambda path: Path(path).stem, replace=True)
    OmegaConf.register_new_resolver("num_processors", _num_processors, replace=True)
    OmegaConf.register_new_resolver("host_device_type", _host_device_type, replace=True)
    OmegaConf.register_new_resolver("num_host_devices", _num_host_devices, replace=True)
    OmegaConf.register_new_resolver("default_preset", _default_preset, replace=True)
    OmegaConf.register_new_resolver("costs_of", _costs_of, replace=True)
    OmegaConf.register_new_resolver("choices", _choices, replace=True)
    OmegaConf.register_new_resolver("share", _share, replace=True)
    for added in contributed("resolvers"):
        for name, function in added.items():
            OmegaConf.register_new_resolver(name, function, replace=True)
