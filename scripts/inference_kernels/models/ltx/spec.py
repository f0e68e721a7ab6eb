"""LTX-2.5: what can be captured from it, and the published checkpoint."""

from inference_kernels.capture.kinds import Kind, MediaCase
from inference_kernels.models.model import Published, Repository

VIDEO_DENSE = "dense_attention_noncausal_h32_d128"
AUDIO_DENSE = "dense_attention_noncausal_h32_d64"
# Attention of a transformer block -> definition; with audio on one side, heads have 64 dimensions.
ATTENTIONS = {
    "attn1": VIDEO_DENSE,
    "attn2": VIDEO_DENSE,
    "audio_attn1": AUDIO_DENSE,
    "audio_attn2": AUDIO_DENSE,
    "audio_to_video_attn": AUDIO_DENSE,
    "video_to_audio_attn": AUDIO_DENSE,
}
NEIGHBORHOOD = "neighborhood_attention_3d_"
# Stage of the decoder -> definition.
STAGES = {
    "det_stages.0": f"{NEIGHBORHOOD}h32_d64_w3x7x7",
    "det_stages.1": f"{NEIGHBORHOOD}h16_d64_w3x7x7",
    "det_stages.2": f"{NEIGHBORHOOD}h8_d64_w3x5x5",
    "det_stages.3": f"{NEIGHBORHOOD}h8_d64_w3x5x5",
    "diff_blocks": f"{NEIGHBORHOOD}h4_d64_w11x11x11",
}
LTX_LAYERS = ATTENTIONS | STAGES
MODALITIES = {VIDEO_DENSE: "video", AUDIO_DENSE: "audio"}
# What the hook `prepare_each` changes, for the records of runs with several outputs per request.
ONE_BY_ONE = "latents of several outputs prepared one by one: the grouped form leaves out the audio"
MEDIA = Kind(
    cases={
        "text_to_video": MediaCase("A camera moving toward a steaming teapot", 768, 448, frames=49),
        "image_to_video": MediaCase(
            "The camera moves slowly around the teapot", 512, 320, frames=49, edits="text_to_image"
        ),
        "longer_video": MediaCase("A boat crossing a lake at sunrise", 512, 320, frames=121),
    },
    model="ltx-2.5",
    pipeline="LTX2Pipeline",
    path_must_contain="ltx-2.5-diffusers",
    size_step=32,
    smallest=(64, 64, 9),
    layers=LTX_LAYERS,
    default_layers=list(LTX_LAYERS),
    default_steps=["early", "middle", "last"],
    # The decoder's first stage has a window of 7x7 latents of 32 pixels, its last one of 11 frames.
    decoder_layers=list(STAGES),
    decoder_smallest=(224, 224, 17),
    # The engine pins the eight distilled sigmas (configs/pipeline_configs/ltx_2_5.py).
    steps=8,
    modalities=tuple(MODALITIES.values()),
    flags={"load_diffusion_decoder": True, "diffusion_decoder_tiling": False, "attention_backend": "torch_sdpa"},
    parameters={"fps": 24},
    several_outputs=ONE_BY_ONE,
)
PUBLISHED = Published(
    "LTX-2.5",
    "LTX-2.5-Diffusers",
    (
        Repository("Lightricks/LTX-2.5", folder="original"),
        Repository("Lightricks/LTX-2.5-Diffusers", patterns=("vae/*", "*.md", "LICENSE*"), folder="conv-vae"),
    ),
    gpus=1,
    gigabytes=120,
    memory_gib=256,
    case_seconds=3600,
)
