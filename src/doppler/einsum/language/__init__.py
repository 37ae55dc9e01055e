"""The text language: from a file to a Program (docs/einsum.md)."""

from doppler.einsum.language.resolver import parse_program

__all__ = ["parse_program"]
