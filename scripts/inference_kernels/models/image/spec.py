"""Qwen-Image: what can be captured from it, and the published checkpoint."""

from inference_kernels.capture.kinds import STEP_NAMES, Kind, MediaCase
from inference_kernels.models.model import Published, Repository

EMPTY_PREFIX = "block_causal_attention_empty_prefix_h32_d128"
CACHED_PREFIX = "block_causal_attention_cached_prefix_h32_d128"
N4096_K4096 = "dense_gemm_bf16_nt_n4096_k4096"
N12288_K4096 = "dense_gemm_bf16_nt_n12288_k4096"
N4096_K12288 = "dense_gemm_bf16_nt_n4096_k12288"
# Layer of a transformer block -> definition.
GEMM_LAYERS = {
    "attn.to_q": N4096_K4096,
    "attn.to_k": N4096_K4096,
    "attn.to_v": N4096_K4096,
    "attn.to_out.0": N4096_K4096,
    "img_mlp.gate_layer": N12288_K4096,
    "img_mlp.proj": N12288_K4096,
    "img_mlp.out": N4096_K12288,
}
MEDIA = Kind(
    cases={
        "text_to_image": MediaCase("A red ceramic teapot on a wooden table", 1024, 1024),
        "landscape": MediaCase("A lakeside village at sunrise", 1536, 1024),
        "edit": MediaCase("Make the teapot blue", 1024, 1024, edits="text_to_image"),
        "transparent": MediaCase("An orange cat on a transparent background", 1024, 1024),
    },
    model="qwen-image-2.1-turbo",
    pipeline="QwenImage21Pipeline",
    path_must_contain="qwen-image-2.1",
    size_step=32,
    smallest=(32, 32),
    layers=GEMM_LAYERS,
    default_layers=["attn.to_q", "attn.to_out.0", "img_mlp.gate_layer", "img_mlp.out"],
    default_steps=STEP_NAMES,
    first_step=[EMPTY_PREFIX],
    later_steps=[CACHED_PREFIX],
)
PUBLISHED = Published(
    "Qwen Image 2.1 Turbo",
    "qwen-image-2.1-turbo",
    (Repository("Qwen/Qwen-Image-2.1-Turbo"),),
    gpus=1,
    gigabytes=60,
    memory_gib=128,
    case_seconds=600,
)
