"""Reward models: loaded from a file, a Hugging Face folder, and a judge behind a real HTTP server."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from verl_algos.rewards import (
    HfRewardModel,
    JudgeRewardModel,
    RewardError,
    RewardLoadError,
    RewardModel,
    RewardRow,
    RewardRunner,
    load_model,
    score_all,
)
from verl_algos.rewards import judge as judges

FILE = """
from verl_algos.rewards import RewardModel
class Mine(RewardModel):
    def __init__(self, factor=1.0):
        self.factor = factor
    def score(self, rows):
        return [self.factor * len(row.solution_str) for row in rows]
class Abstract(RewardModel):
    pass
class Other:
    pass
"""
ROWS = [RewardRow("m", text, "4", {"question": f"2+2? ({text})"}) for text in ("four", "a very long answer is 5", "4")]


def test_a_model_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    model = load_model(f"{path}:Mine", {"factor": 2.0})
    assert isinstance(model, RewardModel)
    assert [score.score for score in score_all(model, ROWS)] == [8.0, 46.0, 2.0]
    for location, said in (
        (str(path), "is not written as FILE.py:Class"),
        (f"{path}:Other", "make it a subclass"),
        (f"{path}:None_", "is not defined in"),
        (f"{path}:Abstract", "does not implement score: give it score"),
        (f"{path.with_name('no.py')}:Mine", "does not exist"),
    ):
        with pytest.raises(RewardLoadError, match=said):
            load_model(location)


# --- Hugging Face

TEMPLATE = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[UNK]", "[PAD]", "<user>", "<assistant>", "2+2?", "four", "a", "very", "long", "answer", "is", "5", "4"]
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.chat_template = TEMPLATE
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        num_labels=1,
        pad_token_id=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForSequenceClassification(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.5)
    path = tmp_path_factory.mktemp("reward_model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_hugging_face_model_scores_the_rendered_conversation(folder: Path) -> None:
    import transformers

    model = HfRewardModel(folder, batch_tokens=30)
    scores = [score.score for score in score_all(model, ROWS)]
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for row, score in zip(ROWS, scores, strict=True):
        text = f"<user> {(row.extra_info or {})['question']} <assistant> {row.solution_str} "
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.inference_mode():
            assert score == pytest.approx(plain(ids).logits.item(), abs=1e-5)
    assert len({round(score, 4) for score in scores}) == 3
    assert [s.score for s in score_all(model, ROWS[::-1])] == pytest.approx(scores[::-1], abs=1e-5)


def test_hugging_face_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        HfRewardModel(tmp_path)
    with pytest.raises(RewardError, match="neither 'prompt' nor 'question'"):
        score_all(HfRewardModel(folder), [RewardRow("m", "four", "4")])
    long = RewardRow("m", "four " * 100, "4", {"prompt": [{"role": "user", "content": "2+2?"}]})
    result = RewardRunner(HfRewardModel(folder)).score([*ROWS, long])
    assert list(result.failures) == [3] and "takes 64: shorten" in result.failures[3].message


def test_a_label_that_the_model_lacks_is_told_when_it_is_made(folder: Path, tmp_path: Path) -> None:
    import transformers

    label: Any
    for label in (1, -1, 7, "LABEL_0", 0.0):
        with pytest.raises(ValueError, match=r"has no label .*: it has 0 \(LABEL_0\)\. .*, or leave it out\."):
            HfRewardModel(folder, label=label)
    assert len(HfRewardModel(folder, label=0).score(ROWS)) == 3
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=2, id2label={0: "bad", 1: "good"})
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has 2 labels, 0 \(bad\), 1 \(good\): label=N says"):
        HfRewardModel(tmp_path)
    with pytest.raises(
        ValueError, match=r"has no label 2: it has 0 \(bad\), 1 \(good\)\. Give label one of these numb"
    ):
        HfRewardModel(tmp_path, label=2)
    bad, good = (HfRewardModel(tmp_path, label=label).score(ROWS) for label in (0, 1))
    assert bad != good


# --- a judge


class Judge(BaseHTTPRequestHandler):
    """Fails as the question says, and counts."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = body["messages"][0]["content"]
        with server.lock:
            server.running += 1
            if server.running == server.wanted:
                server.release.set()
            server.most = max(server.most, server.running)
            server.bodies.append(body | {"key": self.headers.get("Authorization"), "at": time.monotonic()})
            earlier = sum(b["messages"] == body["messages"] for b in server.bodies) - 1
        time.sleep(0.01)
        status, reply, encoding = 200, "It is fine.\nScore: 1", None
        if "refuse" in content:
            status = 401
        elif "busy" in content and earlier < 2:
            status = 429 if earlier else 503
        elif "unclear" in content:
            reply = "I cannot say."
        elif "slow" in content or "together" in content:
            server.release.wait(10)
        elif "broken" in content and not earlier:
            encoding = "gzip"  # which it is not
        elif "half" in content:
            reply = "Score: 0.25 at first, then **Score: 0.5**"
        text = json.dumps({"choices": [{"message": {"role": "assistant", "content": reply}}]}).encode()
        with server.lock:
            server.running -= 1
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            if encoding is not None:
                self.send_header("Content-Encoding", encoding)
            if status == 429:
                self.send_header("Retry-After", "0.05")
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            pass  # the client has gone

    def log_message(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128


@pytest.fixture
def server() -> Iterator[Any]:
    pytest.importorskip("httpx")
    with Server(("127.0.0.1", 0), Judge) as http:
        http.lock, http.bodies, http.running, http.most = threading.Lock(), [], 0, 0  # type: ignore[attr-defined]
        http.wanted = None  # type: ignore[attr-defined]
        http.release = threading.Event()  # type: ignore[attr-defined]
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield http
        http.release.set()  # type: ignore[attr-defined]
        http.shutdown()
        thread.join()


def judge(server: Any, **options: Any) -> JudgeRewardModel:
    options = {"backoff_seconds": 0.01, "max_tries": 3} | options
    return JudgeRewardModel(f"http://127.0.0.1:{server.server_port}/v1/", "grader", **options)


def asked(*questions: str) -> list[RewardRow]:
    return [RewardRow("m", f"response {i}", "42", {"question": q}) for i, q in enumerate(questions)]


def test_a_judge_scores_in_order_and_tries_again(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    scores = score_all(judge(server, sampling={"max_tokens": 9}), asked("ok", "half", "busy", "broken"))
    assert [score.score for score in scores] == [1.0, 0.5, 1.0, 1.0]
    assert scores[0].extra == {"judge": "It is fine.\nScore: 1"}
    body = server.bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"], body["key"]) == ("grader", 0.0, 9, "Bearer secret")
    assert "The right answer is: 42" in body["messages"][0]["content"]
    assert len(server.bodies) == 7


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Score: 0.5", 0.5),
        ("**Score:** 0.5.", 0.5),
        ("Score: .5", 0.5),
        ('{"score": 0.5}', 0.5),
        ("The score is 0.5", 0.5),
        ("Score: \\boxed{0.5}", 0.5),
        ("Score: \u22120.5", -0.5),
        ("Score: 0.1, no: Score: 0.5", 0.5),
        ('The line "Score: X" is: Score: 1', 1.0),
        ("Score: 8/10", None),
        ("Score: 80%", None),
        ("Score: 80 %", None),
        ("Score: 1e3", None),
        ("Score: 0.5\nScore: 8/10", None),
        ("Score: high", None),
        ("", None),
    ],
)
def test_what_a_judge_says(answer: str, score: float | None) -> None:
    """What is on a scale of its own is no score: nobody says what it is worth."""
    assert judges.default_score(answer) == score


