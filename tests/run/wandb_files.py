"""What an offline W&B run keeps on disk, also while it is being written."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Stored:
    """Of one file: configuration, summary, rows of metrics, tags, types of artifacts."""

    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)

    def curve(self, key: str) -> dict[int, float]:
        """A number that was logged, by step."""
        return {row["_step"]: row[key] for row in self.rows if key in row}


def stored(path: Path) -> Stored:
    """What a run-ID.wandb says so far."""
    from wandb.proto import wandb_internal_pb2

    found = Stored()
    for message in _messages(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(message)
        for item in [*record.run.config.update, *record.config.update]:
            found.config[item.key] = json.loads(item.value_json)
        found.summary |= _values(record.summary.update)
        if record.history.item:
            found.rows.append(_values(record.history.item))
        if record.run.tags:
            found.tags = list(record.run.tags)
        artifact = record.artifact or record.request.log_artifact.artifact
        if artifact.type:
            found.artifacts.append(artifact.type)
    return found


def _values(items: Any) -> dict[str, Any]:
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def _messages(data: bytes) -> Iterator[bytes]:
    """A log of blocks as LevelDB has them, after a head of 7 bytes; the last one may be cut short.

    A part has 4 bytes of checksum, 2 of length, 1 that says whole, first, middle or last.
    """
    position, whole = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        part = data[position + 7 : position + 7 + length]
        if len(part) < length or kind == 0:
            return
        whole += part
        position += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""
