"""W&B and MLflow loggers, one run per run directory, and what each logger shows of results."""

from collections.abc import Callable
from functools import singledispatch
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.image import imread
from pytorch_lightning.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from doppler.experiment.directory import IDENTITY_FILE, PLACEMENT_FILE
from doppler.report.finished import FinishedRun
from doppler.report.rows import RESULTS_FILE
from doppler.support.errors import InputError
from doppler.support.files import read_text

SCHEDULE_FILE = "schedule.png"
# Namespaces of training curves; the x axis of each is its own episode count.
NAMESPACES = ("stage_1", "stage_2", "stage_3", "settling")


class WandbRun(WandbLogger):
    """A W&B run tied to a run directory: a process that resumes there resumes the same W&B run.

    Args:
        save_dir: the run directory.
        offline: keep the data on disk for ``wandb sync`` instead of sending it while the run goes
            on.
        settings: of ``wandb.init``.

    Attributes:
        steps_rise: whether rows of an earlier step are rejected.
    """

    steps_rise: ClassVar[bool] = True

    def __init__(self, *, save_dir: str, offline: bool, **settings: Any) -> None:
        super().__init__(save_dir=save_dir)
        self._settings = settings | {
            "dir": save_dir,
            "id": _identity(save_dir),
            "resume": "allow",
            "mode": "offline" if offline else "online",
            "settings": {"console": "off", "silent": offline},
        }
        self._run: Any = None

    @staticmethod
    def passes_on_to() -> Callable[..., Any]:
        """The function that receives the settings."""
        import wandb

        return wandb.init

    @property
    def experiment(self) -> Any:
        """The ``wandb.Run``, started on first use.

        Lightning would start it with a setting that W&B warns about, and would set an environment
        variable that also makes all later runs offline.

        Raises:
            InputError: W&B rejects a setting, nobody is logged in, or no server answers.
        """
        import wandb
        from wandb.errors import Error

        if self._run is None:
            try:
                self._run = wandb.init(**self._settings)
            except (Error, TypeError, ValueError) as error:
                # What pydantic says of a setting begins on the second of three lines.
                lines = [line.strip() for line in str(error).splitlines()[:3]]
                raise InputError(f"logger=wandb: {' '.join(lines)}") from None
            for namespace in NAMESPACES:
                self._run.define_metric(f"{namespace}/*", step_metric=f"{namespace}/episodes")
        return self._run

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log a row, numbered by its update; rows that the server already has are skipped."""
        if step is None or step >= self.experiment.step:
            self.experiment.log(metrics, step=step)

    def end_run(self, *, failed: bool) -> None:
        """End the W&B run. Otherwise the next run of a sweep would continue it."""
        if self._run is not None:
            self._run.finish(exit_code=int(failed))


class MlflowRun(MLFlowLogger):
    """An MLflow run tied to a run directory: a process that resumes there resumes it.

    Args:
        save_dir: the run directory.
        experiment_name: of `MLFlowLogger`.
        tracking_uri: of `MLFlowLogger`.
        settings: other settings of `MLFlowLogger`.
    """

    def __init__(
        self, *, save_dir: str, experiment_name: str, tracking_uri: str, **settings: Any
    ) -> None:
        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

        client, tags = MlflowClient(tracking_uri), {"run_hash": _identity(save_dir)}
        known, found = client.get_experiment_by_name(experiment_name), []
        if known is not None:
            which = f"tags.run_hash = '{tags['run_hash']}'"
            found = client.search_runs([known.experiment_id], which, max_results=1)
        super().__init__(
            experiment_name=experiment_name,
            tracking_uri=tracking_uri,
            tags=tags,
            run_id=found[0].info.run_id if found else None,
            **settings,
        )

    @staticmethod
    def passes_on_to() -> Callable[..., Any]:
        """The function that receives the settings."""
        return MLFlowLogger


def _identity(directory: str) -> str:
    return read_text(Path(directory, IDENTITY_FILE)).strip()


@singledispatch
def show(logger: Logger, settings: dict[str, Any], run: FinishedRun) -> None:
    """Send the results of a finished run to a logger.

    Args:
        logger: any logger. A kind without a function here gets only the numbers.
        settings: the configuration of the run.
        run: its results.
    """
    logger.log_hyperparams(settings)
    logger.log_metrics(_numbers(run))


@show.register
def _(logger: TensorBoardLogger, settings: dict[str, Any], run: FinishedRun) -> None:
    logger.log_hyperparams(settings, _numbers(run))
    picture = imread(run.directory / SCHEDULE_FILE)
    logger.experiment.add_image("schedule", picture, dataformats="HWC")


@show.register
def _(logger: MLFlowLogger, settings: dict[str, Any], run: FinishedRun) -> None:
    logger.log_hyperparams(settings)
    logger.log_metrics(_numbers(run))
    for name in (RESULTS_FILE, PLACEMENT_FILE, SCHEDULE_FILE):
        logger.experiment.log_artifact(logger.run_id, str(run.directory / name))


@show.register
def _(logger: WandbLogger, settings: dict[str, Any], run: FinishedRun) -> None:
    import wandb

    logger.log_hyperparams(settings)
    experiment, row = logger.experiment, run.rows[0]
    experiment.tags = [*(experiment.tags or ()), row.method, row.system_kind]
    columns: list[Any] = list(vars(row))
    table: list[Any] = [list(vars(each).values()) for each in run.rows]
    experiment.log(
        {
            "results": wandb.Table(columns=columns, data=table),
            "schedule": wandb.Image(str(run.directory / SCHEDULE_FILE)),
        }
    )
    experiment.summary.update(_numbers(run))
    artifact = wandb.Artifact(f"placement-{experiment.id}", type="placement")
    artifact.add_file(str(run.directory / PLACEMENT_FILE))
    experiment.log_artifact(artifact)


@singledispatch
def how_to_look(logger: Logger) -> str:
    """One line that says how to open a logger's data; empty for kinds that have no line here."""
    return ""


@how_to_look.register
def _(logger: TensorBoardLogger) -> str:
    return f"TensorBoard: tensorboard --logdir {logger.log_dir}"


@how_to_look.register
def _(logger: MLFlowLogger) -> str:
    return f"MLflow: mlflow ui --backend-store-uri {logger._tracking_uri}"


@how_to_look.register
def _(logger: WandbLogger) -> str:
    experiment = logger.experiment
    if experiment.offline:
        return f"W&B (offline): wandb login, then wandb sync {Path(experiment.dir).parent}"
    return f"W&B: {experiment.url}"


def _numbers(run: FinishedRun) -> dict[str, float]:
    return {key: each for key, each in run.summary.items() if isinstance(each, int | float)}
