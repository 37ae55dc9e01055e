"""A run: what it is, where it lives, how it is judged; `doppler.experiment.main` is its command."""

from typing import TYPE_CHECKING

from doppler.experiment.resolvers import register_resolvers

if TYPE_CHECKING:
    from doppler.stages import execute

__all__ = ["execute"]

register_resolvers()  # a configuration is composed, and shown, before anything runs


def __getattr__(name: str) -> object:
    # The command line answers a mistyped option, or --help, without waiting for torch.
    if name in __all__:
        from doppler import stages

        return getattr(stages, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
