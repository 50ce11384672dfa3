"""Guidance: whether it fits, what other budgets cost, and what to try next, in words that the records bear out."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from elbowroom.answers.pareto import Pareto, Point
from elbowroom.cli import parser_of_all
from elbowroom.cli.scripts import Script
from elbowroom.machine import Machine
from elbowroom.report import Record, RecordNames, html, subject_of
from elbowroom.report.guidance import budget_sentences, fit_of, next_steps
from elbowroom.simulate.simulate import simulate
from tests.core.report_case import DISK, MIB, chain, measured, swapping


def fit(*records: Record) -> tuple[bool | None, str]:
    found = fit_of(subject_of(*records))
    return found.fits, found.sentences[0]


def test_a_measured_step_is_held_to_the_budget_first() -> None:
    trace, plan = chain(), swapping(chain())
    line = measured(trace, plan)

    # four layers' outputs of 32 MiB and the parameter of 4 MiB
    assert fit(trace, DISK, plan, line) == (
        True,
        "It fits: a step holds 132.0 MiB within the budget of 140.0 MiB, measured.",
    )
    assert fit(trace, replace(plan, budget_bytes=100 * MIB), line) == (
        False,
        "It passes its budget: a step holds 132.0 MiB, measured; the budget is 100.0 MiB.",
    )
    assert fit(trace, replace(plan, budget_bytes=131 * MIB), line) == (
        True,
        "It fits but for less than 1 %: a step holds 132.0 MiB, measured; the budget is 131.0 MiB.",
    )


def test_a_measured_time_is_not_compared_with_a_simulated_one() -> None:
    trace, plan = chain(), swapping(chain())

    of_run = fit_of(subject_of(trace, DISK, plan, measured(trace, plan))).sentences[1]
    of_plan = fit_of(subject_of(trace, DISK, plan, simulate(trace, DISK, plan))).sentences[1]

    # with everything kept: 6 outputs, the parameter and one gradient
    assert of_run == "With everything kept, simulated, it would hold 228.0 MiB."
    assert of_plan.startswith("With everything kept, simulated, it would hold 228.0 MiB; a step takes 1.0")


def test_a_plan_that_meets_its_budget_may_still_be_too_large_for_the_device() -> None:
    trace, plan = chain(), swapping(chain())
    small = replace(DISK, tiers=(replace(DISK.tiers[0], capacity_bytes=120 * MIB), DISK.tiers[1]), outside_bytes=MIB)

    fits, said = fit(trace, small, plan, simulate(trace, small, plan))

    assert not fits
    assert "needs 133.0 MiB of 120.0 MiB" in said


def test_an_estimate_answers_for_a_gpu_without_a_plan() -> None:
    trace = replace(chain(), device="cuda:0")
    page = html.page(subject_of(trace, Machine.of("rtx4090")))

    assert '<div class="answer fits"><p>On rtx4090 it fits' in page
    assert "elbowroom largest train.py --vary batch_size=1..4096 --gpu rtx4090" in page


def test_records_that_say_nothing_of_fitting_say_what_to_give() -> None:
    assert fit(chain()) == (None, "No record says on which machine: give a machine or a timeline as well.")
    assert fit(simulate(chain(), DISK)) == (None, "A step needs 228.0 MiB, simulated.")


def curve(trace_id: str) -> Pareto:
    def point(budget_bytes: int, step_ns: int) -> Point:
        return Point(
            planner="optimal",
            budget_bytes=budget_bytes,
            step_ns=step_ns,
            lower_bound_ns=None,
            stall_ns=0,
            peak_allocated_bytes=budget_bytes,
            peak_reserved_bytes=budget_bytes,
            swapped_out_bytes=0,
            swapped_back_bytes=0,
        )

    points = (point(100 * MIB, 1_500_000), point(120 * MIB, 1_200_000), point(200 * MIB, 1_000_000))
    return Pareto(trace_id=trace_id, machine="here", kept_peak_bytes=228 * MIB, kept_step_ns=1_000_000, points=points)


def test_budgets_around_that_of_the_plan_are_said_with_their_cost() -> None:
    trace, plan = chain(), swapping(chain())

    said = budget_sentences(subject_of(trace, DISK, plan, simulate(trace, DISK, plan), curve(trace.id)))

    assert said[1:] == (
        "The least budget is 100.0 MiB, with a step 1.500 times as long.",
        "The next smaller one is 120.0 MiB, with a step 1.200 times as long.",
        "The next larger one is 200.0 MiB, with a step 1.000 times as long.",
    )
    assert budget_sentences(subject_of(trace, DISK, plan)) == ()


def test_a_curve_alone_says_what_everything_kept_needs() -> None:
    said = "With a budget a step may do with less: everything kept needs 228.0 MiB of here, simulated."
    assert fit(curve("t")) == (None, said)


def cases() -> list[tuple[Record, ...]]:
    trace, plan = chain(), swapping(chain())
    on_gpu, gpu = replace(trace, device="cuda:0"), Machine.of("rtx4090")
    large = replace(chain(size_bytes=8 * 2**30), device="cuda:0")
    line = measured(trace, plan)
    return [
        (trace,),
        (trace, DISK),
        (on_gpu, gpu),
        (large, gpu),
        (trace, DISK, plan),
        (trace, DISK, plan, line),
        (trace, DISK, plan, line, curve(trace.id)),
        (line,),
    ]


@pytest.mark.parametrize("records", cases(), ids=lambda records: "+".join(type(each).__name__ for each in records))
def test_each_command_is_one_that_elbowroom_reads(records: tuple[Record, ...]) -> None:
    for step in next_steps(subject_of(*records)):
        name, *words = shlex.split(step.command)
        assert name == "elbowroom"
        assert parser_of_all().parse_args(words).execute


def test_commands_name_the_script_and_the_files_that_were_given() -> None:
    trace, gpu = replace(chain(), device="cuda:0"), Machine.of("rtx4090")
    plan = replace(swapping(chain()), trace_id=trace.id)
    names = RecordNames(script="'my train.py'", arguments="--side 352", trace="t.json", plan="p.json")

    def commands(*records: Record) -> list[str]:
        return [each.command for each in next_steps(replace(subject_of(*records), names=names))]

    half = f"{simulate(trace, gpu).peak_reserved_bytes // 2**21}MiB"
    assert commands(trace, gpu) == [
        "elbowroom largest 'my train.py' --vary batch_size=1..4096 --gpu rtx4090 -- --side 352",
        f"elbowroom plan 'my train.py' --gpu rtx4090 --budget {half} -- --side 352",
    ]
    assert commands(trace, gpu, plan)[:2] == [
        "elbowroom run --plan p.json 'my train.py' --side 352",
        "elbowroom plan t.json --gpu rtx4090 --pareto curve.html",
    ]


def test_a_page_names_the_script_where_it_is_known() -> None:
    subject = subject_of(chain())

    assert "<dt>script</dt>" not in html.page(subject)
    named = replace(subject, names=RecordNames(script="'my train.py'", arguments="--side 352"))
    assert "<dt>script</dt><dd>&#x27;my train.py&#x27; --side 352</dd>" in html.page(named)


def test_a_script_a_module_a_graph_and_a_trace_have_names_in_commands() -> None:
    options = ("net.onnx", "--batch", "8")
    graph = Script(path="graph_options.py", module="elbowroom.frameworks.onnx.train_graph", arguments=options)

    assert Script(path="a b.py", arguments=("--x", "1 2")).names() == RecordNames(
        script="'a b.py'", arguments="--x '1 2'"
    )
    assert Script(path="pkg/job.py", module="pkg.job").names(plan="p.json") == RecordNames(
        script="-m pkg.job", plan="p.json"
    )
    assert replace(graph, graph="net.onnx").names(trace="t.json") == RecordNames(
        script="net.onnx --batch 8", trace="t.json"
    )
    assert Script(path="t 1.json").names() == RecordNames(trace="'t 1.json'")


def test_a_step_that_waits_is_offered_the_next_larger_budget_of_the_curve() -> None:
    trace, plan = chain(), swapping(chain())
    slow = replace(DISK, links=(replace(DISK.links[0], out_bytes_per_s=50 * MIB, back_bytes_per_s=50 * MIB),))
    waiting = simulate(trace, slow, plan)
    assert waiting.stall_ns > waiting.step_ns // 50

    commands = [step.command for step in next_steps(subject_of(trace, slow, plan, waiting, curve(trace.id)))]

    assert f"elbowroom plan trace.json --budget {200 * MIB}B" in commands
