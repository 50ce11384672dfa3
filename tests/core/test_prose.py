"""Docstrings, comments and messages are plain English: no word stands in them that a reader stumbles over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.prose import comments, docstrings, messages, struck

PACKAGE = Path(__file__).parents[2] / "src" / "elbowroom"
PARTS = sorted(each.name for each in PACKAGE.iterdir() if each.suffix == ".py" or any(each.rglob("*.py")))
"""Each package and each module at the top."""


@pytest.mark.parametrize("part", PARTS)
def test_no_struck_word_stands_in_docstrings_comments_and_messages(part: str) -> None:
    files = [PACKAGE / part] if part.endswith(".py") else sorted((PACKAGE / part).rglob("*.py"))

    found = [f"{file.relative_to(PACKAGE)}:{each}" for file in files for each in struck(file.read_text("utf-8"))]

    assert not found


SOURCE = '''"""A module
in two lines."""

LIMIT = 1  # one line
"""So many of them."""


def work() -> str:
    """Do it."""
    # Two lines,
    # one text: beside that
    return "whoever reads this message"
'''


def test_docstrings_are_read_with_those_of_constants() -> None:
    found = sorted(docstrings(SOURCE))

    assert found == [(1, "A module in two lines."), (5, "So many of them."), (9, "Do it.")]


def test_comments_that_follow_each_other_are_one_text() -> None:
    assert list(comments(SOURCE)) == [(4, "one line"), (10, "Two lines, one text: beside that")]


def test_messages_are_strings_of_some_words() -> None:
    assert list(messages(SOURCE)) == [(12, "whoever reads this message")]
    assert not list(messages('name = "beside"'))


def test_struck_words_are_found_in_all_of_them() -> None:
    assert struck(SOURCE) == ["5: so many", "10: beside", "12: whoever"]
