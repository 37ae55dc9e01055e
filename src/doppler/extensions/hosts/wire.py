"""Sends frames of JSON and arrays over sockets, between processes that share a secret.

Nothing that comes over the network is unpickled. A frame is a head of fixed size (bytes of JSON,
bytes of arrays), a JSON object, and arrays whose dtypes and shapes the object names.
"""

import hmac
import json
import os
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from doppler.support.errors import InputError

_HEAD = struct.Struct("!IQ")
_NONCE_BYTES, _PROOF_BYTES = 32, 32
_MAX_JSON, _MAX_DATA = 1 << 28, 1 << 38
_KINDS = ("<i8", "<f8", "|u1")
ARRAYS = "arrays"
# Limit for the proof that the other side knows the secret, and for silence within a frame.
HANDSHAKE_S = 20.0
SILENT_S = 60.0


class WireError(Exception):
    """The other side is gone, unknown, or sent something that is not a frame; one line says so."""


class Message(NamedTuple):
    """The content of a frame.

    Attributes:
        fields: the JSON object.
        arrays: the arrays.
    """

    fields: dict[str, Any]
    arrays: list[np.ndarray]


class Wire:
    """One end of a connection whose other end has proved that it knows the secret.

    Any thread may send; only one thread at a time may receive.

    Args:
        connection: the socket.
        silent_s: how long the other side may be silent within a frame; None: forever.
    """

    def __init__(self, connection: socket.socket, silent_s: float | None = None) -> None:
        self.socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(silent_s)
        self._sending = threading.Lock()

    def send(self, fields: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        """Send a frame.

        Args:
            fields: a JSON object.
            arrays: of int64, float64 or uint8.

        Raises:
            WireError: the other side is gone.
        """
        plain = [np.ascontiguousarray(array) for array in arrays]
        if plain:
            kinds = [[array.dtype.str, list(array.shape)] for array in plain]
            fields = {**fields, ARRAYS: kinds}
        text = json.dumps(fields).encode()
        head = _HEAD.pack(len(text), sum(array.nbytes for array in plain))
        try:
            with self._sending:
                self.socket.sendall(head + text)
                for array in plain:
                    if array.nbytes:
                        self.socket.sendall(array.reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise WireError(error.strerror or "closed") from None

    def receive(self) -> Message:
        """Wait for the next frame and return it.

        Raises:
            WireError: the other side is gone, or sent something that is not a frame.
        """
        num_text, num_data = _HEAD.unpack(_exactly(self.socket, _HEAD.size))
        if num_text > _MAX_JSON or num_data > _MAX_DATA:
            raise WireError(f"frame too large: {num_text} bytes of JSON, {num_data} of arrays")
        try:
            fields = json.loads(_exactly(self.socket, num_text))
            kinds = [(np.dtype(_known(kind)), shape) for kind, shape in fields.get(ARRAYS, ())]
            sizes = [kind.itemsize * int(np.prod(shape, dtype=np.int64)) for kind, shape in kinds]
        except (ValueError, TypeError, AttributeError) as error:
            raise WireError(f"not a frame: {error}") from None
        if sum(sizes) != num_data or min(sizes, default=0) < 0:
            raise WireError("not a frame: its arrays have another size")
        arrays = []
        for (kind, shape), size in zip(kinds, sizes, strict=True):
            data = _exactly(self.socket, size)
            arrays.append(np.frombuffer(data, dtype=kind).reshape(shape))
        return Message(fields, arrays)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def _known(kind: str) -> str:
    if kind not in _KINDS:
        raise ValueError(f"an array of {kind!r}")
    return kind


def _exactly(connection: socket.socket, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    view, got = memoryview(data), 0
    try:
        while got < num_bytes:
            more = connection.recv_into(view[got:])
            if not more:
                raise WireError("closed")
            got += more
    except OSError as error:
        raise WireError(error.strerror or "closed") from None
    return data


# --- Admission ------------------------------------------------------------------------------------


def proof(secret: bytes, who: str, *nonces: bytes) -> bytes:
    """Return a keyed hash of random numbers, which only someone who knows the secret can compute.

    Args:
        secret: the key.
        who: role of the prover, so that proofs cannot be reflected.
        nonces: random numbers of both sides.
    """
    return hmac.digest(secret, who.encode() + b"".join(nonces), "sha256")


def admit(connection: socket.socket, secret: bytes) -> Wire:
    """Let the side that connects prove that it knows the secret, and prove the same to it.

    Args:
        connection: a new connection, on the listening side.
        secret: which both sides have to know.

    Raises:
        WireError: the other side does not know the secret, or is gone.
    """
    connection.settimeout(HANDSHAKE_S)
    own = os.urandom(_NONCE_BYTES)
    try:
        connection.sendall(own)
        other = bytes(_exactly(connection, _NONCE_BYTES))
        shown = bytes(_exactly(connection, _PROOF_BYTES))
        if not hmac.compare_digest(shown, proof(secret, "agent", own, other)):
            raise WireError("a stranger: does not know the secret")
        connection.sendall(proof(secret, "driver", own, other))
    except OSError as error:
        raise WireError(str(error)) from None
    return Wire(connection, SILENT_S)


def connect(address: tuple[str, int], secret: bytes) -> Wire:
    """Connect to a listening side; both prove that they know the secret.

    Args:
        address: host and port.
        secret: which both sides have to know.

    Raises:
        InputError: nobody listens at the address, or the listener does not know the secret.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        connection = socket.create_connection(address, timeout=HANDSHAKE_S)
        own, other = os.urandom(_NONCE_BYTES), bytes(_exactly(connection, _NONCE_BYTES))
        connection.sendall(own + proof(secret, "agent", other, own))
        shown = bytes(_exactly(connection, _PROOF_BYTES))
    except (OSError, WireError) as error:
        raise InputError(f"{where}: {error}; is the secret the same?") from None
    if not hmac.compare_digest(shown, proof(secret, "driver", other, own)):
        raise InputError(f"{where}: does not know the secret")
    return Wire(connection)
