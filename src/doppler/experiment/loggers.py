"""W&B and MLflow with one run per run directory, and what each kind of logger shows of results."""

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
# Of the curves of trainings; each has its episodes as its axis.
NAMESPACES = ("stage_1", "stage_2", "stage_3", "settling")


class WandbRun(WandbLogger):
    """A W&B run of the run directory: another process that goes on there goes on in it.

    save_dir: the run directory. offline: whether it is kept on disk, for ``wandb sync``, or sent to
    the server while it runs. settings: of ``wandb.init``. steps_rise: it takes no row of an
    earlier step.
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
        """What takes the settings."""
        import wandb

        return wandb.init

    @property
    def experiment(self) -> Any:
        """The ``wandb.Run``, begun when it is first asked for.

        Lightning would begin it with a setting that W&B warns of, and decide by an environment
        variable, which stays, that all runs to come are offline too.

        Raises:
            InputError: a setting that W&B does not take, nobody is logged in, no server is reached.
        """
        import wandb
        from wandb.errors import Error

        if self._run is None:
            try:
                self._run = wandb.init(**self._settings)
            except (Error, TypeError, ValueError) as error:
                raise InputError(f"logger=wandb: {str(error).splitlines()[0]}") from None
            for namespace in NAMESPACES:
                self._run.define_metric(f"{namespace}/*", step_metric=f"{namespace}/episodes")
        return self._run

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Rows count by their update; what the server has already it would not take again."""
        if step is None or step >= self.experiment.step:
            self.experiment.log(metrics, step=step)

    def end_run(self, *, failed: bool) -> None:
        """Or the next run of a sweep would go on in this one."""
        if self._run is not None:
            self._run.finish(exit_code=int(failed))


class MlflowRun(MLFlowLogger):
    """An MLflow run of the run directory: another process that goes on there goes on in it.

    save_dir: the run directory. experiment_name, tracking_uri, settings: of `MLFlowLogger`.
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
        """What takes the settings."""
        return MLFlowLogger


def _identity(directory: str) -> str:
    return read_text(Path(directory, IDENTITY_FILE)).strip()


@singledispatch
def show(logger: Logger, settings: dict[str, Any], run: FinishedRun) -> None:
    """Tell a logger what a finished run has found.

    Args:
        logger: of a kind that has no function of its own here: it is told the numbers.
        settings: what was run.
        run: what came of it.
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
    """One line: how to open what a logger has; empty of kinds that have no line here."""
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
