"""The table in which the corrupt trees are listed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """`corrupt(tree)` must make the checker print a finding of `level` at `where` with every fragment.

    errors: how many errors the check counts in all; a defect that breaks several rules states it here, so that
    a cascade cannot grow unseen.
    """

    label: str
    level: str
    where: str
    fragments: tuple[str, ...]
    errors: int
    corrupt: Callable[[Any], None]


class Table(list[Case]):
    def add(self, label: str, level: str, where: str, *fragments: str, errors: int | None = None) -> Callable:
        """Decorator: register the function as a case. An error counts once unless `errors` says otherwise."""

        def register(corrupt: Callable[[Any], None]) -> Callable[[Any], None]:
            count = int(level == "error") if errors is None else errors
            self.append(Case(label, level, where, fragments, count, corrupt))
            return corrupt

        return register
