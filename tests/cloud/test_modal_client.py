"""The runner on Modal: what it asks of the client, and that the installed client takes exactly that."""

import inspect
from pathlib import Path

import pytest

from helpers.modal_fake import EXCEPTIONS, FakeModal
from inference_kernels.cloud.modal_client import ModalRunner, load_client
from inference_kernels.cloud.plan import CapturePlan, Choices
from inference_kernels.cloud.run import run_containers
from inference_kernels.cloud.spec import ENGINE_IMAGE, OUT_OF_TIME
from inference_kernels.core.errors import CaptureError, EnvironmentMissing


@pytest.fixture
def modal() -> FakeModal:
    return FakeModal()


def make_plan(kind="image", **changes) -> CapturePlan:
    return CapturePlan(Choices(**{"name": "toy", "kind": kind, "code_sha256": "0" * 64} | changes))


def drive(modal: FakeModal, file: Path) -> None:
    """Make every call that the runner can make of the client."""
    for image, plan in ((ENGINE_IMAGE, make_plan("deepseek41")), ("im-1", make_plan(prepare_model=True))):
        runner = ModalRunner(modal, image, "hub")
        runner.upload("inference-kernels-captures", {"uploads/toy/reference.png": file})
        run_containers(plan, runner, [].append)
        modal.answers["Volume.read_file"] = iter([b"a", b"b"])
        assert b"".join(runner.read("inference-kernels-captures", "captures/toy/inventory.json")) == b"ab"


def test_a_capture_asks_for_the_pinned_image_the_gpus_the_volumes_and_the_time(modal):
    plan, lines = make_plan("deepseek41"), []
    assert run_containers(plan, ModalRunner(modal, ENGINE_IMAGE), lines.append) == 1
    assert lines[1:] == ["first", "second", "error: last"]
    command, options = modal.of("Sandbox", "create")[0]
    assert command[:3] == ("python3", "-m", "inference_kernels.cloud.container")
    assert options["gpu"] == "B300:4" and options["timeout"] == plan.seconds
    assert options["name"] == "capture-toy"
    assert set(options["volumes"]) == {"/task/model", "/task/data"} and options["secrets"] == []
    assert modal.of("Image", "from_registry") == [((ENGINE_IMAGE,), {})]
    assert {name for (name,), _ in modal.of("Volume", "from_name")} == {
        "inference-kernels-deepseek41",
        "inference-kernels-captures",
    }
    assert all(keywords["version"] == 2 for _, keywords in modal.of("Volume", "from_name"))
    added = {target for (_, target), _ in modal.of("Image", "add_local_dir")}
    assert {"/task/repository/scripts", "/task/repository/definitions", "/task/repository/tasks"} <= added
    assert len(modal.of("Sandbox", "terminate")) == len(modal.of("Sandbox", "detach")) == 1


def test_a_preparation_rents_no_gpu_and_may_use_a_prepared_image(modal):
    run_containers(make_plan(prepare_model=True), ModalRunner(modal, "im-1", "hub"), [].append)
    _, options = modal.of("Sandbox", "create")[0]
    assert options["gpu"] is None and len(options["secrets"]) == 1 and options["name"] == "prepare-image"
    assert modal.of("Image", "from_id") == [(("im-1",), {})] and not modal.of("Image", "from_registry")


@pytest.mark.parametrize(
    "code, answer, raised",
    [
        (0, None, None),
        (2, None, CaptureError),
        (None, None, CaptureError),
        (137, None, CaptureError),
        (0, EXCEPTIONS["SandboxTimeoutError"](), CaptureError),
        (0, KeyboardInterrupt(), KeyboardInterrupt),
        (0, ConnectionError("lost"), ConnectionError),
    ],
)
def test_every_sandbox_is_terminated(modal, code, answer, raised):
    modal.returncode = code
    if answer is not None:
        modal.answers["Sandbox.wait"] = answer
    runner = ModalRunner(modal, ENGINE_IMAGE)
    if raised:
        with pytest.raises(raised):
            run_containers(make_plan(), runner, [].append)
    else:
        run_containers(make_plan(), runner, [].append)
    created = len(modal.of("Sandbox", "create"))
    assert created == (8 if code in (None, 137) else 1)
    assert len(modal.of("Sandbox", "terminate")) == len(modal.of("Sandbox", "detach")) == created


def test_a_sandbox_that_cannot_be_terminated_is_detached_and_reported(modal):
    modal.answers["Sandbox.terminate"] = ConnectionError("lost")
    with pytest.raises(ConnectionError):
        run_containers(make_plan(), ModalRunner(modal, ENGINE_IMAGE), [].append)
    assert len(modal.of("Sandbox", "detach")) == 1


def test_a_running_sandbox_of_the_same_name_and_a_missing_file_are_explained(modal):
    modal.answers |= {
        "Sandbox.create": EXCEPTIONS["AlreadyExistsError"](),
        "Volume.read_file": EXCEPTIONS["NotFoundError"](),
    }
    runner = ModalRunner(modal, ENGINE_IMAGE)
    with pytest.raises(CaptureError, match="no running sandbox capture-toy"):
        run_containers(make_plan(), runner, [].append)
    with pytest.raises(FileNotFoundError):
        list(runner.read("inference-kernels-captures", "none"))


def test_the_time_limit_is_told_from_other_ends(modal):
    modal.answers["Sandbox.wait"] = EXCEPTIONS["SandboxTimeoutError"]()
    runner, plan = ModalRunner(modal, ENGINE_IMAGE), make_plan()
    assert runner.start(plan.spec(runner.layout, runner.python)).wait() == OUT_OF_TIME


def test_without_the_client_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "modal", None)
    with pytest.raises(EnvironmentMissing, match="pip install modal"):
        load_client()


def test_the_installed_client_has_every_name_and_takes_every_call(modal, tmp_path):
    """Bind each recorded call to the real signature."""
    client = pytest.importorskip("modal", reason="the Modal client is not installed")
    drive(modal, tmp_path / "file")
    assert {call[1] for call in modal.calls} >= {
        "create",
        "wait",
        "terminate",
        "detach",
        "read_file",
        "put_file",
        "add_local_file",
        "from_id",
        "from_registry",
        "lookup",
    }
    for kind, method, arguments, keywords in modal.calls:
        owner = client
        for part in kind.split("."):
            owner = getattr(owner, part)
        signature = inspect.signature(getattr(owner, method))
        first = next(iter(signature.parameters), "")
        bound = (first,) if first in ("self", "cls") else ()
        signature.bind(*bound, *arguments, **keywords)
    for name in EXCEPTIONS:
        assert issubclass(getattr(client.exception, name), Exception)
    for name in ("stdout", "returncode"):
        assert isinstance(inspect.getattr_static(client.Sandbox, name), property)


@pytest.mark.parametrize("name", ["toy", "a" * 40, "A.b-c_1"])
def test_the_client_accepts_our_names(name):
    names = pytest.importorskip("modal._utils.name_utils", reason="the Modal client is not installed")
    for kind in ("image", "qwen-next", "deepseek41", "ltx25"):
        for plan in (make_plan(kind, name=name), make_plan(kind, name=name, prepare_model=True)):
            assert names.is_valid_object_name(plan.job_name)
            assert all(map(names.is_valid_object_name, plan.describe()["volumes"]))
