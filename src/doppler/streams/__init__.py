"""Streams of inputs of one program, and what allocates backends to them while they flow."""

from doppler.streams.allocators import (
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
from doppler.streams.stream import Input, Played, Stream, StreamGraph, StreamSession

__all__ = [
    "Allocator",
    "Always",
    "BestFixed",
    "Hindsight",
    "Input",
    "Oracle",
    "Played",
    "RandomMixture",
    "Router",
    "Stream",
    "StreamGraph",
    "StreamSession",
    "answers",
    "play",
]
