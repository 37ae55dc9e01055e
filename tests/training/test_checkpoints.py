"""When checkpoints/last.ckpt is written."""

from doppler.training import checkpoints


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
