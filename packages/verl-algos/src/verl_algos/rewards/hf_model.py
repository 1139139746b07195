"""A reward model in a Hugging Face sequence-classification folder (extra ``model``: transformers)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from verl_algos.rewards.extras import require
from verl_algos.rewards.types import RewardModel, RewardResult, RewardRow

#: The messages that a response answers, from its row.
MessagesOf = Callable[[RewardRow], Sequence[Mapping[str, Any]]]


def messages_of(row: RewardRow) -> Sequence[Mapping[str, Any]]:
    """The prompt in ``extra_info``: its "prompt" (messages, or text of one user message) or else its "question".

    Raises:
        ValueError: there is neither.
    """
    extra = row.extra_info or {}
    prompt = extra.get("prompt", extra.get("question"))
    if prompt is None:
        raise ValueError(
            "the row's extra_info has neither 'prompt' nor 'question', and a reward model reads the prompt too: add "
            "one of them to the data, or pass messages_of"
        )
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


class HfRewardModel(RewardModel):
    """Scores a conversation by one logit of a model with a classification head.

    Prompt and response are rendered by the chat template of the folder; special tokens come from it alone.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        batch_tokens: int = 16384,
        max_length: int | None = None,
        label: int | None = None,
        messages_of: MessagesOf = messages_of,
    ) -> None:
        """Load the model.

        Args:
            path: of the folder; it is not looked for anywhere else.
            device: where it runs.
            dtype: of its weights.
            batch_tokens: most tokens, padding included, of one forward pass.
            max_length: most tokens of a conversation; a longer one is an error. None: what the model can hold.
            label: which logit is the reward; None: the only one.
            messages_of: where the prompt of a row comes from.

        Raises:
            MissingExtraError: transformers is not installed.
            FileNotFoundError: there is no such folder.
            ValueError: the tokenizer has no chat template, the folder lacks weights of the model or its head, or the
                model has several labels and `label` is None, or none of that number.
        """
        transformers = require("transformers", "model", "A Hugging Face reward model")
        folder = Path(path).expanduser()
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder} is not a Hugging Face folder: it has no config.json.")
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if self._tokenizer.chat_template is None:
            raise ValueError(
                f"The tokenizer in {folder} has no chat template, so a conversation cannot be rendered for the reward "
                "model: add chat_template.jinja."
            )
        loaded: tuple[Any, Any] = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True, output_loading_info=True
        )
        self._model: Any = loaded[0]
        if missing := sorted(loaded[1]["missing_keys"]):
            raise ValueError(
                f"The folder {folder} does not hold {', '.join(missing)} of a sequence-classification model, and "
                "random weights would score: it is perhaps a language model. Name the folder of a trained reward model."
            )
        labels = int(self._model.config.num_labels)
        names = ", ".join(f"{number} ({name})" for number, name in sorted(self._model.config.id2label.items()))
        if label is None and labels != 1:
            raise ValueError(
                f"The reward model in {folder} has {labels} labels, {names:.500}: label=N says which is the reward."
            )
        if label is not None and (not isinstance(label, int) or label not in range(labels)):
            raise ValueError(
                f"The reward model in {folder} has no label {label!r}: it has {names:.500}. Give label one of these "
                "numbers" + (", or leave it out." if labels == 1 else ".")
            )
        self._label = label or 0
        self._model.to(device).eval()
        pad = self._tokenizer.pad_token_id
        if pad is None:
            pad = self._tokenizer.eos_token_id if self._model.config.pad_token_id is None else None
        self._pad: int = self._model.config.pad_token_id if pad is None else pad
        self._model.config.pad_token_id = self._pad  # by which the head finds the last token of a row
        self._batch_tokens = batch_tokens
        held = getattr(self._model.config, "max_position_embeddings", None)
        self._max_length: int | None = max_length or held
        self._messages_of = messages_of

    def score(self, rows: Sequence[RewardRow]) -> Sequence[RewardResult | Exception]:
        """The chosen logit of each conversation, float32.

        Raises:
            ValueError: a row has no prompt, or its conversation is too long.
        """
        ids = [self._render(row) for row in rows]
        scores = [0.0] * len(rows)
        for batch in _batches([len(tokens) for tokens in ids], self._batch_tokens):
            for index, score in zip(batch, self._forward([ids[index] for index in batch]), strict=True):
                scores[index] = score
        return scores

    def _render(self, row: RewardRow) -> list[int]:
        messages = [*self._messages_of(row), {"role": "assistant", "content": row.solution_str}]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ValueError("the chat template renders the conversation as nothing")
        if self._max_length is not None and len(ids) > self._max_length:
            raise ValueError(
                f"the conversation has {len(ids)} tokens and the reward model takes {self._max_length}: shorten "
                "prompts or responses, or raise max_length"
            )
        return ids

    @torch.inference_mode()
    def _forward(self, batch: Sequence[list[int]]) -> list[float]:
        width = max(map(len, batch))
        input_ids = torch.full((len(batch), width), self._pad)
        mask = torch.zeros((len(batch), width), dtype=torch.long)
        for place, tokens in enumerate(batch):
            input_ids[place, : len(tokens)] = torch.tensor(tokens)
            mask[place, : len(tokens)] = 1
        device = self._model.device
        hidden = self._model(input_ids=input_ids.to(device), attention_mask=mask.to(device)).logits
        return [float(score) for score in hidden[:, self._label].float().cpu()]


def _batches(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Indices by falling length, so that little is padded, in batches of at most `most_tokens` (or one row)."""
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not batches or width * (len(batches[-1]) + 1) > most_tokens:
            batches.append([])
            width = lengths[index]
        batches[-1].append(index)
    return batches
