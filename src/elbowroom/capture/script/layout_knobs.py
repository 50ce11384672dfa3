"""Layout knobs: `--vary ranks=8..64`, `dp`, `tp`, `micro_batch`: the layouts of a torchrun script that are tried.

`ranks` is the size of the job. Other names are arguments, variables or constants of the script, as for any knob. The
words of `DEGREES` and `BATCH` also stand for the other names that scripts have for them. `dp` that a script has no
name for sets the size of the job: that many times its other degrees.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from elbowroom.capture.job_rank import JobRank
from elbowroom.capture.script.script_knobs import Knob, Range, Variation, find_knob, given_value, seen_knobs, spelling
from elbowroom.errors import UsageError

RANKS = "ranks"
DP = "dp"
DEGREES: dict[str, tuple[str, ...]] = {
    DP: ("dp", "dp_size", "dp_degree", "data_parallel", "data_parallel_size", "data_parallel_degree", "dp_shard"),
    "tp": ("tp", "tp_size", "tp_degree", "tensor_parallel", "tensor_parallel_size", "tensor_parallel_degree"),
    "pp": ("pp", "pp_size", "pp_degree", "pipeline_parallel", "pipeline_parallel_size", "pipeline_parallel_degree"),
    "cp": ("cp", "cp_size", "cp_degree", "context_parallel", "context_parallel_size", "context_parallel_degree"),
}
"""Degrees of parallelism whose product divides the ranks, each with the names that scripts have for it."""
BATCH: dict[str, tuple[str, ...]] = {
    "micro_batch": (
        *("micro_batch", "micro_batch_size", "microbatch_size", "per_device_train_batch_size", "local_batch_size"),
        *("device_batch_size", "train_batch_size", "batch_size", "batch"),
    )
}
"""The batch that a rank computes at once, with the names that scripts have for it."""
WORDS = {**DEGREES, **BATCH}
_MOST_LAYOUTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAxis:
    """One thing that differs between layouts.

    Attributes:
        name: as the user wrote it.
        values: what is tried, in rising order; the ends alone for what is searched.
        knob: what it is in the script; None for the size of the job.
    """

    name: str
    values: tuple[int, ...]
    knob: Knob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutGrid:
    """The layouts of a script that are tried.

    Attributes:
        axes: what differs between them, each with a few values.
        searched: of which the largest value that fits is looked for in each layout; None if nothing is searched.
        ranks: processes of the job, if no axis says it.
        local: ranks on each computer; None for all of up to 8.
        fixed: degrees that the script's words give.
    """

    axes: tuple[LayoutAxis, ...]
    searched: LayoutAxis | None
    ranks: int | None
    local: int | None
    fixed: Mapping[str, int]

    def places(self) -> list[dict[str, int]]:
        """Return the values of each layout whose degrees divide its ranks.

        Raises:
            UsageError: there are none or too many, or a computer's ranks do not divide a job's.
        """
        names = [axis.name for axis in self.axes]
        found = [dict(zip(names, each, strict=True)) for each in itertools.product(*(a.values for a in self.axes))]
        if len(found) > _MOST_LAYOUTS:
            raise UsageError(
                f"--vary: given {len(found)} layouts; allowed are {_MOST_LAYOUTS}, as each is captured; give fewer "
                "values"
            )
        kept = [place for place in found if not self.ranks_of(place) % self._degrees(place)]
        if not kept:
            raise UsageError(
                f"--vary: given {len(found)} layouts, and their degrees never divide the ranks; allowed are "
                "degrees whose product does; correct --ranks or a list"
            )
        for place in kept:
            self.job(0, place)
        return kept

    @property
    def left_out(self) -> int:
        """The number of layouts whose degrees do not divide their ranks."""
        return prod(len(axis.values) for axis in self.axes) - len(self.places())

    def ranks_of(self, place: Mapping[str, int]) -> int:
        """Return the processes of a layout."""
        if any(axis.name == RANKS and axis.knob is None for axis in self.axes):
            return place[RANKS]
        if self.ranks is not None:
            return self.ranks
        return place[DP] * self._degrees({name: value for name, value in place.items() if name != DP})

    def job(self, rank: int, place: Mapping[str, int]) -> JobRank:
        """Return one process of a layout; a negative rank counts from the last one."""
        ranks = self.ranks_of(place)
        local = None if self.local is None else min(self.local, ranks)
        try:
            return JobRank.of(rank % ranks if rank < 0 else rank, ranks, local)
        except UsageError as problem:
            raise UsageError(f"--{problem}") from None

    def turned(self, arguments: Sequence[str], place: Mapping[str, int]) -> Variation:
        """Return the script's words, environment and constants in a layout."""
        words, environment, constants = tuple(arguments), dict[str, str](), dict[str, int | float]()
        for axis in (*self.axes, *([self.searched] if self.searched else ())):
            if axis.knob is not None and axis.name in place:
                made = axis.knob.turned(words, place[axis.name])
                words = made.arguments
                environment.update(made.environment)
                constants.update(made.constants)
        return Variation(arguments=words, environment=environment, constants=constants)

    @property
    def how(self) -> tuple[str, ...]:
        """Return what each name is in the script that has another one for it, or that does not mention it."""
        axes = (*self.axes, *([self.searched] if self.searched else ()))
        return tuple(axis.knob.how for axis in axes if axis.knob is not None and axis.knob.how)

    @property
    def span(self) -> tuple[str, int, int] | None:
        """Return what is searched with its least and its largest value; None if nothing is."""
        return (
            None
            if self.searched is None
            else (self.searched.name, min(self.searched.values), max(self.searched.values))
        )

    def _degrees(self, place: Mapping[str, int]) -> int:
        of = {**self.fixed, **{name: value for name, value in place.items() if name in DEGREES}}
        return prod(of.values())


