"""Substitute operators whose kernels need Blackwell: convert exactly to BF16, then call a BF16 kernel.

Every record names the substitutions that it involves. FP8 and FP4 values times power-of-two scales are exact in
BF16, so the functions computed are the same; the kernels come from libraries and share no code with the references.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inference_kernels.core.errors import CaptureError

if TYPE_CHECKING:
    import torch

SUBSTITUTIONS = {
    "v41_kv_layout": "select_dsv4_kv_layout returns the V4.1 layout and the dequantiser's architecture check "
    "is lifted: SGLang limits both to Blackwell; its cache writers and readers run unchanged",
    "mixed_decode": "flash_mla_with_kvcache on V4.1 pages: the slots are dequantised to BF16 rows (exact) "
    "and attended by flash_mla.flash_mla_sparse_fwd",
    "grouped_gemm": "grouped_gemm_nt_f8f8bf16_contig: both operands are dequantised to BF16 (exact) and "
    "multiplied by deep_gemm.m_grouped_bf16_gemm_nt_contiguous",
    "ue8m0_activations": "sglang_per_token_group_quant_fp8 inside the experts makes power-of-two scales, as "
    "on Blackwell, instead of arbitrary FP32 ones",
}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
# Rows of an expert must start at a multiple of this in DeepGEMM's contiguous layout.
ROW_ALIGNMENT = 128
LATENT, FP8_BYTES, FP4_BYTES = 512, 528, 288


def fp4_pairs(device: Any) -> "torch.Tensor":
    """Return bfloat16 [256, 2]: the two values of each byte, the low nibble's first."""
    import torch

    return torch.tensor(
        [[E2M1[byte & 15], E2M1[byte >> 4]] for byte in range(256)], dtype=torch.bfloat16, device=device
    )


def unpack_fp4(codes: "torch.Tensor") -> "torch.Tensor":
    """Decode one-byte pairs [..., n] to bfloat16 [..., 2n]."""
    import torch

    return fp4_pairs(codes.device)[codes.view(torch.uint8).int()].flatten(-2)


