"""Words for a wrong selection: why a list of ids is not the one that was asked for. It never excuses one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Outputs that list selected ids in increasing order, -1 at the end: output -> axis or size that bounds the
# ids.
SELECTIONS = {"topk_ids": "E", "block_ids": None}


def describe_selection(actual: "torch.Tensor", expected: "torch.Tensor", limit: int | None) -> str:
    """The first rule that the first differing row breaks; `limit`: ids are below it."""
    rows = (actual != expected).flatten(0, -2).any(-1).nonzero().view(-1)
    if not len(rows):
        return ""
    row = int(rows[0])
    got, want = (tensor.flatten(0, -2)[row].tolist() for tensor in (actual, expected))
    return f"row {row}: {_fault(got, want, limit)}"


def _fault(got: list[int], want: list[int], limit: int | None) -> str:
    ids = [value for value in got if value != -1]
    outside = [value for value in ids if value < 0 or (limit is not None and value >= limit)]
    if outside:
        return f"id {outside[0]} out of range"
    if len(set(ids)) < len(ids):
        return "an id twice"
    if got[: len(ids)] != ids:
        return "padding before the end"
    wanted = {value for value in want if value != -1}
    if set(ids) != wanted:
        missing, extra = sorted(wanted - set(ids)), sorted(set(ids) - wanted)
        return f"another set: missing {missing[:3]}, instead {extra[:3]} (equal scores go to the lower id)"
    return "the right ids, not in increasing order"
