"""Messages between judge and worker: length-prefixed JSON on a socket. Tensors cross beside it (judge/window.py).

Standard library only.
"""

import json
import socket
import struct
from typing import Any

FRAME_LIMIT = 2**24


class ChannelClosed(Exception):
    """The other side has gone, or does not speak the protocol."""


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    try:
        channel.sendall(struct.pack("<I", len(data)) + data)
    except OSError as error:
        raise ChannelClosed(str(error)) from error


def receive(channel: socket.socket) -> dict[str, Any]:
    (length,) = struct.unpack("<I", _exactly(channel, 4))
    if length > FRAME_LIMIT:
        raise ChannelClosed(f"a message of {length} bytes")
    try:
        message = json.loads(_exactly(channel, length))
    except ValueError as error:
        raise ChannelClosed(f"not a message: {error}") from error
    if not isinstance(message, dict):
        raise ChannelClosed("not a message")
    return message


def _exactly(channel: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        try:
            part = channel.recv(min(count, 2**20))
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not part:
            raise ChannelClosed("end of stream")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
