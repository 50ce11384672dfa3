"""The table of `demo --weights`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from elbowroom.demo.limited_run import LimitedTrial
from elbowroom.demo.main import OBSERVED_STEPS, peak_rss_bytes
from elbowroom.demo.show import in_bytes, in_time, short_ending
from elbowroom.demo.weights import WeightsOutcome
from elbowroom.units import format_bytes

WEIGHTS_TITLES = {
    "small_plain": "smaller model, plain PyTorch, no limit",
    "limited": "plain PyTorch, hard limit",
    "within": "elbowroom, same hard limit",
    "small_within": "smaller model, elbowroom, same hard limit",
}
_ORDER = ("limited", "within", "small_plain", "small_within")


def as_weights_table(outcome: WeightsOutcome) -> RenderableType:
    """Render the answer for people."""
    from elbowroom.report.screen import plain_table

    table = plain_table(title="")
    table.add_column("")
    for name in _ORDER:
        table.add_column(WEIGHTS_TITLES[name].replace(", ", "\n"), justify="right")
    trials: list[LimitedTrial] = [getattr(outcome, name) for name in _ORDER]
    endings = [Text(short_ending(trial), style="red" if trial.failed else "green") for trial in trials]
    table.add_row("ends", *endings)
    for name, cells in _rows(outcome, trials):
        table.add_row(name, *cells)
    return Group(_setting(outcome), table, _verdict(outcome))


def _rows(outcome: WeightsOutcome, trials: list[LimitedTrial]) -> Iterator[tuple[str, list[str]]]:
    large, small = format_bytes(outcome.training_bytes), format_bytes(outcome.small_training_bytes)
    yield "weights, gradients and states", [large, large, small, small]
    yield "peak RSS", [in_bytes(peak_rss_bytes(trial)) for trial in trials]
    yield "step time", [in_time(trial.step_ns(OBSERVED_STEPS)) for trial in trials]
    for name, what in (("swapped_out_bytes", "swapped out a step"), ("swapped_back_bytes", "swapped back a step")):
        yield what, [in_bytes(trial.figure(name, "measured")) for trial in trials]
    yield "  stall", [in_time(trial.figure("stall_ns", "measured")) for trial in trials]
    for place, what in ((0, "loss, first step"), (-1, "loss, last step")):
        yield what, [f"{trial.losses[place]:.6f}" if trial.losses else "-" for trial in trials]


def _setting(outcome: WeightsOutcome) -> Text:
    return Text(
        f"Hard limit: {format_bytes(outcome.limit_bytes)} by {outcome.limit_kind}, for the whole process. Weights, "
        f"gradients and optimizer states are {format_bytes(outcome.training_bytes)}: "
        f"{outcome.training_bytes / outcome.limit_bytes:.1f} times that."
    )


def _verdict(outcome: WeightsOutcome) -> Text:
    if outcome.as_it_should:
        count = len(outcome.small_within.losses)
        return Text(
            f"\nThe loss falls. Of the smaller model all {count} losses and the final weights are equal, bit by bit.",
            style="bold green",
        )
    if not outcome.limited.failed:
        return Text("\nThe limit did not stop plain PyTorch: this computer does not enforce it.", style="bold red")
    failed = next((each for each in (outcome.within, outcome.small_within) if each.failed), None)
    if failed is not None:
        return Text(f"\nelbowroom failed: {failed.ending()}\n{failed.output.strip()[-2000:]}", style="bold red")
    what = "Losses or weights differ." if not outcome.bit_equal else "The loss does not fall: train more steps."
    return Text(f"\n{what}", style="bold red")
