"""README and docs: links lead somewhere, words are plain, and the tools that run their blocks work."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools import doc_blocks, long_parts
from tools.prose import STRUCK

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")],
)
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
PACKAGE_PAGES = sorted((ROOT / "src" / "elbowroom").glob("*/README.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
MADE_BY_THE_SITE = {"api.md", "cli.md", "architecture.md", "contributing.md", "changelog.md", "security.md"}


def without_code(text: str) -> str:
    """A page without its blocks, its words of code and what programs write: those are not the page's prose."""
    text = re.sub(r"<!-- [\w ]+: made by .*?<!-- [\w ]+ end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^    .*$", "", text, flags=re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_links_within_the_project_lead_to_a_file(path: Path) -> None:
    for link in LINK.findall(without_code(path.read_text("utf-8"))):
        target = link.partition("#")[0]
        if not target or "://" in link or Path(target).name in MADE_BY_THE_SITE:
            continue
        assert (path.parent / target).exists(), f"{path} links to {link}, which is not there"


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_pages_say_things_in_plain_words(path: Path) -> None:
    found = [
        f"{n}: {line.strip()}"
        for n, line in enumerate(without_code(path.read_text("utf-8")).splitlines(), 1)
        if STRUCK.search(line)
    ]
    assert not found, f"{path}: use other words than {STRUCK.pattern}: {found}"


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert there <= listed
    assert listed - there <= MADE_BY_THE_SITE


@pytest.mark.parametrize("page", PACKAGE_PAGES, ids=[path.parent.name for path in PACKAGE_PAGES])
def test_the_page_of_a_package_names_files_that_are_there(page: Path) -> None:
    names = re.findall(r"[\w/]+(?:\.py|/)(?=[,:])", page.read_text("utf-8"))
    assert names
    assert all((page.parent / name).exists() for name in names), f"{page} names a file that is not there: {names}"


def test_readme_is_short_and_begins_with_the_question() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) < 200
    assert lines[2] == "**Will my PyTorch training fit this GPU? If not, can it be made to fit?**"


def test_the_package_index_sees_no_link_into_the_checkout() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    text = (ROOT / "README.md").read_text("utf-8")
    for each in settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    assert not [link for link in LINK.findall(without_code(text)) if "://" not in link]
    assert "<!--" not in text
    assert "![" not in text


PAGE = """
```python title="a.py"
print("one\\n2 MiB\\n3")
```

```console
$ python a.py
old
$ exit 3  # exit 3
```

<!-- lines: 2, MiB -->
```console
$ python a.py
```
"""


def test_blocks_of_a_page_are_run_and_what_they_print_is_written(tmp_path: Path) -> None:
    page = doc_blocks.run_page(PAGE, tmp_path)

    assert "$ python a.py\none\n2 MiB\n3\n$ exit 3  # exit 3\n```" in page
    assert "$ python a.py\n...\n2 MiB\n...\n```" in page
    assert doc_blocks.run_page(page, tmp_path) == page


def test_a_command_that_fails_is_an_error_of_the_page(tmp_path: Path) -> None:
    with pytest.raises(doc_blocks.BlockFailed, match="ended with 2"):
        doc_blocks.run_page("```console\n$ exit 2\n```\n", tmp_path)


def test_measured_output_may_change_but_not_vanish() -> None:
    page = "<!-- measured -->\n```console\n$ a\nstep  1.5 s\n```\n"
    assert doc_blocks.compared(page) == doc_blocks.compared(page.replace("1.5 s", "12 ms\nand more"))
    assert doc_blocks.compared(page) != doc_blocks.compared(page.replace("step  1.5 s\n", ""))
    assert doc_blocks.compared(page) != doc_blocks.compared(page.replace("$ a", "$ b"))
    plain = page.removeprefix("<!-- measured -->\n")
    assert doc_blocks.compared(plain) != doc_blocks.compared(plain.replace("1.5", "1.6"))


def test_long_modules_and_functions_are_named() -> None:
    # 600 lines and a function of 40 are allowed; one line more is named.
    function = "def f():\n" + "    x = 1\n" * 40
    assert list(long_parts.long_parts(function)) == [(1, "f", 41)]
    assert list(long_parts.long_parts(function.removesuffix("    x = 1\n"))) == []
    assert list(long_parts.long_parts("x = 1\n" * 601)) == [(1, "", 601)]