def test_a_judge_that_gives_no_score_fails_its_row_only(server: Any) -> None:
    model = judge(server, timeout_seconds=0.5, max_tries=2)
    result = RewardRunner(model).score(asked("ok", "unclear", "refuse", "slow", "half"))
    assert [score.score for score in result.scores] == [1.0, 0.0, 0.0, 0.0, 0.5]
    messages = {index: failure.message for index, failure in result.failures.items()}
    assert list(messages) == [1, 2, 3]
    assert "no score after 2 tries" in messages[1] and "I cannot say" in messages[1]
    assert "no score after 1 tries" in messages[2] and "status 401" in messages[2]
    assert "after 2 tries" in messages[3] and ("no answer within" in messages[3] or "Timeout" in messages[3])


def test_a_judge_that_is_not_there() -> None:
    pytest.importorskip("httpx")
    model = JudgeRewardModel("http://127.0.0.1:9/v1", "grader", max_tries=2, backoff_seconds=0.01)
    with pytest.raises(RewardError, match="gave no score after 2 tries; the last: ConnectError"):
        score_all(model, asked("ok"))


def test_concurrency_and_rate_are_limited(server: Any) -> None:
    score_all(judge(server, max_concurrency=3), asked(*map(str, range(12))))
    assert server.most <= 3
    server.bodies.clear()
    score_all(judge(server, requests_per_minute=1200.0), asked(*map(str, range(3))))
    assert len(server.bodies) == 3
    for options in ({"max_concurrency": 0}, {"max_tries": 0}, {"timeout_seconds": 0}, {"requests_per_minute": 0}):
        with pytest.raises(ValueError, match="must be"):
            judge(server, **options)


