"""What the LTX-2.5 hooks use of SGLang exists in the pinned version, with the parameters they read."""

import ast

import pytest

from helpers.engine_source import Source, installed
from inference_kernels.models.ltx.hooks import DECODER, ENGINE, GROUPED_LATENTS, LAYERS, STAGE_CALL, TRANSFORMER
from inference_kernels.models.registry import MEDIA

# Function -> parameters, in order, that the hooks read.
FUNCTIONS = {
    STAGE_CALL: ["self", "batch"],
    GROUPED_LATENTS: ["self", "batches", "server_args"],
    f"{LAYERS}.LocalAttention.forward": ["self", "q", "k", "v", "attn_mask"],
    f"{LAYERS}.USPAttention.forward": ["self", "q", "k", "v", "attn_mask"],
    f"{DECODER}.LTX2VideoVaeNeighborhoodAttention.project_qkv": ["self", "hidden_states"],
    f"{DECODER}.LTX2VideoDiffusionDecoderModel.__init__": ["self"],
    f"{DECODER}._na3d": [],
    f"{TRANSFORMER}.__init__": ["self"],
}
# Class -> names that hooks read on its objects.
MEMBERS = {
    f"{LAYERS}.LocalAttention": "attn_impl allow_cudnn_sdp",
    f"{LAYERS}.USPAttention": "attn_impl allow_cudnn_sdp",
    f"{ENGINE}.layers.attention.backends.sdpa.SDPAImpl": "allow_cudnn_sdp",
    f"{DECODER}.LTX2VideoVaeNeighborhoodAttention": "kernel_size to_out",
    f"{DECODER}.LTX2VideoDiffusionDecoderModel": "decoder",
    f"{DECODER}.LTX2VideoDiffusionDecoder3d": "det_stages diff_blocks",
    TRANSFORMER: "transformer_blocks",
    f"{ENGINE}.managers.forward_context.ForwardContext": "current_timestep",
}


@pytest.fixture(scope="module")
def engine() -> Source:
    place = installed()
    if place is None:
        pytest.skip("SGLang 0.5.23 is not installed: run `make engine`")
    return Source(place)


@pytest.mark.parametrize("path", FUNCTIONS, ids=lambda path: ".".join(path.split(".")[-2:]))
def test_functions_have_the_parameters_the_hooks_read(engine, path):
    assert engine.parameters(path)[: len(FUNCTIONS[path])] == FUNCTIONS[path]


@pytest.mark.parametrize("owner", MEMBERS, ids=lambda path: path.rsplit(".", 1)[1])
def test_objects_have_the_members_the_hooks_read(engine, owner):
    assert set(MEMBERS[owner].split()) <= engine.members(owner)


def test_the_pinned_schedule_has_as_many_steps_as_the_kind_says(engine):
    tree = engine.tree("sglang/multimodal_gen/configs/pipeline_configs/ltx_2_5.py")
    [sigmas] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and node.target.id == "LTX25_DISTILLED_SIGMA_VALUES"
    ]
    assert len(sigmas.elts) == MEDIA["ltx25"].steps
