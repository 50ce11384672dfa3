"""Gallery: makes docs/gallery.md and its pictures from real runs of the command line.

    python -m tools.gallery write    # some minutes; needs a Chromium in the PATH
    python -m tools.gallery page     # docs/gallery.md alone, from the list below

The commands run in an empty folder that holds a copy of `examples`. A picture is one part of a page that they wrote,
as headless Chromium draws it, or an SVG file that they wrote.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gallery.md"
FOLDER = ROOT / "docs" / "images" / "gallery"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=5000")
WIDTH = 960
LINE = 120
MARGIN = 16
"""Pixels above and below a part of a page."""
MEASURE = """onload = () => {
  document.body.dataset.high = document.querySelector("SECTION").getBoundingClientRect().bottom;
}"""
HEAD = """# Gallery

Pictures of real runs, with their commands. `python -m tools.gallery write` makes them. The GPUs are virtual: all that
is of a GPU here is simulated. One picture shows a run on a CPU, which was measured.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture of the gallery.

    Attributes:
        name: its file, without an ending.
        title: its heading.
        commands: what is run for it, after the commands of the pictures before it.
        shown: the file that they write: a page, or an SVG file.
        part: name of the part of the page that is shown; "" for an SVG file.
        says: what it shows, in a sentence or two.
    """

    name: str
    title: str
    commands: tuple[str, ...]
    shown: str
    part: str
    says: str

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}{'.png' if self.part else '.svg'}"


PICTURES = (
    Picture(
        name="estimate",
        title="Does it fit",
        commands=(
            "elbowroom estimate examples/monai_segmentation.py --gpu rtx3060 -o trace.json --report estimate.html "
            "-- --side 352",
        ),
        shown="estimate.html",
        part="fits",
        says="The answer for MONAI's 3D U-Net on volumes of 352 voxels along each side, simulated. It does not fit, "
        "and would with a plan.",
    ),
    Picture(
        name="modules",
        title="What holds the memory",
        commands=(),
        shown="estimate.html",
        part="holds",
        says="The same page: the peak by category, and by module as an icicle, simulated. A box is as wide as its "
        "bytes. In the page a click or Enter shows a box whole.",
    ),
    Picture(
        name="plan",
        title="What a plan does",
        commands=(
            "elbowroom plan examples/monai_segmentation.py --gpu rtx3060 --budget 450MiB --time-limit 5 "
            "--trace small.json -o roomy.json --report plan.html -- --side 128",
        ),
        shown="plan.html",
        part="does",
        says="A smaller U-Net within 450 MiB, simulated: memory over the step with everything kept and under the plan, "
        "and below it what compute and both ways of the link do.",
    ),
    Picture(
        name="compare",
        title="Two plans",
        commands=(
            "elbowroom plan small.json --gpu rtx3060 --budget 330MiB --time-limit 5 -o tight.json",
            "elbowroom machine rtx3060 -o rtx3060.json",
            "elbowroom report small.json rtx3060.json roomy.json tight.json -o compare.html",
        ),
        shown="compare.html",
        part="does",
        says="The plan for 450 MiB and one for 330 MiB on one axis, simulated. The tighter one holds less on the card "
        "and more on the host, and its compute waits a little.",
    ),
    Picture(
        name="run",
        title="What a run did",
        commands=("elbowroom run --budget 130MiB --report run.html examples/plain_train.py --side 64",),
        shown="run.html",
        part="does",
        says="A 3D U-Net on a CPU: the measured step, and the simulated one that was planned for it. What is swapped "
        "goes to the disk.",
    ),
    Picture(
        name="gpus",
        title="Which card is enough",
        commands=(
            "elbowroom study gpu examples/monai_segmentation.py --gpus rtx4060,rtx3060,rtx4080,rtx4090 --time-limit 2 "
            "-o gpus.svg -- --side 352",
        ),
        shown="gpus.svg",
        part="",
        says="What the U-Net of the first picture needs, against the memory of four cards, and the time of a step, "
        "simulated. The line across a bar is what the card has.",
    ),
)


def page_text() -> str:
    """Return docs/gallery.md."""
    parts = [HEAD]
    for picture in PICTURES:
        commands = "\n".join(f"    {command}" for command in picture.commands)
        said = f"{commands}\n\n" if commands else ""
        says = textwrap.fill(picture.says, LINE)
        parts.append(f"## {picture.title}\n\n{says}\n\n{said}![{picture.title}](images/gallery/{picture.file})\n")
    return "\n".join(parts)


def made(folder: Path) -> None:
    """Run the commands in a folder, and write the pictures.

    Raises:
        RuntimeError: there is no browser, or a command has no answer.
    """
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise RuntimeError(f"gallery: no browser in the PATH; allowed is one of {', '.join(BROWSERS)}; install one")
    shutil.copytree(ROOT / "examples", folder / "examples")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        for command in picture.commands:
            _run(command, folder)
        shown = folder / picture.shown
        if picture.part:
            _screenshot(browser, shown, picture.part, FOLDER / picture.file)
        else:
            shutil.copyfile(shown, FOLDER / picture.file)


def _run(command: str, folder: Path) -> None:
    print(f"$ {command}", flush=True)
    program, *words = shlex.split(command)
    assert program == "elbowroom", command
    wide = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-m", "elbowroom", *words], cwd=folder, env=wide, check=False)
    if done.returncode not in (0, 1):  # 1: it does not fit, which is an answer
        raise RuntimeError(f"gallery: {command} ended with exit code {done.returncode}")


def _screenshot(browser: str, page: Path, part: str, out: Path) -> None:
    """Draw one part of a page, in a window of its height."""
    alone = page.with_name("alone.html")
    section = f"main > section[aria-labelledby='{part}']"
    hidden = (
        f"header, main > section:not([aria-labelledby='{part}']) {{ display: none }} main {{ padding: 0 {MARGIN}px }}"
    )
    text = page.read_text("utf-8").replace("</style>", f"{hidden}</style>", 1)
    script = MEASURE.replace("SECTION", section)
    alone.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    profile = f"--user-data-dir={page.with_name('profile')}"
    common = (browser, *OPTIONS, profile, "--hide-scrollbars", "--force-device-scale-factor=1")
    seen = subprocess.run(
        [*common, f"--window-size={WIDTH},800", "--dump-dom", alone.as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r'data-high="([0-9.]+)"', seen.stdout)
    if found is None:
        raise RuntimeError(f"gallery: {page.name} has no part {part!r}")
    window = f"--window-size={WIDTH},{int(float(found[1])) + MARGIN}"
    subprocess.run([*common, window, f"--screenshot={out}", alone.as_uri()], capture_output=True, check=True)


def main() -> int:
    """Make the gallery, or its page alone."""
    if sys.argv[1:] not in (["write"], ["page"]):
        print(__doc__)
        return 2
    if sys.argv[1] == "write":
        with tempfile.TemporaryDirectory() as folder:
            made(Path(folder))
    PAGE.write_text(page_text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
