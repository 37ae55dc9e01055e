"""All that needs a GPU, by one command, in under 8 minutes on one GPU or more.

    make gpu                                            # python3, or PYTHON=...
    make gpu ARGS="--parts results,overhead"
    make gpu ARGS="--executor threads --small"          # the same parts on cores, to try them

Devices are four; where there are fewer GPUs, several are streams of one. Nothing is installed: the
python at hand needs a torch with CUDA, from 2.11 on, and what else is missing is named. Small
wheels can be brought along, on a machine with a network made by

    python3 -m pip wheel --no-deps --wheel-dir wheels -r benchmarks/gpu/wheels.txt

and, without one, unpacked and found by

    python3 -m pip install --no-index --no-deps --target packages wheels/*.whl
    PYTHONPATH=packages make gpu

What stages need is compiled first; no clock and no limit of a part counts that. Each part is a
process of its own with a time limit, and may also use the time that earlier parts left over. A part
that fails or hangs does not end the others.
docs/results/gpu.md is written anew whenever a part has ended. With `--runs DIR` it also shows the
parts that ended there in earlier calls at the same commit, so that two calls can share the work:

    make gpu ARGS="--runs build/gpu --parts results,overhead,graphs,whole_runs,agents"
    make gpu ARGS="--runs build/gpu --parts machine,use,calibrate,stage_three"

Exit code 1: a part failed, was left out, or there is no GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import facts, fault_of, missing
from benchmarks.gpu.page import Outcome, page
from benchmarks.gpu.parts import PARTS, PROJECT, STAGES, Fault, Figure, Part, Settings

PAGE = PROJECT / "docs/results/gpu.md"
CORES_PATIENCE = 5  # limits are those of a GPU
COMPILING_S = 240  # what is not compiled by then is compiled by the part that needs it
ENDING_S = 10  # for a finished part to exit; torch would wait minutes for its compile workers


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; returns the exit code."""
    options = _options(arguments)
    settings = Settings(options.executor, options.small, options.runs)
    if options.part:
        (part,) = (one for one in PARTS if one.name == options.part)
        return _ended(_do(part, settings))
    if fault := fault_of(options.executor):
        print(f"make gpu: {fault}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        if settings.runs is None:
            settings = settings._replace(runs=Path(folder))
        settings.runs.mkdir(parents=True, exist_ok=True)
        outcomes = _run_all(options.parts, settings, options.page)
    failed = [one.part.name for one in outcomes if one.problem]
    if failed:
        print(f"make gpu: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--executor", choices=("cuda", "threads"), default="cuda")
    parser.add_argument("--small", action="store_true", help="few placements and little training")
    parser.add_argument("--parts", help=f"of {','.join(names)}; all by default")
    parser.add_argument("--page", type=Path, help="what to write; on GPUs docs/results/gpu.md")
    parser.add_argument("--runs", type=Path, help="keeps run directories there")
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    chosen = options.parts.split(",") if options.parts else names
    if unknown := set(chosen) - set(names):
        parser.error(f"--parts: {min(unknown)!r} is not one of {', '.join(names)}")
    options.parts = [part for part in PARTS if part.name in chosen]
    if options.runs is not None:
        options.runs = options.runs.absolute()
    if options.page is None and options.executor == "cuda":
        options.page = PAGE
    return options


# --- In the process that is started ---------------------------------------------------------------


def _run_all(parts: list[Part], settings: Settings, path: Path | None) -> list[Outcome]:
    """One part after the other; the page after each."""
    lacking = missing(parts, settings.executor)
    for distribution, names in lacking.items():
        print(f"{distribution} is missing: without it no {', '.join(names)}", flush=True)
    about = facts(settings.executor)
    earlier = _earlier([part for part in PARTS if part not in parts], settings, about["commit"])
    if any(set(STAGES) <= set(part.needs) and not _lacks(part, lacking) for part in parts):
        _compile(settings)
    outcomes: list[Outcome] = []
    begin_s, text, limits_s = time.monotonic(), "", 0.0
    for part in parts:
        without = _lacks(part, lacking)
        limits_s += _limit_s(part, settings)
        outcomes.append(
            Outcome(part, [], f"left out: {', '.join(without)} missing", 0.0)
            if without
            else _run(part, settings, begin_s + limits_s - time.monotonic())
        )
        _keep(outcomes[-1], settings, about["commit"])
        told = sorted([*earlier, *outcomes], key=lambda one: PARTS.index(one.part))
        before_s = sum(one.seconds for one in earlier)
        text = page(about, told, before_s + time.monotonic() - begin_s)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print(f"\n{text}", flush=True)
    return outcomes


def _lacks(part: Part, lacking: dict[str, list[str]]) -> list[str]:
    """The distributions without which a part cannot run."""
    return [name for name, names in lacking.items() if part.name in names]


def _compile(settings: Settings) -> None:
    """Compile what stages need, on all cores, before any clock starts."""
    print("\n== compiling", flush=True)
    begin_s = time.monotonic()
    command = [sys.executable, "-m", "doppler", "warm"]
    try:
        done = subprocess.run(command, cwd=PROJECT, env=_environment(settings), timeout=COMPILING_S)
        told = f"failed (exit code {done.returncode})" if done.returncode else "done"
    except subprocess.TimeoutExpired:
        told = "stopped"
    print(f"compiling: {told} after {time.monotonic() - begin_s:.0f} s", flush=True)


def _environment(settings: Settings) -> dict[str, str]:
    """Of the processes that are started."""
    here = [str(PROJECT / "src"), str(PROJECT / "tests"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, here)), "PYTHONUNBUFFERED": "1"}
    if settings.executor == "threads":
        env["OMP_NUM_THREADS"] = "1"  # cores are devices
    return env


