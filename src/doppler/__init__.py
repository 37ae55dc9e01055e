"""Doppler: learned placement of asynchronous dataflow graphs on several devices."""

__version__ = "0.1.0"
