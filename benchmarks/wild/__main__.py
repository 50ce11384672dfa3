"""All scripts of a folder, estimated and run as they are.

    python -m benchmarks.wild fetch SCRIPTS             # the scripts, from their public repositories
    python -m benchmarks.wild data DATA                 # small data in the formats that they read
    python -m benchmarks.wild run SCRIPTS DATA          # every trial of every script; writes the results file
    python -m benchmarks.wild rig SCRIPTS DATA          # on cards that are too small, with the CUDA build on the rig
    python -m benchmarks.wild page                      # docs/wild.md, from the newest results files

A script stays as it is. It runs in a copy of its folder, in its own process, without a network.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, ROOT, commit, facts, result_path, write_result

from . import manifest
from .cards import Rig, try_cards
from .data import make_all
from .fetching import fetch_all
from .page import write_page
from .survey import ENDED, Survey, try_script


def main(words: list[str] | None = None) -> None:
    """Carry out one of the five."""
    asked = _parser().parse_args(words)
    asked.do(asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wild", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    page = verbs.add_parser("page", help="write docs/wild.md from the newest results file")
    page.set_defaults(do=lambda _asked: write_page())
    fetch = verbs.add_parser("fetch", help="fetch the scripts from their public repositories")
    fetch.set_defaults(do=lambda asked: fetch_all(asked.scripts, manifest.read_all(manifest.HERE)))
    fetch.add_argument("scripts", type=Path)
    data = verbs.add_parser("data", help="make small data")
    data.set_defaults(do=lambda asked: make_all(asked.data))
    data.add_argument("data", type=Path)
    run = verbs.add_parser("run", help="try the scripts of a folder")
    run.set_defaults(do=_run)
    _add_trials(run)
    run.add_argument("--every", action="store_true", help="every *.py of the folder, without arguments and manifest")
    run.add_argument("--trials", default="plain,estimate,run", help="which of plain,estimate,run (default: all)")
    rig = verbs.add_parser("rig", help="try the scripts whose manifests have arguments for it on small cards")
    rig.set_defaults(do=_on_rig, every=False)
    _add_trials(rig)
    rig.add_argument("--trials", default="estimate,cards", help="which of estimate,cards (default: both)")
    rig.add_argument("--rig", type=Path, default=os.environ.get("ELBOWROOM_RIG"), help="folder of the rig")
    rig.add_argument("--packages", default="", metavar="FOLDER[:FOLDER...]", help="libraries of the scripts, no torch")
    return parser


def _add_trials(run: argparse.ArgumentParser) -> None:
    """Options that trials on the CPU and on the rig share."""
    run.add_argument("scripts", type=Path, help="folder with a folder for each repository")
    run.add_argument("data", type=Path, help="folder that the verb data filled")
    run.add_argument("--manifests", type=Path, default=manifest.HERE, help="folder of the *.toml files")
    run.add_argument("--only", default="*", metavar="GLOB[,GLOB...]", help="scripts by name")
    run.add_argument("--python", default=sys.executable, help="what runs the scripts")
    run.add_argument("--source", type=Path, default=ROOT / "src", help="folder of the package")
    run.add_argument("--work", type=Path, help="folder for the copies (default: a temporary one)")
    run.add_argument("--limit", type=float, default=300.0, metavar="S", help="seconds of one trial")
    run.add_argument("--gpu", default="a100-80gb", help="of the estimates")
    run.add_argument("--out", type=Path, help="results file (default: benchmarks/results/wild_*.json)")


def _on_rig(asked: argparse.Namespace) -> None:
    if asked.rig is None:
        raise SystemExit("given no rig; --rig or ELBOWROOM_RIG names its folder; make one with: make rig")
    packages = tuple(Path(each).resolve() for each in asked.packages.split(os.pathsep) if each)
    rig = Rig(folder=asked.rig.resolve(), packages=packages)
    listed = [each for each in manifest.read_all(asked.manifests) if each.rig is not None]
    _try_all(asked, "wild_rig", listed, lambda survey, script: try_cards(survey, rig, script))


def _run(asked: argparse.Namespace) -> None:
    listed = manifest.found_in(asked.scripts) if asked.every else manifest.read_all(asked.manifests)
    _try_all(asked, "wild", listed, try_script)


def _try_all(
    asked: argparse.Namespace,
    case: str,
    listed: list[manifest.Script],
    trial: Callable[[Survey, manifest.Script], dict[str, Any]],
) -> None:
    """Try those of the listed scripts that are asked for, one after the other."""
    patterns = asked.only.split(",")
    chosen = [each for each in listed if any(fnmatch.fnmatch(each.name, f"{pattern}*") for pattern in patterns)]
    path = asked.out or result_path(RESULTS, case)
    with tempfile.TemporaryDirectory() as temporary:
        survey = Survey(
            scripts=asked.scripts.resolve(),
            data=asked.data.resolve(),
            work=(asked.work or Path(temporary)).resolve(),
            python=asked.python,
            source=asked.source.resolve(),
            gpu=asked.gpu,
            limit_s=asked.limit,
            trials=tuple(asked.trials.split(",")),
        )
        about = {"case": case, "gpu": asked.gpu, **({} if asked.every else facts())}
        tried = commit(survey.source.parent)
        for number, script in enumerate(chosen, 1):
            row = trial(survey, script)
            row |= {f"{name}_commit": tried for name in ("estimate", "runs", "cards") if name in row}
            _keep(path, about, row)
            print(f"{number}/{len(chosen)} {brief(row)}", flush=True)


def _keep(path: Path, about: dict[str, Any], row: dict[str, Any]) -> None:
    """Writes the file after each script; a trial that was not made now stays as it was."""
    before = json.loads(path.read_text()) if path.exists() else {}
    rows = {each["script"]: each for each in before.get("scripts", [])}
    rows[row["script"]] = {**rows.get(row["script"], {}), **row}
    write_result(path, {**about, "scripts": [rows[name] for name in sorted(rows)]})


def brief(row: dict[str, Any]) -> str:
    """One line for the terminal."""
    parts = [row["script"]]
    if "not_tried" in row:
        parts.append(row["not_tried"])
    if plain := row.get("plain"):
        parts.append(f"plain {plain['exit_code']} {plain['seconds']} s")
    parts += [_brief_card(card) for card in row.get("cards", [])]
    if "outcome" in (found := row.get("estimate", {})):
        parts.append(f"estimate {found['outcome']} {found['seconds']} s")
        parts += [f"CHANGED {found['files_changed']}"] if found["files_changed"] else []
        parts += [" | ".join(found["said"][-2:])] if found["outcome"] in ("failed", "late") and "said" in found else []
    for run in row.get("runs", []):
        same = "same" if run["weights"]["same"] and not run["lines"]["differing"] else "DIFFERS"
        same = same if run["exit_code"] in ENDED else "refused"
        parts.append(f"{run['share'] or 'plenty'}: {run['exit_code']} {same} {run['seconds']} s")
    return "; ".join(parts)


def _brief_card(card: dict[str, Any]) -> str:
    alone, run = card["alone"], card["run"]
    ended = "ran out" if alone["ran_out"] else f"alone {alone['exit_code']}"
    return f"{card['share']}: {ended}, run {run['exit_code']} {run['steps']} steps {run['seconds']} s"


if __name__ == "__main__":
    main()
