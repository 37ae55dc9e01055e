"""Standard Task Graph Set: tasks with times, and which task comes before which.

The first number is the number of tasks without the entry and the exit. Then each task has a line:
its number, its time, the number of its predecessors, and their numbers. Lines that begin with #
describe how the graph was made.

Source: Tobita, Kasahara, "A standard task graph set for fair evaluation of multiprocessor
scheduling algorithms", Journal of Scheduling 2002.
"""

from pathlib import Path
from typing import Any

import networkx as nx

from doppler.extensions.formats.imported import imported
from doppler.graph.dataflow import DataflowGraph
from doppler.support.errors import InputError


def parse_stg(text: str, path: Path) -> DataflowGraph:
    """Read the content of an STG file, without its entry and exit tasks if they take no time.

    Args:
        text: of the file.
        path: of the file, for messages and as the graph's name.

    Raises:
        InputError: names the file and the line.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    rows = [(number, words) for number, words in lines if words and not words[0].startswith("#")]
    tasks = [_integers(words, path, number) for number, words in rows]
    if not tasks or len(tasks[0]) != 1 or tasks[0][0] < 1:
        raise InputError(f"{path}:1: a Standard Task Graph begins with the number of its tasks")
    num = tasks[0][0] + 2
    if len(tasks) != num + 1:
        raise InputError(
            f"{path}: {len(tasks) - 1} lines for {tasks[0][0]} tasks, an entry and an exit"
        )
    before: dict[int, list[int]] = {}
    for (number, _), row in zip(rows[1:], tasks[1:], strict=True):
        v = len(before)
        if len(row) < 3 or row[0] != v or len(row) != 3 + row[2]:
            raise InputError(
                f"{path}:{number}: expected task {v}, its time, the number of its predecessors, "
                "and their numbers"
            )
        if bad := [u for u in row[3:] if not 0 <= u < num]:
            raise InputError(f"{path}:{number}: no task {bad[0]}, tasks are 0 to {num - 1}")
        before[v] = row[3:]
    return _graph([row[1] for row in tasks[1:]], before, path)


def _graph(times: list[int], before: dict[int, list[int]], path: Path) -> DataflowGraph:
    first, last = 0, len(times) - 1
    read = {u for sources in before.values() for u in sources}
    dummies = {v for v in (first, last) if times[v] == 0}
    dummies -= {first} if before[first] else set()
    dummies -= {last} if last in read else set()
    graph = nx.MultiDiGraph(name=path.stem)
    graph.add_nodes_from((v, {"weight": times[v]}) for v in before if v not in dummies)
    pairs = [(u, v) for v, sources in before.items() for u in sources]
    kept = [pair for pair in pairs if not dummies & set(pair)]
    edges: Any = ((u, v, e, {"weight": 0}) for e, (u, v) in enumerate(kept))
    graph.add_edges_from(edges)
    if not dummies:
        return imported(graph, path)
    which = " and ".join(f"task {v}" for v in sorted(dummies))
    return imported(
        graph, path, [f"{which}, which take no time, with {len(pairs) - len(kept)} edges"]
    )


def _integers(words: list[str], path: Path, number: int) -> list[int]:
    try:
        return [int(word) for word in words]
    except ValueError:
        raise InputError(f"{path}:{number}: expected whole numbers, found {words!r:.60}") from None
