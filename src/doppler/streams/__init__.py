"""Streams of inputs of one program, and what allocates backends to them while they flow."""

from doppler.streams.allocators import (
    WHICH,
    Allocator,
    Always,
    BestFixed,
    Hindsight,
    Oracle,
    RandomMixture,
    play,
)
from doppler.streams.answers import answers
from doppler.streams.router import Router
from doppler.streams.stream import Played, Stream, StreamGraph, StreamInput, StreamSession

__all__ = [
    "WHICH",
    "Allocator",
    "Always",
    "BestFixed",
    "Hindsight",
    "Oracle",
    "Played",
    "RandomMixture",
    "Router",
    "Stream",
    "StreamGraph",
    "StreamInput",
    "StreamSession",
    "answers",
    "play",
]
