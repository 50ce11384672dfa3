"""What is assumed of values that a network computes: nothing breaks a script, and a loop that waits for one ends.

docs/values.md has the rules.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, final

import torch

from elbowroom.capture.virtual.host_values.known_values import ASSUMED_BYTES, KnownValues
from elbowroom.capture.virtual.tensor import CPU

aten: Any = torch.ops.aten
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Rule = Callable[[Args, Kwargs, list[torch.Tensor]], list[torch.Tensor | None]]
ASSUMED = 0.5
"""A number that a network computes: its logarithm, reciprocal and exponential are harmless, and those of 1 - x."""
SPREAD = 0.25
"""Small tensors lie within so much of it: no two elements are alike, so deviations are not 0."""
SEEDS = 1021
"""Different tensors that may be assumed."""
TURNS = 1000
"""A place in a script that reads so many numbers between two steps is in a loop that waits for another one."""
ASKED = 4000
"""And one that asks so often whether something is true: a generation asks once for each token."""
COMPARED = 300
"""And one that asks so often how numbers compare: an iteration that goes on until they are close."""
BLOCK = 50
"""As many reads in a row get one answer then, and the next ones another: what is close stays so for a while."""
WAITED_FOR = (1e-9, 100.0)
"""Numbers that it gets then in turn: converged, and far."""


@cache
def _pool_bytes() -> bytearray:
    """Kept without a tensor, which a step that is recorded later would be taken to have as its input."""
    count = ASSUMED_BYTES // 2 + SEEDS
    numbers = torch.Generator("cpu").manual_seed(0)
    drawn = torch.empty(count, device=CPU).uniform_(ASSUMED - SPREAD, ASSUMED + SPREAD, generator=numbers)
    return bytearray(drawn.numpy().tobytes())


def _pool() -> torch.Tensor:
    return torch.frombuffer(_pool_bytes(), dtype=torch.float32)


@final
class Plausible:
    """What values are given to what is not known."""

    def __init__(self) -> None:
        self._turns: dict[tuple[Any, int], int] = {}

    def result(self, values: KnownValues, func: Any, args: Args, kwargs: Kwargs, results: list[Any]) -> None:
        """Values of what an op made or changed, where a rule says something of them."""
        rule = RULES.get(func)
        if rule is None:
            return
        changed = [args[1]] if func is _CHECK else results
        for tensor, real in zip(changed, rule(args, kwargs, changed), strict=True):
            if (real is not None and values.of(tensor) is None) or (func in FORCED and real is not None):
                values.keep(tensor, real.to(tensor.dtype).expand(tensor.shape), certain=False)

    def drawn(self, count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
        """Numbers around one half, integers 0, truth values false; the same for the same seed."""
        if not (dtype.is_floating_point or dtype.is_complex):
            return torch.zeros(count, dtype=dtype, device=CPU)
        first = seed % SEEDS
        return _pool()[first : first + count].to(dtype, copy=True)

    def read(self, value: Any, *, compares: bool = False) -> Any:
        """A number that a script reads: finite, and another one where a loop waits for it.

        Args:
            value: what it would be.
            compares: whether it says how numbers compare.
        """
        if isinstance(value, float) and not math.isfinite(value):
            value = ASSUMED
        place = _reader()
        if place is None:
            return value
        if isinstance(value, bool) and place.f_code.co_filename.startswith(VALIDATING):
            return True
        key = place.f_code, place.f_lasti
        turn = self._turns[key] = self._turns.get(key, 0) + 1
        most = TURNS if not isinstance(value, bool) else COMPARED if compares else ASKED
        return value if turn < most else _another(value, (turn - most) // BLOCK % 2)

    def step(self) -> None:
        """A step of the training is over."""
        self._turns.clear()


VALIDATING = tuple(str(Path(torch.__file__).parent / name) for name in ("distributions",))
"""Where arguments are checked: they are as they should be, as in a script that runs."""


def _reader() -> FrameType | None:
    """The Python code that reads a number: what called into torch's dispatch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    return None if frame is None else frame.f_back


def _another(value: Any, block: int) -> Any:
    if isinstance(value, bool):
        return value ^ (not block)
    return WAITED_FOR[block] if isinstance(value, float) else value + 1 - block


# Rules: what an op gives whose inputs are not known. None where nothing is said.


def _number(value: float) -> torch.Tensor:
    return torch.tensor(value, device=CPU)


