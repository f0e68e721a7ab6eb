"""The edge of every command: parse, call, translate errors into one line, exit code, progress.

Exit codes: 0 all well, 1 the data has errors, 2 the command could not do its work, 130 interrupted.
"""

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from inference_kernels.core.errors import DatasetError, missing_package

Item = TypeVar("Item")

OS_REMEDIES = {
    errno.EDQUOT: "free some space or choose another target",
    errno.EEXIST: "a file is in the way: choose another target",
    errno.ENOTDIR: "a file is in the way: choose another target",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOSPC: "free some space or choose another target",
    errno.EROFS: "choose a writable target",
    errno.EACCES: "check the permissions or choose another target",
    errno.ENOENT: "check the path",
}


def run_main(main: Callable[[], int]) -> None:
    """Run a command and leave the process with its exit code; expected failures become one line."""
    try:
        code = main()
        sys.stdout.flush()
    except DatasetError as error:
        code = fail(error.line())
    except ModuleNotFoundError as error:
        code = fail(missing_package(error.name or str(error)).line())
    except BrokenPipeError:
        # The reader (head, less) has gone; the interpreter must not write to it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        remedy = OS_REMEDIES.get(error.errno or 0, "see the system's message")
        place = error.filename2 or error.filename or "input/output"
        code = fail(f"{place}: {error.strerror or error}; {remedy}")
    except KeyboardInterrupt:
        code = fail("interrupted; run the same command again to resume", 130)
    sys.exit(code)


def positive(text: str) -> int:
    """Parse an option's whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def fail(message: str, code: int = 2) -> int:
    """Write an error line and return the exit code."""
    sys.stderr.write(f"error: {message}\n")
    return code


def report_differences(errors: Iterable[DatasetError]) -> int:
    """Write an error line per difference of a --check; return the exit code, 1 if there is any."""
    return max([fail(error.line(), 1) for error in errors], default=0)


def progress(items: Iterable[Item], total: int, label: str, unit: str = "file") -> Iterator[Item]:
    """Pass `items` through with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        return iter(items)
    from tqdm import tqdm

    return iter(tqdm(items, total=total, desc=label, unit=unit, leave=False))


def print_table(rows: list[dict[str, Any]], columns: list[str]) -> None:
    """Print rows as aligned columns, numbers to the right."""
    text = [{name: str(row.get(name, "")) for name in columns} for row in rows]
    widths = {name: max([len(name)] + [len(row[name]) for row in text]) for name in columns}
    numeric = {name for name in columns if all(isinstance(row.get(name), (int, float)) for row in rows)}

    def line(cells: dict[str, str]) -> str:
        parts = (cells[c].rjust(widths[c]) if c in numeric else cells[c].ljust(widths[c]) for c in columns)
        return "  ".join(parts).rstrip()

    print(line({name: name for name in columns}))
    for row in text:
        print(line(row))


def print_json(value: Any) -> None:
    """Print the machine-readable result: one line, last on stdout."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))
