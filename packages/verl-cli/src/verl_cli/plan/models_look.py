"""The models of a run: where they are, what their configurations say and how many parameters they have."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_engine.config import ModelConfig

from verl_cli.config import RunConfig
from verl_cli.errors import UserError
from verl_cli.models import locate_model
from verl_cli.plan.model_size import (
    DECODERS,
    Architecture,
    count_weights,
    decoder_shapes,
    stored_shapes,
    with_value_head,
)
from verl_cli.plan.phases import Sizes
from verl_cli.plan.tokenizing import Answer
from verl_cli.tokenizer import locate_tokenizer

ACTOR, CRITIC = "actor_rollout_ref.model.path", "critic.model.path"


@dataclass
class Located:
    """What of the models and the tokenizer is there."""

    tokenizer: str | None = None
    """Its folder or hub name."""
    models: dict[str, ModelConfig] = field(default_factory=dict)
    """By the key of its path, which is a folder or a hub name."""
    problems: list[str] = field(default_factory=list)

    @property
    def two_folders(self) -> tuple[str, str] | None:
        """The models of actor and critic, where they are two."""
        if ACTOR not in self.models or CRITIC not in self.models:
            return None
        actor, critic = self.models[ACTOR].path, self.models[CRITIC].path
        return None if actor == critic else (actor, critic)


def locate(config: RunConfig) -> Located:
    """Find the tokenizer and each role's model; a path that is not set is a problem of the configuration already."""
    found = Located()
    wanted = {ACTOR: config.actor_rollout_ref.model} | ({CRITIC: config.critic.model} if config.needs_critic else {})
    said = set()
    for key, model in wanted.items():
        if model.path and model.path not in said:
            try:
                found.models[key] = replace(model, path=locate_model(model.path, key))
            except UserError as error:
                found.problems.append(str(error))
                said.add(model.path)
    actor = wanted[ACTOR]
    if actor.tokenizer_path or ACTOR in found.models:
        try:
            found.tokenizer = locate_tokenizer(actor)
        except UserError as error:
            found.problems.append(str(error))
    return found


@dataclass
class ModelsLook:
    """What is known of the models' sizes."""

    sizes: dict[str, Sizes] = field(default_factory=dict)
    """By key."""
    contexts: dict[str, int] = field(default_factory=dict)
    """Most tokens of a sequence, where a model has a limit."""
    vocabularies: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    """Why a model's sizes are not known."""
    problems: list[str] = field(default_factory=list)


def measure(located: Located, answer: Answer) -> ModelsLook:
    """Read the sizes of the models: widths from their configurations, parameters from the headers of their weights."""
    found = ModelsLook()
    for key, model in located.models.items():
        config = answer.models.get(key)
        if config is None:
            found.unknown[key] = "its configuration cannot be read"
            continue
        if config["max_position_embeddings"] is not None:
            found.contexts[key] = config["max_position_embeddings"]
        if config["vocab_size"] is not None:
            found.vocabularies[key] = config["vocab_size"]
        architecture = Architecture.of_config(config)
        try:
            shapes = _shapes(model.path, architecture)
        except UserError as error:
            if str(error) not in found.problems:
                found.problems.append(str(error))
            continue
        if architecture is None or shapes is None:
            found.unknown[key] = (
                f"activations are known for {', '.join(DECODERS)}, and {model.path} is of the type "
                f"{config['model_type']}"
            )
            continue
        source, of_model = shapes
        if key == CRITIC:
            of_model = with_value_head(of_model, architecture.hidden)
        found.sizes[key] = Sizes(architecture, count_weights(of_model, source), found.contexts.get(key))
    return found


def _shapes(path: str, architecture: Architecture | None) -> tuple[str, dict[str, tuple[int, ...]]] | None:
    """The weights of a language model and where they are told; None where nothing tells them."""
    folder = Path(path)
    if folder.is_dir():
        stored = stored_shapes(folder, tied=architecture is not None and architecture.tied)
        if stored is not None:
            return "safetensors", stored
        if not any(folder.glob("pytorch_model*.bin")):
            raise UserError(
                f"There are no weights in {path}: no model.safetensors, and no model.safetensors.index.json. Copy the "
                f"model again, completely."
            )
    return None if architecture is None else ("config.json", decoder_shapes(architecture))
