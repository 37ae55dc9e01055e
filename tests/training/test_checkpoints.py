"""When checkpoints/last.ckpt is written, and which numbers in a checkpoint are damaged."""

import pytest
import torch

from doppler.support.errors import InputError
from doppler.training import checkpoints, effort_of


def test_the_last_checkpoint_is_written_once_in_so_many_seconds(tmp_path, monkeypatch):
    now, written = [100.0], []
    monkeypatch.setattr(checkpoints.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(
        checkpoints, "save_checkpoint", lambda trainer, path: written.append((now[0], path))
    )
    callback = checkpoints.LastCheckpoint(directory=tmp_path, every_s=10)
    callback.on_train_start(None, None)
    for seconds in (101.0, 109.0, 110.0, 112.0, 119.5, 121.0, 122.0):
        now[0] = seconds
        callback.on_train_batch_end(None, None, None, None, 0)
    assert written == [(at, tmp_path / checkpoints.LAST) for at in (110.0, 121.0)]
    callback.on_train_end(None, None)
    assert len(written) == 3


@pytest.mark.parametrize("key", ["evaluations", "elapsed_s"])
def test_an_effort_below_0_is_damaged(tmp_path, key):
    path, kept = tmp_path / "last.ckpt", {"evaluations": 0, "elapsed_s": 0.0}
    torch.save({"state_dict": {}, "doppler": kept}, path)
    assert effort_of(path) == checkpoints.Effort(0, 0.0)
    torch.save({"state_dict": {}, "doppler": kept | {key: -1}}, path)
    with pytest.raises(InputError, match=rf"doppler\.{key}: expected a number of at least 0"):
        effort_of(path)
