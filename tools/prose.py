"""Prose of Python files: docstrings, comments and messages, as blocks of text with the line on which each begins."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

STRUCK = re.compile(r"\b(so many|told|beside|whoever|where it is so|of which none|said once|none of)\b", re.IGNORECASE)
"""Words that plain prose does without."""
MESSAGE_WORDS = 3

Block = tuple[int, str]
"""The line on which a text begins, and the text with single spaces."""


def docstrings(source: str) -> Iterator[Block]:
    """Yield the docstrings of a file, those of constants and fields included."""
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, " ".join(value.value.split())


def comments(source: str) -> Iterator[Block]:
    """Yield the comments of a file; lines of comment that follow each other are one text."""
    begin, end, words = 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if words and line != end + 1:
            yield begin, " ".join(words)
            words = []
        begin, end = begin if words else line, line
        words += token.string.lstrip("#").split()
    if words:
        yield begin, " ".join(words)


def messages(source: str) -> Iterator[Block]:
    """Yield what a program may say: strings of three words or more, which are no docstrings."""
    said = set(docstrings(source))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) >= MESSAGE_WORDS:
            block = node.lineno, " ".join(node.value.split())
            if block not in said:
                yield block


def struck(source: str) -> list[str]:
    """Return "line: word" for each word in a file's prose that plain English does without."""
    blocks = sorted([*docstrings(source), *comments(source), *messages(source)])
    return [f"{line}: {found.group().lower()}" for line, text in blocks for found in STRUCK.finditer(text)]
