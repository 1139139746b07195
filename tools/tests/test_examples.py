"""The examples as a reader runs them: each is a process of its own, on the files that it ships."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from verl_data import DataConfig, read_rows, rl_row_problems

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def run(*arguments: str | Path, cwd: Path) -> str:
    """Run Python and return what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def score(reward: Path, rows: list[tuple[str, str, Any, Any]], cwd: Path) -> list[list[Any]]:
    """Score (data source, response, ground truth, extra_info) in another process, as reward workers do."""
    code = (
        "import json, sys; from verl_algos.rewards import RewardRow, load_custom, score_all; "
        "rows = [RewardRow(*row) for row in json.load(open(sys.argv[2]))]; "
        "scores = score_all(load_custom(sys.argv[1], 'compute_score'), rows); "
        "print(json.dumps([[score.score, score.extra] for score in scores]))"
    )
    (cwd / "rows.json").write_text(json.dumps(rows))
    scores: list[list[Any]] = json.loads(run("-c", code, reward, "rows.json", cwd=cwd))
    return scores


def write_model(folder: Path) -> None:
    """A random model whose tokens are the bytes, so that it reads Chinese as well."""
    import torch
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    special = ["<|im_end|>", "<|im_start|>"]
    vocabulary = {token: index for index, token in enumerate([*special, *sorted(ByteLevel.alphabet())])}
    tokenizer_class: Any = Qwen2Tokenizer  # its constructor is not typed
    tokenizer = tokenizer_class(vocab=vocabulary, merges=[], pad_token=special[0], eos_token=special[0], unk_token=None)
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(folder)


def test_customer_service_prepares_its_tickets(tmp_path: Path) -> None:
    example = EXAMPLES / "customer_service"
    out = run(example / "prepare.py", "--local_save_dir", "data", cwd=tmp_path)
    assert "train.parquet: 28 rows read, 24 written, 2 dropped, 2 failed" in out
    assert "ticket T-3014 has the category 'refund'" in out
    assert "row 19 (line 20): ValueError: ticket T-3020 has no text" in out
    assert "validation.parquet: 12 rows read, 11 written, 1 dropped, 0 failed" in out
    rows = [row for split in ("train", "validation") for row in read_rows(tmp_path / "data" / f"{split}.parquet")]
    assert not any(rl_row_problems(row, DataConfig()) for row in rows)
    texts = [row["prompt"][1]["content"] for row in rows]
    assert not any("@" in text or "138" in text for text in texts)
    assert "订单 48217 显示三天前已发货" in texts[1]
    assert {row["extra_info"]["language"] for row in rows} == {"en", "zh"}

    chinese, english = rows[1], rows[0]
    replies = [
        (chinese, "您好! 订单 48217 正在查询。\ncategory: delivery"),
        (chinese, "Order 48217 is on its way.\ncategory: delivery"),
        (english, "We refund order 48213.\ncategory: delivery"),
        (english, ""),
        (english, "category: billing"),
    ]
    scored = score(
        example / "reward.py",
        [("shop/tickets", said, row["reward_model"]["ground_truth"], row["extra_info"]) for row, said in replies],
        tmp_path,
    )
    assert [round(value, 6) for value, _ in scored] == [1.0, 0.8, 0.4, 0.0, 0.6]
    assert scored[1][1] == {"acc": 1.0, "language": 0.0, "order": 1.0}


def test_customer_service_trains(tmp_path: Path) -> None:
    example = EXAMPLES / "customer_service"
    run(example / "prepare.py", "--local_save_dir", "data", cwd=tmp_path)
    write_model(tmp_path / "model")
    out = run(
        "-m", "verl_cli.main", "data", "show", "data/train.parquet", "--tokenizer", "model", "-n", "2", cwd=tmp_path
    )
    assert "订单 48217" in out
    out = run(
        "-m",
        "verl_cli.main",
        "train",
        "data.train_files=data/train.parquet",
        "data.val_files=data/validation.parquet",
        f"reward.custom_reward_function.path={example / 'reward.py'}",
        "actor_rollout_ref.model.path=model",
        "algorithm.adv_estimator=grpo",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.rollout.n=2",
        "data.max_prompt_length=512",
        "data.max_response_length=8",
        "trainer.total_training_steps=1",
        "trainer.default_local_dir=run",
        cwd=tmp_path,
    )
    assert "reward/language" in out


def test_ones_own_pipeline_resumes_with_the_same_weights(tmp_path: Path) -> None:
    script = EXAMPLES / "own_pipeline" / "train.py"
    whole = run(script, "--out", "a", "--steps", "16", cwd=tmp_path)
    first = run(script, "--out", "b", "--steps", "16", "--stop_after", "13", cwd=tmp_path)
    second = run(script, "--out", "b", "--steps", "16", cwd=tmp_path)
    assert "resumed behind step 13" in second  # in the second epoch
    ends = [out.splitlines()[-1] for out in (whole, first, second)]
    assert ends[0] == ends[2] != ends[1]
    assert all(end.startswith("weights ") for end in ends)


@pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="the extra reasoning-gym of verl-data is not installed"
)
def test_reasoning_gym_is_scored_by_its_own_scorer(tmp_path: Path) -> None:
    command = ("--tasks", "chain_sum,leg_counting", "--size", "8", "--validation_size", "2", "--local_save_dir", "data")
    out = run("-m", "verl_data.processors.reasoning_gym", *command, cwd=tmp_path)
    assert "train.parquet: 8 rows read, 8 written" in out
    rows = list(read_rows(tmp_path / "data" / "train.parquet"))
    answers = [(row, f"So <answer>{row['reward_model']['ground_truth']}</answer>") for row in rows]
    scored = score(
        EXAMPLES / "reasoning_gym" / "reward.py",
        [
            (row["data_source"], said, row["reward_model"]["ground_truth"], row["extra_info"])
            for row, said in [*answers, (rows[0], "I do not know.")]
        ],
        tmp_path,
    )
    assert [value for value, _ in scored] == [1.0] * 8 + [0.0]
    assert scored[-1][1] == {"answered": 0.0, "unreadable": 0.0}


def test_the_python_of_the_page_about_data_runs(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "page.py").write_text(block, encoding="utf-8")
        out = run("page.py", cwd=tmp_path)
        assert "train.parquet: 1000 rows read, 1000 written" in out
        assert "big.parquet: 1000 rows read, 994 written, 6 dropped, 0 failed" in out
        assert "sft.parquet: 1000 rows read, 1000 written" in out


def test_the_page_about_data_shows_what_is_printed(tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "data.md").read_text(encoding="utf-8")
    call = "examples/customer_service/prepare.py --local_save_dir data/customer_service\n"
    shown = page.split(f"$ python {call}")[1].split("```")[0]
    out = run(EXAMPLES / "customer_service" / "prepare.py", "--local_save_dir", "data", cwd=tmp_path)
    assert out.replace(f"{EXAMPLES.parent}/", "") == shown
    ticket = json.loads(page.split('```json\n{"id"')[1].split("\n")[0].join(['{"id"', ""]))
    assert ticket in read_rows(EXAMPLES / "customer_service" / "tickets" / "2026-03.jsonl")
