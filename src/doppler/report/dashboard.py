"""A W&B project as a dashboard, from code: a workspace and a report.

    python -m doppler.report.dashboard ENTITY PROJECT

saves both (wandb login first); `workspace` and `report` build them without network or login.
"""

import argparse
import sys
from typing import Any

from doppler.errors import InputError

_CURVES = {
    "best_s": "Best makespan so far (s)",
    "mean_s": "Mean makespan of a batch (s)",
    "greedy_s": "Greedy makespan (s)",
    "entropy": "Entropy",
}
_NUMBERS = {
    "makespan_s": "Makespan (s)",
    "jitter_mean_s": "Mean under jitter (s)",
    "evaluations": "Evaluations",
    "episodes_per_s": "Episodes per second",
}


def workspace(entity: str, project: str) -> Any:
    """A ``wandb_workspaces.workspaces.Workspace``: curves, results, schedules.

    Raises:
        InputError: wandb-workspaces is not installed.
    """
    workspaces, panels = _libraries()
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name="Doppler",
        sections=[
            workspaces.Section(name="Learning", panels=_curves(panels), is_open=True),
            workspaces.Section(name="Results", panels=_bars(panels), is_open=True),
            workspaces.Section(name="Schedules", panels=_media(panels), is_open=True),
        ],
        runset_settings=workspaces.RunsetSettings(
            groupby=[
                workspaces.Config("workload.name"),
                workspaces.Config("policy.name"),
            ]
        ),
    )


def report(entity: str, project: str) -> Any:
    """A ``wandb_workspaces.reports.v2.Report``: what was run, in sections with text.

    Raises:
        InputError: wandb-workspaces is not installed.
    """
    _, blocks = _libraries()

    def grid(panels: list[Any]) -> Any:
        runs = blocks.Runset(entity=entity, project=project, groupby=["config.workload.name"])
        return blocks.PanelGrid(runsets=[runs], panels=panels)

    return blocks.Report(
        entity=entity,
        project=project,
        title="Doppler",
        description="Placement of asynchronous dataflow graphs: learning, results, schedules",
        blocks=[
            blocks.TableOfContents(),
            blocks.H1("Learning"),
            blocks.P("Seconds of executions during training; lower is better."),
            grid(_curves(blocks)),
            blocks.H1("Results"),
            blocks.P("Simulated and measured runs carry the tag of their kind: filter by it."),
            grid(_bars(blocks)),
            blocks.H1("Schedules"),
            grid(_media(blocks)),
        ],
    )


def _curves(library: Any) -> list[Any]:
    return [
        library.LinePlot(title=title, x="episodes", y=[key], log_y=key.endswith("_s"))
        for key, title in _CURVES.items()
    ]


def _bars(library: Any) -> list[Any]:
    return [library.BarPlot(title=title, metrics=[key]) for key, title in _NUMBERS.items()]


def _media(library: Any) -> list[Any]:
    return [library.MediaBrowser(title="Schedule of the best placement", media_keys=["schedule"])]


def _libraries() -> tuple[Any, Any]:
    try:
        from wandb_workspaces import workspaces
        from wandb_workspaces.reports import v2
    except ImportError:
        raise InputError("wandb-workspaces is not installed (pip install -e '.[wandb]')") from None
    return workspaces, v2


def main() -> None:
    """Save the dashboard of a project."""
    parser = argparse.ArgumentParser(description="save the dashboard of a W&B project")
    parser.add_argument("entity")
    parser.add_argument("project")
    arguments = parser.parse_args()
    try:
        dashboards = [build(arguments.entity, arguments.project) for build in (workspace, report)]
    except InputError as error:
        sys.exit(f"error: {error}")
    for dashboard in dashboards:
        dashboard.save()
        print(dashboard.url)


if __name__ == "__main__":
    main()
