"""A tutorial does what it says. The quick one is run here, the others by make docs-check."""

from __future__ import annotations

import pytest

from tools.doc_blocks import ROOT, compared, run_file


@pytest.mark.parametrize("name", ["capture"])
def test_the_quick_tutorial_prints_what_it_shows(name: str) -> None:
    text, run = run_file(ROOT / "docs" / "tutorials" / f"{name}.md")
    assert compared(text) == compared(run)


@pytest.mark.long
def test_the_page_of_onnx_graphs_prints_what_it_shows() -> None:
    text, run = run_file(ROOT / "docs" / "onnx.md")
    assert compared(text) == compared(run)
