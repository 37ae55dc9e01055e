"""logger=wandb: every finished run directory becomes one W&B run.

What a run leaves on disk is what is published, when it is finished: so a run that was killed and
resumed is one W&B run with one whole curve, and it works without network and login. Offline runs
lie in ``wandb/`` of the run directory: ``wandb sync`` uploads them.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

from doppler.errors import InputError
from doppler.graph.formats import write_atomically
from doppler.report.finished import FinishedRun, read_run
from doppler.report.metrics import CsvMetrics
from doppler.report.rows import RESULTS_FILE

PUBLISHED_FILE = "wandb/published"
MODES = ("auto", "online", "offline")
# Entries of the summary that are no numbers to compare runs by.
_NOT_NUMBERS = ("versions", "host")


class WandbRuns(CsvMetrics):
    """Keeps metrics.csv, and publishes the run directory when the run is finished.

    directory: of the run. project, entity, tags: as in W&B. mode: auto, online or offline.

    Raises:
        InputError: wandb is not installed, or mode is none of the three.
    """

    def __init__(
        self,
        *,
        directory: str | Path,
        project: str,
        entity: str | None,
        mode: str,
        tags: list[str],
    ) -> None:
        super().__init__(directory=directory)
        if importlib.util.find_spec("wandb") is None:
            raise InputError("logger=wandb: wandb is not installed (pip install -e '.[wandb]')")
        if mode not in MODES:
            raise InputError(f"logger.mode: must be one of {', '.join(MODES)}, got {mode!r}")
        self._directory = Path(directory)
        self._project, self._entity, self._tags = project, entity, list(tags)
        self._mode = mode
        if mode == "auto":
            self._mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"

    def publish(self) -> None:
        """One W&B run of the finished run directory; nothing if there is one already."""
        marker = self._directory / PUBLISHED_FILE
        if marker.exists() or not (self._directory / RESULTS_FILE).exists():
            return
        run = read_run(self._directory)
        run_id = (self._directory / ".hydra/run_hash").read_text().strip()
        self._upload(run, run_id)
        write_atomically(marker, f"{run_id}\n")

    def _upload(self, run: FinishedRun, run_id: str) -> None:
        import wandb

        row = run.rows[0]
        target: Any = wandb.init(
            project=self._project,
            entity=self._entity,
            mode=self._mode,  # pyright: ignore[reportArgumentType]
            dir=self._directory,
            id=run_id,
            name=f"{row.method}, {row.workload} on {row.cluster}, seed {row.seed}",
            group=f"{row.workload} on {row.cluster}, {row.num_devices} devices",
            job_type=run.summary["stage"],
            tags=[*self._tags, row.workload, row.cluster, row.method, row.system_kind],
            config=run.config,
            settings=wandb.Settings(silent=True, console="off"),
        )
        try:
            for step, values in run.metrics.iterrows():
                target.log(values.dropna().to_dict(), step=int(step))  # pyright: ignore
            names: list[Any] = list(vars(row))
            table: list[Any] = [list(vars(each).values()) for each in run.rows]
            target.log(
                {
                    "results": wandb.Table(columns=names, data=table),
                    "schedule": wandb.Image(str(self._directory / "schedule.png")),
                }
            )
            target.summary.update(
                {key: value for key, value in run.summary.items() if key not in _NOT_NUMBERS}
            )
            artifact = wandb.Artifact(f"placement-{run_id}", type="placement")
            artifact.add_file(str(self._directory / "placement.json"))
            target.log_artifact(artifact)
        finally:
            target.finish()  # or the next run of a sweep would go on in this one
