"""What should not grow, counted: options, arguments, names that two classes share, circles, lines.

    python benchmarks/house.py [--root CHECKOUT]

Options are the leaves of the composed and resolved configuration whose key does not begin with an
underscore; a list of numbers or words is one. Numbers are those that no letter stands before, so
p100x4 is none. Nothing of the package is imported: any checkout can be counted by this script.
"""

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[1]
COUNTED = ("stages", "training", "experiment", "search", "api", "report", "reporting")
LONG = 40
MODULE_BASES = ("LightningModule", "Reinforcement", "Imitation")


def main() -> None:
    """Print one line for each count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to count")
    root = parser.parse_args().root.resolve()
    trees = {path: ast.parse(path.read_text()) for path in sorted((root / "src").rglob("*.py"))}
    for what, count in counts(root, trees):
        print(f"{what:<46} {count}")


def counts(root: Path, trees: dict[Path, ast.Module]) -> Iterator[tuple[str, str]]:
    """What is counted, and how much of it there is."""
    for label, overrides in (("a default run", []), ("stage=rl_real", ["stage=rl_real"])):
        yield f"options of {label}", str(num_options(root, overrides))
    classes = list(classes_of(trees))
    yield "arguments of the training module", arguments(classes)
    names = Counter(node.name for _, node in classes if not node.name.startswith("_"))
    shared = sorted(name for name, number in names.items() if number > 1)
    yield "names that classes share", listed(shared)
    circles = [" <-> ".join(circle) for circle in circles_between(root, trees)]
    yield "circles between files", listed(circles)
    per_folder = lines_per_folder(root)
    told = ", ".join(f"{name} {number:,}" for name, number in per_folder.items())
    yield "lines of " + "|".join(per_folder), f"{sum(per_folder.values()):,} ({told})"
    long = [f"{path.name}:{name}" for path, name in long_functions(trees)]
    yield f"functions over {LONG} lines", listed(long)
    readme = (root / "README.md").read_text()
    yield "words of README.md", f"{len(readme.split()):,}"
    yield "numbers of README.md", str(len(re.findall(r"(?<![\w.])\d[\d.,]*", readme)))
    yield "concepts of ARCHITECTURE.md", str(num_concepts(root))


def listed(found: list[str]) -> str:
    """How many, and which."""
    return f"{len(found)}" + (f" ({', '.join(found)})" if found else "")


def num_options(root: Path, overrides: list[str]) -> int:
    """Options that a run resolves."""
    conf = "".join(path.read_text() for path in (root / "conf").rglob("*.yaml"))
    named = set(re.findall(r"\$\{(\w+):", conf)) - {"hydra"}
    made = [name for name in sorted(named) if not OmegaConf.has_resolver(name)]
    for name in made:  # of another version's house, whose package is not imported
        OmegaConf.register_new_resolver(name, lambda *_: 2)
    try:
        with initialize_config_dir(str(root / "conf"), version_base="1.3"):
            cfg = compose("config", overrides)
        return num_leaves(OmegaConf.to_container(cfg, resolve=True))
    finally:
        for name in made:
            OmegaConf.clear_resolver(name)


def num_leaves(value: object) -> int:
    """Leaves of nested dictionaries, and of dictionaries in lists."""
    if isinstance(value, dict):
        return sum(num_leaves(v) for key, v in value.items() if not str(key).startswith("_"))
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return sum(num_leaves(each) for each in value)
    return 1


def classes_of(trees: dict[Path, ast.Module]) -> Iterator[tuple[Path, ast.ClassDef]]:
    """All classes, also those within functions and classes."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield path, node


def arguments(classes: list[tuple[Path, ast.ClassDef]]) -> str:
    """Of the Lightning module that takes most."""
    taken = {}
    modules = set(MODULE_BASES)
    for _ in range(3):  # classes that derive from them, too
        for _, node in classes:
            bases = {ast.unparse(base).split(".")[-1].split("[")[0] for base in node.bases}
            if bases & modules:
                modules.add(node.name)
                taken.update(init_arguments(node))
    if not taken:
        return "none found"
    name = max(taken, key=lambda each: taken[each])
    return f"{taken[name]} ({name})"


def init_arguments(node: ast.ClassDef) -> dict[str, int]:
    """By the class's name, how many its own constructor takes; a dataclass's fields."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            given = each.args
            return {node.name: len(given.posonlyargs + given.args + given.kwonlyargs) - 1}
    return {}


def circles_between(root: Path, trees: dict[Path, ast.Module]) -> list[list[str]]:
    """Files that import each other, by whatever path; imports in functions count, too.

    A package's __init__ is what its name stands for: importing a name from a package is importing
    the file of that name where there is one. Imports for type checkers alone do not count.
    """
    modules = {dotted(root, path): path for path in trees if path.parent != root / "src"}
    graph = nx.DiGraph()
    for name, path in modules.items():
        for target in imported(trees[path]):
            found = target if target in modules else target.rpartition(".")[0]
            if found in modules and found != name:
                graph.add_edge(name, found)
    return [sorted(each) for each in nx.strongly_connected_components(graph) if len(each) > 1]


def dotted(root: Path, path: Path) -> str:
    """doppler/graph/levels.py -> doppler.graph.levels."""
    parts = path.relative_to(root / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """What a file imports: modules, or names of modules."""
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return
    if isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    if isinstance(tree, ast.ImportFrom) and tree.module:
        yield from (f"{tree.module}.{alias.name}" for alias in tree.names)
    for child in ast.iter_child_nodes(tree):
        yield from imported(child)


def lines_per_folder(root: Path) -> dict[str, int]:
    """Lines of the parts that prepare, carry out and report runs."""
    lines: dict[str, int] = defaultdict(int)
    package = root / "src/doppler"
    for name in COUNTED:
        for path in [*(package / name).rglob("*.py"), package / f"{name}.py"]:
            if path.exists():
                lines[name] += len(path.read_text().splitlines())
    return lines


def long_functions(trees: dict[Path, ast.Module]) -> Iterator[tuple[Path, str]]:
    """Functions of more lines than LONG, their docstrings not counted."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                text = node.body[0]
                lines -= (text.end_lineno or text.lineno) - text.lineno + 1
            if lines > LONG:
                yield path, node.name


def num_concepts(root: Path) -> int:
    """Rows of the first table or, where that says Concepts, items of the list below it."""
    text = (root / "ARCHITECTURE.md").read_text()
    section = re.search(r"^## (?:Concepts|Layers).*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        return 0
    rows = re.findall(r"^\| (?!-)(?!---).*\|$", section[0], re.MULTILINE)
    items = re.findall(r"^(?:- |\d+\. )", section[0], re.MULTILINE)
    return max(len(rows) - 1, len(items))


if __name__ == "__main__":
    main()
