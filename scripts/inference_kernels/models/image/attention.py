"""Join the attention calls of one sample to the inputs and outputs of the two block-causal definitions.

Nothing here knows the engine: `models/image/hooks.py` fills a `SampleTrace`, which is checked and joined here.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inference_kernels.core.errors import CaptureError

if TYPE_CHECKING:
    import torch

Segments = tuple[tuple[int, int, bool], ...]


@dataclass
class AttentionCall:
    """One call of an attention layer; tensors are copies.

    q, output [1, n, H, D]; k, v [1, m, H, D]. Target calls: m = prefix rows + n. mask: [1, 1, n, m] bool.
    """

    path: str
    q: "torch.Tensor"
    k: "torch.Tensor"
    v: "torch.Tensor"
    mask: "torch.Tensor | None"
    output: "torch.Tensor | None" = None


@dataclass
class SampleTrace:
    """What the attention of one sample did in one step.

    layer: name of the attention module. prefix_rows: read before the call. segments: (start, end, is_image)
    of the prefix in the first step; None when the prefix was cached. prefix, target: the calls, in order.
    """

    layer: str
    prefix_rows: int
    segments: Segments | None
    selected: bool = True
    prefix: list[AttentionCall] = field(default_factory=list)
    target: list[AttentionCall] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    inside: bool = False

    def refuse(self, expected: str, found: str) -> CaptureError:
        return CaptureError(
            expected=expected,
            found=found,
            where=self.layer,
            remedy="this engine version computes attention differently: extend the hooks",
        )

    def call_path(self) -> str:
        return " + ".join(dict.fromkeys(call.path for call in self.prefix + self.target))


def empty_prefix_call(trace: SampleTrace) -> tuple[dict, dict, list[str]]:
    """Return inputs, outputs and adaptations of the empty-prefix definition.

    CaptureError if the segments do not tile the prefix, a mask is not the causal one, or keys disagree.
    """
    import torch

    target = _target(trace)
    _check_segments(trace)
    rows, last = trace.prefix_rows, trace.prefix[-1]
    if not (torch.equal(last.k, target.k[:, :rows]) and torch.equal(last.v, target.v[:, :rows])):
        raise trace.refuse("the same prefix keys and values in the prefix and the target calls", "others")
    calls = [*trace.prefix, target]
    inputs = {
        "q": torch.cat([call.q for call in calls], dim=1)[0],
        "k": target.k[0],
        "v": target.v[0],
        "kv_end": kv_end(trace.segments, target.k.shape[1]).to(target.q.device),
    }
    notes = [
        "queries and outputs of the segments and of the target concatenated in sequence order",
        f"kv_end derived from the prefix segments {_describe(trace.segments)} and the target",
    ]
    return inputs, {"o": torch.cat([call.output for call in calls], dim=1)[0]}, _notes(trace, notes)


def cached_prefix_call(trace: SampleTrace) -> tuple[dict, dict, list[str]]:
    """Return inputs, outputs and adaptations of the cached-prefix definition."""
    target, rows = _target(trace), trace.prefix_rows
    k, v = target.k[0], target.v[0]
    inputs = {"q": target.q[0], "k_prefix": k[:rows], "v_prefix": v[:rows], "k": k[rows:], "v": v[rows:]}
    notes = [f"keys and values split after the {rows} cached prefix rows"]
    return inputs, {"o": target.output[0]}, _notes(trace, notes)


def _notes(trace: SampleTrace, notes: list[str]) -> list[str]:
    return ["batch axis of size 1 dropped, values unchanged", *trace.notes, *notes]


def _target(trace: SampleTrace) -> AttentionCall:
    """Return the only target call, checked against the prefix rows that were read before it."""
    if len(trace.target) != 1:
        raise trace.refuse("one target attention call", f"{len(trace.target)}")
    target = trace.target[0]
    rows = target.k.shape[1] - target.q.shape[1]
    if target.q.shape[0] != 1 or rows != trace.prefix_rows or target.mask is not None:
        raise trace.refuse(
            f"one sample, {trace.prefix_rows} prefix rows in the keys, no mask",
            f"batch {target.q.shape[0]}, {rows} rows, mask {target.mask is not None}",
        )
    return target


def _check_segments(trace: SampleTrace) -> None:
    edges = [0] + [end for _, end, _ in trace.segments]
    if [start for start, _, _ in trace.segments] != edges[:-1] or edges[-1] != trace.prefix_rows:
        raise trace.refuse(f"segments that tile [0, {trace.prefix_rows})", _describe(trace.segments))
    if len(trace.prefix) != len(trace.segments):
        raise trace.refuse(f"{len(trace.segments)} segment calls", f"{len(trace.prefix)}")
    for (start, end, is_image), call in zip(trace.segments, trace.prefix):
        if (call.q.shape[1], call.k.shape[1]) != (end - start, end):
            raise trace.refuse(f"{end - start} queries and {end} keys", f"{call.q.shape[1]} and {call.k.shape[1]}")
        if not _mask_is_right(call.mask, start, end, is_image):
            raise trace.refuse(f"the {'full' if is_image else 'causal'} mask of rows {start} to {end}", "another mask")


def _mask_is_right(mask: "torch.Tensor | None", start: int, end: int, is_image: bool) -> bool:
    import torch

    if is_image:
        return mask is None
    causal = torch.arange(end)[None, :] <= torch.arange(start, end)[:, None]
    return mask is not None and mask.dtype == torch.bool and torch.equal(mask.cpu(), causal[None, None])


def kv_end(segments: Segments, keys: int) -> "torch.Tensor":
    """Return int32 [S]: row i sees the keys below kv_end[i]. Text: i + 1; image: end of its segment; target: all."""
    import torch

    ends = torch.full((keys,), keys, dtype=torch.int32)
    for start, end, is_image in segments:
        ends[start:end] = end if is_image else torch.arange(start + 1, end + 1, dtype=torch.int32)
    return ends


def _describe(segments: Segments) -> str:
    names = {True: "image", False: "text"}
    return ", ".join(f"[{start}, {end}) {names[is_image]}" for start, end, is_image in segments)
