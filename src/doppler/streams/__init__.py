"""Streams of inputs of one program, and what allocates backends to them while they flow."""

from doppler.streams.allocators import (
    WHICH,
    Allocator,
    Always,
    BestFixed,
    Hindsight,
    Oracle,
    RandomMixture,
    check_fits,
    play,
)
from doppler.streams.answers import answers, answers_program
from doppler.streams.cascade import Cascade
from doppler.streams.labelled import LabelledStream, digits
from doppler.streams.router import Router
from doppler.streams.stream import (
    AnyStream,
    Played,
    Stream,
    StreamGraph,
    StreamInput,
    StreamSession,
)
from doppler.streams.structured import StructuredReinforce, StructuredThompson
from doppler.streams.synthetic import synthetic_stream

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
    "play",
    "synthetic_stream",
]
