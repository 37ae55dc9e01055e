"""The house stays as it was promised; benchmarks/house.py counts."""

import ast
from pathlib import Path

import pytest
from benchmarks.house import counts

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def counted() -> dict[str, str]:
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "src").rglob("*.py"))}
    return dict(counts(ROOT, trees))


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("options of a default run", 60),
        ("arguments of the training module", 10),
        ("names that classes share", 0),
        ("circles between files", 0),
        ("words of README.md", 900),
        ("numbers of README.md", 40),
        ("concepts of ARCHITECTURE.md", 15),
    ],
)
def test_a_count_is_at_most(counted, what, most):
    assert int(counted[what].split()[0]) <= most, counted[what]
