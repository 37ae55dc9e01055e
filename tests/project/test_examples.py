"""The scripts of examples/ run as they stand."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAID = {  # arguments, what each prints
    "own_model": (["0.1"], ["Experts on p100x4 (4 devices)", "it computes what torch does"]),
    "own_machine": (["0.1"], ["on pairs over 2 GB/s", "on pairs over 50 GB/s"]),
    "own_pipeline": (["."], ["bound", "from one process's at most"]),
    "own_workload": (["4"], ["stencil: 16 ops", "etf: "]),
    "own_system": (["0.1"], ["cautious:", "layered on p100x4"]),
    "own_policy": (["40"], ["per_op greedy", "per_op: "]),
    "maskable_ppo": (["chainmm", "p100x4", "8"], ["MaskablePPO: 8 episodes", "random: 8 episodes"]),
    "own_method": (["100"], ["Swaps: 100 executions", "auto: "]),
}


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_examples_run(name, tmp_path):
    arguments, expected = SAID[name]
    if name == "maskable_ppo":
        pytest.importorskip("sb3_contrib")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in expected:
        assert line in done.stdout
