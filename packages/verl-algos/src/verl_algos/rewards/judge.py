"""A language model as judge, behind an OpenAI-compatible URL (extra ``judge``: httpx)."""

import asyncio
import os
import random
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl_algos.rewards import event_loop
from verl_algos.rewards.extras import require
from verl_algos.rewards.types import RewardModel, RewardResult, RewardRow

#: Makes the messages for the judge from a row.
Asks = Callable[[RewardRow], Sequence[Mapping[str, str]]]
#: The score in what the judge answered; None if it holds none.
Reads = Callable[[str], float | None]

_SCORE = re.compile(
    r"(?<![A-Za-z])score[\s*\"']{0,8}(?:is\b|[:=])?[\s*\"'$]{0,8}(?:\\boxed\{)?"
    r"([-\u2212]?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}))(\s{0,2}[/%]|[0-9eE]|\\%|\.[0-9])?",
    re.IGNORECASE,
)
_WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})

_PROMPT = """Grade the response to the question. {reference}

[Question]
{question}

[Response]
{response}

Explain briefly, then end with one line "Score: X", where X is a number from 0 (wrong or useless) to 1 (right)."""


class JudgeError(RuntimeError):
    """The judge could not be reached or did not give a score."""


def default_messages(row: RewardRow) -> Sequence[Mapping[str, str]]:
    """One user message with the question, the response and the ground truth, if there is one.

    The question is "question" of ``extra_info``, or else its "prompt": text, or messages, of which each is a paragraph.
    """
    extra = row.extra_info or {}
    question = extra.get("question", extra.get("prompt", "(not given)"))
    if not isinstance(question, str):
        alone = len(question) == 1
        question = "\n\n".join(
            f"{message['content']}" if alone else f"{message['role']}: {message['content']}" for message in question
        )
    truth = row.ground_truth
    reference = "" if truth in (None, "") else f"The right answer is: {truth}"
    content = _PROMPT.format(question=question, response=row.solution_str, reference=reference)
    return [{"role": "user", "content": content}]


def default_score(answer: str) -> float | None:
    """The number after the last "Score:"; None without one, or if it goes on: on which scale ``8/10`` and ``80%`` are
    is not known.
    """
    found = _SCORE.findall(answer)
    number, goes_on = found[-1] if found else ("", "")
    return None if goes_on or not number else float(number.replace("\u2212", "-"))


