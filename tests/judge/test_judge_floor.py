"""The least time a call can take; what the judge subtracts from times; when work is left over."""

import pytest
import torch

from inference_kernels.core.definitions import definition_files
from inference_kernels.core.errors import SchemaError
from inference_kernels.judge.bench import Bench
from inference_kernels.judge.checks import require_no_tails
from inference_kernels.judge.floor import BOUNDS, HOST_PEAKS, Floor, bound_of, floor_of
from inference_kernels.judge.record import fill_record
from inference_kernels.judge.timing import own_time
from inference_kernels.judge.verdicts import Rejected


def test_floor_of_a_gemm_is_its_operations(definition):
    value = definition("dense_gemm_bf16_nt_n4096_k4096")
    sizes = {"A": 8192, "B": 4096}
    inputs = {name: torch.empty(rows, 4096, dtype=torch.bfloat16) for name, rows in sizes.items()}
    floor = floor_of(
        value,
        {"M": 8192, "N": 4096, "K": 4096},
        inputs,
        2 * 8192 * 4096,
        {"bytes_per_second": 4e12, "bf16_flops": 8e14, "fp8_flops": 1.6e15},
        l2_bytes=50_000_000,
    )
    assert floor.operations == 2 * 8192 * 4096**2
    assert floor.bytes == 2 * (8192 * 4096 + 4096**2) + 2 * 8192 * 4096 - 50_000_000
    assert floor.microseconds == pytest.approx(floor.operations / 8e14 * 1e6)


def test_unread_caches_and_unused_slots_do_not_raise_the_floor(definition):
    value = definition("sparse_mla_prefill_bf16_h64_d512_s128")
    indices = torch.full((2, 1, 128), -1, dtype=torch.int32)
    indices[0, 0, :10] = 3
    inputs = {
        "q": torch.empty(2, 64, 512).bfloat16(),
        "kv": torch.empty(10**5, 1, 512, dtype=torch.bfloat16),
        "indices": indices,
        "topk_length": torch.tensor([8, 128]),
        "attn_sink": torch.zeros(64),
    }
    axes = {"S": 2, "T": 10**5, "H": 64, "KVH": 1, "D": 512, "K_slots": 128}
    floor = floor_of(value, axes, inputs, 0, HOST_PEAKS, 0)
    assert floor.operations == 4 * 64 * 512 * 8 and floor.bytes < 200_000


def ints(*rows: object) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def test_what_indices_name_is_read_once():
    half = torch.zeros(9, 1, 8).bfloat16()
    slots = ints([[1, 5, -1, 5]], [[5, 2, 7, 7]])
    assert BOUNDS["sparse_mla"].read({"indices": slots, "topk_length": ints(4, 2), "kv": half}) == 3 * 16
    pages = {
        "indices8": ints([4, 4, -1], [6, 4, 2]),
        "length8": ints(3, 2),
        "indices4": ints([0, 1], [9, 9]),
        "length4": ints(1, 2),
        "D": 512,
    }
    assert BOUNDS["mixed_mla"].read(pages) == 2 * 512 + 2 * 256
    bank = {
        "expert_ids": ints(3, 3, 3, 7),
        "b": torch.zeros(9, 4, 2, dtype=torch.int8),
        "b_scale": torch.zeros(9, 4, 1, dtype=torch.int8),
    }
    assert BOUNDS["grouped_gemm"].read(bank) == 2 * (8 + 4)


def test_blocks_and_index_keys_of_each_sequence_are_read_once():
    cache = torch.zeros(5, 64, 2, 16).bfloat16()
    rows = {
        "query_seq": ints(0, 0, 1),
        "block_ids": ints([0, 1, -1], [1, 2, 5], [1, -1, -1]),
        "k_cache": cache,
        "v_cache": cache,
    }
    assert BOUNDS["sparse_gqa"].read(rows) == 5 * 4 * 2 * 2 * 16 * 2
    keys = {
        "query_seq": ints(0, 1, 1),
        "query_pos": ints(2, 8, 12),
        "block_size": 4,
        "k_index_cache": torch.zeros(5, 16, 128).bfloat16(),
    }
    assert BOUNDS["sparse_index"].read(keys) == 3 * 256


def test_every_input_of_the_gated_delta_rule_is_read(definition):
    """Its gate b too, though the bank of the grouped GEMM has the same name: 64 bytes at four sequences."""
    value = definition("gdn_decode_qk4_v8_d128_k_last")
    batch, heads = {"batch_size": 4, "seq_len": 1}, {"num_q_heads": 4, "num_k_heads": 4, "num_v_heads": 8}
    axes = batch | heads | {"head_size": 128}
    inputs = {
        name: torch.empty([axes[axis] for axis in spec["shape"]], dtype=getattr(torch, spec["dtype"]))
        for name, spec in value["inputs"].items()
        if spec["shape"] is not None
    }
    floor = floor_of(value, axes, inputs, 0, HOST_PEAKS, 0)
    gates, heads_alone = 2 * 64, 2 * 32  # a and b; A_log and dt_bias
    assert floor.bytes == 4 * (4 + 4 + 8) * 128 * 2 + 4 * 8 * 128 * 128 * 4 + gates + heads_alone
    assert floor.operations == 0 and floor.microseconds == pytest.approx(floor.bytes / 2e6)


def test_every_definition_has_a_floor_and_an_unknown_op_type_is_an_error(definition, repository):
    for path in definition_files(repository):
        value = definition(path.stem)
        assert set(bound_of(value).partly) <= set(value["inputs"])
    with pytest.raises(SchemaError, match="found softmax"):
        bound_of({"name": "x", "op_type": "softmax"})


def test_a_time_below_the_floor_is_impossible():
    record = {"status": "pass", "detail": "", "timing": {}, "floor": None, "seconds": {}}
    record["timing"] = {"launch": {"median_us": 6.9}}
    fill_record(record, None, Floor(10, 10.0, 10.0))
    assert record["status"] == "impossible_time"
    assert record["timing"]["launch"]["floor_ratio"] == pytest.approx(0.69)
    record = {"status": "pass", "detail": "", "timing": {"launch": {"median_us": 7.1}}, "floor": None, "seconds": {}}
    fill_record(record, None, Floor(10, 10.0, 10.0))
    assert record["status"] == "pass"


def bench_with(tails: list[float], overhead_ns: float = 0.0) -> Bench:
    bench = Bench.__new__(Bench)
    bench.tails, bench.overhead_ns = tails, overhead_ns
    return bench


def test_a_host_that_is_late_now_and_then_accuses_nobody():
    for tails in ([0.0] * 50, [0.0] * 48 + [10_125_000.0] * 2, [0.0] * 38 + [200_000.0] * 12, [200_000.0] * 2):
        require_no_tails(bench_with(tails))


def test_work_that_goes_on_after_most_calls_is_left_over():
    bench = bench_with([200_000.0] * 13 + [0.0] * 37)
    with pytest.raises(Rejected, match="after 13 of 50 calls .* 200 us in the median") as caught:
        require_no_tails(bench)
    assert caught.value.status == "leftover"
    require_no_tails(bench)  # each look is at the calls since the last one


@pytest.mark.parametrize(
    "mode, sample, time",
    [
        ("launch", 9_000.0, 6_000.0),
        ("launch", 3_100.0, 500.0),
        ("launch", 400.0, 400.0),
        ("launch", -1.0, -1.0),
        ("call", 9_000.0, 9_000.0),
    ],
)
def test_launches_do_not_contain_what_the_timer_adds(mode, sample, time):
    assert own_time(bench_with([], overhead_ns=3_000.0), mode, sample) == time
