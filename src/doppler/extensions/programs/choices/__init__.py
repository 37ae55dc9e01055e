"""Graphs whose ops have alternatives: a placement chooses a backend and a device for each op."""

from doppler.extensions.programs.choices.choosing import (
    CONTROLS,
    ChosenPlacement,
    bound_of,
    choose,
    control,
)
from doppler.extensions.programs.choices.system import ChoosingSystem, PricedChoices, make_choices

__all__ = [
    "CONTROLS",
    "ChoosingSystem",
    "ChosenPlacement",
    "PricedChoices",
    "bound_of",
    "choose",
    "control",
    "make_choices",
]
