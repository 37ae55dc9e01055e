"""Streams of inputs of one program, and allocators, which choose a backend for each input."""

from doppler.extensions.programs.streams.allocators import (
    WHICH,
    Allocator,
    Always,
    BestFixed,
    Hindsight,
    Oracle,
    RandomMixture,
    check_fits,
    has_few_choices,
    play,
)
from doppler.extensions.programs.streams.answers import answers, answers_program
from doppler.extensions.programs.streams.cascade import Cascade
from doppler.extensions.programs.streams.labelled import LabelledStream, digits
from doppler.extensions.programs.streams.router import Router
from doppler.extensions.programs.streams.stream import (
    AnyStream,
    Played,
    Stream,
    StreamGraph,
    StreamInput,
    StreamSession,
)
from doppler.extensions.programs.streams.structured import StructuredReinforce, StructuredThompson
from doppler.extensions.programs.streams.synthetic import synthetic_stream

__all__ = [
    "WHICH",
    "Allocator",
    "Always",
    "AnyStream",
    "BestFixed",
    "Cascade",
    "Hindsight",
    "LabelledStream",
    "Oracle",
    "Played",
    "RandomMixture",
    "Router",
    "Stream",
    "StreamGraph",
    "StreamInput",
    "StreamSession",
    "StructuredReinforce",
    "StructuredThompson",
    "answers",
    "answers_program",
    "check_fits",
    "digits",
    "has_few_choices",
    "play",
    "synthetic_stream",
]
