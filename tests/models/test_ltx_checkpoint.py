"""The weight list of the seeded LTX-2.5 pipeline: names and shapes are those of the engine's modules."""

import hashlib
import json

import pytest

from inference_kernels.core.files import canonical_json
from inference_kernels.models.ltx.checkpoint import ltx_pipeline
from inference_kernels.models.ltx.documents import SPECIAL_TOKENS, VOCABULARY
from inference_kernels.models.ltx.spec import ATTENTIONS, STAGES
from inference_kernels.seeded.weights import Drawn

PIPELINE = ltx_pipeline("ltx25", 1)
# SHA-256 of {name: shape} of the state_dict() of the modules that SGLang 0.5.23 builds from the documents.
ENGINE_NAMES = {
    "transformer": "5edfd0d1af554f54ba2746b53fca6ee653045c18dd1b8ff8d222c83a1a903994",
    "connectors": "4b6825ddec574075cf38c33b3f9d55b3d4ad4f48b2c8d5cd54175242f400008d",
    "diffusion_decoder": "30262a6867f1fa3e1e4306210a4ffbeb1428ffbb9b3d0f03e615a91323699f69",
    "vae": "e1774bcc5368a59d745910bf271df48d3106dee4a823284fa6512790237c0c37",
    "audio_vae": "470dc08baafcc8b143ddafe1b97774fbe7efd33cada8f24014693c51d16edf1c",
    "vocoder": "73dc114fc5346ce66907e8029fe6cdc42a10897adb3ad735dfb029e88860398d",
}


def shapes(component) -> dict[str, list[int]]:
    return {weight.name: list(weight.shape) for weight in component.weights}


@pytest.mark.parametrize("component", PIPELINE.components, ids=lambda component: component.name)
def test_names_are_unique_and_those_of_the_engine(component):
    found = shapes(component)
    assert len(found) == len(component.weights)
    if component.name in ENGINE_NAMES:
        assert hashlib.sha256(canonical_json(found).encode()).hexdigest() == ENGINE_NAMES[component.name]


@pytest.mark.parametrize("component", PIPELINE.components, ids=lambda component: component.name)
def test_vectors_are_constant_and_matrices_have_recipes(component):
    assert all(len(weight.shape) > 1 for weight in component.weights if isinstance(weight, Drawn))
    assert all(entry["tensor"].startswith(f"{component.name}/") for entry in component.entries(0))


def test_every_captured_attention_has_its_true_width():
    transformer = shapes(PIPELINE.components[0])
    for name, definition in ATTENTIONS.items():
        heads = transformer[f"transformer_blocks.0.{name}.to_q.weight"][0]
        assert heads == 32 * int(definition.rsplit("_d", 1)[1])
    decoder = shapes({component.name: component for component in PIPELINE.components}["diffusion_decoder"])
    for stage, definition in STAGES.items():
        heads = decoder[f"decoder.{stage}.0.attn.to_q.weight"][0] // 64
        assert f"_h{heads}_d64_" in definition


def test_more_blocks_add_only_blocks():
    one, three = (shapes(ltx_pipeline("ltx25", blocks).components[0]) for blocks in (1, 3))
    added = set(three) - set(one)
    assert all(name.startswith(("transformer_blocks.1.", "transformer_blocks.2.")) for name in added)
    assert len(added) == 2 * sum(name.startswith("transformer_blocks.0.") for name in one)


def test_documents_are_json_and_agree_with_the_tokenizer():
    documents = PIPELINE.documents
    assert json.loads(json.dumps(documents)) == documents
    text = documents["text_encoder/config.json"]["text_config"]
    tokens = {token["content"]: token["id"] for token in documents["tokenizer/tokenizer.json"]["added_tokens"]}
    assert tokens == {name: 256 + index for index, name in enumerate(SPECIAL_TOKENS)}
    assert max(tokens.values()) < text["vocab_size"] == VOCABULARY
    assert [tokens[name] for name in ("<pad>", "<eos>", "<bos>")] == [
        text[f"{name}_token_id"] for name in ("pad", "eos", "bos")
    ]
    assert set(documents["model_index.json"]) - {"_class_name", "_diffusers_version"} == {
        path.split("/")[0] for path in documents if "/" in path
    }
