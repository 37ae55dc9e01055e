"""Do the tests notice when the code is changed? Small changes at random places, each tested.

    python -m benchmarks.mutations --seed 1 --number 20 --packages search,episode
    python -m benchmarks.mutations --again              # those that survived, after new tests
    python -m benchmarks.mutations --table              # of all that was ever tried

Each mutation is made in a copy of its own, whose compiled code is its own, and the tests that
matter for it run until the first fails, the quickest first and those named like the file before
others. A test that takes far longer than it did without the mutation ends, too. What
is tried is kept in a file, a line each (--results); the last line of a mutation counts. The first
call for a package runs its tests without any mutation, which they must pass.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.mutations.changes import Mutation, mutations
from benchmarks.mutations.trial import prepare, try_tests

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/mutations"
# What tests each part of src/doppler; tests of what is built on it may notice more.
TESTS = {
    "simulator": ["simulator"],
    "env": ["env", "policies"],
    "policies": ["policies"],
    "training": ["training"],
    "experiment": ["experiment", "run"],
    "baselines": ["baselines"],
    "search": ["search"],
    "einsum/decomposition": ["einsum"],
    "einsum/differentiation": ["einsum", "executor/test_training.py"],
    "executor": ["executor"],
}
# What only a GPU can test.
LEFT_OUT = {"executor/gpus.py", "executor/issuing.py"}


def main() -> None:
    """Try mutations, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--packages", default=",".join(TESTS), help="parts of src/doppler")
    parser.add_argument("--number", type=int, default=20, help="mutations of each")
    parser.add_argument("--seed", type=int, default=0, help="of the places")
    parser.add_argument("--again", action="store_true", help="those that survived")
    parser.add_argument("--table", action="store_true", help="of what was tried")
    parser.add_argument("--results", type=Path, default=WORK / "tried.jsonl")
    options = parser.parse_args()
    known = read(options.results)
    if options.table:
        print(table(known))
        return
    prepare()
    for package in options.packages.split(","):
        if options.again:
            chosen = [m for m, one in known.items() if survived(one) and package_of(m) == package]
        else:
            chosen = [m for m in drawn(package, options.number, options.seed) if m not in known]
        if chosen:
            try_all(package, chosen, options.seed, options.results)


def drawn(package: str, number: int, seed: int) -> list[Mutation]:
    """Mutations of a package: a kind of change is drawn, then a place for it."""
    rng = random.Random(f"{seed} {package}")
    by_kind: dict[str, list[Mutation]] = {}
    for path in sorted((ROOT / "src/doppler" / package).rglob("*.py")):
        name = str(path.relative_to(ROOT / "src/doppler"))
        if name not in LEFT_OUT:
            for mutation in mutations(name, path.read_text(encoding="utf-8")):
                by_kind.setdefault(mutation.kind, []).append(mutation)
    chosen = []
    while by_kind and len(chosen) < number:
        kind = rng.choice(sorted(by_kind))
        places = by_kind[kind]
        chosen.append(places.pop(rng.randrange(len(places))))
        if not places:
            del by_kind[kind]
    return chosen


def try_all(package: str, chosen: list[Mutation], seed: int, results: Path) -> None:
    """Run the tests on each mutation, and keep what came of it."""
    results.parent.mkdir(parents=True, exist_ok=True)
    base = copy_of_the_repository()
    files = [str(f) for one in TESTS[package] for f in test_files(base / "tests" / one)]
    unchanged = try_tests(base, files, {})
    if unchanged.outcome != "survived":
        sys.exit(f"the tests of {package} fail without any mutation: {unchanged.why}")
    for mutation in chosen:
        tree = WORK / "mutant"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(base, tree, copy_function=os.link)
        source = tree / "src/doppler" / mutation.path
        text = source.read_text(encoding="utf-8")
        if (here := found_again(mutation, text)) is None:
            print(f"no longer possible: {told(mutation)}")
            continue
        text = here.apply(text)
        source.unlink()  # the copy is a link
        source.write_text(text, encoding="utf-8")
        likely = [file for file in files if named_like(file, mutation)]
        trial = try_tests(tree, files, unchanged.tests, likely)
        said = {**asdict(mutation), "seed": seed, "outcome": trial.outcome, "why": trial.why}
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")
        print(f"{trial.outcome:9} {trial.total_s:6.1f} s  {told(mutation)}", flush=True)


def found_again(mutation: Mutation, source: str) -> Mutation | None:
    """The same change of a file that may have changed since, where it is nearest."""
    same = [
        one
        for one in mutations(mutation.path, source)
        if (one.kind, one.old, one.new) == (mutation.kind, mutation.old, mutation.new)
    ]
    return min(same, key=lambda one: abs(one.begin - mutation.begin), default=None)


def copy_of_the_repository() -> Path:
    """What git knows, as it is in the working tree; its compiled code is kept between calls."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    base = WORK / "base"
    known = set(filter(None, listed.stdout.split("\0")))
    for name in known:
        source, copy = ROOT / name, base / name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    for copy in base.rglob("*.py"):
        if str(copy.relative_to(base)) not in known:
            copy.unlink()
    return base


def test_files(path: Path) -> Iterator[Path]:
    """Relative to the repository's root."""
    root = WORK / "base"
    for file in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
        yield file.relative_to(root)


def named_like(test: str, mutation: Mutation) -> bool:
    """Whether a file of tests has a word of the changed file's path in its name."""
    words = set(re.split("[_/]", mutation.path.removesuffix(".py")))
    return bool(words & set(Path(test).stem.split("_")))


def read(results: Path) -> dict[Mutation, dict]:
    """What was tried, by mutation; the last time counts."""
    known = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else []:
        said = json.loads(line)
        fields = {name: said[name] for name in Mutation.__dataclass_fields__}
        known[Mutation(**fields)] = said
    return known


def survived(said: dict) -> bool:
    """Whether no test noticed."""
    return said["outcome"] == "survived"


def package_of(mutation: Mutation) -> str:
    """The part of TESTS that a mutation belongs to."""
    return next(one for one in TESTS if mutation.path.startswith(f"{one}/"))


def told(mutation: Mutation) -> str:
    """In one line."""
    old, new = (" ".join(text.split())[:60] for text in (mutation.old, mutation.new))
    return f"{mutation.path}:{mutation.line} {mutation.kind}: `{old}` -> `{new}`"


def table(known: dict[Mutation, dict]) -> str:
    """Per package how many were tried and killed, and the survivors."""
    lines = ["| part | mutations | killed | of these by time | survived |", "|---|--:|--:|--:|--:|"]
    for package in [*TESTS, "all"]:
        of_it = [one for m, one in known.items() if package in ("all", package_of(m))]
        late = sum(one["outcome"] == "timed out" for one in of_it)
        left = sum(map(survived, of_it))
        killed = len(of_it) - left
        share = f"{killed} ({killed / len(of_it):.0%})" if of_it else "0"
        lines.append(f"| {package} | {len(of_it)} | {share} | {late} | {left} |")
    left = sorted(told(m) for m, one in known.items() if survived(one))
    return "\n".join([*lines, "", *(f"- {one}" for one in left)])


if __name__ == "__main__":
    main()
