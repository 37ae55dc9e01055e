"""Shared by all other parts: errors, options, files, compiled code, signals, worker pools."""
