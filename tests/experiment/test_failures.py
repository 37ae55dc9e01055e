"""Lines of a sweep's failed runs, collected wherever a launcher runs them."""

from doppler.experiment import failures


def test_lines_are_kept_while_they_are_collected_in_the_order_of_the_runs():
    with failures.collected() as lines:
        assert failures.keep("tenth", 10) and failures.keep("second", 2)
    assert lines == ["second", "tenth"]


def test_where_no_folder_is_shared_nothing_is_kept(tmp_path, monkeypatch):
    assert not failures.keep("a run on another machine", 0)
    monkeypatch.setenv("DOPPLER_FAILURES", str(tmp_path / "elsewhere"))
    assert not failures.keep("its folder is not on this one", 0)
