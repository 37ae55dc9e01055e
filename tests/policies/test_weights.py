"""Weights of checkpoints: whole, finite, and never code."""

import pickle
from pathlib import Path

import pytest
import torch

from doppler.policies import DualPolicy
from doppler.policies.weights import PRETRAINED, load_checkpoint, load_policy_weights
from doppler.support.errors import InputError


def make_policy(plc_hidden: int = 4) -> DualPolicy:
    return DualPolicy(sel_hidden=4, plc_hidden=plc_hidden)


def saved(path: Path, policy: DualPolicy) -> Path:
    state = {f"policy.{name}": value for name, value in policy.state_dict().items()}
    torch.save({"state_dict": state, "doppler": {"evaluations": 3}}, path)
    return path


def test_weights_come_back_as_they_were(tmp_path):
    policy, other = make_policy(), make_policy()
    load_policy_weights(other, saved(tmp_path / "mine.ckpt", policy))
    for one, two in zip(policy.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_parts_that_a_policy_is_built_without_stay_off(tmp_path):
    policy = DualPolicy(scheduler=False)
    load_policy_weights(policy, PRETRAINED)
    for weights in (policy.sel_scheduler_weights, policy.plc_scheduler_weights):
        assert not weights.requires_grad and weights.count_nonzero() == 0
    assert policy.sel_out.weight.count_nonzero() > 0


def test_the_weights_of_the_package_are_plain_data():
    assert load_checkpoint(PRETRAINED)["doppler"]["evaluations"] > 0


class Harmful:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_foreign_checkpoint_executes_no_code(tmp_path):
    path, touched = tmp_path / "foreign.ckpt", tmp_path / "touched"
    torch.save({"state_dict": {}, "doppler": Harmful(touched)}, path)
    torch.load(path, weights_only=False)
    assert touched.exists(), "it would, if it could"
    touched.unlink()
    with pytest.raises(InputError, match=r"foreign\.ckpt: unreadable checkpoint"):
        load_checkpoint(path)
    path.write_bytes(pickle.dumps(Harmful(touched)))
    with pytest.raises(InputError, match=r"foreign\.ckpt: unreadable checkpoint"):
        load_checkpoint(path)
    assert not touched.exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {"state_dict": [1]}, {"state_dict": 7}])
def test_what_holds_no_weights_is_no_checkpoint(tmp_path, content):
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(InputError, match=r"x\.ckpt: not a checkpoint \(no weights in it\)"):
        load_policy_weights(make_policy(), tmp_path / "x.ckpt")


def test_weights_of_another_size_or_of_a_training_that_diverged_are_refused(tmp_path):
    policy = make_policy()
    with pytest.raises(InputError, match=r"x\.ckpt: weights of another policy: .*size"):
        load_policy_weights(make_policy(8), saved(tmp_path / "x.ckpt", policy))
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match=r"x\.ckpt: weights are not finite"):
        load_policy_weights(make_policy(), saved(tmp_path / "x.ckpt", policy))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda one: one.to_sparse(), "'{name}' is not a dense tensor of numbers"),
        (lambda one: one.to("meta"), "'{name}' is not a dense tensor of numbers"),
        (lambda one: one > 0, "{name}: expected torch.float32, found torch.bool"),
        (lambda one: one.long(), "{name}: expected torch.float32, found torch.int64"),
        (lambda one: one + 0j, "{name}: expected torch.float32, found torch.complex64"),
    ],
)
def test_tensors_of_another_kind_are_named(tmp_path, change, line):
    path = saved(tmp_path / "x.ckpt", make_policy())
    whole = torch.load(path)
    state = whole["state_dict"]
    for name in ("policy.sel_out.weight", "policy.network.query_RH"):
        torch.save(whole | {"state_dict": state | {name: change(state[name])}}, path)
        with pytest.raises(InputError) as error:
            load_policy_weights(make_policy(), path)
        assert str(error.value) == f"{path}: state_dict: {line.format(name=name)}"


def test_weights_may_be_of_another_precision(tmp_path):
    policy, path = make_policy(), tmp_path / "x.ckpt"
    load_policy_weights(policy, saved(path, make_policy().double()))
    assert all(one.dtype == torch.float32 for one in policy.parameters())


@pytest.mark.parametrize("path", [None, 3])
def test_what_is_no_path_is_named(path):
    with pytest.raises(InputError, match=r"^stage\.init_from: must be auto, null or a path, got"):
        load_checkpoint(path)
