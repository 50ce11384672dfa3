"""vdnn: swap the input feature maps of layers, each fetched while a later layer's backward pass runs.

Computes: a layer is an op of forward, and what autograd saves of what it reads is its input. Policy "all" swaps every
input, "conv" those of convolutions; the backward pass of a layer fetches the next swapped input that lies ahead, up to
and including the next convolution, or none; what is not fetched so comes back when it is read. Policy "dyn" takes the
first that meets the budget of: keep everything, "conv", "all".
Reference: Rhu, Gimelshein, Clemons, Zulfiqar, Keckler, "vDNN: Virtualized Deep Neural Networks for Scalable,
Memory-Efficient Neural Network Design" (MICRO 2016), its policies and its search window for a prefetch.
Optimal: for memory under "all", but for what is fetched early. Ignores: the budget under "all" and "conv" (a plan that
does not meet it is refused), sizes, rates. Where vDNN waits at the end of a layer for its copy out, a plan waits only
where the bytes are needed.
Cost: n log n in the saves, and one pass over the ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from elbowroom.lifetimes import Ints, LastStep
from elbowroom.moves import Moves, moves_of
from elbowroom.plan import Plan
from elbowroom.planners.infeasible import fitting
from elbowroom.planners.problem import Problem, movable, peak_of

NAME = "vdnn"
Policy = Literal["all", "conv", "dyn"]
STATIC: tuple[Literal["conv", "all"], ...] = ("conv", "all")


def vdnn(problem: Problem, *, policy: Policy = "dyn") -> Plan:
    """Swap the inputs of layers.

    Args:
        problem: what is asked.
        policy: of which layers: "all", "conv", or "dyn" for the first that fits.

    Raises:
        Infeasible: it holds more than the budget.
    """
    wanted = (policy,) if policy != "dyn" else STATIC
    trials = [_moves(problem, only_convolutions=each == "conv") for each in wanted]
    if policy == "dyn":
        trials.insert(0, moves_of(problem.step, *[np.zeros(0, np.int64)] * 2))
    within = [moves for moves in trials if peak_of(problem.step, moves) <= problem.budget_bytes]
    return fitting(problem, NAME, within[0] if within else trials[-1])


def is_convolution(name: str) -> bool:
    """Whether an op of forward is a convolution, by its name."""
    return "convolution" in name and "backward" not in name


def _moves(problem: Problem, *, only_convolutions: bool) -> Moves:
    step, n = problem.step, movable(problem)
    convolved = _read_by(step, convolutions=True)
    inputs = convolved if only_convolutions else convolved | _read_by(step, convolutions=False)
    n = n[np.isin(step.storage_of(n), list(inputs))]
    return moves_of(step, n, _fetched(step, n, convolved))


def _read_by(step: LastStep, *, convolutions: bool) -> set[int]:
    """The storages that ops of forward read: convolutions, or all others."""
    ops = (op for op in step.trace.ops[step.first_op : step.end_op] if op.phase == "forward")
    return {storage for op in ops if is_convolution(op.name) == convolutions for storage in op.reads}


def _fetched(step: LastStep, n: Ints, convolved: set[int]) -> Ints:
    """Per save of `n`, the position at which it starts back: the read of the layer whose window it lies in."""
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
    """The layers by their backward pass: position of the read, saves read there, whether one is a convolution's."""
    read: dict[int, list[int]] = {}
    for save in np.nonzero(step.returns)[0].tolist():
        read.setdefault(int(step.first_read[save]), []).append(save)
    for at in sorted(read):
        yield at, read[at], any(step.saves[save].storage in convolved for save in read[at])
