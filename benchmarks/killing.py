"""Kills, signals and full disks at random moments; then the same command again.

    python benchmarks/killing.py [--kills 100] [--signals 20] [--disks 10] [--seed N] [--only NAME]

Each subject (pipeline, sweep, calibrate, rl_real, report) runs undisturbed, which says how long it
takes and what it leaves. Then it is begun anew and disturbed, at a moment drawn from that time,
and run again to its end: no file may be half, and in simulation all must be the same bits. A full
disk is a limit on the size of files, drawn from the sizes that the undisturbed run left. The exit
code is 1 if anything differs; every line of the output names what it takes to repeat it.
"""

import argparse
import csv
import fcntl
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import doppler.api
import doppler.experiment.main
import doppler.report.page  # noqa: F401
from doppler.cli import program
from doppler.precompile import warm

PROJECT = Path(__file__).resolve().parents[1]
HANGS_S = 300.0
SMALL = (
    *("workload=chainmm", "workload.params.n=64", "trainer.checkpoint_every_s=0"),
    *("budget.imitation_episodes=32", "budget.evaluations=96"),
)
MEASURED = (*SMALL, "cluster=host", "cluster.num_devices=2", "measure.force=true")
CALIBRATION = ("runs=1", "seconds=0", "placements=3", "repeats=1")
# What may differ from run to run: times, and what is measured.
TIMES = {
    "git_commit",
    "wall_s",
    "episodes_per_s",
    "elapsed_s",
    "peak_memory_bytes",
    "host",
    "seconds",
}


@dataclass(frozen=True)
class Subject:
    """A command, and what of it is compared.

    arguments: of the command line, where OUT is the folder. simulated: equal bits are asked for.
    needs: the command that must have run before.
    """

    arguments: Sequence[str]
    simulated: bool
    needs: Sequence[str] = ()


SWEEP = ("run", "-m", *SMALL, "stage=evaluate", "baseline=[heft]", "seed=0,1")
SUBJECTS = {
    "train": Subject(("run", *SMALL, "stage=train", "baseline=[heft]"), simulated=True),
    "sweep": Subject(SWEEP, simulated=True),
    "calibrate": Subject(
        ("run", *MEASURED, "stage=calibrate", *(f"stage.{each}" for each in CALIBRATION)),
        simulated=False,
    ),
    "rl_real": Subject(
        (
            *("run", *MEASURED, "stage=rl_real", "baseline=[heft]", "stage.choosing=2"),
            *("budget.measured_evaluations=80", "stage.repeats=2"),
            *(f"stage.calibration.{each}" for each in CALIBRATION),
        ),
        simulated=False,
    ),
    "report": Subject(("report", "OUT", "--out", "OUT/report"), simulated=True, needs=SWEEP),
}


class Process:
    """A command in a process of its own, forked off this one: nothing has to be imported again."""

    def __init__(self, arguments: Sequence[str], out: Path, file_bytes: int | None = None) -> None:
        words = [word.replace("OUT", str(out)) for word in arguments]
        words += [f"output_dir={out}"] if words[0] == "run" else []
        self.returncode: int | None = None
        out.parent.mkdir(parents=True, exist_ok=True)
        # No file: what is said may be longer than files may be.
        self._error, said = os.pipe()
        fcntl.fcntl(said, fcntl.F_SETPIPE_SZ, 2**20)
        os.set_blocking(self._error, False)
        both = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, both)  # Python's own handlers are not the child's
        self.id = os.fork()
        if self.id == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        if self.id == 0:
            self._become(words, said, file_bytes)
        os.close(said)

    def _become(self, words: list[str], said: int, file_bytes: int | None) -> None:
        """What the child does; said: its stderr; file_bytes: how large a file may become."""
        code = 99
        try:
            os.setpgid(0, 0)
            os.chdir(PROJECT)
            os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
            os.dup2(said, 2)
            if file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
            program(words)
        except SystemExit as ends:
            code = ends.code if isinstance(ends.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:  # what the parent would do at its end, the child must not
            os._exit(code)

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.id, number)

    def ends_within(self, seconds: float) -> bool:
        """Wait so long for its end."""
        until_s = time.monotonic() + seconds
        while self.returncode is None:
            ended, status = os.waitpid(self.id, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until_s:
                return False
            else:
                time.sleep(0.005)
        return True

    def finish(self) -> str:
        """What it has written to stderr, when it has ended."""
        if not self.ends_within(HANGS_S):
            self.send(signal.SIGKILL)
            raise TimeoutError(f"process {self.id} hangs")
        with os.fdopen(self._error, "rb") as pipe:
            return (pipe.read() or b"").decode(errors="replace")


def left(out: Path) -> dict[str, Any]:
    """What a command left, by file, without times; a file that is half raises an error."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or path.name in (".lock", "run.log") or path.name.endswith(".lock"):
            continue
        if path.suffix == ".json":
            found[name] = _timeless(json.loads(path.read_text(encoding="utf-8")))
        elif path.suffix == ".csv":
            found[name] = _columns(path)
        elif path.suffix == ".ckpt":
            found[name] = _weights(path)
        elif path.suffix == ".png":
            assert path.read_bytes().endswith(b"IEND\xaeB`\x82"), f"{path} is half"
        elif path.suffix in (".txt", ".yaml"):
            assert path.read_text(encoding="utf-8").endswith("\n"), f"{path} is half"
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key not in TIMES}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def _columns(path: Path) -> list[list[str]]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n"), f"{path} is half"
    header, *rows = csv.reader(text.splitlines())
    kept = [i for i, name in enumerate(header) if name.removesuffix(" mean") not in TIMES]
    assert all(len(row) == len(header) for row in rows), f"{path} has rows that are half"
    return [[row[i] for i in kept] for row in (header, *rows)]


def _weights(path: Path) -> str:
    state = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    bits = b"".join(value.numpy().tobytes() for _, value in sorted(state.items()))
    return hashlib.sha256(bits).hexdigest()


def differences(one: dict[str, Any], other: dict[str, Any], root: Path, other_root: Path) -> str:
    """Names of what differs, but for the folders' own names."""
    same = (
        json.dumps(one).replace(str(root), "OUT"),
        json.dumps(other).replace(str(other_root), "OUT"),
    )
    if same[0] == same[1]:
        return ""
    theirs = json.loads(same[1])
    mine = json.loads(same[0])
    names = [name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)]
    return ", ".join(sorted(names))


