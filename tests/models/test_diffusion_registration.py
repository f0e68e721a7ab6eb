"""What the diffusion hooks register with the engine's plugin mechanism, which a stand-in writes down."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from inference_kernels.capture.recorder import CHECKPOINT_VARIABLE
from inference_kernels.models.registry import MEDIA, hooks_module

PLUGINS = "sglang.multimodal_gen.runtime.platforms.plugins"
BUILT = {
    "image": ["QwenImage21Transformer2DModel.__init__"],
    "ltx25": ["LTX2VideoTransformer3DModel.__init__", "LTX2VideoDiffusionDecoderModel.__init__"],
}


@pytest.fixture
def registered(monkeypatch, tmp_path):
    """Target -> (hook, hook type) of what was registered."""
    found, module = {}, ModuleType(PLUGINS)
    module.HookType = SimpleNamespace(AFTER="after", AROUND="around")
    module.HookRegistry = SimpleNamespace(register=lambda target, hook, kind: found.update({target: (hook, kind)}))
    for part in range(1, PLUGINS.count(".") + 1):
        name = ".".join(PLUGINS.split(".")[:part])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, PLUGINS, module)
    monkeypatch.setenv(CHECKPOINT_VARIABLE, str(tmp_path))
    return found


@pytest.mark.parametrize("kind", MEDIA)
def test_models_are_hooked_when_built_and_functions_around(registered, kind):
    errors = []
    recorder = SimpleNamespace(
        settings={"selection": {}, "definitions": [], "seed": 0},
        report_error=lambda where, error: errors.append((where, type(error))),
    )
    hooks_module(kind).register(recorder)
    after = [target for target, (_, hook_type) in registered.items() if hook_type == "after"]
    assert [".".join(target.split(".")[-2:]) for target in after] == BUILT[kind]
    around = [target for target, (_, hook_type) in registered.items() if hook_type == "around"]
    assert len(around) == len(registered) - len(after) >= 4 and all(target.startswith("sglang.") for target in around)
    # The stand-in has no ranks: what fails in a hook is left for the launcher, and the engine goes on.
    assert registered[after[0]][0](None, object()) is None and errors == [("attach", ModuleNotFoundError)]
