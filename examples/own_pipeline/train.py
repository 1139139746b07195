"""A training loop that is not ours: verl-data gives the batches, everything else is plain PyTorch and transformers.

python examples/own_pipeline/train.py --out runs/own                  # 60 steps of a tiny model, some seconds on a CPU
python examples/own_pipeline/train.py --out runs/own2 --stop_after 25 # as if killed ...
python examples/own_pipeline/train.py --out runs/own2                 # ... and resumed: it ends with the same weights
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from verl_data import DataConfig, DataProcessor, Prompt, PromptLoader
from verl_data.collate import collate_padded
from verl_data.sft import render_sft

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    """Train, saving after every step; go on behind the checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the data and the checkpoint")
    parser.add_argument("--steps", type=int, default=60, help="optimiser steps in all (default 60)")
    parser.add_argument("--stop_after", type=int, help="end early, after this many steps in all")
    arguments = parser.parse_args()
    data, checkpoint = arguments.out / "train.parquet", arguments.out / "checkpoint.pt"
    if not data.exists():
        write_data(data)

    # The part that verl-data does: rows in an order that depends on the seed alone, with a state to resume from.
    tokenizer = make_tokenizer()
    config = DataConfig(train_batch_size=16, max_prompt_length=64, seed=7)
    loader = PromptLoader(data, tokenizer, config, training=True, scored=False)

    model = make_model(len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    done = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])  # refuses data that changed, and says what did
        done = state["step"]
        print(f"resumed behind step {done}")

    end = min(arguments.steps, arguments.stop_after or arguments.steps)
    for step, (epoch, prompts) in zip(range(done + 1, end + 1), loader.batches(), strict=False):
        batch = to_batch(prompts, tokenizer)
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == 1:
            print(f"step {step} epoch {epoch} loss {loss.item():.4f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        save({**state, "step": step}, checkpoint)
    print(f"weights {weights_hash(model)}")


def to_batch(prompts: list[Prompt], tokenizer: Any) -> dict[str, torch.Tensor]:
    """Render each conversation once, train on what the assistant writes, and pad on the right."""
    sequences = [
        render_sft(tokenizer, [*prompt.messages, {"role": "assistant", "content": prompt.fields["response"]}])
        for prompt in prompts
        if not isinstance(prompt.messages, str)  # finished text, with prompt_format=rendered
    ]
    arrays = collate_padded(sequences, pad_token_id=tokenizer.pad_token_id)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def write_data(path: Path) -> None:
    """Write 200 questions about a number that follows another, as SFT rows."""

    def to_row(example: dict[str, Any], idx: int) -> dict[str, Any]:
        prompt = [{"role": "user", "content": f"after {example['number']}?"}]
        return {"prompt": prompt, "response": str(example["number"] + 1)}

    print(DataProcessor(to_row).run([{"number": number} for number in range(200)], path))


def make_tokenizer() -> Any:
    """One token per character, the ChatML template, and a padding token that is EOS as well."""
    special = ["<|im_end|>", "<|im_start|>"]
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {token: index for index, token in enumerate([*special, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.add_special_tokens(special)
    fast: Any = PreTrainedTokenizerFast  # its constructor is not typed
    return fast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=CHAT_TEMPLATE)


def make_model(vocabulary: int) -> Any:
    """A Llama of 2 layers with random weights, always the same ones."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint that is there whole or not at all."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


def weights_hash(model: torch.nn.Module) -> str:
    """Name the weights, to the last bit."""
    content = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(content).hexdigest()[:16]


if __name__ == "__main__":
    main()
