"""Show: a progress bar per trial of the demo, then one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from elbowroom.demo.limited_run import LimitedTrial, Watcher
from elbowroom.demo.main import OBSERVED_STEPS, DemoOutcome, need_bytes, peak_rss_bytes
from elbowroom.units import format_bytes, format_ns

TITLES = {
    "plain": "plain PyTorch, no limit",
    "limited": "plain PyTorch, hard limit",
    "within": "elbowroom, same hard limit",
}
ABSENT = "-"


class Screen:
    """Observer that shows the trials while they run: bars on a terminal, lines elsewhere."""

    def __init__(self, console: Console, steps: int, titles: Mapping[str, str] = TITLES) -> None:
        self._console = console
        self._steps = steps
        self._titles = titles
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the bars on the screen while the trials run."""
        with self._progress:
            for name, title in self._titles.items():
                self._tasks[name] = self._progress.add_task(title, total=self._steps + 1, start=False, state="")
            yield

    def watch(self, name: str) -> Watcher:
        """Start showing a trial."""
        self._progress.start_task(self._tasks[name])
        self._say(name, "starts", advance=0)
        done: list[float] = []

        def event_came(event: Mapping[str, Any]) -> None:
            if event["event"] == "bare":
                self._say(name, "first step")
            elif event["event"] == "step":
                done.append(event["loss"])
                state = f"step {len(done)} of {self._steps}, {format_ns(event['step_ns'])}, loss {event['loss']:.4f}"
                self._say(name, state)
            elif event["event"] == "trained":
                self._say(name, "trained", advance=0)

        return event_came

    def ended(self, name: str, trial: LimitedTrial) -> None:
        """Say how a trial ended."""
        task = self._tasks[name]
        if not trial.failed:
            self._progress.update(task, completed=self._steps + 1)
        self._progress.stop_task(task)
        self._say(name, f"[red]{trial.ending()}[/]" if trial.failed else "[green]finished[/]", advance=0)

    def _say(self, name: str, state: str, advance: int = 1) -> None:
        self._progress.update(self._tasks[name], advance=advance, state=state)
        if not self._console.is_terminal:
            self._console.print(f"{self._titles[name]}: {state}")


def as_table(outcome: DemoOutcome) -> RenderableType:
    """Render the answer for people."""
    from elbowroom.report.screen import plain_table

    table = plain_table(title="")
    table.add_column("")
    for title in TITLES.values():
        table.add_column(title.replace(", ", "\n"), justify="right")
    trials = (outcome.plain, outcome.limited, outcome.within)
    endings = [Text(short_ending(trial), style="red" if trial.failed else "green") for trial in trials]
    table.add_row("ends", *endings)
    for name, cells in _rows(outcome, trials):
        table.add_row(name, *cells)
    return Group(_setting(outcome), table, _verdict(outcome))


def short_ending(trial: LimitedTrial) -> str:
    """Say in few words how a trial ended."""
    return "out of memory" if trial.failed and trial.out_of_memory else trial.ending()


def _rows(outcome: DemoOutcome, trials: tuple[LimitedTrial, ...]) -> Iterator[tuple[str, list[str]]]:
    bare = outcome.plain.figure("rss_bytes", "bare")
    yield "peak allocated", [in_bytes(trial.figure("peak_allocated_bytes", "measured")) for trial in trials]
    yield "  simulated", [ABSENT, ABSENT, in_bytes(outcome.within.figure("simulated_peak_allocated_bytes", "measured"))]
    yield "peak RSS", [in_bytes(peak_rss_bytes(trial)) for trial in trials]
    yield "  above the bare process", [in_bytes(peak_rss_bytes(trial) - bare) for trial in trials]
    yield "step time", [in_time(trial.step_ns(OBSERVED_STEPS)) for trial in trials]
    ratio = outcome.step_ratio
    yield "  ratio to plain", ["1.00", ABSENT, ABSENT if ratio is None else f"{ratio:.2f}"]
    yield "  simulated", [ABSENT, ABSENT, in_time(outcome.within.figure("simulated_step_ns", "measured"))]
    yield "  of it stall", [ABSENT, ABSENT, in_time(outcome.within.figure("stall_ns", "measured"))]
    yield "swapped out a step", [ABSENT, ABSENT, in_bytes(outcome.within.figure("swapped_out_bytes", "measured"))]
    yield "swapped back a step", [ABSENT, ABSENT, in_bytes(outcome.within.figure("swapped_back_bytes", "measured"))]
    yield "loss, first step", [f"{trial.losses[0]:.6f}" if trial.losses else ABSENT for trial in trials]
    yield "loss, last step", [f"{trial.losses[-1]:.6f}" if trial.losses else ABSENT for trial in trials]


def _setting(outcome: DemoOutcome) -> Text:
    need = need_bytes(outcome.plain)
    room = outcome.limit_bytes - outcome.bare_bytes
    return Text(
        f"Hard limit: {format_bytes(outcome.limit_bytes)} by {outcome.limit_kind}. That is the bare process "
        f"({format_bytes(outcome.bare_bytes)}) and {room / need:.0%} of the {format_bytes(need)} that plain PyTorch "
        f"needs above it. Budget given to elbowroom: {format_bytes(outcome.budget_bytes)} of storages."
    )


def _verdict(outcome: DemoOutcome) -> Text:
    if outcome.as_it_should:
        count = len(outcome.within.losses)
        return Text(f"\nAll {count} losses and the final weights are equal, bit by bit.", style="bold green")
    if not outcome.limited.failed:
        return Text("\nThe limit did not stop plain PyTorch: this computer does not enforce it.", style="bold red")
    if outcome.within.failed:
        written = outcome.within.output.strip()[-2000:]
        return Text(f"\nelbowroom failed: {outcome.within.ending()}\n{written}", style="bold red")
    return Text("\nLosses or weights differ.", style="bold red")


def in_bytes(size_bytes: int | None) -> str:
    """Return a size as text, or the sign for one that is not known."""
    return ABSENT if size_bytes is None else format_bytes(size_bytes)


def in_time(duration_ns: int | None) -> str:
    """Return a duration as text, or the sign for one that is not known."""
    return ABSENT if duration_ns is None else format_ns(duration_ns)
