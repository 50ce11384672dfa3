"""`elbowroom demo`: a 3D U-Net, or a model by its weights alone, that does not fit, trained inside a hard limit."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elbowroom.cli import output
from elbowroom.cli.answer_types import DemoAnswer, TrialFigures, WeightsAnswer
from elbowroom.demo import main, weights
from elbowroom.demo.limited_run import LimitedTrial
from elbowroom.demo.trainer import RECORDS

if TYPE_CHECKING:
    from rich.console import RenderableType

DESCRIPTION = (
    "Trains MONAI's 3D U-Net to take noise off the whole brain MRI volume that nibabel ships, three times: plain "
    "PyTorch without a limit, plain PyTorch under a hard memory limit, which it cannot meet, and elbowroom under the "
    "same limit. Then compares losses, weights, memory and time. With --weights it trains a language model on Python's "
    "own sources, whose weights, gradients and optimizer states are three times the limit."
)


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("demo", help="the main job on real data, on any computer", description=DESCRIPTION)
    parser.add_argument(
        "--weights", action="store_true", help="a model whose weights, gradients and states are 3 times the limit"
    )
    parser.add_argument("--size", choices=tuple(main.SIZES), default="default", help="of the volume or the model")
    parser.add_argument("--seed", type=int, default=0, help="of weights and noise (default: 0)")
    parser.add_argument(
        "--out", metavar="DIR", default="elbowroom-demo", help="records and report (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the demo and show it."""
    if arguments.weights:
        return _execute_weights(arguments)
    from elbowroom.demo import show

    settings = main.DemoSettings(folder=Path(arguments.out), size=main.SIZES[arguments.size], seed=arguments.seed)
    screen = show.Screen(output.console(errors=True), settings.size.steps)
    with _unwinding_at_signals(), screen.shown():
        outcome = main.run(settings, screen)
    return _answer(arguments, outcome, figures(outcome), lambda: show.as_table(outcome))


def _execute_weights(arguments: argparse.Namespace) -> int:
    """Run the demo of weights and show it."""
    from elbowroom.demo import show, weights_table

    size = weights.WEIGHTS_SIZES[arguments.size]
    settings = weights.WeightsSettings(folder=Path(arguments.out), size=size, seed=arguments.seed)
    screen = show.Screen(output.console(errors=True), size.steps, weights_table.WEIGHTS_TITLES)
    with _unwinding_at_signals(), screen.shown():
        outcome = weights.run(settings, screen)
    return _answer(arguments, outcome, weights_figures(outcome), lambda: weights_table.as_weights_table(outcome))


def _answer(
    arguments: argparse.Namespace,
    outcome: main.DemoOutcome | weights.WeightsOutcome,
    answer: DemoAnswer | WeightsAnswer,
    table: Callable[[], RenderableType],
) -> int:
    """Show what came of a demo; return its exit code."""
    for line in outcome.within.warnings():
        print(line, file=sys.stderr)
    written = _records(Path(arguments.out), outcome.within)
    if arguments.json:
        output.write_answer(answer, output.STDOUT)
    else:
        console = output.console()
        console.print(table())
        console.print(written)
    return 0 if outcome.as_it_should else main.DemoFailed.exit_code


def weights_figures(outcome: weights.WeightsOutcome) -> WeightsAnswer:
    """The answer of `--weights` for programs, bytes and nanoseconds."""
    return WeightsAnswer(
        limit_bytes=outcome.limit_bytes,
        limit_kind=outcome.limit_kind,
        training_bytes=outcome.training_bytes,
        small_training_bytes=outcome.small_training_bytes,
        loss_fell=outcome.loss_fell,
        bit_equal=outcome.bit_equal,
        limited=_trial(outcome.limited),
        within=_trial(outcome.within),
        small_plain=_trial(outcome.small_plain),
        small_within=_trial(outcome.small_within),
    )


def figures(outcome: main.DemoOutcome) -> DemoAnswer:
    """The answer for programs, bytes and nanoseconds."""
    return DemoAnswer(
        limit_bytes=outcome.limit_bytes,
        limit_kind=outcome.limit_kind,
        bare_bytes=outcome.bare_bytes,
        budget_bytes=outcome.budget_bytes,
        bit_equal=outcome.bit_equal,
        step_ratio=outcome.step_ratio,
        plain=_trial(outcome.plain),
        limited=_trial(outcome.limited),
        within=_trial(outcome.within),
    )


def _trial(trial: LimitedTrial) -> TrialFigures:
    return TrialFigures(
        failed=trial.failed,
        peak_allocated_bytes=trial.figure("peak_allocated_bytes", "measured"),
        peak_rss_bytes=main.peak_rss_bytes(trial),
        step_ns=trial.step_ns(main.OBSERVED_STEPS),
        losses=tuple(trial.losses),
        swapped_out_bytes=trial.figure("swapped_out_bytes", "measured"),
        swapped_back_bytes=trial.figure("swapped_back_bytes", "measured"),
        stall_ns=trial.figure("stall_ns", "measured"),
        simulated_peak_allocated_bytes=trial.figure("simulated_peak_allocated_bytes", "measured"),
    )


@contextmanager
def _unwinding_at_signals() -> Iterator[None]:
    """End the child and remove the limit if the demo is terminated."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _records(folder: Path, within: LimitedTrial) -> str:
    """Write the report of the records that elbowroom's trial left; return a line on where they are."""
    if within.failed:
        return ""
    from elbowroom.files.record_files import load
    from elbowroom.machine import Machine
    from elbowroom.plan import Plan
    from elbowroom.report import report
    from elbowroom.timeline import Timeline
    from elbowroom.trace import Trace

    names = [name for name in RECORDS if (folder / f"{name}.json").exists()]
    report(
        *(load(folder / f"{name}.json", Trace, Machine, Plan, Timeline) for name in names), out=folder / "report.html"
    )
    return f"Records and report: {folder}/{{{','.join(names)}}}.json, {folder / 'report.html'}"