def _size(args: Args, kwargs: Kwargs, place: int, default: int | None) -> tuple[int | None, int]:
    """The dimension that an op works along, and its size; that of all dimensions where there is none."""
    dim = args[place] if len(args) > place else kwargs.get("dim", default)
    tensor = args[0]
    if dim is None:
        return None, tensor.numel()
    return dim, tensor.shape[dim] if tensor.dim() else 1


def _spread(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Positions in range, one after the other."""
    return (torch.arange(tensor.numel(), device=CPU) % max(1, size)).view(tensor.shape)


def _position(args: Args, kwargs: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
    _, size = _size(args, kwargs, 1, None)
    return [_spread(results[0], size)]


def _position_beside(default: int | None, place: int) -> Rule:
    """Positions beside values, as of `max(dim)`."""

    def rule(args: Args, kwargs: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
        if len(results) < 2:
            return [None] * len(results)
        _, size = _size(args, kwargs, place, default)
        return [None, _spread(results[1], size)]

    return rule


def _order(default: int | None, place: int) -> Rule:
    """Positions of which none comes twice along the dimension, as of `topk` and `sort`.

    Each row begins one further on: a router that chooses experts so gives each as many tokens.
    """

    def rule(args: Args, kwargs: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
        places = results[1]
        dim, size = _size(args, kwargs, place, default)
        if dim is None or not places.dim() or not places.numel():
            return [None, _number(0)]
        kept = places.shape[dim]
        rows = torch.arange(places.numel() // kept, device=CPU).unsqueeze(1)
        turned = (rows + torch.arange(kept, device=CPU)) % size
        others = [each for at, each in enumerate(places.shape) if at != dim % places.dim()]
        return [None, turned.view(*others, kept).movedim(-1, dim)]

    return rule


def _drawn_positions(args: Args, _: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
    return [_spread(results[0], args[0].shape[-1])]


def _half_of(args: Args, _: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """How many are true: half of those that are counted."""
    if args[0].dtype is not torch.bool:
        return [None]
    counted = args[0].numel() // max(1, results[0].numel())
    return [_number(counted // 2)]


def _constant(value: float) -> Rule:
    return lambda _, __, results: [_number(value)] * len(results)


def _compared(args: Args, _: Kwargs, results: list[torch.Tensor], equal: bool) -> list[torch.Tensor | None]:
    """`x == x` is true; nothing is infinite."""
    other = args[1]
    if isinstance(other, float) and not math.isfinite(other):
        return [_number(not equal)]
    return [_number(equal) if other is args[0] else None]


def _equals(args: Args, kwargs: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
    return _compared(args, kwargs, results, True)


def _differs(args: Args, kwargs: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
    return _compared(args, kwargs, results, False)


def _succeeds(_: Args, __: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """A factorisation succeeds: its `info` is 0."""
    return [_number(0) if each.dtype is torch.int32 and each is results[-1] else None for each in results]


_CHECK = aten._amp_foreach_non_finite_check_and_unscale_.default
FACTORISATIONS = (
    aten.linalg_cholesky_ex.default,
    aten.linalg_inv_ex.default,
    aten._linalg_solve_ex.default,
    aten.linalg_lu_factor_ex.default,
    aten.linalg_ldl_factor_ex.default,
)
FORCED = {_CHECK, *FACTORISATIONS}
"""Ops whose results are these also where they were computed from what is assumed."""
RULES: dict[Any, Rule] = {
    _CHECK: _constant(0),
    aten.argmax.default: _position,
    aten.argmin.default: _position,
    aten.max.dim: _position_beside(None, 1),
    aten.min.dim: _position_beside(None, 1),
    aten.median.dim: _position_beside(None, 1),
    aten.nanmedian.dim: _position_beside(None, 1),
    aten.mode.default: _position_beside(-1, 1),
    aten.kthvalue.default: _position_beside(-1, 2),
    aten.topk.default: _order(-1, 2),
    aten.sort.default: _order(-1, 1),
    aten.sort.stable: _order(-1, 3),
    aten.multinomial.default: _drawn_positions,
    aten.sum.default: _half_of,
    aten.sum.dim_IntList: _half_of,
    aten.count_nonzero.default: _half_of,
    aten.count_nonzero.dim_IntList: _half_of,
    aten.all.default: _constant(1),
    aten.all.dim: _constant(1),
    aten.all.dims: _constant(1),
    aten.isnan.default: _constant(0),
    aten.isinf.default: _constant(0),
    aten.eq.Scalar: _equals,
    aten.eq.Tensor: _equals,
    aten.ne.Scalar: _differs,
    aten.ne.Tensor: _differs,
    **dict.fromkeys(FACTORISATIONS, _succeeds),
}
"""What is said of the results of an op."""
