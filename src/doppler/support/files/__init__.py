"""Reads files that somebody else may have written: errors are one line, and nothing is executed."""

from doppler.support.files.locking import lock_file
from doppler.support.files.naming import as_file_name
from doppler.support.files.reading import (
    LIMIT_VARIABLE,
    check_size,
    open_to_append,
    parse_json,
    read_bytes,
    read_damaged_text,
    read_json,
    read_text,
)
from doppler.support.files.yaml_format import read_yaml

__all__ = [
    "LIMIT_VARIABLE",
    "as_file_name",
    "check_size",
    "lock_file",
    "open_to_append",
    "parse_json",
    "read_bytes",
    "read_damaged_text",
    "read_json",
    "read_text",
    "read_yaml",
]