def disturbed(
    subject: Subject, how: str, moment: float, whole: "Whole", out: Path
) -> tuple[str, str]:
    """Run a command disturbed, then to its end; returns what happened, and what is wrong or ''."""
    if subject.needs:
        shutil.copytree(whole.before, out)
    at_s, limit = moment * whole.seconds, None
    if how == "disk":
        limit = max(1, whole.sizes[int(moment * len(whole.sizes))] - 1)
    process = Process(subject.arguments, out, limit)
    expected = {0, 1}
    if how != "disk":
        number = signal.Signals[how]
        expected = {0, -number} if how == "SIGKILL" else {0, -number, 128 + number}
        if not process.ends_within(at_s):
            process.send(number)
    sent_s = time.monotonic()
    error = process.finish()
    ended_s, code = time.monotonic() - sent_s, process.returncode
    what = f"at {at_s:.1f} s" if limit is None else f"files of at most {limit} bytes"
    what += f", code {code}, ended in {ended_s:.2f} s" if limit is None else f", code {code}"
    if "Traceback" in error or code not in expected:
        return what, f"code {code}: {error[-600:]}"
    again = Process(subject.arguments, out)
    error = again.finish()
    if again.returncode != 0:
        return what, f"again: code {again.returncode}: {error[-600:]}"
    try:
        found = left(out)
    except (AssertionError, ValueError) as wrong:
        return what, str(wrong)
    if subject.simulated:
        return what, differences(whole.left, found, whole.out, out)
    return what, "" if whole.left.keys() == found.keys() else differences(
        dict.fromkeys(whole.left), dict.fromkeys(found), whole.out, out
    )


@dataclass(frozen=True)
class Whole:
    """An undisturbed run. before: the folder as it was; sizes: of what it left, in bytes."""

    out: Path
    before: Path
    seconds: float
    left: dict[str, Any]
    sizes: list[int]


def undisturbed(subject: Subject, folder: Path) -> Whole:
    """Run a command as it is, and what it needs."""
    out, before = folder / "whole", folder / "before"
    if subject.needs:
        assert not Process(subject.needs, before).finish()
        shutil.copytree(before, out)
    warm = folder / "warm"
    if subject.needs:
        shutil.copytree(before, warm)
    seconds = math.inf
    for each in (warm, out):
        begin_s = time.monotonic()
        process = Process(subject.arguments, each)
        error = process.finish()
        assert process.returncode == 0, error
        seconds = min(seconds, time.monotonic() - begin_s)
    shutil.rmtree(warm)
    sizes = sorted({path.stat().st_size for path in out.rglob("*") if path.is_file()} - {0})
    return Whole(out, before, seconds, left(out), sizes)


def main() -> int:
    """Disturb all subjects in turn; 1 if any does not end as it would have."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument("--disks", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", choices=SUBJECTS, action="append")
    arguments = parser.parse_args()
    names = arguments.only or list(SUBJECTS)
    draw = random.Random(arguments.seed)
    plan = ["SIGKILL"] * arguments.kills + ["disk"] * arguments.disks
    plan += [("SIGTERM", "SIGINT")[i % 2] for i in range(arguments.signals)]
    torch.set_num_threads(1)  # threads are not forked
    warm(print)
    draw.shuffle(plan)
    print(f"seed {arguments.seed}: {len(plan)} disturbances of {', '.join(names)}", flush=True)
    failures, wholes = 0, {}
    warnings.simplefilter("ignore")  # of forking
    # Not a TemporaryDirectory: a child that ends by its exit handlers would delete it.
    folder = Path(tempfile.mkdtemp(prefix="killing-"))
    try:
        for number, how in enumerate(plan):
            name = names[number % len(names)]
            if name not in wholes:
                wholes[name] = undisturbed(SUBJECTS[name], folder / name)
            out = folder / name / str(number)
            what, wrong = disturbed(SUBJECTS[name], how, draw.random(), wholes[name], out)
            failures += bool(wrong)
            print(f"{number}: {name}, {how} {what}: {wrong or 'the same'}", flush=True)
            shutil.rmtree(out, ignore_errors=True)
    finally:
        shutil.rmtree(folder)
    print(f"{len(plan) - failures} of {len(plan)} ended as if undisturbed (seed {arguments.seed})")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
