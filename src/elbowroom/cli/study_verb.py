"""`elbowroom study`: which card, budget, batch or resolution, and what a faster link would bring."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elbowroom.answers.link_study import SLOWDOWN
from elbowroom.answers.pareto import EFFORT_S
from elbowroom.capture.script.script_knobs import Knob, Range, find_knob, seen_knobs
from elbowroom.cli import choosing, output, scripts
from elbowroom.cli.answer_types import LinkStudyAnswer, StudyAnswer
from elbowroom.cli.progress import progress
from elbowroom.cli.run_settings import size_with_unit
from elbowroom.errors import FormatError, UsageError
from elbowroom.watch import Watch

if TYPE_CHECKING:
    from elbowroom.answers.link_study import LinkStudy
    from elbowroom.answers.study_points import PlanEffort, Study
    from elbowroom.cli.study_captures import StudyCaptures
    from elbowroom.machine import Machine

USAGE = "elbowroom study {} (script.py | -m MODULE) [options] [-- ARGS]"
SHORT = {
    "budget": "what more memory would bring, and what less would cost",
    "batch": "how fast each batch size trains, and which ones fit",
    "resolution": "how long a step takes at each resolution, and which ones fit",
    "gpu": "which GPU a script needs",
    "links": "what a plan costs over the links of several GPUs",
}
ANSWERS = "answer what-if questions: budget, batch, resolution, gpu, links"
ABOUT = "Looks at a script in several cases on virtual GPUs, and answers in words, with a table."
AFTER = "For example: elbowroom study gpu train.py. `elbowroom study KIND --help` says more about each kind."
DESCRIPTION = {
    "budget": "Looks at a script within several budgets of device memory: that of the GPU, parts of what a step needs "
    "with everything kept, and with --more that much more.",
    "batch": "Looks at a script with several batch sizes: what each needs, how long a step takes where a plan makes it "
    "fit, and how many samples a second that is.",
    "resolution": "Looks at a script with several resolutions: what each needs, and how long a step takes where a plan "
    "makes it fit.",
    "gpu": "Looks at a script on several GPUs: the smallest that keeps everything, the smallest that is enough with a "
    "plan, and the fastest. Without --gpu a list with a card for each usual size of memory is searched.",
    "links": "Makes a plan on each GPU for the same part of the memory, and says what it moves, how busy the link is, "
    "and which budget is the least for at most --slowdown times the step.",
}
ENDS = " Captures are kept for the next study. Exit code 0: it trains in a case; 1: in no case; 2: there is no answer."
LADDER = ("rtx4060", "rtx4070", "rtx4080", "rtx4090", "l40s", "h100-sxm", "h200")
"""A GPU for each usual size of memory, by rising memory."""
SMALLER = 2
"""Number of GPUs of the list that are looked at below the smallest that keeps everything."""
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25)
"""Default budgets, as parts of what keeping everything needs."""
LEAST_VALUES, MOST_VALUES = 4, 8
"""Numbers of values between which a range is looked at, as far as it has them."""
BATCH = "batch_size=1..64"
RESOLUTIONS = ("resolution", "image_size", "img_size", "crop_size", "patch_size", "roi_size", "side", "size", "imgsz")
"""Names that scripts give to a resolution."""
OF_ONE_GPU = ("budget", "batch", "resolution")


def add(verbs: Any) -> None:
    """Add this verb to the parser, with a parser of its own for each kind of study."""
    study = verbs.add_parser("study", help=ANSWERS, description=ABOUT, epilog=AFTER)
    kinds = study.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, short in SHORT.items():
        parser = scripts.add_verb(
            kinds,
            kind,
            short=short,
            usage=USAGE.format(kind),
            description=DESCRIPTION[kind] + ENDS,
            timeout_s=scripts.SEARCH_TIMEOUT_S,
        )
        _add_options(parser, kind)
        parser.set_defaults(execute=execute)
    study.has_verbs(kinds)


def _add_options(parser: argparse.ArgumentParser, kind: str) -> None:
    several = "" if kind in OF_ONE_GPU else ", or several: a,b,c"
    parser.add_argument("--gpu", "--gpus", metavar="NAME", help=f"GPU by name{several} (`elbowroom machine --list`)")
    if kind == "budget":
        parser.add_argument("--budgets", metavar="SIZES", help="budgets to look at, as in 8GiB,10GiB")
        parser.add_argument("--more", metavar="SIZE", help="say what this much more memory would bring, as in 12GiB")
    if kind in ("batch", "resolution"):
        usual = f" (default: {BATCH})" if kind == "batch" else ""
        parser.add_argument(
            "--vary", metavar="NAME=A..B", help=f"what to vary, as of `elbowroom largest`{usual}; or NAME=A,B,C"
        )
        parser.add_argument("--multiple-of", type=int, default=1, metavar="M", help="look at multiples of M only")
    if kind == "links":
        parser.add_argument("--budget", metavar="SIZE", help="budget of the plans (default: half of what is reserved)")
        parser.add_argument(
            "--slowdown", type=float, default=SLOWDOWN, metavar="X", help="factor on the step (default: %(default)s)"
        )
    parser.add_argument("--planner", metavar="NAME", help=f"who plans (default: {scripts.PLANNER})")
    choosing.add_allow(parser)
    parser.add_argument(
        "--time-limit",
        type=float,
        default=EFFORT_S,
        metavar="S",
        help="seconds to search a plan (default: %(default)s)",
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="write it: .html, .svg (the picture), .txt or .csv")


def execute(arguments: argparse.Namespace) -> int:
    """Look at the cases, and answer."""
    if arguments.out:  # before the captures, which take minutes
        from elbowroom.report.study_page import check_ending

        check_ending(arguments.out)
    script = scripts.script_of(arguments, f"study {arguments.kind}")
    effort = _effort(arguments)
    with progress() as say:
        watch = Watch(say, arguments.timeout)
        study = STUDIES[arguments.kind](script, arguments, effort, watch)
    _write(study, arguments)
    return 0 if study.trains else 1


def _timed(machines: Sequence[Machine]) -> list[Machine]:
    """Return the GPUs.

    Raises:
        UsageError: the rates of one are not known, so its times cannot be simulated.
    """
    for machine in machines:
        if not machine.flops_per_s or not machine.memory_bytes_per_s:
            raise UsageError(
                f"--gpu: given {machine.name}, whose rates are not known, so that no step time can be simulated; "
                "allowed are GPUs with rates (`elbowroom machine --list`); take one of these, or ask `elbowroom "
                "estimate` whether it fits"
            )
    return list(machines)


def _effort(arguments: argparse.Namespace) -> PlanEffort:
    """Return how plans are made.

    Raises:
        UsageError: there is no such planner or means, or no time.
    """
    from elbowroom.answers.study_points import PlanEffort
    from elbowroom.planners import requested

    planner, allow = arguments.planner or scripts.PLANNER, choosing.allowed(arguments.allow)
    requested(planner, allow=allow, time_limit_s=arguments.time_limit)
    return PlanEffort(planner=planner, allow=allow, time_limit_s=arguments.time_limit)


def _of_budget(script: scripts.Script, arguments: argparse.Namespace, effort: PlanEffort, watch: Watch) -> Study:
    from elbowroom.answers.estimate import estimate
    from elbowroom.answers.study_points import Study, looked_at

    (machine,) = _timed([scripts.machine_of(arguments.gpu)])
    captures = _captures(script, arguments, watch)
    outside_bytes = machine.outside_bytes
    own_bytes = max(0, machine.tiers[0].capacity_bytes - outside_bytes)
    more_bytes = own_bytes + size_with_unit(arguments.more) if arguments.more else None
    if arguments.budgets:
        wanted = {size_with_unit(each) for each in arguments.budgets.split(",") if each.strip()}
    else:
        needed_bytes = estimate(captures.case(machine, own_bytes).trace(), machine, plans=False).needed_bytes
        wanted = {int(share * (needed_bytes - outside_bytes)) for share in SHARES}
    if more_bytes is not None:
        wanted.add(more_bytes)
    sizes = sorted(wanted | {own_bytes}, reverse=True)
    cases = [captures.case(machine, size, memory_bytes=size + outside_bytes, least_bytes=sizes[-1]) for size in sizes]
    with captures:
        points = looked_at(cases, effort, watch)
    return Study(
        kind="budget",
        script=script.label,
        machine=machine.name,
        varied="budget",
        points=points[::-1],
        own_bytes=own_bytes,
        more_bytes=more_bytes,
        early=watch.early,
    )


def _of_gpus(script: scripts.Script, arguments: argparse.Namespace, effort: PlanEffort, watch: Watch) -> Study:
    from elbowroom.answers.study_points import Study, looked_at

    captures = _captures(script, arguments, watch)
    machines = _timed(scripts.machines_of(arguments.gpu or ",".join(LADDER)))
    machines.sort(key=lambda machine: machine.tiers[0].capacity_bytes, reverse=True)
    machines, left_out = (machines, []) if arguments.gpu else _near_the_need(machines, captures)
    cases = [captures.case(each, each.tiers[0].capacity_bytes) for each in machines]
    with captures:
        points = looked_at(cases, effort, watch)
    return Study(
        kind="gpu",
        script=script.label,
        machine="",
        varied="GPU",
        points=points[::-1],
        not_looked=tuple(each.name for each in reversed(left_out)),
        early=watch.early,
    )


def _near_the_need(machines: Sequence[Machine], captures: StudyCaptures) -> tuple[list[Machine], list[Machine]]:
    """Return the GPUs that the answer depends on, and the others: by what the script needs on the largest one."""
    from elbowroom.answers.estimate import estimate

    largest = machines[0]
    trace = captures.case(largest, largest.tiers[0].capacity_bytes).trace()
    needed_bytes = estimate(trace, largest, plans=False).needed_bytes
    enough = [each for each in machines if each.tiers[0].capacity_bytes >= needed_bytes]
    smaller = [each for each in machines if each not in enough]
    looked = [*dict.fromkeys([largest, *enough[-2:], *smaller[:SMALLER]])]
    return looked, [each for each in machines if each not in looked]


def _of_values(script: scripts.Script, arguments: argparse.Namespace, effort: PlanEffort, watch: Watch) -> Study:
    from elbowroom.answers.study_points import Study, looked_at, repeats

    vary = Range.of(_vary(script, arguments))
    knob = find_knob(vary, script.path, script.arguments)
    (machine,) = _timed([scripts.machine_of(arguments.gpu)])
    captures = _captures(script, arguments, watch, knob)
    values = values_of(vary, arguments.multiple_of)
    with captures:
        points = looked_at([captures.case(machine, value) for value in values], effort, watch, stops=True)
    early = watch.early
    if repeats(points):
        same = f"a step with {points[-2].value} and one with {points[-1].value} need and take the same"
        if len(points) == 2:
            raise UsageError(
                f"--vary: {knob.label} has no effect: {same}; allowed are arguments, environment variables and "
                "constants of the script, and data with as many samples; write arg:NAME, env:NAME or const:NAME to "
                "say which it is, or give the script more data"
            )
        early = f"It ends there: {same}. The data may have fewer samples, also for {points[-2].value}."
        points = points[:-1]
    return Study(
        kind=arguments.kind,
        script=script.label,
        machine=machine.name,
        varied=vary.name,
        points=points,
        early=early,
    )


def _vary(script: scripts.Script, arguments: argparse.Namespace) -> str:
    """Return what to vary, as of --vary.

    Raises:
        UsageError: it was not given, and there is no default.
    """
    if arguments.vary:
        return arguments.vary
    if arguments.kind == "batch":
        return BATCH
    found = [knob for name in RESOLUTIONS for knob in seen_knobs(name, script.path, script.arguments)]
    names = ", ".join(dict.fromkeys(knob.name for knob in found))
    seen = f"the script has {names}; " if names else ""
    name = found[0].name.lstrip("-") if found else "image_size"
    raise UsageError(
        f"study resolution: given no --vary; {seen}allowed is one; write for example --vary {name}=64..256"
    )


def values_of(vary: Range, multiple_of: int) -> tuple[int, ...]:
    """Return the values to look at: those that were given, or at most `MOST_VALUES` that rise by one factor.

    >>> values_of(Range.of("batch=1..64"), 1)
    (1, 2, 4, 8, 16, 32, 64)
    >>> values_of(Range.of("side=60..200"), 32)
    (64, 96, 128, 192)

    Raises:
        UsageError: no value is a multiple, or a multiple was asked for of a list.
    """
    unit = multiple_of
    if vary.values and unit != 1:
        raise UsageError("--multiple-of: given with a list of values; allowed is it with a range; leave it out")
    if vary.values:
        return vary.values
    first, last = max(1, -(-vary.least // max(1, unit))), vary.most // max(1, unit)
    if unit < 1 or first > last:
        raise UsageError(
            f"--multiple-of: given {unit} with {vary.least}..{vary.most}; allowed is a range with a multiple in it; "
            "widen the range"
        )
    steps = min(MOST_VALUES, last - first + 1, max(LEAST_VALUES, (last // first).bit_length()))
    if steps == 1:
        return (first * unit,)
    found = {round(first * (last / first) ** (step / (steps - 1))) for step in range(steps)}
    return tuple(unit * each for each in sorted(found))


def _of_links(script: scripts.Script, arguments: argparse.Namespace, effort: PlanEffort, watch: Watch) -> LinkStudy:
    from elbowroom.answers.link_study import studied_links
    from elbowroom.planners.budget.least import checked_slowdown

    checked_slowdown(arguments.slowdown)
    budget_bytes = size_with_unit(arguments.budget) if arguments.budget else None
    captures = _captures(script, arguments, watch)
    cases = [captures.case(each, each.tiers[0].capacity_bytes) for each in _timed(scripts.machines_of(arguments.gpu))]
    with captures:
        return studied_links(script.label, cases, effort, watch, budget_bytes=budget_bytes, slowdown=arguments.slowdown)


STUDIES = {
    "budget": _of_budget,
    "batch": _of_values,
    "resolution": _of_values,
    "gpu": _of_gpus,
    "links": _of_links,
}


def _captures(
    script: scripts.Script, arguments: argparse.Namespace, watch: Watch, knob: Knob | None = None
) -> StudyCaptures:
    from elbowroom.cli.study_captures import StudyCaptures

    return StudyCaptures(script, arguments, watch, knob)


def _write(study: Study | LinkStudy, arguments: argparse.Namespace) -> None:
    """Write the file that was asked for, and the answer in JSON or as text."""
    from elbowroom.answers.link_study import LinkStudy
    from elbowroom.report.study_page import study_file, study_rendered

    if arguments.out:
        try:
            Path(arguments.out).write_text(study_file(study, arguments.out), encoding="utf-8")
        except OSError as problem:
            raise FormatError(f"{arguments.out}: cannot be written: {problem.strerror}; name another path") from problem
    if not arguments.json:
        output.console().print(study_rendered(study))
        return
    made = link_figures(study) if isinstance(study, LinkStudy) else figures(study)
    output.write_answer(made, output.STDOUT)


def figures(study: Study) -> StudyAnswer:
    """The answer for programs."""
    from elbowroom.report.study_words import sentences

    return StudyAnswer(
        kind=study.kind,
        script=study.script,
        machine=study.machine or None,
        varied=study.varied,
        answer=sentences(study),
        own_bytes=study.own_bytes,
        more_bytes=study.more_bytes,
        points=study.points,
        not_looked=study.not_looked,
        early=study.early,
    )


def link_figures(study: LinkStudy) -> LinkStudyAnswer:
    """The answer of a link study for programs."""
    from elbowroom.report.study_words import link_sentences

    return LinkStudyAnswer(
        script=study.script,
        slowdown=study.slowdown,
        answer=link_sentences(study),
        links=study.links,
        early=study.early,
    )