def scaled(values: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
    """Multiply values [..., n] (exact in BF16) by scales [..., n / group], powers of two: exact in BF16."""
    import torch

    groups = scales.shape[-1]
    grouped = values.to(torch.bfloat16).unflatten(-1, (groups, values.shape[-1] // groups))
    return (grouped * scales.to(torch.bfloat16)[..., None]).flatten(-2)


def scale_bytes(scales: "torch.Tensor", groups: int) -> "torch.Tensor":
    """Return uint8 [..., groups]: E8M0 bytes of float32 powers of two, or of words that pack four bytes each.

    CaptureError for a float32 scale that is not a power of two, and for another layout.
    """
    import torch

    if scales.dtype == torch.float32 and scales.shape[-1] == groups:
        bits = scales.contiguous().view(torch.int32)
        if (bits & 0x807FFFFF).any() or ((bits >> 23) % 255 == 0).any():
            raise CaptureError(
                expected="scales that are powers of two",
                found="others",
                where="grouped GEMM",
                remedy="check that the activations are quantised with power-of-two scales",
            )
        return (bits >> 23).to(torch.uint8)
    if scales.dtype == torch.int32 and scales.shape[-1] == -(-groups // 4):
        return scales.contiguous().view(torch.uint8)[..., :groups].contiguous()
    raise CaptureError(
        expected=f"{groups} float32 scales per row, or {-(-groups // 4)} packed words",
        found=f"{scales.dtype} {list(scales.shape)}",
        where="grouped GEMM",
        remedy="this engine stores scales differently: extend the hooks",
    )


def activation_group(scales: "torch.Tensor", columns: int) -> int:
    """Return the elements per activation scale, 32 or 128, from the shapes; CaptureError for another number."""
    import torch

    for group in (32, 128):
        groups = columns // group
        if scales.shape[-1] == (groups if scales.dtype == torch.float32 else -(-groups // 4)):
            return group
    raise CaptureError(
        expected=f"scales of 32 or 128 elements in rows of {columns}",
        found=f"{list(scales.shape)}",
        where="grouped GEMM",
        remedy="this engine stores scales differently: extend the hooks",
    )


def grouped_gemm(
    lhs: tuple, rhs: tuple, out: "torch.Tensor", experts: "torch.Tensor", kernel: Callable | None = None
) -> None:
    """Fill the rows of `out` whose expert is not negative: out[i] = lhs[i] . rhs[experts[i]]^T.

    lhs: float8_e4m3fn [R, K] and float32 scales [R, K / 32 or 128]. rhs: int8 [E, N, K / 2] FP4 pairs and
    float32 scales [E, N, K / 32]. out: bfloat16 [R, N]. experts: int32 [R], -1 for padding rows, not read.
    kernel(a, b, d, expert_of_row): a BF16 grouped GEMM whose experts' rows start at multiples of 128.
    """
    import torch

    if kernel is None:
        from deep_gemm import m_grouped_bf16_gemm_nt_contiguous as kernel
    real = (experts >= 0).nonzero().flatten()
    active, compact, counts = torch.unique(experts[real], return_inverse=True, return_counts=True)
    if not real.numel():
        return
    starts = torch.nn.functional.pad((-(-counts // ROW_ALIGNMENT) * ROW_ALIGNMENT).cumsum(0), (1, 0))
    order = compact.argsort(stable=True)
    inside = torch.arange(order.numel(), device=order.device) - (counts.cumsum(0) - counts)[compact[order]]
    place = torch.empty_like(order)
    place[order] = starts[compact[order]] + inside
    rows = int(starts[-1])
    a = torch.zeros(rows, lhs[0].shape[1], dtype=torch.bfloat16, device=out.device)
    a[place] = scaled(lhs[0].view(torch.int8)[real].view(torch.float8_e4m3fn), lhs[1][real])
    b = torch.empty(active.numel(), out.shape[1], lhs[0].shape[1], dtype=torch.bfloat16, device=out.device)
    for index, expert in enumerate(active.tolist()):
        b[index] = scaled(unpack_fp4(rhs[0][expert]), rhs[1][expert])
    row_expert = torch.repeat_interleave(torch.arange(active.numel(), device=out.device), starts.diff()).int()
    d = torch.empty(rows, out.shape[1], dtype=torch.bfloat16, device=out.device)
    kernel(a, b, d, row_expert)
    out[real] = d[place]


def page_rows(cache: "torch.Tensor", slots: "torch.Tensor", payload: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Gather payload and scale bytes of slots: uint8 [slots, payload] and [slots, bytes - payload].

    cache: one-byte [pages, page_size, 1, bytes]; a page is all payload rows, then all scale rows.
    slots: int64, page * page_size + offset.
    """
    import torch

    pages, size, _, total = cache.shape
    flat = torch.as_strided(
        cache.view(torch.uint8), (pages, size * total), (cache.stride(0), 1), cache.storage_offset()
    )
    page, offset = slots // size, slots % size
    split, scale = size * payload, total - payload
    return (
        flat[:, :split].unflatten(1, (size, payload))[page, offset],
        flat[:, split:].unflatten(1, (size, scale))[page, offset],
    )


def gather_latents(cache: "torch.Tensor", slots: "torch.Tensor") -> "torch.Tensor":
    """Dequantise latents of FP8 (528 bytes per slot) or FP4 (288 bytes) pages: bfloat16 [slots, 512]."""
    import torch

    if cache.shape[-1] == FP8_BYTES:
        codes, scales = page_rows(cache, slots, LATENT)
        return scaled(codes.view(torch.float8_e4m3fn), scales.view(torch.float8_e8m0fnu).float())
    codes, scales = page_rows(cache, slots, LATENT // 2)
    values = unpack_fp4(codes).unflatten(-1, (LATENT // 16, 16))
    # E2M1 times E4M3 has at most 2 + 4 significant bits: exact in BF16 as well.
    return (values * scales.view(torch.float8_e4m3fn).to(torch.bfloat16)[..., None]).flatten(-2)


def mixed_decode(call: dict[str, Any], kernel: Callable | None = None) -> "torch.Tensor":
    """Attend to the window slots and, if there are any, the compressed ones: bfloat16 [B, 1, H, 512].

    call: the arguments of `flash_mla_with_kvcache` by name. kernel(q, kv, indices, scale, 512, sink): sparse
    attention over BF16 rows with -1 for empty slots; returns a tuple, output first.
    """
    import torch

    if kernel is None:
        from flash_mla import flash_mla_sparse_fwd

        def kernel(*arguments: Any) -> Any:
            return flash_mla_sparse_fwd(*arguments, None, use_legacy=True)

    batch = call["q"].shape[0]
    parts, indices, first = [], [], 0
    for cache, slots, lengths in (
        (call["k_cache"], call["indices"], call["topk_length"]),
        (call["extra_k_cache"], call["extra_indices_in_kvcache"], call["extra_topk_length"]),
    ):
        if cache is None:
            continue
        slots = slots.reshape(batch, -1)
        valid = (slots >= 0) & (torch.arange(slots.shape[1], device=slots.device) < lengths[:, None])
        rows = gather_latents(cache, slots.long().clamp_min(0).flatten())
        parts.append(rows.masked_fill(~valid.flatten()[:, None], 0))
        own = first + torch.arange(slots.numel(), device=slots.device).view_as(slots)
        indices.append(torch.where(valid, own, -1).int())
        first += slots.numel()
    kv, where = torch.cat(parts)[:, None].contiguous(), torch.cat(indices, 1)[:, None].contiguous()
    output = kernel(call["q"].squeeze(1).contiguous(), kv, where, call["softmax_scale"], LATENT, call["attn_sink"])
    return output[0][:, None]


def use_v41_layout() -> None:
    """Make the engine store V4.1 pages on a GPU before Blackwell; call it before the model is built."""
    from types import SimpleNamespace

    from sglang.kernels.ops.attention.dsv4 import dequant_k_cache
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as pool
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    dequant_k_cache.get_jit_cuda_arch = lambda: SimpleNamespace(major=10, minor=0)
    HookRegistry.register(
        "sglang.srt.mem_cache.deepseek_v4_memory_pool.select_dsv4_kv_layout",
        lambda: (pool.KVLayout.V41, "auto"),
        HookType.REPLACE,
    )
