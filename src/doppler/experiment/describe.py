"""stage=describe: describes graph and machine in words, pictures and files."""

from dataclasses import dataclass
from typing import ClassVar

from doppler.cluster.json_format import save_cluster
from doppler.experiment.directory import Summary
from doppler.experiment.gpu_state import gpu_lines
from doppler.experiment.results import identity
from doppler.experiment.run import Run, Stage
from doppler.experiment.specification import Specification
from doppler.graph import save_json, save_text
from doppler.graph.formats import write_atomically
from doppler.report.cluster_description import cluster_counts, describe_cluster
from doppler.report.cluster_picture import save_cluster_picture
from doppler.report.description import counts, describe
from doppler.report.graph_picture import save_graph_picture
from doppler.report.modules import module_lines, module_parts
from doppler.report.relations import relation_lines
from doppler.support.errors import InputError

DESCRIPTION_FILE = "description.txt"


@dataclass(frozen=True, kw_only=True)
class Describe(Stage):
    """Describe the graph and the machine."""

    name: ClassVar[str] = "describe"
    unused: ClassVar[tuple[str, ...]] = (
        *("policy", "algorithm", "search", "trainer", "baseline", "budget"),
        "memory",
    )

    def method(self, spec: Specification) -> str:
        """Return ``graph``: the stage compares no methods."""
        return "graph"

    def run(self, run: Run) -> Summary:
        problem, directory = run.spec.problem, run.directory.path
        graph, cluster = problem.graph, problem.cluster
        lines = describe(graph)
        parts = module_parts(graph, problem.mean_op_seconds)
        tables = module_lines(parts), relation_lines(graph), describe_cluster(cluster)
        for table in (*tables, gpu_lines(run.spec)):
            lines += ["", *table] if table else []
        save_json(graph, directory / "graph.json")
        try:
            save_text(graph, directory / "graph.txt")
        except InputError as error:
            lines.append(f"no graph.txt: {error}")
        save_graph_picture(graph, directory / "graph.png")
        save_cluster(cluster, directory)
        save_cluster_picture(cluster, directory / "cluster.png")
        write_atomically(directory / DESCRIPTION_FILE, "\n".join(lines) + "\n")
        summary = {**identity(run), **counts(graph), **cluster_counts(cluster)}
        run.directory.write_summary(summary)
        run.say("\n".join(lines))
        run.say(f"graph.json, graph.txt, graph.png, cluster.json, cluster.png: in {directory}")
        return summary

    def show(self, run: Run) -> None:
        run.say((run.directory.path / DESCRIPTION_FILE).read_text(encoding="utf-8").rstrip())
