"""Everything that hooks and launcher use of SGLang exists in the pinned version, with the parameters they read."""

import pytest

from helpers.engine_source import Source
from inference_kernels.capture.llm_hooks import FORWARD, Target, check_target
from inference_kernels.core.errors import CaptureError
from inference_kernels.models.deepseek import hooks
from inference_kernels.models.gdn import hooks as gdn_hooks
from inference_kernels.models.qwen import hooks as qwen_hooks
from inference_kernels.models.registry import LANGUAGE_KINDS, MODELS, find_profile

TARGETS = [FORWARD, *hooks.TARGETS, *qwen_hooks.TARGETS, *gdn_hooks.TARGETS]
SRT = "sglang.srt"
# Class -> names that hooks read on its objects.
MEMBERS = {
    f"{SRT}.layers.attention.qsa.metadata.QSAIndexerMetadata": "sequence_lengths token_to_batch_idx token_slot_table "
    "token_to_kv_pool",
    f"{SRT}.layers.attention.qwen_sparse_attn_backend.QwenSparseAttnMetadata": "sequence_lengths token_to_batch_idx "
    "token_slot_table",
    f"{SRT}.layers.attention.qwen_sparse_attn_backend.QwenSparseAttnBackend": "forward_metadata token_to_kv_pool",
    f"{SRT}.layers.attention.qsa.qsa_indexer.QSAIndexer": "layer_id",
    f"{SRT}.mem_cache.qsa_kv_pool.QSATokenToKVPool": "qsa_compressed_page_size qsa_compress_ratio "
    "get_qsa_compressed_k_buffer",
    f"{SRT}.layers.radix_attention.RadixAttention": "layer_id tp_q_head_num scaling",
    f"{SRT}.layers.radix_linear_attention.RadixLinearAttention": "layer_id A_log dt_bias",
    f"{SRT}.layers.moe.fused_moe_triton.layer.FusedMoE": "layer_id",
    f"{SRT}.layers.moe.topk.TopKConfig": "routed_scaling_factor apply_routed_scaling_factor_on_output",
    f"{SRT}.models.deepseek_v2.MoEGate": "weight e_score_correction_bias e_score_correction_bias_vl",
    f"{SRT}.models.deepseek_v2.DeepseekV2MoE": "layer_id gate topk config",
    f"{SRT}.model_executor.forward_batch_info.ForwardBatch": "forward_mode batch_size extend_seq_lens_cpu positions",
    f"{SRT}.model_executor.forward_batch_info.ForwardMode": "is_decode is_idle",
    f"{SRT}.managers.io_struct.FlushCacheReqOutput": "success message",
    f"{SRT}.plugins.hook_registry.HookType": "AROUND REPLACE",
    "sglang.kernels.ops.attention.dsv4.kv_layout.KVLayout": "V41",
    f"{SRT}.distributed.parallel_state.GroupCoordinator": "world_size rank_in_group cpu_group",
}
FUNCTIONS = {
    f"{SRT}.mem_cache.deepseek_v4_memory_pool.select_dsv4_kv_layout": [],
    f"{SRT}.plugins.hook_registry.HookRegistry.register": ["cls", "target", "hook", "hook_type", "source"],
    f"{SRT}.distributed.parallel_state.get_tp_group": [],
    f"{SRT}.entrypoints.engine.Engine.flush_cache": ["self"],
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.path.rsplit(".", 2)[-2] + "." + target.hook)
def test_hook_targets_have_the_parameters_the_hooks_read(engine, target):
    assert set(target.needs) <= set(engine.parameters(target.path)), engine.parameters(target.path)


@pytest.mark.parametrize("owner", MEMBERS, ids=lambda path: path.rsplit(".", 1)[1])
def test_objects_have_the_members_the_hooks_read(engine, owner):
    assert set(MEMBERS[owner].split()) <= engine.members(owner)


@pytest.mark.parametrize("path", FUNCTIONS, ids=lambda path: path.rsplit(".", 1)[1])
def test_functions_called_or_replaced_have_these_parameters(engine, path):
    assert engine.parameters(path) == FUNCTIONS[path]


def test_generate_takes_token_ids(engine):
    assert {"input_ids", "sampling_params"} <= set(engine.parameters(f"{SRT}.entrypoints.engine.Engine.generate"))


@pytest.mark.parametrize("name", [f"{kind}-{name}" for kind in LANGUAGE_KINDS for name in MODELS[kind].profiles])
def test_engine_flags_of_the_profiles_exist(engine, name):
    kind, profile = name.rsplit("-", 1)
    known = engine.fields("sglang/srt/arg_groups/fields/")
    assert set(find_profile(kind, profile).flags) <= known


def test_the_plugin_group_is_the_one_the_engine_reads(engine):
    import ast

    tree = engine.tree("sglang/srt/plugins/__init__.py")
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert "sglang.srt.plugins" in strings
    entry_points = (engine_plugin_folder() / "entry_points.txt").read_text()
    assert "[sglang.srt.plugins]\ninference_kernels_capture = " in entry_points


def engine_plugin_folder():
    from inference_kernels.capture.engine import PLUGIN_FOLDER

    return PLUGIN_FOLDER / "inference_kernels_capture-1.dist-info"


@pytest.mark.parametrize(
    "path, needs, message",
    [
        ("json.no_such_function", (), "the function json.no_such_function"),
        ("json.dumps", ("obj", "indentation"), "json.dumps with parameters obj, indentation"),
    ],
)
def test_a_moved_target_is_named_with_the_version(path, needs, message):
    from pkgutil import resolve_name

    with pytest.raises(CaptureError) as caught:
        check_target(Target(path, needs, "hook"), resolve_name, "SGLang 9.9.9")
    assert message in caught.value.expected and caught.value.where == "SGLang 9.9.9"


def test_the_wheel_is_read_like_an_installed_copy(tmp_path):
    import zipfile

    path = tmp_path / "sglang-0.5.23-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/srt/part.py", "class A:\n    x: int = 1\n    def f(self, q, *, scale=1): self.y = q\n")
    source = Source(path)
    assert source.parameters("sglang.srt.part.A.f") == ["self", "q", "scale"]
    assert source.members("sglang.srt.part.A") >= {"x", "y", "f"} and source.fields("sglang/srt/") == {"x"}
    with pytest.raises(LookupError, match="no g"):
        source.find("sglang.srt.part.A.g")
