"""Types of options that take a number: each has a range, so NaN, infinities and typing errors end in one line."""

import argparse
import contextlib
from collections.abc import Callable


def whole(low: int, high: int) -> Callable[[str], int]:
    """Make the type of an option that takes a whole number of a range."""

    def parse(text: str) -> int:
        with contextlib.suppress(ValueError):
            if low <= (value := int(text)) <= high:
                return value
        raise argparse.ArgumentTypeError(f"a whole number from {low} to {high}; found {text[:40]!r}")

    return parse


def real(low: float, high: float) -> Callable[[str], float]:
    """Make the type of an option that takes a number of a range; NaN lies in none."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if low <= (value := float(text)) <= high:
                return value
        raise argparse.ArgumentTypeError(f"a number from {low:,} to {high:,}; found {text[:40]!r}")

    return parse
