"""One script in all its trials: alone, estimated, and within budgets. The row of the results file."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import comparing, sandbox, trial
from .manifest import Script
from .sandbox import Sandbox
from .trial import Done

SHARES = (0.60, 0.35)
PLENTY = "256GiB"
RETRIES = 4
"""Each kind of step names a least of its own: a user goes on with the next one."""
ENDED = (0, 3)
"""Exit codes of a run whose script ended well; with 3 more than the budget was held, which is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What all scripts are tried with."""

    scripts: Path
    data: Path
    work: Path
    python: str
    source: Path
    """Folder of the package elbowroom."""
    gpu: str = "a100-80gb"
    limit_s: float = 300.0
    trials: tuple[str, ...] = ("plain", "estimate", "run")


def try_script(survey: Survey, script: Script) -> dict[str, Any]:
    """The row of one script.

    An estimate comes after the script ran alone, so that checkpoints and logs are there that it must not touch.
    """
    start = time.monotonic()
    row = named_row(script)
    try:
        made = sandbox_of(survey, script)
        if script.plain is not None and {"plain", "run"} & set(survey.trials):
            plain, weights = _run(survey, script, made, [])
            row["plain"] = {**plain.row(), "arguments": script.plain}
        if script.estimate is not None and "estimate" in survey.trials:
            row["estimate"] = _estimate(survey, script, made)
        if script.plain is not None and "run" in survey.trials and row["plain"]["exit_code"] == 0:
            row["runs"] = _within_budgets(survey, script, (plain, weights))
    except (OSError, RuntimeError) as error:
        row["not_tried"] = f"{type(error).__name__}: {error}"
    return json.loads(without_places(json.dumps(row), survey)) | {"seconds": round(time.monotonic() - start, 1)}


def named_row(script: Script) -> dict[str, Any]:
    """The row of a script before any trial: its name, where it is from, its licence."""
    path = "README.md" if script.readme else script.path
    return {
        "script": script.name,
        "source": f"{script.repository}/blob/{script.commit}/{path}" if script.repository else path,
        "licence": script.licence,
    }


def without_places(text: str, survey: Survey) -> str:
    """A text without the folders of this computer."""
    below = re.sub(re.escape(str(survey.work)) + r"/\w+/(user/work|user|tmp)?/?", "", text)
    below = below.replace(f"{survey.source}/", "src/")
    below = re.sub(r"[^\s\"'(]*/site-packages/", "site-packages/", below)
    return re.sub(r"[^\s\"'(]*/lib/(?=python3\.\d+/)", "", below)


def sandbox_of(survey: Survey, script: Script) -> Sandbox:
    root = survey.work / re.sub(r"\W+", "_", script.name)

    def prepare(made: Sandbox) -> None:
        words = script.before.split()
        sandbox.run_in(made, [survey.python, *words], environment_for(survey, script, made))

    return sandbox.make_sandbox(script, survey.scripts, survey.data, root, prepare)


def environment_for(survey: Survey, script: Script, made: Sandbox) -> dict[str, str]:
    extra = {key: value.replace("{folder}", str(made.folder)) for key, value in script.environment.items()}
    caches = {"MPLCONFIGDIR": str(survey.work / "cache" / "matplotlib")}
    return trial.environment_of(survey.source, made.home, made.temporary, {**caches, **extra})


def _estimate(survey: Survey, script: Script, made: Sandbox) -> dict[str, Any]:
    before = made.files()
    options = ["--gpu", survey.gpu, "--json", "--timeout", str(survey.limit_s), *script.options.split()]
    words = [survey.python, "-m", "elbowroom", "estimate", str(made.script), *options]
    done = trial.run_command(
        [*words, "--", *script.estimate_arguments],
        made.folder,
        environment_for(survey, script, made),
        survey.limit_s + 60,
    )
    touched = sandbox.differences(before, made.files())
    answer = _answer(done)
    return {
        **done.row(),
        "arguments": script.estimate,
        **answer,
        "outcome": outcome(script, done, answer),
        "files_changed": touched["changed"],
        "files_added": touched["added"][:20],
    }


def outcome(script: Script, done: Done, answer: dict[str, Any]) -> str:
    """`answered`; `refused` where no answer is possible and the reason is said; `failed`; `late`."""
    if done.exit_code is None:
        return "late"
    if done.exit_code in (0, 1) and answer.get("peak_reserved_bytes"):
        return "failed" if script.refusal else "answered"
    if done.exit_code == 2 and script.refusal and re.search(script.refusal, done.errors):
        return "refused"
    return "failed"


def _answer(done: Done) -> dict[str, Any]:
    """The likely figures of the JSON that an estimate prints, {} where there are none."""
    start = done.output.rfind("\n{\n") + 1 or max(done.output.find("{"), 0)
    try:
        first = json.loads(done.output[start:])["estimates"][0]
    except (ValueError, LookupError, TypeError):
        return {}
    peaks = {name: first[name]["likely"] for name in ("peak_allocated_bytes", "peak_reserved_bytes")}
    return {**peaks, "fits": first["fits"], "steps": first["steps"]}


def figures_of(read: Any) -> dict[str, int]:
    """Whole numbers by their names, wherever they are; the first of a name counts."""
    found: dict[str, int] = {}
    pairs = read.items() if isinstance(read, dict) else enumerate(read) if isinstance(read, list) else ()
    for name, value in pairs:
        if isinstance(value, int) and not isinstance(value, bool):
            found.setdefault(str(name), value)
        for inner, number in figures_of(value).items():
            found.setdefault(inner, number)
    return found


def _run(survey: Survey, script: Script, made: Sandbox, before: list[str]) -> tuple[Done, list[list[str]]]:
    """The script, alone or after the words of `elbowroom run`, and the digests of its weights."""
    digests = made.temporary / "digests"
    environment = {**environment_for(survey, script, made), "ELBOWROOM_WILD_DIGEST": str(digests)}
    words = [survey.python, *before, str(made.script), *script.plain_arguments]
    done = trial.run_command(words, made.folder, environment, survey.limit_s)
    return done, comparing.read_digests(digests)


def _within_budgets(survey: Survey, script: Script, alone: tuple[Done, list[list[str]]]) -> list[dict[str, Any]]:
    """Within plenty, which says what keeping everything takes; then within shares of that, or the least named."""
    row, needs_bytes = _within(survey, script, alone, PLENTY)
    rows = [{"share": None, **row}]
    for share in SHARES if needs_bytes else ():
        budget_bytes = int(share * needs_bytes)
        row, _ = _within(survey, script, alone, str(budget_bytes))
        refused = {"budget_bytes": budget_bytes, "said": row.get("said", [])}
        for _ in range(RETRIES):
            least_bytes = row["figures"].get("least_feasible_bytes", 0)
            if row["exit_code"] in ENDED or least_bytes <= int(row["budget"]):
                break
            tried = next((each for each in rows if each["budget"] == str(least_bytes)), None)
            row = {**(tried or _within(survey, script, alone, str(least_bytes))[0]), "refused": refused}
        rows.append({**row, "share": share})
    return rows


def _within(
    survey: Survey, script: Script, alone: tuple[Done, list[list[str]]], budget: str
) -> tuple[dict[str, Any], int]:
    """The row of a run within a budget, and the bytes that keeping everything takes, 0 where that is not known."""
    made = sandbox_of(survey, script)
    figures = made.temporary / "figures.json"
    words = ["-m", "elbowroom", "run", "--budget", budget, "--json", str(figures)]
    done, weights = _run(survey, script, made, words)
    read = json.loads(figures.read_text()) if figures.exists() else {}
    plain, plain_weights = alone
    lines = comparing.compare_lines(plain.output, done.output)
    if lines["differing"] and done.exit_code in ENDED:
        again, _ = _run(survey, script, sandbox_of(survey, script), [])
        lines = comparing.compare_lines(plain.output, done.output, again.output)
    found = figures_of(read)
    row = {
        "budget": budget,
        **done.row(),
        "lines": lines,
        "weights": comparing.compare_weights(plain_weights, weights),
        "figures": {key: value for key, value in found.items() if key.endswith("_bytes")},
        "summary": [line for line in done.errors.splitlines() if line.startswith("elbowroom:")][-3:],
    }
    kept = ("keep_all_bytes", "simulated_peak_allocated_bytes", "measured_peak_allocated_bytes")
    return row, next((found[name] for name in kept if found.get(name)), 0)
