"""Messages between judge and worker: length-prefixed JSON on a socket, tensor bytes in a memory file beside
it.

Bytes cross with pread and pwrite only (no mapping), so a worker that truncates the file cannot harm the
reader. Standard library only.
"""

import ctypes
import json
import os
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


def memory(address: int, size: int) -> memoryview:
    """The `size` bytes at `address`, writable. The caller keeps their owner alive."""
    if not size:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def write_at(descriptor: int, view: memoryview, offset: int) -> None:
    while len(view):
        count = os.pwrite(descriptor, view[:2**30], offset)
        view, offset = view[count:], offset + count


def read_at(descriptor: int, view: memoryview, offset: int) -> None:
    """Fill `view`; ChannelClosed if the file ends before it is full."""
    while len(view):
        count = os.preadv(descriptor, [view[:2**30]], offset)
        if not count:
            raise ChannelClosed("the hand-over file is shorter than the tensors it should hold")
        view, offset = view[count:], offset + count
