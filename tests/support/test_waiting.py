"""What is told of long work."""

import time

from doppler.support import waiting


def test_long_work_is_told_and_short_work_is_not(monkeypatch):
    monkeypatch.setattr(waiting, "FIRST_S", 0.01)
    monkeypatch.setattr(waiting, "NEXT_S", 0.01)
    said: list[str] = []
    with waiting.waiting(said.append, "counting"):
        while len(said) < 2:
            time.sleep(0.001)
    assert said[:2] == ["counting ...", "counting: 0 s so far"]
    monkeypatch.setattr(waiting, "FIRST_S", 100.0)
    told = len(said)
    with waiting.waiting(said.append, "counting"):
        pass
    assert len(said) == told
