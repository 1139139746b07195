import ast
import inspect
from typing import Any

import pytest
from verl_data import DataConfig


def test_every_field_says_why_one_would_touch_it() -> None:
    source = ast.parse(inspect.getsource(DataConfig))
    body = source.body[0].body  # type: ignore[attr-defined]
    fields = [i for i, node in enumerate(body) if isinstance(node, ast.AnnAssign)]
    assert len(fields) == 17
    for i in fields:
        assert isinstance(body[i + 1], ast.Expr), ast.unparse(body[i])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_batch_size": 0}, "data.train_batch_size must be at least 1"),
        ({"max_prompt_length": -1}, "data.max_prompt_length"),
        ({"train_max_samples": 0}, "data.train_max_samples must be a number of rows"),
        ({"seed": -1}, "data.seed"),
        ({"seed": 1.5}, r"data\.seed must be a whole number, but is 1\.5"),
        ({"train_batch_size": 2.5}, r"data\.train_batch_size must be a whole number, but is 2\.5"),
        ({"train_batch_size": True}, "data.train_batch_size must be a whole number, but is True"),
        ({"train_max_samples": 2.5}, "data.train_max_samples must be a whole number"),
        ({"val_max_samples": "2"}, "data.val_max_samples must be a whole number, but is '2'"),
        ({"max_prompt_length": None}, "data.max_prompt_length must be a whole number, but is None"),
        ({"max_response_length": 8.0}, "data.max_response_length must be a whole number"),
        ({"train_weights": ["1", 2]}, "data.train_weights must be numbers, but one is '1'"),
        ({"train_weights": [True, 2]}, "data.train_weights must be numbers, but one is True"),
        ({"truncation": "top"}, "data.truncation must be one of error, left, right, middle, but is 'top'"),
        ({"prompt_format": "text"}, "data.prompt_format must be one of messages, rendered"),
        ({"train_weights": [1, -1]}, "data.train_weights must be numbers of at least 0, and not all 0, but is"),
        ({"train_weights": [0.0, 0.0]}, "not all 0"),
        ({"train_weights": [1.0, float("nan")]}, "data.train_weights must be numbers"),
        ({"train_weights": [1.0, float("inf")]}, "data.train_weights must be numbers"),
        ({"train_weights": []}, "data.train_weights must be numbers"),
        (
            {"train_weights": [2, 1.5], "train_files": ["a*.parquet"]},
            r"data.train_weights has 2 weights \(2, 1.5\), but data.train_files has 1 entries",
        ),
        ({"train_weights": [1.0, 2.0], "train_files": "a.parquet"}, "has 1 entries. Give one for each; a glob is one"),
        ({"order_by": " "}, "data.order_by is empty"),
        ({"apply_chat_template_kwargs": {"tokenize": False}}, "may not set tokenize"),
    ],
)
def test_values_without_a_meaning_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(**values)
