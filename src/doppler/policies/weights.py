"""Reads weights of policies from a checkpoint of any stage, without executing code in it."""

import hashlib
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from doppler.policies.contract import Bindable
from doppler.support.errors import InputError
from doppler.support.files import read_bytes
from doppler.support.files.values import check_version, fault

# Version of our own entries in a checkpoint.
VERSION = 1
# Instead of a path: the weights that come with the package, trained on many problems.
PRETRAINED = "pretrained"
_PRETRAINED_PATH = Path(__file__).resolve().parents[1] / "pretrained" / "doppler.ckpt"


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint, or the one that comes with the package.

    Args:
        path: of the checkpoint, or ``pretrained``.

    Returns:
        ``state_dict``: tensors by name; ``doppler``: our own entries, if any; and Lightning's
        entries.

    Raises:
        InputError: no such file, or not a checkpoint of this program.
    """
    if not isinstance(path, str | Path):
        raise InputError(f"stage.init_from: must be auto, null or a path, got {path!r}")
    if str(path) == PRETRAINED:
        path = _PRETRAINED_PATH
    content = io.BytesIO(read_bytes(path))
    try:
        checkpoint = torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own message recommends to execute what is in the file
        raise InputError(f"{path}: unreadable checkpoint (damaged, or not plain data)") from None
    except Exception as error:  # a file of any content can raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: unreadable checkpoint ({reason})") from None
    weights = checkpoint.get("state_dict") if isinstance(checkpoint, dict) else None
    if not isinstance(weights, Mapping):
        raise InputError(f"{path}: not a checkpoint (no weights in it)")
    for name, weight in weights.items():
        if not (isinstance(name, str) and isinstance(weight, torch.Tensor)):
            raise InputError(f"{path}: state_dict: {str(name)[:60]!r} is not a named tensor")
        is_dense = weight.layout is torch.strided and not (weight.is_nested or weight.is_quantized)
        if weight.is_meta or not is_dense:
            raise InputError(f"{path}: state_dict: {name[:60]!r} is not a dense tensor of numbers")
    kept = checkpoint.get("doppler", {})
    if not isinstance(kept, dict):
        raise fault(f"{path}: doppler", "a dictionary", kept)
    try:
        check_version(kept, VERSION, default=VERSION)
    except InputError as error:
        raise InputError(f"{path}: doppler: {error}") from None
    return checkpoint


def weights_digest(path: str | Path) -> str:
    """Return a digest of the weights in a checkpoint, whatever else it says.

    Args:
        path: of the checkpoint, or ``pretrained``.

    Raises:
        InputError: as in `load_checkpoint`.
    """
    found = hashlib.sha256()
    for name, weight in sorted(load_checkpoint(path)["state_dict"].items()):
        found.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        found.update(weight.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def load_policy_weights(policy: torch.nn.Module, path: str | Path) -> None:
    """Set a policy's weights to those of a checkpoint of any stage.

    Parts that the policy is built without, such as a list scheduler's terms, stay switched off.

    Args:
        policy: to change.
        path: of the checkpoint, or ``pretrained``.

    Raises:
        InputError: the file is unreadable, made for a policy of another kind or size, or has
            weights that are not finite, or not of the kind that the policy has.
    """
    state = load_checkpoint(path)["state_dict"]
    prefix = "policy."
    weights = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
    check_kinds(policy, weights, f"{path}: state_dict: {prefix}")
    if isinstance(policy, Bindable):
        weights = policy.completed(weights)
    fixed = {
        name: one.detach().clone()
        for name, one in policy.named_parameters()
        if not one.requires_grad and name in weights and weights[name].shape == one.shape
    }
    try:
        policy.load_state_dict({**weights, **fixed})
    except RuntimeError as error:
        detail = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise InputError(f"{path}: weights of another policy: {detail}") from None
    if not all(weight.isfinite().all() for weight in policy.parameters()):
        raise InputError(f"{path}: weights are not finite: the training diverged")


def check_kinds(module: torch.nn.Module, weights: Mapping[str, torch.Tensor], where: str) -> None:
    """Refuse tensors whose numbers torch would turn into others when it copies them.

    Args:
        module: that has the weights.
        weights: by name; those that the module does not have are not looked at.
        where: they are, before their names.

    Raises:
        InputError: names a tensor, for instance one of integers where the module has fractions.
    """
    for name, own in module.state_dict().items():
        one = weights.get(name)
        if one is None or not isinstance(own, torch.Tensor):
            continue
        # Fractions may be of another precision.
        fits = one.is_floating_point() if own.is_floating_point() else one.dtype == own.dtype
        if not fits:
            raise InputError(f"{where}{name}: expected {own.dtype}, found {one.dtype}")
