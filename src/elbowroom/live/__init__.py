"""Live: what people see of a run while it goes on. It is imported only where it is asked for."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from elbowroom.live.bottom_lines import BottomLines, terminal
from elbowroom.live.live_lines import LINES, live_lines
from elbowroom.live.live_server import LiveServer
from elbowroom.live.running_jobs import RunningJob, announce
from elbowroom.live.sampling import LiveFigures, Sampler

if TYPE_CHECKING:
    from elbowroom.run.run_now import RunNow

__all__ = ["live"]

NO_TERMINAL = (
    "elbowroom: --live: standard error and output are no terminal that can show lines at its bottom; the run goes on "
    "without them, and `elbowroom watch` shows them in a terminal"
)


@contextmanager
def live(look: Callable[[], RunNow], script: str, *, lines: bool, port: int | None) -> Generator[None]:
    """Show a run while it goes on, and let `elbowroom watch` find it.

    Args:
        look: returns the run at this moment; a thread calls it once a second.
        script: the script, as it was named.
        lines: whether to keep lines at the bottom of the terminal.
        port: port of the page, whose address is printed; 0 takes a free one. None prints no address.

    Raises:
        UsageError: the port is not free.
    """
    with contextlib.ExitStack() as stack:
        shown = _bottom(stack) if lines else _nothing
        sampler = Sampler(look, script, shown)
        server = LiveServer(sampler, port or 0)
        stack.callback(server.close)
        _announce(stack, RunningJob.here(script, server.port, server.token))
        if port is not None:
            _say(f"elbowroom: this run is at {server.address}")
        sampler.start()
        stack.callback(sampler.stop)
        shown(sampler.figures)
        process = os.getpid()
        try:
            yield
        finally:
            if os.getpid() != process:  # a fork of the script's, without these threads
                stack.pop_all()


def _bottom(stack: contextlib.ExitStack) -> Callable[[LiveFigures], None]:
    """Open lines at the bottom of the terminal. Returns what draws them."""
    descriptor = terminal()
    if descriptor is None:
        _say(NO_TERMINAL)
        return _nothing
    sys.stdout.flush()
    sys.stderr.flush()
    bottom = BottomLines(descriptor, LINES)
    bottom.open()
    stack.callback(bottom.close)
    return lambda figures: bottom.draw(live_lines(figures.as_json(), bottom.width()))


def _announce(stack: contextlib.ExitStack, job: RunningJob) -> None:
    try:
        path = announce(job)
    except OSError as problem:
        _say(f"elbowroom: `elbowroom watch` will not find this run: {problem}")
        return
    stack.callback(path.unlink, missing_ok=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - a line of the command line


def _nothing(_: LiveFigures) -> None:
    """Draw nothing."""
