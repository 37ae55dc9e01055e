"""Makespans over evaluations."""

from results import seeds, summary

from doppler.report.figures import save_effort


def rows(method: str, *evaluations: int):
    return [
        row
        for number in evaluations
        for row in seeds(
            [0.1 + 1 / number, 0.12], method=method, evaluations=number, variant=f"{number}"
        )
    ]


def test_methods_of_several_budgets_are_drawn(tmp_path):
    path = tmp_path / "figures/one.png"
    table = summary([*rows("doppler", 1000, 4000), *rows("annealing", 1000)])
    assert save_effort(table, path, title="chainmm")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_one_budget_or_several_settings_of_one_budget_are_no_line(tmp_path):
    path = tmp_path / "one.png"
    assert not save_effort(summary(rows("doppler", 1000)), path, title="")
    mixed = [*rows("doppler", 1000, 4000), *seeds([0.1], evaluations=1000, variant="other")]
    assert not save_effort(summary(mixed), path, title="")
    assert not save_effort(summary(rows("doppler trained", 900, 3600)), path, title="")
    assert not path.exists()
