"""Warnings point at the line of the user, from any depth of this package and torch, and come once where they should."""

from __future__ import annotations

import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from elbowroom import notices
from elbowroom.notices import Once, warn, warn_once

TORCH = "/somewhere/torch/"


def called_from(path: str, inner: Callable[[], None], depth: int) -> Callable[[], None]:
    """A function of a file that calls another one, through so many frames of that file."""
    names: dict[str, Callable[[], None]] = {"inner": inner}
    for _ in range(depth):
        exec(compile("def outer(inner=inner):\n    inner()\n", path, "exec"), names)
        names = {"inner": names["outer"]}
    return names["inner"]


def line_of(call: Callable[[], object]) -> int:
    return call.__code__.co_firstlineno


@pytest.fixture
def torch_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.ModuleType("torch")
    torch.__file__ = TORCH + "__init__.py"
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.usefixtures("torch_somewhere")
def test_a_warning_points_at_the_line_outside_the_package_and_torch(depth: int) -> None:
    # given a hook of this package, called by torch, called by a line of the user
    own = called_from(notices.OWN_FOLDER + "engine/x.py", partial(warn, "too little"), depth)
    of_torch = called_from(TORCH + "nn/modules/module.py", own, depth)
    user = lambda: of_torch()  # noqa: E731  one line, to compare with
    # when
    with pytest.warns(RuntimeWarning, match="too little") as seen:
        user()
    # then
    assert (seen[0].filename, seen[0].lineno) == (__file__, line_of(user))


def test_the_end_of_a_with_block_is_passed_over_for_the_block() -> None:
    # given
    @contextmanager
    def block() -> Iterator[None]:
        yield
        exec(compile("warn('over')\n", notices.OWN_FOLDER + "z.py", "exec"), {"warn": warn})

    # when
    with pytest.warns(RuntimeWarning, match="over") as seen, block():
        pass
    # then
    assert Path(seen[0].filename) == Path(__file__)


def test_a_warning_without_a_frame_of_a_user_points_at_the_outermost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # given every file inside, as in a thread of autograd
    monkeypatch.setattr(notices, "OWN_FOLDER", "")
    # when
    with pytest.warns(RuntimeWarning, match="alone") as seen:
        warn("alone")
    # then
    assert seen[0].filename != __file__


def test_a_warning_comes_once_for_each_key_of_each_run_and_is_logged_after_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # given
    first, second = Once(), Once()
    # when
    with warnings.catch_warnings(record=True) as seen, caplog.at_level(logging.INFO, "elbowroom"):
        warnings.simplefilter("always")
        for run in (first, first, second):
            warn_once(run, "key", "given")
        warn_once(first, "other", "given too", UserWarning)
    # then
    assert [(str(each.message), each.category) for each in seen] == [
        ("given", RuntimeWarning),
        ("given", RuntimeWarning),
        ("given too", UserWarning),
    ]
    assert [record.getMessage() for record in caplog.records] == ["again: given"]


def test_the_logger_is_silent_until_a_program_asks_for_it() -> None:
    found = logging.getLogger("elbowroom")
    assert any(isinstance(handler, logging.NullHandler) for handler in found.handlers)
