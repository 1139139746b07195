"""How a command ends: quietly, or with one paragraph on stderr and an exit code that says why."""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

from verl_cli.errors import InterruptedRunError
from verl_cli.failures import defect, explain, place_of
from verl_cli.failures.text import chain, raised_at
from verl_cli.system import stops
from verl_cli.system.stops import Stopped

#: The signals that stop the program, each with what Python does about it.
_STOPS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def guarded(run: Callable[[], None]) -> None:
    """Run a command; what goes wrong ends it with a paragraph and a non-zero exit code.

    1 is a failure, 130 Ctrl-C, 143 SIGTERM, 141 an output that nobody reads any more (``| head``), which is no failure
    and says nothing. Both signals raise `Stopped` in the main thread, so that everything is tidied up on the way out.
    A failure that is not known and has no log keeps its traceback.
    """
    with _stoppable() as signals_arrive:
        try:
            run()
            if sys.stdout is not None:
                sys.stdout.flush()  # at exit it would be too late to end quietly
        except (KeyboardInterrupt, InterruptedRunError) as error:
            _interrupted(error, signals_arrive)
        except Exception as error:
            if any(isinstance(cause, BrokenPipeError) for cause in chain(error)) and _nobody_reads():
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
                raise SystemExit(128 + signal.SIGPIPE) from error
            if (paragraph := explain(error)) is not None:
                _fail(paragraph, 1)
            place = place_of(error)
            if place.log is not None:
                _fail(defect(error), 1)
            if place.phase is not None:
                error.add_note(f"error: {defect(error)}")
            raise


def _interrupted(error: BaseException, signals_arrive: bool) -> NoReturn:
    """End after a KeyboardInterrupt, or what the trainer made of one."""
    interrupt = next((cause for cause in chain(error) if isinstance(cause, KeyboardInterrupt)), None)
    number = interrupt.number if isinstance(interrupt, Stopped) else signal.SIGINT
    if interrupt is not None and not isinstance(interrupt, Stopped) and signals_arrive:
        at = raised_at(interrupt) or "an unknown place"
        _fail(
            f"Nobody interrupted the program: code that it ran raised KeyboardInterrupt itself, at {at}. Let that code "
            "raise another exception, or return.",
            1,
        )
    by = "Interrupted" if number == signal.SIGINT else "Ended by SIGTERM"
    _fail(explain(error) or f"{by}. Files that were already written are whole.", 128 + number)


@contextmanager
def _stoppable() -> Iterator[bool]:
    """Let SIGINT and SIGTERM raise `Stopped`, where they would end the process otherwise.

    Yields whether SIGINT does, so that any other KeyboardInterrupt comes from somebody's code.
    """
    owner = os.getpid()

    def stop(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked child is not the program
            signal.signal(number, _STOPS[signal.Signals(number)])
            os.kill(os.getpid(), number)
            return
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_IGN)  # a second one must not disturb the tidying up
        stops.note(number)
        raise Stopped(number)

    stops.forget()
    replaced = []
    for number, default in _STOPS.items():
        if signal.getsignal(number) == default:  # whoever ignores it (nohup, a background job) goes on doing so
            with suppress(ValueError):  # not in the main thread
                signal.signal(number, stop)
                replaced.append(number)
    try:
        yield signal.SIGINT in replaced
    finally:
        for number in replaced:
            signal.signal(number, _STOPS[number])


def _nobody_reads() -> bool:
    """Whether the reader of the standard output has gone."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _fail(paragraph: str, code: int) -> NoReturn:
    with suppress(OSError):  # nobody may read the standard error, either
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {paragraph}", markup=False)
    raise SystemExit(code)
