"""Typed errors of the library. Each one says what was expected, what was found, where, and the remedy.

Library code raises these; `cli.run_main` turns them into one line on stderr and an exit code.
"""

import sys
from collections.abc import Iterable


class DatasetError(Exception):
    """Base of all expected failures.

    expected, found: what the rule asks for and what is there, in words.
    where: path, `path:line` or workload UUID.
    remedy: what the user can do about it.
    """

    def __init__(self, *, expected: str, found: str, where: str, remedy: str):
        self.expected, self.found, self.where, self.remedy = expected, found, str(where), remedy
        super().__init__(self.line())

    def line(self) -> str:
        """Format the failure as one line."""
        return f"{self.where}: expected {self.expected}; found {self.found}; {self.remedy}"


class PathError(DatasetError):
    """A blob path that is not one of the canonical forms, or leaves the root."""


class PointerError(DatasetError):
    """A Git LFS pointer where tensor bytes are needed, or a malformed pointer."""


class TensorFileError(DatasetError):
    """A safetensors file that is damaged or does not hold what its record says."""


class SchemaError(DatasetError):
    """A definition, workload, task or capture record that breaks its schema."""


def as_errors(faults: Iterable[tuple[str, str, str]], where: str) -> list[SchemaError]:
    """Turn faults, given as (expected, found, remedy), into errors of one place."""
    return [SchemaError(expected=wanted, found=found, where=where, remedy=remedy) for wanted, found, remedy in faults]


class ConstraintError(DatasetError):
    """A constraint that is false, or an expression the evaluator does not allow."""


class PackError(DatasetError):
    """A packed source that differs from the file it is packed from."""


class CaptureError(DatasetError):
    """A capture run that failed or is not complete."""


class ImportRefused(DatasetError):
    """A capture run that must not be imported."""


class ReplayError(DatasetError):
    """A reference that cannot be run on a workload, or whose result has the wrong form."""


class NotFound(DatasetError):
    """A file or name that is not there."""


class LockHeld(DatasetError):
    """A lock that another process holds."""


class EnvironmentMissing(DatasetError):
    """A package, file or device that the command needs and this machine lacks."""


def missing_package(name: str) -> EnvironmentMissing:
    """Build the error that says which Python package is missing; not raised here."""
    return EnvironmentMissing(
        expected=f"the Python package {name}",
        found="not installed",
        where=sys.executable,
        remedy="run `make install` and use .venv/bin/python",
    )
