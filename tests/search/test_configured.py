"""Methods by name, as doppler.place takes them."""

from types import SimpleNamespace

from doppler.baselines import RoundRobin
from doppler.hooks import implements, plugins
from doppler.search import PlaceOnce, methods, steps_of


def test_a_plugin_adds_a_method(tmp_path):
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline/in_turn.yaml").write_text(
        "# @package baseline.in_turn\n_target_: doppler.baselines.RoundRobin\n"
    )
    plugin = SimpleNamespace(config_folders=implements(lambda: [tmp_path]))
    assert "in_turn" not in methods()
    plugins().register(plugin)
    try:
        (step,) = steps_of("in_turn")
        assert isinstance(step, PlaceOnce) and isinstance(step.baseline, RoundRobin)
    finally:
        plugins().unregister(plugin)
    assert "in_turn" not in methods()
