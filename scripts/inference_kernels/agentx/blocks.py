"""Decode the block lists of one Weka session from its text. Standard library only.

A request repeats nearly all block ids of an earlier one, so decoding every list as JSON would convert each id
hundreds of times. Ids are chained: an id stands for the whole prefix that ends with it. The known ids of a
request therefore form a prefix. Bisection finds its end, comparing bytes with the request that owns its last
id verifies it, and only the new ids after it are converted.
"""

import json
from array import array
from typing import NamedTuple

from inference_kernels.core.errors import DatasetError

Runs = tuple[tuple[int, int], ...]  # consecutive ids: (first, count), in order; neighbours never join

# Ids are numbered from 0 or 1 within a session; the table of owners takes 4 bytes per id.
LARGEST_ID = 2**26 - 1
UNSEEN = -1
LIST_BYTES = b"0123456789, \t\r\n"


class TraceError(DatasetError):
    """A trace that is not the expected one, or breaks the Weka format or a property the rules rely on."""


class Decoded(NamedTuple):
    """One request's blocks.

    shared: leading blocks that an earlier request had; predecessor: the latest request that had all of them.
    """

    runs: Runs
    blocks: int
    shared: int
    predecessor: int | None


class BlockLists:
    """Decode a session's block lists. places[i]: where list i lies in `text`, without its brackets."""

    def __init__(self, text: bytes, places: list[tuple[int, int]], where: str):
        self.text, self.places, self.where = text, places, where
        self.owner = array("i")  # id -> the request that had it last
        self.runs: dict[int, Runs] = {}

    def add(self, index: int) -> Decoded:
        """Decode list `index`. Add requests in the order in which they started."""
        begin, end = self.places[index]
        last, tail = self._known_prefix(begin, end)
        predecessor = None if last is None else self.owner[last]
        prefix = () if last is None else self._prefix(index, predecessor, last, tail)
        fresh = self._runs_of_text(tail, end, index)
        shared = length(prefix)
        self._claim(fresh, index, fresh=True)
        self._claim(prefix, index, fresh=False)
        self.runs[index] = joined(prefix, fresh)
        return Decoded(self.runs[index], shared + length(fresh), shared, predecessor)

    def _known_prefix(self, begin: int, end: int) -> tuple[int | None, int]:
        """Find the last known id, and where the text of the new ones begins (end + 1: none)."""
        low, high, last = begin, end, None
        while low < high:
            middle = (low + high) // 2
            start = self.text.rfind(b",", low, middle) + 1 or low
            comma = self.text.find(b",", middle, high)
            stop = high if comma < 0 else comma
            word = self.text[start:stop].strip()
            if not word.isdigit():
                return None, begin  # not a list of ids: strict decoding will say why
            ident = int(word[:12])  # a longer one is too large in any case
            if ident < len(self.owner) and self.owner[ident] != UNSEEN:
                low, last = stop + 1, ident
            else:
                high = start - 1
        return last, low

    def _prefix(self, index: int, predecessor: int, last: int, tail: int) -> Runs:
        """Return the runs of the known ids, which must be those that the predecessor began with."""
        prefix = through(self.runs[predecessor], last)
        begin, (other, other_end) = self.places[index][0], self.places[predecessor]
        stop = other + tail - 1 - begin
        ends_there = stop == other_end or self.text[stop : stop + 1] == b","
        same_text = ends_there and self.text[begin : tail - 1] == self.text[other:stop]
        # Different text has different spaces, or its ids are not chained: compare the numbers.
        if not same_text and self._runs_of_text(begin, tail - 1, index) != prefix:
            raise self._unchained(index, last)
        return prefix

    def _runs_of_text(self, begin: int, end: int, index: int) -> Runs:
        if begin > end:
            return ()
        text = self.text[begin:end]
        empty = begin == self.places[index][0] and not text.strip()
        if text.translate(None, LIST_BYTES) or not (empty or text.strip()):
            raise self._refusal(index, "block ids: whole numbers >= 0 and commas", repr(text[:40])[1:])
        try:
            ids = json.loads(b"[%b]" % text)
        except ValueError as error:
            raise self._refusal(index, "a list of block ids", str(error)) from error
        return runs_of(ids)

    def _claim(self, runs: Runs, index: int, fresh: bool) -> None:
        """Make the request the owner of its ids; fresh ids must have no owner yet."""
        for first, count in runs:
            stop = first + count
            if stop > LARGEST_ID + 1:
                raise self._refusal(index, f"block ids of at most {LARGEST_ID:,}", f"{stop - 1:,}")
            if stop > len(self.owner):
                size = max(stop, 2 * len(self.owner))
                self.owner.extend(array("i", [UNSEEN]) * (size - len(self.owner)))
            if fresh and self.owner[first:stop] != array("i", [UNSEEN]) * count:
                known = next(ident for ident in range(first, stop) if self.owner[ident] != UNSEEN)
                raise self._unchained(index, known)
            self.owner[first:stop] = array("i", [index]) * count

    def _unchained(self, index: int, ident: int) -> TraceError:
        return self._refusal(
            index, "chained block ids, each always after the same ids", f"block {ident} in a second place"
        )

    def _refusal(self, index: int, expected: str, found: str) -> TraceError:
        return TraceError(
            expected=expected, found=found, where=f"{self.where}, request {index}", remedy="download the trace again"
        )


def runs_of(ids: list[int]) -> Runs:
    """Group consecutive ids into runs."""
    if ids and ids == list(range(ids[0], ids[0] + len(ids))):
        return ((ids[0], len(ids)),)
    starts = [place for place, ident in enumerate(ids) if place == 0 or ident != ids[place - 1] + 1]
    return tuple((ids[start], stop - start) for start, stop in zip(starts, [*starts[1:], len(ids)]))


def length(runs: Runs) -> int:
    """Count the ids of runs."""
    return sum(count for _, count in runs)


def joined(front: Runs, back: Runs) -> Runs:
    """Concatenate runs; join the two that meet if their ids are consecutive."""
    if front and back and sum(front[-1]) == back[0][0]:
        return (*front[:-1], (front[-1][0], front[-1][1] + back[0][1]), *back[1:])
    return front + back


def through(runs: Runs, last: int) -> Runs:
    """Cut the runs after the id `last`, which must be one of theirs."""
    for place, (first, count) in enumerate(runs):
        if first <= last < first + count:
            return (*runs[:place], (first, last - first + 1))
    raise ValueError(f"block {last} is not in these runs")


def common_prefix(one: Runs, other: Runs) -> int:
    """Count the leading blocks that two requests of one session share."""
    shared = 0
    for (first, count), (other_first, other_count) in zip(one, other):
        if first != other_first:
            return shared
        shared += min(count, other_count)
        if count != other_count:
            return shared
    return shared


def shared_matrix(members: list[Runs]) -> list[list[int]]:
    """Count the leading blocks that members i and j share; the diagonal holds a member's own number."""
    return [[common_prefix(one, other) for other in members] for one in members]
