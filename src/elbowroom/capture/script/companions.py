"""Companions: other ranks of a job that run for a while, as the captured rank waits for what they send.

A stage of a pipeline asks its neighbours for shapes, which only their code can say. So the script runs as such a rank
too, on the same virtual GPU, when the captured one first waits for it (capture/rank_mail.py). It rests after a step
until it is waited for again, and ends with the capture. Its trace is not used.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import final

from elbowroom.capture.job_rank import JobRank
from elbowroom.capture.rank_mail import note_end, wanted_ranks
from elbowroom.capture.script import script_process
from elbowroom.capture.script.order import ScriptOrder


def with_mail(order: ScriptOrder, folder: Path) -> ScriptOrder:
    """Return an order whose rank has mail; one of a script that trains alone stays as it is."""
    if not order.job:
        return order
    mail = folder / "mail"
    mail.mkdir()
    return replace(order, mail=str(mail))


@final
class Companions:
    """The companions of one capture.

    Args:
        order: what is captured.
        folder: its folder; each companion has one below it.
        environment: the variables of the script.
    """

    def __init__(self, order: ScriptOrder, folder: Path, environment: Mapping[str, str]) -> None:
        self._order = order
        self._folder = folder
        self._environment = environment
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._known = {order.job[0]} if order.job else set[int]()

    def look(self) -> None:
        """Start each rank that is waited for, and note those that have ended."""
        if not self._order.mail:
            return
        mail = Path(self._order.mail)
        for rank in sorted(wanted_ranks(mail) - self._known):
            self._known.add(rank)
            self._running[rank] = self._start(rank)
        for rank, child in tuple(self._running.items()):
            if child.poll() is not None:
                script_process.end(self._running.pop(rank))
                note_end(mail, rank, self._why(rank))

    def end(self) -> None:
        """End all of them."""
        while self._running:
            script_process.end(self._running.popitem()[1])

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        _, ranks, local = self._order.job
        own, its = JobRank.of(*self._order.job).environment(), JobRank.of(rank, ranks, local).environment()
        others = {name: value for name, value in its.items() if value != own[name]}
        place = self._place(rank)
        (place / "tmp").mkdir(parents=True)
        shutil.copy(self._folder / "machine.json", place)
        order = replace(self._order, job=(rank, ranks, local), companion=True, kept=False, compiled=False)
        with (place / "output").open("wb") as output:
            return script_process.start(order, place, {**self._environment, **others}, output)

    def _place(self, rank: int) -> Path:
        return self._folder / "ranks" / str(rank)

    def _why(self, rank: int) -> str:
        """Return how the script ended as a rank."""
        try:
            answer = json.loads((self._place(rank) / "answer.json").read_text("utf-8"))
        except (OSError, ValueError):
            return "its process crashed"
        return answer["problem"] or "its script ended"