class JudgeRewardModel(RewardModel):
    """Asks ``URL/chat/completions`` for each row.

    Requests that fail in a way that may pass (no connection, a broken reply, a timeout, status 408, 409, 425, 429 or
    5xx) are repeated after a time that doubles, with jitter, or after what the server's Retry-After says. An answer
    without a score is asked for again too. A request that still fails, or that `messages` or `read_score` raise for, is
    an error of its row: no score is made up. All rows are taken at once: `max_concurrency` is the only limit of what is
    in flight.
    """

    rows_per_call = sys.maxsize

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key_env: str | None = "OPENAI_API_KEY",
        messages: Asks = default_messages,
        read_score: Reads = default_score,
        sampling: Mapping[str, Any] | None = None,
        max_concurrency: int = 32,
        requests_per_minute: float | None = None,
        timeout_seconds: float = 300.0,
        max_tries: int = 5,
        backoff_seconds: float = 1.0,
        most_backoff_seconds: float = 60.0,
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: up to ``/v1``.
            model: its name there.
            api_key_env: the environment variable that holds the key; not set or None: no key is sent.
            messages: what is asked about a row.
            read_score: what is read from an answer.
            sampling: further entries of each request (temperature, max_tokens, ...); temperature 0 unless given.
            max_concurrency: requests in flight at once.
            requests_per_minute: most requests that begin within any minute, repeated ones included.
            timeout_seconds: of each request.
            max_tries: of each row, at least 1.
            backoff_seconds: before the second try; doubles with each further one.
            most_backoff_seconds: before any try, also where the server asks for more.

        Raises:
            MissingExtraError: httpx is not installed.
            ValueError: a number is out of its range.
        """
        self._httpx = require("httpx", "judge", "A judge reward model")
        least = {"max_concurrency": max_concurrency, "max_tries": max_tries}
        positive = {"timeout_seconds": timeout_seconds, "requests_per_minute": requests_per_minute}
        for name, value in least.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        for name, number in positive.items():
            if number is not None and number <= 0:
                raise ValueError(f"{name}={number} must be more than 0.")
        self._url = url.rstrip("/") + "/chat/completions"
        self._model = model
        self._key = os.environ.get(api_key_env) if api_key_env else None
        self._messages, self._read_score = messages, read_score
        self._sampling = {"temperature": 0.0, **(sampling or {})}
        self._max_concurrency = max_concurrency
        self._rate = RateLimit(requests_per_minute) if requests_per_minute else None
        self._timeout_seconds = timeout_seconds
        self._max_tries = max_tries
        self._backoff_seconds, self._most_backoff_seconds = backoff_seconds, most_backoff_seconds
        self._jitter = random.Random(0)

    def score(self, rows: Sequence[RewardRow]) -> Sequence[RewardResult | Exception]:
        """Ask about all rows at once; each result has ``score`` and ``judge``, the answer, or is what went wrong."""
        return event_loop.run(self._score_all(rows))

    async def _score_all(self, rows: Sequence[RewardRow]) -> list[RewardResult | Exception]:
        slots = asyncio.Semaphore(self._max_concurrency)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = self._httpx.Limits(max_connections=self._max_concurrency)
        async with self._httpx.AsyncClient(headers=headers, timeout=self._timeout_seconds, limits=limits) as client:

            async def one(row: RewardRow) -> RewardResult | Exception:
                async with slots:
                    try:
                        return await self._ask(client, row)
                    except Exception as error:  # noqa: BLE001 (`messages` and `read_score` are the user's)
                        return error

            tasks = [asyncio.create_task(one(row)) for row in rows]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:  # interrupted, they would go on
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, client: Any, row: RewardRow) -> RewardResult:
        body = {"model": self._model, "messages": list(self._messages(row)), **self._sampling}
        problem = ""
        for attempt in range(self._max_tries):
            if self._rate is not None:
                await self._rate.wait()
            asked: float | None = None
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    reply = await client.post(self._url, json=body)
            except TimeoutError:
                problem = f"no answer within {self._timeout_seconds:g} s"
            except self._httpx.RequestError as error:  # no connection, or a reply that cannot be decoded
                problem = f"{type(error).__name__}: {error}"
            else:
                if reply.status_code == 200:
                    answer = _content(reply)
                    score = None if answer is None else self._read_score(answer)
                    if score is not None:
                        return {"score": score, "judge": answer}
                    problem = f"there is no score in {reply.text[:200]!r}"
                else:
                    problem = f"status {reply.status_code}: {reply.text[:200]!r}"
                    if reply.status_code not in _WORTH_ANOTHER_TRY:
                        break
                    asked = _retry_after(reply.headers.get("retry-after"))
            if attempt + 1 < self._max_tries:
                await asyncio.sleep(self._pause(attempt, asked))
        raise JudgeError(
            f"the judge {self._model} at {self._url} gave no score after {attempt + 1} tries; the last: {problem}"
        )

    def _pause(self, attempt: int, asked_seconds: float | None) -> float:
        seconds = self._backoff_seconds * 2**attempt * (0.5 + self._jitter.random() / 2)
        return float(min(max(seconds, asked_seconds or 0.0), self._most_backoff_seconds))


class RateLimit:
    """Lets at most `per_minute` through within any minute."""

    def __init__(self, per_minute: float, seconds: float = 60.0) -> None:
        self._count = max(1, int(per_minute))
        self._seconds = seconds * self._count / per_minute
        self._begun: deque[float] = deque()

    async def wait(self) -> None:
        """Return when the next one may begin."""
        while True:
            now = time.monotonic()
            while self._begun and now - self._begun[0] >= self._seconds:
                self._begun.popleft()
            if len(self._begun) < self._count:
                self._begun.append(now)
                return
            await asyncio.sleep(self._seconds - (now - self._begun[0]))


def _content(reply: Any) -> str | None:
    """What the model said; None if the reply is not a chat completion."""
    try:
        content = reply.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    return content if isinstance(content, str) else None


def _retry_after(value: str | None) -> float | None:
    """Seconds of the header; a date in it is not waited for."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None