def is_layout(varied: Sequence[Range]) -> bool:
    """Whether what is varied makes layouts: several things, the size of the job, or a degree."""
    return len(varied) > 1 or any(vary.kind is None and vary.name in (RANKS, *DEGREES) for vary in varied)


def grid_of(
    varied: Sequence[Range],
    script: str,
    arguments: Sequence[str] = (),
    ranks: int | None = None,
    local: int | None = None,
) -> LayoutGrid:
    """Find out what the names of layouts are in a script.

    Args:
        varied: what is varied. A range of ranks or of a degree has doublings of its least value. One range of another
            name is searched.
        script: path of the script.
        arguments: its words.
        ranks: processes of the job, if they are not varied.
        local: ranks on each computer.

    Raises:
        UsageError: a name is not in the script or is given twice, or nothing says how many ranks there are.
    """
    names = [vary.name for vary in varied]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--vary: given {twice} twice; allowed is each name once; write its values in one list")
    axes = [_axis(vary, script, arguments) for vary in varied]
    searched = [axis for vary, axis in zip(varied, axes, strict=True) if _is_searched(vary)]
    if len(searched) > 1:
        raise UsageError(
            f"--vary: given {len(searched)} ranges, {searched[0].name} and {searched[1].name}; allowed is one to "
            "search; write the values of the other one, as in 1,2,4"
        )
    fixed = _fixed(arguments, names)
    _check_size(axes, ranks)
    kept = tuple(axis for axis in axes if axis not in searched)
    return LayoutGrid(axes=kept, searched=next(iter(searched), None), ranks=ranks, local=local, fixed=fixed)


def _fixed(arguments: Sequence[str], varied: Sequence[str]) -> dict[str, int]:
    """Return the degrees that a script's words give, and that are not varied."""
    found: dict[str, int] = {}
    for degree, names in DEGREES.items():
        given = next((value for name in names if (value := given_value(name, arguments)) is not None), "")
        if degree not in varied and given.isdecimal() and int(given):
            found[degree] = int(given)
    return found


def _is_searched(vary: Range) -> bool:
    return not vary.values and vary.name != RANKS and vary.name not in DEGREES


def _check_size(axes: Sequence[LayoutAxis], ranks: int | None) -> None:
    """Refuse layouts of no size, or of two."""
    by_ranks = any(axis.name == RANKS and axis.knob is None for axis in axes)
    by_dp = any(axis.name == DP and axis.knob is None for axis in axes)
    if by_ranks and ranks is not None:
        raise UsageError(f"--ranks: given {ranks}, and --vary has ranks too; allowed is one of them; leave one out")
    if by_dp and (by_ranks or ranks is not None):
        raise UsageError(
            "--vary: given dp and the ranks, and the script has no name for dp; allowed is one of them, as dp is the "
            "ranks over the other degrees then; leave one out, or write arg:NAME"
        )
    if not by_ranks and not by_dp and ranks is None:
        raise UsageError(
            "--vary: given layouts without the size of the job; allowed is it as --ranks N or --vary ranks=A,B; add "
            "one of them"
        )


def _axis(vary: Range, script: str, arguments: Sequence[str]) -> LayoutAxis:
    values = vary.values or ((vary.least, vary.most) if _is_searched(vary) else _doublings(vary))
    if values[0] < 1 and (vary.name == RANKS or vary.name in WORDS):
        raise UsageError(f"--vary: given {vary.name} = {values[0]}; allowed is 1 or more; begin at 1")
    if vary.name == RANKS and vary.kind is None:
        return LayoutAxis(name=RANKS, values=values, knob=None)
    return LayoutAxis(name=vary.name, values=values, knob=_knob(vary, script, arguments))


def _doublings(vary: Range) -> tuple[int, ...]:
    found, value = [], max(1, vary.least)
    while value < vary.most:
        found.append(value)
        value *= 2
    return (*found, vary.most)


def _knob(vary: Range, script: str, arguments: Sequence[str]) -> Knob | None:
    """Find a name, or another one that scripts have for it; None for a `dp` that a script has no name for."""
    if vary.kind is not None or vary.name not in WORDS:
        return find_knob(vary, script, arguments)
    for name in dict.fromkeys((vary.name, *WORDS[vary.name])):
        if seen_knobs(name, script, arguments):
            found = find_knob(Range(kind=None, name=name, least=vary.least, most=vary.most), script, arguments)
            return replace(found, how=f"{vary.name} is {found.label}" if spelling(found.name) != vary.name else "")
    if vary.name == DP:
        return None
    words = ", ".join(WORDS[vary.name])
    raise UsageError(
        f"--vary: given {vary.name}, and {script} has no word for it, such as {words}; allowed are its arguments, "
        f"environment variables and constants; write for example arg:{vary.name}={vary.least}..{vary.most}"
    )
