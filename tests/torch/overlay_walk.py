"""Random walks over files: the same calls on a real folder, and on another one like it under an overlay.

`python overlay_walk.py FOLDER FIRST LAST` prints what differs, for the seeds from FIRST up to LAST.
"""

from __future__ import annotations

import glob
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elbowroom.capture.script import opened_files as files
from elbowroom.capture.script.overlay import Overlay

NAMES = ("a", "b", "c", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a", "l", "l/a", "m", "d/../a", "n/a")


def prepare(place: str) -> None:
    """What is there before: files, folders, links to a folder and to a file, a dangling link."""
    for folder in ("d/e", "f"):
        os.makedirs(f"{place}/{folder}")
    for name in ("a", "d/a", "d/e/a", "f/b"):
        Path(f"{place}/{name}").write_text(f"first {name}")
    os.symlink("d", f"{place}/l")
    os.symlink("d/a", f"{place}/m")
    os.symlink("nowhere", f"{place}/k")


def shown(top: str) -> dict[str, Any]:
    """Everything that can be seen below a folder, in several ways."""
    found: dict[str, Any] = {}
    for at, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = f"{at}/{name}"
            key = os.path.relpath(path, top)
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path), os.path.exists(path))
            elif os.path.isdir(path):
                found[key] = ("folder", sorted(os.listdir(path)))
            else:
                found[key] = ("file", Path(path).read_text(), os.stat(path).st_size)
    found["glob"] = sorted(os.path.relpath(each, top) for each in glob.glob(f"{top}/**", recursive=True))
    found["pathlib"] = sorted(str(each.relative_to(top)) for each in Path(top).rglob("*"))
    return found


def calls(random_: random.Random) -> Callable[[], Any]:
    """One call with its arguments."""
    a, b = random_.choice(NAMES), random_.choice(NAMES)
    text = str(random_.random())

    def write(mode: str) -> Any:
        with open(a, mode) as file:
            return file.write(text), file.name

    def exclusive() -> None:
        os.close(os.open(a, os.O_WRONLY | os.O_CREAT | os.O_EXCL))

    return random_.choice(
        [
            *[lambda: write("w")] * 3,
            lambda: write("a"),
            lambda: write("r+"),
            lambda: write("x"),
            exclusive,
            lambda: Path(a).read_text(),
            lambda: os.mkdir(a),
            lambda: os.makedirs(a, exist_ok=True),
            lambda: os.makedirs(a),
            lambda: os.remove(a),
            lambda: os.unlink(a),
            lambda: os.rmdir(a),
            lambda: shutil.rmtree(a),
            *[lambda: os.rename(a, b)] * 3,
            lambda: os.replace(a, b),
            lambda: Path(a).rename(b),
            lambda: shutil.move(a, b),
            lambda: shutil.copy(a, b),
            lambda: shutil.copytree(a, b, symlinks=True),
            lambda: shutil.copytree(a, b, dirs_exist_ok=True),
            lambda: a[-1] != b[-1] and os.symlink(a, b),
            lambda: os.link(a, b),
            lambda: os.chmod(a, 0o640),
            lambda: Path(a).exists() and (os.utime(a, (1, 2)) or os.stat(a).st_mtime),
            lambda: Path(a).exists() and os.truncate(a, 3),
            lambda: sorted(os.listdir(a)),
            lambda: sorted(entry.name + str(entry.is_dir()) for entry in os.scandir(a)),
            lambda: os.path.exists(a) + 2 * os.path.islink(a) + 4 * os.access(a, os.R_OK),
            lambda: os.path.relpath(os.path.realpath(a)),
            lambda: os.path.samefile(a, b),
            lambda: os.path.relpath(os.getcwd(), os.environ["TOP"]),
            lambda: os.chdir("d"),
            lambda: os.chdir(".."),
        ]
    )


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or how it fails."""
    try:
        return call()
    except shutil.Error as problem:
        return type(problem).__name__
    except (FileNotFoundError, NotADirectoryError) as problem:
        return "not there", problem.filename
    except OSError as problem:
        return type(problem).__name__, problem.filename


def walked(top: str, seed: int) -> list[Any]:
    """What was seen on one walk."""
    os.environ["TOP"] = top
    os.chdir(top)
    numbers = random.Random(seed)
    seen: list[Any] = []
    for _ in range(25):
        call = calls(numbers)
        said = outcome(call)
        if not os.path.realpath(os.getcwd()).startswith(os.path.realpath(top)):
            os.chdir(top)
        seen.append((call.__code__.co_firstlineno, said, shown(top)))
    return seen


def main(folder: str, first: int, last: int) -> None:
    expected: dict[int, list[Any]] = {}
    for seed in range(first, last):
        prepare(f"{folder}/real{seed}")
        prepare(f"{folder}/under{seed}")
        expected[seed] = walked(f"{folder}/real{seed}", seed)
    before = {seed: shown(f"{folder}/under{seed}") for seed in expected}
    os.chdir(folder)
    for seed in expected:
        if pid := os.fork():
            if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
                print(f"seed {seed}: crashed")
            continue
        own = f"{folder}/own{seed}"
        os.mkdir(own)
        files.install(Overlay(own))
        found = walked(f"{folder}/under{seed}", seed)
        for step, (wanted, seen) in enumerate(zip(expected[seed], found, strict=True)):
            if wanted != seen:
                print(f"seed {seed}, step {step}, line {wanted[0]}: wanted {wanted[1]}, seen {seen[1]}", end="; ")
                print({k: (wanted[2].get(k), seen[2].get(k)) for k in wanted[2] if wanted[2][k] != seen[2].get(k)})
                break
        sys.stdout.flush()
        os._exit(0)
    for seed, files_before in before.items():
        if shown(f"{folder}/under{seed}") != files_before:
            print(f"seed {seed}: the files below changed")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
