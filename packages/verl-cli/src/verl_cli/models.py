"""Model folders and hub names: found, or refused, within seconds and before anything is loaded."""

import difflib
import filecmp
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from ssl import SSLError
from typing import Any

from verl_cli.config import RunConfig
from verl_cli.errors import UserError

#: Files of which a folder with a tokenizer has one.
TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json")
#: How long the hub may take to answer at all. Its own client tries for a minute, and tells every attempt.
HUB_SECONDS = 10.0


def locate_models(config: RunConfig, *, critic: bool) -> RunConfig:
    """The configuration with every model path that this run uses as `locate_model` gives it.

    Args:
        config: a resolved configuration.
        critic: whether the run has a critic.
    """
    arr = config.actor_rollout_ref
    located = replace(config, actor_rollout_ref=replace(arr, model=_located(arr.model, "actor_rollout_ref.model")))
    if critic:
        model = _located(config.critic.model, "critic.model")
        located = replace(located, critic=replace(config.critic, model=model))
    return located


def _located(model: Any, section: str) -> Any:
    paths = {"path": locate_model(model.path, f"{section}.path")}
    if model.tokenizer_path is not None:
        paths["tokenizer_path"] = locate_model(model.tokenizer_path, f"{section}.tokenizer_path")
    return replace(model, **paths)


def locate_model(path: str, key: str) -> str:
    """What transformers can load `path` from: a folder, or the name of a model on the hub, which answers.

    A name whose model lies in the hub's cache becomes the folder there where the hub must not (HF_HUB_OFFLINE) or
    cannot be asked.

    Args:
        path: what the user wrote; ``~`` is expanded.
        key: the configuration key that holds it.

    Raises:
        UserError: there is no such folder, and it is no name that the hub or its cache can be asked for.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return str(folder)
    remedy = (
        f"Set {key} to a Hugging Face folder (config.json, *.safetensors and tokenizer files) or to the name of a "
        "model on the hub."
    )
    if path.startswith(("/", ".", "~")) or path.count("/") > 1:
        raise UserError(f"There is no model folder {path}.{_nearest(folder)} {remedy}")

    # The hub's client takes a second to import: not where it is not needed.
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = snapshot_download(path, local_files_only=True)
    except HFValidationError:
        raise UserError(f"There is no model folder {path}, and no model on the hub has such a name. {remedy}") from None
    except LocalEntryNotFoundError:
        cached = None
    offline = is_offline_mode()
    if not offline and _hub_answers():
        return path
    if cached is not None:
        return cached
    why = "may not be asked (HF_HUB_OFFLINE is set)" if offline else f"does not answer ({_endpoint()})"
    raise UserError(
        f"There is no model folder {path} in {Path.cwd()}, no copy of a model of that name in the hub's cache, and the "
        f"hub {why}.{_nearest(folder)} If it is a folder, correct {key}; if it is a model on the hub, download it "
        f"where there is a network (`hf download {path}`) and copy it here, or set HF_ENDPOINT to a mirror."
    )


def check_same_vocabulary(actor: str, critic: str) -> None:
    """Raise UserError if both folders have a tokenizer and a token id means another token in each.

    The critic reads the actor's token ids: with a permuted vocabulary of the same size it would train on noise.
    """
    from transformers import AutoTokenizer

    first, second = Path(actor).expanduser(), Path(critic).expanduser()
    if not (has_tokenizer(first) and has_tokenizer(second)) or first.samefile(second):
        return
    one, other = first / "tokenizer.json", second / "tokenizer.json"
    if one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False):
        return
    ours, theirs = (
        {index: token for token, index in AutoTokenizer.from_pretrained(folder).get_vocab().items()}
        for folder in (first, second)
    )
    for index in sorted(ours.keys() & theirs.keys()):
        if ours[index] != theirs[index]:
            raise UserError(
                f"Actor and critic have different vocabularies: token {index} is {ours[index]!r} in {actor} and "
                f"{theirs[index]!r} in {critic}. The critic reads the actor's tokens, so both need one tokenizer: set "
                f"critic.model.path to a model of the actor's family (the actor's own folder will do)."
            )


def has_tokenizer(folder: Path) -> bool:
    """Whether `folder` is a folder with a tokenizer in it."""
    return folder.is_dir() and any(next(folder.glob(pattern), None) for pattern in TOKENIZER_FILES)


def _endpoint() -> str:
    from huggingface_hub.constants import ENDPOINT

    return ENDPOINT


def _hub_answers() -> bool:
    """Whether anything answers at the hub's address: any status will do, but within `HUB_SECONDS`, names included."""
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(_endpoint(), method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=HUB_SECONDS):
                answered.set()
        except urllib.error.HTTPError as error:
            error.close()
            answered.set()
        except urllib.error.URLError as error:
            if isinstance(error.reason, SSLError):  # the hub's client may know other certificates
                answered.set()
        except OSError:
            pass
        finally:
            done.set()

    done = threading.Event()
    threading.Thread(target=ask, name="verl-hub", daemon=True).start()
    done.wait(HUB_SECONDS)
    return answered.is_set()


def _nearest(folder: Path) -> str:
    """A hint at a folder of a similar name beside `folder`."""
    try:
        beside = [path.name for path in folder.parent.iterdir() if path.is_dir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(folder.name, beside, n=1)
    return f" Did you mean {folder.parent / near[0]}?" if near else ""
