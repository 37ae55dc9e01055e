"""Graphs whose ops have alternatives: a placement chooses a backend and a device for each."""

from doppler.choices.choosing import CONTROLS, ChosenPlacement, bound_of, choose, control
from doppler.choices.system import ChoosingSystem, PricedChoices, make_choices

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
