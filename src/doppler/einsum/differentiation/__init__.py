"""Turns a program with a loss into one step of its training."""

from doppler.einsum.differentiation.reverse import training_program

__all__ = ["training_program"]
