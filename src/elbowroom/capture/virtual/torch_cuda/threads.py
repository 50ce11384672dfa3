"""Threads of a script: each sees the virtual device that is on where it is started.

Modes and hooks of torch are per thread. So a thread that Python starts, one of a pool too, enters them before it runs.
Earlier threads, and those of C++, do not. Threads share the ledger. An op is run and noted under the mode's lock. A
free comes wherever a reference is dropped, under the ledger's own lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Change = tuple[Any, str, Any]
Enter = Callable[[], Callable[[], AbstractContextManager[Any]]]
_ENDED = "_elbowroom_ended"


def changes(enter: Enter, end: type[BaseException]) -> list[Change]:
    """Return the changes of threads.

    Args:
        enter: called where a thread is started; returns the function that makes the thread's context.
        end: an exception that ends the script: a thread that joins the one in which it is raised gets it, too.
    """
    start, join = threading.Thread.start, threading.Thread.join

    def started(self: threading.Thread) -> None:
        run, context = self.run, enter()

        def on_device() -> None:
            try:
                with context():
                    run()
            except end as raised:
                vars(self)[_ENDED] = raised
            finally:
                vars(self).pop("run", None)

        vars(self)["run"] = on_device
        start(self)

    def joined(self: threading.Thread, timeout: float | None = None) -> None:
        join(self, timeout)
        raised = vars(self).pop(_ENDED, None)
        if raised is not None:
            raise raised

    return [(threading.Thread, "start", started), (threading.Thread, "join", joined)]