def test_more_requests_than_the_runner_has_calls_are_in_flight_at_once(server: Any) -> None:
    """The model's own limit counts, whatever `RewardRunner.max_concurrency` is: each answer waits for the others."""
    server.wanted = 80
    rows = asked(*(f"together {i}" for i in range(100)))
    result = RewardRunner(judge(server, max_concurrency=80, timeout_seconds=30), max_concurrency=2).score(rows)
    assert not result.failures and [score.score for score in result.scores] == [1.0] * 100
    assert server.most == 80


def test_what_the_users_own_parts_of_a_judge_raise_fails_the_row_only(server: Any) -> None:
    def messages(row: RewardRow) -> Any:
        return [
            {"role": "user", "content": (row.extra_info or {})["question"].removeprefix("?").encode("utf-8").decode()}
        ]

    def read_score(answer: str) -> float:
        return float(answer.rpartition("Score: ")[2])  # "0.5**" is none

    rows = [*asked("ok", "half", "fine"), RewardRow("m", "x", "42", {}), *asked("\ud800")]
    result = RewardRunner(judge(server, messages=messages, read_score=read_score)).score(rows)
    assert [score.score for score in result.scores] == [1.0, 0.0, 1.0, 0.0, 0.0]
    kinds = {
        index: failure.message.partition(" raised ")[2].partition(":")[0] for index, failure in result.failures.items()
    }
    assert kinds == {1: "ValueError", 3: "KeyError", 4: "UnicodeEncodeError"}
    assert len(server.bodies) == 3


def test_a_model_says_how_many_rows_it_takes_at_once() -> None:
    class Counts(RewardModel):
        rows_per_call = 3

        def score(self, rows: Any) -> list[float]:
            return [float(len(rows))] * len(rows)

    assert [score.score for score in RewardRunner(Counts()).score(ROWS + ROWS[:2]).scores] == [3, 3, 3, 2, 2]
    Counts.rows_per_call = None  # type: ignore[assignment]
    assert RewardRunner(Counts(), max_concurrency=5).score(ROWS + ROWS[:2]).scores[0].score == 5


def test_the_rate_limit_spreads_what_is_too_much() -> None:
    import asyncio

    from verl_algos.rewards.judge import RateLimit

    async def times() -> list[float]:
        limit = RateLimit(3, seconds=0.2)
        begun = []
        for _ in range(7):
            await limit.wait()
            begun.append(time.monotonic())
        return begun

    begun = asyncio.run(times())
    assert all(later - earlier >= 0.19 for earlier, later in zip(begun, begun[3:], strict=False))
