"""FlashMLA (sgl-flash-mla 1.0.0) for decode over FP8 and FP4 pages, by the route of the architecture.

sm_90 has no kernel for these page formats: a Triton kernel dequantises the scanned slots of each token to
BF16 rows (exact) and writes their indices, compressed slots first and the window right behind them; then
`flash_mla.flash_mla_sparse_fwd(..., use_legacy=True, return_log2_lse=False)`, the legacy kernel, attends.
sm_100: `flash_mla.flash_mla_with_kvcache` reads both caches itself, legacy kernels, a schedule for each call
(by its interface, not run here).
Boundary: the whole definition, the gather included. FP8 conversion needs sm_89 or newer.

The gather is validated in Triton's interpreter on CPU.
Run on an H200 (torch 2.14.1, Triton 3.8.0): passes its starter workloads and the larger captured ones, of up
to 16 tokens. With seeded inputs of 16 and more tokens some elements missed the bound; with
`torch_<definition>`, float32 throughout, none did.
"""

import torch
import triton
import triton.language as tl

BLOCK_SLOTS = 16
GATHER_WARPS = 4


@triton.jit
def _fp8_keys(pages, slot, valid, P: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """Load float32 [BLOCK, D] of an FP8 page: P rows of E4M3 bytes, then P rows of an E8M0 byte per 32 values."""
    page, offset = (slot // P).to(tl.int64) * (P * (D + D // 32)), slot % P
    codes = tl.load(pages + (page + offset * D)[:, None] + tl.arange(0, D)[None], mask=valid[:, None], other=0)
    powers = tl.load(
        pages + (page + P * D + offset * (D // 32))[:, None] + tl.arange(0, D // 32)[None], mask=valid[:, None], other=0
    ).to(tl.int32)
    bits = tl.where(powers == 0, 1 << 22, tl.where(powers == 255, 0x7FC00000, powers << 23))
    values = tl.reshape(codes, (BLOCK, D // 32, 32)).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return tl.reshape(values * bits.to(tl.float32, bitcast=True)[:, :, None], (BLOCK, D))


@triton.jit
def _e2m1(code):
    """Decode E2M1 codes to float32, times 2**-14: as float16 with the same exponent and mantissa bits."""
    bits = ((code & 7) << 9) | ((code & 8) << 12)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _fp4_keys(pages, slot, valid, P: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """Load float32 [BLOCK, D] of an FP4 page: P rows of E2M1 pairs, then P rows of an E4M3 byte per 16 values."""
    page, offset = (slot // P).to(tl.int64) * (P * (D // 2 + D // 16)), slot % P
    pairs = tl.load(
        pages + (page + offset * (D // 2))[:, None] + tl.arange(0, D // 2)[None], mask=valid[:, None], other=0
    ).to(tl.int32)
    scale = tl.load(
        pages + (page + P * (D // 2) + offset * (D // 16))[:, None] + tl.arange(0, D // 16)[None],
        mask=valid[:, None],
        other=0,
    )
    scale = scale.to(tl.float8e4nv, bitcast=True).to(tl.float32) * 16384.0
    values = tl.reshape(tl.join(_e2m1(pairs & 15), _e2m1(pairs >> 4)), (BLOCK, D // 16, 16))
    return tl.reshape(values * scale[:, :, None], (BLOCK, D))


@triton.jit
def _gather(
    pages8, pages4, indices8, indices4, length8, length4,
    rows, places, lengths,  # written
    P8: tl.constexpr, P4: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gather rows [B, W + C, D], their indices (-1: empty slot) and the scanned slots per token."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    end4, end8 = tl.load(length4 + token), tl.load(length8 + token)
    slot4 = tl.load(indices4 + token * C + at, mask=at < end4, other=-1)
    slot8 = tl.load(indices8 + token * W + at - end4, mask=(at >= end4) & (at < end4 + end8), other=-1)
    keys = _fp4_keys(pages4, slot4, slot4 >= 0, P4, D, BLOCK)
    keys += _fp8_keys(pages8, slot8, slot8 >= 0, P8, D, BLOCK)  # one of the two is zero
    row = token * (W + C) + at
    full = (slot4 >= 0) | (slot8 >= 0)
    tl.store(rows + row[:, None] * D + tl.arange(0, D)[None], keys.to(tl.bfloat16), mask=full[:, None])
    tl.store(places + row, tl.where(full, row.to(tl.int32), -1))
    tl.store(lengths + token, end4 + end8, mask=tl.program_id(1) == 0)


def run(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    """Return output: bfloat16 [B, 64, 512]. Inputs as in the definition."""
    return prepare(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale)()


def prepare(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    caches = kv8_pages, kv4_pages, indices8, indices4, length8, length4
    if torch.cuda.get_device_capability(q.device)[0] >= 10:
        return paged(q, *caches, attn_sink, sm_scale)
    from flash_mla import flash_mla_sparse_fwd

    gather = prepare_gather(*caches)

    def launch():
        rows, places, lengths = gather()
        return flash_mla_sparse_fwd(
            q,
            rows,
            places,
            sm_scale,
            d_v=q.shape[2],
            attn_sink=attn_sink,
            topk_length=lengths,
            use_legacy=True,
            return_log2_lse=False,
        )[0]

    return launch


def prepare_gather(kv8_pages, kv4_pages, indices8, indices4, length8, length4):
    """Return a callable -> rows bfloat16 [B * (W + C), 1, 512], places int32 [B, 1, W + C], lengths int32 [B]."""
    (B, W), C, D, device = indices8.shape, indices4.shape[1], 512, indices8.device
    bytes8, bytes4 = kv8_pages.view(torch.uint8), kv4_pages.view(torch.uint8)
    rows = torch.empty(B * (W + C), 1, D, dtype=torch.bfloat16, device=device)
    places = torch.empty(B, 1, W + C, dtype=torch.int32, device=device)
    lengths = torch.empty(B, dtype=torch.int32, device=device)

    def gather():
        _gather[(B, (W + C) // BLOCK_SLOTS)](
            bytes8,
            bytes4,
            indices8,
            indices4,
            length8,
            length4,
            rows,
            places,
            lengths,
            kv8_pages.shape[1],
            kv4_pages.shape[1],
            W,
            C,
            D,
            BLOCK_SLOTS,
            num_warps=GATHER_WARPS,
        )
        return rows, places, lengths

    return gather


def paged(q, kv8_pages, kv4_pages, indices8, indices4, length8, length4, attn_sink, sm_scale):
    """Prepare the launch for sm_100, which reads both caches as they are."""
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    def launch():
        output, _ = flash_mla_with_kvcache(
            q[:, None],
            kv8_pages[:, :, None],
            None,
            None,
            q.shape[2],
            get_mla_metadata()[0],
            softmax_scale=sm_scale,
            is_fp8_kvcache=True,
            indices=indices8[:, None],
            topk_length=length8,
            attn_sink=attn_sink,
            extra_k_cache=kv4_pages[:, :, None],
            extra_indices_in_kvcache=indices4[:, None],
            extra_topk_length=length4,
            use_legacy=True,
        )
        return output[:, 0]

    return launch
