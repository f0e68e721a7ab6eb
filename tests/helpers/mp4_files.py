"""The smallest MP4 files whose header tells size, frames and sound."""

import struct


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def track(kind: bytes, width: int, height: int, samples: int) -> bytes:
    sizes = box(b"stsz", struct.pack(">III", 0, 0, samples))
    header = box(b"tkhd", bytes(76), struct.pack(">II", width << 16, height << 16))
    handler = box(b"hdlr", bytes(8), kind, bytes(12))
    return box(b"trak", header, box(b"mdia", handler, box(b"minf", box(b"stbl", sizes))))


def mp4(width: int, height: int, frames: int, sound: int | None = 10, first: bytes = b"") -> bytes:
    """Return a file with a video track and, unless `sound` is None, a sound track; `first`: boxes before them."""
    tracks = [track(b"vide", width, height, frames)]
    tracks += [] if sound is None else [track(b"soun", 0, 0, sound)]
    return box(b"ftyp", b"isom") + first + box(b"moov", box(b"mvhd", bytes(100)), *tracks)
