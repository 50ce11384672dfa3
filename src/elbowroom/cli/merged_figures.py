"""Merged figures: one file of all ranks of a run, which the last rank to write its own file makes of theirs.

No rank waits for another one here: files are all that the ranks of a launcher are sure to share. A file that an earlier
run left is older than this process. Ranks on computers that share no directory have no merged file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from elbowroom.cli import output
from elbowroom.cli.answer_types import RanksAnswer
from elbowroom.errors import FormatError
from elbowroom.hardware.launched_rank import LaunchedRank


def merge(asked: str, rank: LaunchedRank, begun_s: float) -> bool:
    """Write the figures of all ranks to the file that all were given, if each has written its own.

    Args:
        asked: the file that all ranks were given.
        rank: this one, which has just written its own file.
        begun_s: when this process began, in seconds since the epoch: older files are of an earlier run.

    Returns:
        Whether it was written.

    Raises:
        FormatError: it cannot be written.
    """
    paths = [replace(rank, rank=number).path_of(asked) for number in range(rank.ranks)]
    if not rank.of_many or asked in paths:
        return False
    from elbowroom.report.rank_table import run_times, waited_for

    answers = {os.path.basename(path): _written_since(path, begun_s) for path in paths}
    whole = {name: answer for name, answer in answers.items() if answer is not None}
    if len(whole) < rank.ranks:
        return False
    try:
        ranks = run_times(whole)
    except FormatError:  # a rank that made no step has no figures of one
        return False
    late = waited_for(ranks)
    answer = RanksAnswer(source="measured", waited_for=None if late is None else late.name, ranks=ranks)
    # two ranks may both be the last: each puts a whole file in its place
    with tempfile.TemporaryDirectory(dir=os.path.dirname(asked) or ".", prefix=".elbowroom-") as folder:
        made = os.path.join(folder, "merged.json")
        output.write_answer(answer, made)
        os.replace(made, asked)
    print(f"elbowroom: {asked} has the figures of all {rank.ranks} ranks", file=sys.stderr)
    return True


def _written_since(path: str, begun_s: float) -> dict[str, Any] | None:
    """Return what a rank wrote to its file; None if it has not yet, or not whole."""
    try:
        if os.stat(path).st_mtime < begun_s:
            return None
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
