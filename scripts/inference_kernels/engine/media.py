"""Read the sizes of saved images and videos from their headers. Standard library only.

MP4: ISO/IEC 14496-12. A file is a sequence of boxes, each a 4-byte size, a 4-byte type and a body.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def media_size(path: Path) -> tuple[int, ...] | None:
    """Read (width, height) of a PNG or (width, height, frames) of an MP4 with sound; None for anything else."""
    if not path.is_file():
        return None
    data = path.read_bytes()
    if data.startswith(PNG_SIGNATURE) and len(data) >= 24:
        return struct.unpack(">II", data[16:24])
    return _mp4_size(data) if data[4:8] == b"ftyp" else None


def _mp4_size(data: bytes) -> tuple[int, int, int] | None:
    """Return the size of the only video track; None without frames, or without one audio track with samples."""
    try:
        tracks = dict(_track(body) for kind, body in _boxes(_child(data, b"moov")) if kind == b"trak")
    except (struct.error, KeyError):
        return None
    if set(tracks) != {b"vide", b"soun"} or not tracks[b"soun"][2]:
        return None
    return tracks[b"vide"]


def _track(body: bytes) -> tuple[bytes, tuple[int, int, int]]:
    """Return the type of a track, and its width, height (stored as 16.16 fixed point) and number of samples."""
    media = _child(body, b"mdia")
    width, height = struct.unpack(">II", _child(body, b"tkhd")[-8:])
    sizes = _child(_child(_child(media, b"minf"), b"stbl"), b"stsz")
    samples = struct.unpack(">I", sizes[8:12])[0]
    return _child(media, b"hdlr")[8:12], (width >> 16, height >> 16, samples)


def _child(data: bytes, wanted: bytes) -> bytes:
    """Return the body of the first box of a type; KeyError if there is none."""
    for kind, body in _boxes(data):
        if kind == wanted:
            return body
    raise KeyError(wanted)


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    start = 0
    while start + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, start)
        header = 8
        if size == 1:
            size, header = struct.unpack_from(">Q", data, start + 8)[0], 16
        if size < header:
            return
        yield kind, data[start + header : start + size]
        start += size