def _keep(outcome: Outcome, settings: Settings, commit: str) -> None:
    """Note how a part ended, for later calls."""
    told = {"commit": commit, "problem": outcome.problem, "seconds": outcome.seconds}
    _ending_of(outcome.part, settings).write_text(json.dumps(told), encoding="utf-8")


def _earlier(parts: list[Part], settings: Settings, commit: str) -> list[Outcome]:
    """How parts ended in earlier calls at this commit."""
    found = []
    for part in parts:
        ending = _ending_of(part, settings)
        told = _loaded(ending.read_text(encoding="utf-8")) if ending.exists() else None
        if told is not None and told["commit"] == commit:
            figures = _found(part, settings)
            found.append(Outcome(part, figures, told["problem"], told["seconds"]))
    return found


def _ending_of(part: Part, settings: Settings) -> Path:
    assert settings.runs is not None
    return settings.runs / f"{part.name}.ended.json"


def _found(part: Part, settings: Settings) -> list[Figure | Fault]:
    """What a part has written down."""
    rows = _rows_of(part, settings)
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    return [Figure(*one) if len(one) == 3 else Fault(*one) for one in map(_loaded, lines) if one]


def _limit_s(part: Part, settings: Settings) -> float:
    return part.limit_s * (1 if settings.executor == "cuda" else CORES_PATIENCE)


def _run(part: Part, settings: Settings, limit_s: float) -> Outcome:
    """A part in a process of its own, which is ended with all that it has started."""
    print(f"\n== {part.name}: {part.title}", flush=True)
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part.name]
    command += ["--executor", settings.executor, "--runs", str(settings.runs)]
    command += ["--small"] if settings.small else []
    for old in (_rows_of(part, settings), _ending_of(part, settings)):
        old.unlink(missing_ok=True)
    begin_s, problem = time.monotonic(), None
    env = _environment(settings)
    process = subprocess.Popen(command, cwd=PROJECT, env=env, start_new_session=True)
    try:
        if code := process.wait(limit_s):
            problem = f"failed (exit code {code})"
    except subprocess.TimeoutExpired:
        problem = f"stopped after {limit_s:.3g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Outcome(part, _found(part, settings), problem, time.monotonic() - begin_s)


def _loaded(line: str) -> Any:
    """What a line says; a process that was killed may have left half of one."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _rows_of(part: Part, settings: Settings) -> Path:
    assert settings.runs is not None
    return settings.runs / f"{part.name}.jsonl"


# --- In the process of a part ---------------------------------------------------------------------


def _do(part: Part, settings: Settings) -> int:
    """Write down what a part finds, as it finds it."""
    is_right = True
    with _rows_of(part, settings).open("a", buffering=1, encoding="utf-8") as file:
        for found in _guarded(part, settings):
            is_right &= not isinstance(found, Fault)
            file.write(json.dumps(found) + "\n")
            print(f"{part.name}: {found}")
    return 0 if is_right else 1


def _ended(code: int) -> int:
    """End this process with a code soon, whatever other libraries wait for at its end."""
    sys.stdout.flush()
    timer = threading.Timer(ENDING_S, os._exit, [code])
    timer.daemon = True
    timer.start()
    return code


def _guarded(part: Part, settings: Settings) -> Iterator[Figure | Fault]:
    try:
        yield from part.function()(settings)
    except Exception as error:
        traceback.print_exc()
        yield Fault.of(error)


if __name__ == "__main__":
    sys.exit(main())
