"""vdnn: swap the input feature maps of layers, each prefetched while a later layer's backward pass runs.

Computes: a layer is an op of forward. Its input is what it reads, as far as autograd saves that. Policy "all" swaps
every input, "conv" those of convolutions. The backward pass of a layer prefetches one swapped input: the next one
ahead, up to and including the next convolution. Inputs without a prefetch come back when they are read. Convolutions
run with the fastest algorithm that the trace offers ("p"), or the one with the least workspace ("m"). Policy "dyn"
takes the first of these that meets the budget:

- keep everything, "conv", "all", each with "p";
- "conv", then "all", with the algorithm at the peak made smaller again and again;
- "all" with "m".

Reference: Rhu, Gimelshein, Clemons, Zulfiqar, Keckler, "vDNN: Virtualized Deep Neural Networks for Scalable,
Memory-Efficient Neural Network Design" (MICRO 2016), its policies and its search window for a prefetch.
Optimal: for memory under "all" with "m", except for early prefetches. Ignores: the budget under "all" and "conv" (a
plan that does not meet it is refused), sizes, rates. vDNN waits at the end of a layer for its copy out. A plan waits
only when the bytes are needed.
Cost: n log n in the saves, and one pass over the ops; under "dyn" one more for each algorithm that is made smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from elbowroom.plan import Algorithm, Plan
from elbowroom.planners.budget.infeasible import fitting
from elbowroom.planners.problem import Problem, movable
from elbowroom.step.algorithms import with_algorithms
from elbowroom.step.last_step import Ints, LastStep, peak_point
from elbowroom.step.moves import Moves, moves_of, need
from elbowroom.trace import Choice

NAME = "vdnn"
Layers = Literal["none", "conv", "all"]


class VdnnTrial(NamedTuple):
    """Choice of algorithms and swaps, and the bytes that it needs.

    Attributes:
        problem: the problem, its step with these algorithms.
        algorithms: op -> its algorithm.
        moves: the swaps.
        needed: the most allocated bytes per slot.
    """

    problem: Problem
    algorithms: dict[int, Choice]
    moves: Moves
    needed: Ints

    @property
    def fits(self) -> bool:
        """Whether the budget is met."""
        return int(self.needed.max()) <= self.problem.budget_bytes


def vdnn(
    problem: Problem, *, policy: Literal["all", "conv", "dyn"] = "dyn", algorithms: Literal["p", "m"] = "p"
) -> Plan:
    """Swap the inputs of layers.

    Args:
        problem: the problem.
        policy: layers whose inputs are swapped: "all", "conv", or "dyn" for the first that fits.
        algorithms: for convolutions the fastest ("p") or those of the least workspace ("m"); "dyn" finds them.

    Raises:
        Infeasible: the plan holds more than the budget.
    """
    if policy == "dyn":
        trials = _dynamic(problem)
        last = next(trials)
        while not last.fits and (following := next(trials, None)) is not None:
            last = following
    else:
        last = _trial(problem, policy, _best(problem, smallest=algorithms == "m"))
    return fitting(last.problem, NAME, last.moves)


def _dynamic(problem: Problem) -> Iterator[VdnnTrial]:
    """Yield the trials of policy "dyn", in its order."""
    fast = _best(problem, smallest=False)
    static: tuple[Layers, ...] = ("none", "conv", "all")
    yield from (_trial(problem, layers, fast) for layers in static)
    for layers in static[1:]:
        trial: VdnnTrial | None = _trial(problem, layers, fast)
        while trial is not None and not trial.fits:
            trial = _smaller(problem, layers, trial)
            if trial is not None:
                yield trial
    yield _trial(problem, "all", _best(problem, smallest=True))


def _smaller(problem: Problem, layers: Layers, trial: VdnnTrial) -> VdnnTrial | None:
    """Return the same trial with a smaller algorithm for the op at the peak; None if there is none."""
    step = trial.problem.step
    op = step.op_at(peak_point(step, trial.needed))
    now = trial.algorithms.get(op)
    if now is None:
        return None
    less = [choice for choice in step.trace.ops[op].choices if choice.workspace_bytes < now.workspace_bytes]
    if not less:
        return None
    return _trial(problem, layers, trial.algorithms | {op: min(less, key=lambda choice: choice.duration_ns)})


def _best(problem: Problem, *, smallest: bool) -> dict[int, Choice]:
    """Return op -> its fastest or smallest algorithm, for ops that offer several."""
    step, found = problem.step, dict[int, Choice]()
    for op in range(step.first_op, step.end_op) if "algorithm" in problem.allow else ():
        if choices := step.trace.ops[op].choices:
            found[op] = min(choices, key=_by_size if smallest else _by_time)
    return found


def _by_size(choice: Choice) -> tuple[int, int]:
    return choice.workspace_bytes, choice.duration_ns


def _by_time(choice: Choice) -> tuple[int, int]:
    return choice.duration_ns, choice.workspace_bytes


def _trial(problem: Problem, layers: Layers, algorithms: dict[int, Choice]) -> VdnnTrial:
    named = tuple(Algorithm(op=op, choice=algorithms[op].name) for op in sorted(algorithms))
    asked = replace(problem, step=with_algorithms(problem.step, named), algorithms=named)
    none = np.zeros(0, np.int64)
    moves = moves_of(asked.step, none, none) if layers == "none" else _moves(asked, only_convolutions=layers == "conv")
    return VdnnTrial(asked, algorithms, moves, need(asked.step, moves))


def is_convolution(name: str) -> bool:
    """Tell by its name whether an op of forward is a convolution."""
    return "convolution" in name and "backward" not in name


def _moves(problem: Problem, *, only_convolutions: bool) -> Moves:
    step, n = problem.step, movable(problem)
    convolved = _read_by(step, convolutions=True)
    inputs = convolved if only_convolutions else convolved | _read_by(step, convolutions=False)
    n = n[np.isin(step.storage_of(n), list(inputs))]
    return moves_of(step, n, _fetched(step, n, convolved))


def _read_by(step: LastStep, *, convolutions: bool) -> set[int]:
    """Return the storages that convolutions of forward read, or all other ops of forward."""
    ops = (op for op in step.trace.ops[step.first_op : step.end_op] if op.phase == "forward")
    return {storage for op in ops if is_convolution(op.name) == convolutions for storage in op.reads}


def _fetched(step: LastStep, n: Ints, convolved: set[int]) -> Ints:
    """Return for each save of `n` the position at which it starts back: the read of the layer that prefetches it."""
    back = step.first_read[n].copy()
    index_of = {int(save): i for i, save in enumerate(n.tolist())}
    layers = [(at, [index_of[s] for s in saves if s in index_of], has) for at, saves, has in _layers(step, convolved)]
    fetched = [False] * len(layers)
    for current, (at, _, _) in enumerate(layers):
        fetched[current] = True
        for later in range(current + 1, len(layers)):
            _, swapped, is_conv = layers[later]
            if swapped and not fetched[later]:
                fetched[later] = True
                for i in swapped:
                    back[i] = at if at > step.idle_from[n[i]] else back[i]
                break
            if is_conv:
                break
    return back


def _layers(step: LastStep, convolved: set[int]) -> Iterator[tuple[int, list[int], bool]]:
    """Yield layers in backward order: position of the read, saves read there, whether one is a convolution's."""
    read: dict[int, list[int]] = {}
    for save in np.nonzero(step.returns[: len(step.saves)])[0].tolist():
        read.setdefault(int(step.first_read[save]), []).append(save)
    for at in sorted(read):
        yield at, read[at], any(step.saves[save].storage in convolved for save in read[at])
