import numpy as np
import pytest
from verl_cli.phases import Phase, Step, check_chain, run_phases
from verl_data import PackedBatch


def phase(name: str, reads: tuple[str, ...] = (), writes: tuple[str, ...] = ()) -> Phase:
    def run(step: Step) -> None:
        ones = {column: np.ones(step.batch.num_tokens, np.float32) for column in writes}
        step.batch = step.batch.with_columns(tokens=ones)

    return Phase(name, run, reads=reads, writes=writes)


def step() -> Step:
    batch = PackedBatch.from_sequences({"input_ids": [[1, 2], [3]]})
    return Step(number=1, epoch=0, prompts=[], batch=batch)


def test_phases_run_in_order_and_each_is_timed() -> None:
    order = []
    phases = [
        Phase("first", lambda step: order.append("first")),
        Phase("second", lambda step: order.append("second")),
    ]
    done = step()
    run_phases(phases, done)
    assert order == ["first", "second"]
    assert set(done.seconds) == {"first", "second"}
    assert all(seconds >= 0 for seconds in done.seconds.values())


def test_a_column_that_nobody_writes_is_refused_before_anything_runs() -> None:
    chain = [phase("values", writes=("values",)), phase("adv", reads=("values", "ref_logprobs"))]
    with pytest.raises(ValueError, match="'adv' reads ref_logprobs, which no earlier phase writes"):
        check_chain(chain)


def test_a_column_written_too_late_is_refused() -> None:
    chain = [phase("adv", reads=("values",)), phase("values", writes=("values",))]
    with pytest.raises(ValueError, match="'adv' reads values"):
        check_chain(chain)


def test_a_complete_chain_is_accepted_and_leaves_its_columns() -> None:
    chain = [phase("values", writes=("values",)), phase("adv", reads=("values",), writes=("advantages",))]
    check_chain(chain)
    done = step()
    run_phases(chain, done)
    assert {"values", "advantages"} <= set(done.batch.tokens)


def test_a_phase_that_does_not_write_what_it_declares_is_named() -> None:
    with pytest.raises(ValueError, match="'lazy' declares that it writes returns"):
        run_phases([Phase("lazy", lambda step: None, writes=("returns",))], step())
