"""Models that are not where the configuration says, vocabularies that do not fit: found before anything loads."""

import http.server
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from verl_cli import models
from verl_cli.build import build
from verl_cli.commands.train import run_training
from verl_cli.config import resolve
from verl_cli.errors import UserError
from verl_cli.tokenizer import load_tokenizer
from verl_engine import ModelConfig

Overrides = Callable[..., list[str]]
KEY = "actor_rollout_ref.model.path"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and a hub at a port where nobody listens."""
    cache = tmp_path / "hub"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    return cache


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub that knows no model; the requests that it was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield asked
        server.shutdown()
        thread.join()


def refused(path: str) -> str:
    with pytest.raises(UserError) as error:
        models.locate_model(path, KEY)
    assert KEY in str(error.value)
    return str(error.value)


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.locate_model("some/model", KEY) == "some/model"
    assert models.locate_model("~/some/model", KEY) == str(tmp_path / "some" / "model")


def test_what_can_only_be_a_folder_is_refused_without_asking(hub: list[str], tmp_path: Path) -> None:
    (tmp_path / "qwen2.5").mkdir()
    for path in (f"{tmp_path}/qwen25", "./qwen", "~/no-such-model", "a/b/c", "two words"):
        assert f"There is no model folder {path}" in refused(path)
    assert f"Did you mean {tmp_path / 'qwen2.5'}?" in refused(f"{tmp_path}/qwen25")
    assert hub == []


def test_a_name_that_the_hub_may_not_be_asked_for(hub: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = refused("models/qwen")
    assert "models/qwen" in message
    assert "HF_HUB_OFFLINE is set" in message
    assert hub == []


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "qwen2").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    message = refused("models/qwen")
    assert huggingface_hub.constants.ENDPOINT in message
    assert "Did you mean models/qwen2?" in message


def test_a_hub_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "HUB_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "does not answer" in refused("models/qwen")


def test_a_hub_that_answers_is_left_to_its_own_client(hub: list[str]) -> None:
    assert models.locate_model("models/qwen", KEY) == "models/qwen"
    assert len(hub) == 1


def test_without_the_hub_its_cache_is_used(
    empty_cache: Path, assets: Path, monkeypatch: pytest.MonkeyPatch, overrides: Overrides
) -> None:
    snapshot = empty_cache / "models--me--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(assets / "model", snapshot)
    refs = empty_cache / "models--me--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    for offline in (False, True):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        assert models.locate_model("me/tiny", KEY) == str(snapshot)
    config = resolve(overrides(actor_rollout_ref__model__path="me/tiny")).config
    located = models.locate_models(config, critic=True)
    assert located.actor_rollout_ref.model.path == located.critic.model.path == str(snapshot)
    assert models.locate_models(config, critic=False).critic.model.path == "me/tiny"
    assert load_tokenizer(ModelConfig("me/tiny")).encode("1") == [3]


def test_the_command_says_it_once_and_without_the_clients_noise(
    overrides: Overrides, capfd: pytest.CaptureFixture[str]
) -> None:
    """The hub's own client tells each of its attempts, for a minute."""
    with pytest.raises(SystemExit):
        run_training(overrides(actor_rollout_ref__model__path="models/qwen"))
    message = capfd.readouterr().err
    assert message.startswith("error: There is no model folder models/qwen in ")
    assert message.count("\n") == 1


@pytest.mark.parametrize("key", ["actor_rollout_ref.model.tokenizer_path", "critic.model.path"])
def test_every_path_is_named_by_its_own_key(overrides: Overrides, key: str) -> None:
    with pytest.raises(UserError, match=rf"There is no model folder /nowhere\. Set {key} to"):
        build(resolve([*overrides(), f"{key}=/nowhere"]).config)


# Vocabularies


def permuted(assets: Path, folder: Path) -> Path:
    """A copy of the model in whose vocabulary 1 and 2 have changed places."""
    shutil.copytree(assets / "model", folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_a_critic_with_a_permuted_vocabulary_is_refused(assets: Path, tmp_path: Path, overrides: Overrides) -> None:
    critic = permuted(assets, tmp_path / "critic")
    with pytest.raises(UserError, match=r"token 3 is '1' in .*model and '2' in .*critic\. .* set critic\.model\.path"):
        build(resolve([*overrides(), f"critic.model.path={critic}"]).config)


def test_the_same_vocabulary_in_other_words_is_accepted(assets: Path, tmp_path: Path) -> None:
    model, copy, bare = str(assets / "model"), tmp_path / "copy", tmp_path / "bare"
    shutil.copytree(assets / "model", copy)
    content = json.loads((copy / "tokenizer.json").read_text())
    (copy / "tokenizer.json").write_text(json.dumps(content, indent=1))
    bare.mkdir()  # a value model without a tokenizer
    for critic in (model, str(copy), str(bare), "a/hub-name"):
        models.check_same_vocabulary(model, critic)
