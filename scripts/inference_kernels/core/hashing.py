"""SHA-256 of files: streamed, several at a time, memory flat in the number of files. Standard library only."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

# hashlib releases the GIL above 2 KiB, so threads suffice; a block of 1 MiB stays in the L2 cache.
BLOCK = 2**20


def sha256_file(path: Path) -> str:
    """Hash a file's bytes, holding one block in memory; return the hex digest."""
    digest = hashlib.sha256()
    block = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as stream:
        while size := stream.readinto(block):
            digest.update(block[:size])
    return digest.hexdigest()


def hash_files(paths: Iterable[Path], jobs: int) -> Iterator[tuple[Path, str | OSError]]:
    """Yield (path, digest or the error of reading it), in order, with at most `4 * jobs` files in flight.

    When the caller stops early, files being read are finished and the rest are dropped.
    """
    pool = ThreadPoolExecutor(jobs)
    waiting: deque[tuple[Path, Future[str | OSError]]] = deque()
    try:
        for path in paths:
            waiting.append((path, pool.submit(_digest_or_error, path)))
            if len(waiting) >= 4 * jobs:
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _digest_or_error(path: Path) -> str | OSError:
    try:
        return sha256_file(path)
    except OSError as error:
        return error
