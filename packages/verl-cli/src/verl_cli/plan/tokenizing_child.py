"""The other end of `verl_cli.plan.tokenizing`: a question on the standard input, its answer on the standard output."""

import os
import pickle
import sys
from typing import Any


def main() -> None:
    """Answer one question."""
    if "--without-torch" in sys.argv:
        sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own way to make an import fail
    # What anything prints must not get into the answer.
    answer_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    logging: Any = transformers.utils.logging
    logging.set_verbosity_error()
    from verl_cli.plan import tokenizing_answer

    question = pickle.load(sys.stdin.buffer)
    with answer_to:
        pickle.dump(tokenizing_answer.answer(question), answer_to)


if __name__ == "__main__":
    main()
