"""Generated files: which of them differ from their content, and writing those."""

from collections.abc import Iterable
from pathlib import Path

from inference_kernels.core.errors import PackError
from inference_kernels.core.files import write_bytes


def differing(files: dict[Path, bytes]) -> list[Path]:
    """List the paths whose content is not that of `files`."""
    return [path for path, content in files.items() if not path.exists() or path.read_bytes() != content]


def write_generated(files: dict[Path, bytes], stale: Iterable[Path] = ()) -> list[Path]:
    """Write the files that differ and delete `stale` ones; return the changed paths."""
    changed = differing(files)
    for path in changed:
        write_bytes(path, files[path])
    for path in stale:
        path.unlink()
    return [*changed, *stale]


def differences(files: dict[Path, bytes], root: Path, remedy: str, stale: Iterable[Path] = ()) -> list[PackError]:
    """Report the files that differ and `stale` ones; paths below `root` are relative."""
    return [
        PackError(
            expected="the generated content",
            found="a difference" if path.exists() else "no file",
            where=path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path),
            remedy=remedy,
        )
        for path in [*differing(files), *stale]
    ]
