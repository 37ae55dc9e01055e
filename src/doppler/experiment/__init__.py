"""A run: what it is, where it lives, how it is judged; `doppler.experiment.main` is its command."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from doppler.stages import execute

__all__ = ["execute"]


def __getattr__(name: str) -> object:
    # The command line answers a mistyped option, or --help, without waiting for torch.
    if name in __all__:
        from doppler import stages

        return getattr(stages, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
