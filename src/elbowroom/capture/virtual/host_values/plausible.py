"""Plausible: assumed values of results that a network computes; they break no script, and end loops that wait for one.

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
"""Assumed number x of a network: logarithm, reciprocal and exponential of x and of 1 - x are harmless."""
SPREAD = 0.25
"""Distance from `ASSUMED` within which small tensors lie: no two elements are alike, so deviations are not 0."""
SEEDS = 1021
"""Number of different tensors that may be assumed."""
TURNS = 1000
"""Reads of numbers by one place in a script between two steps that show a loop waiting for another number."""
ASKED = 4000
"""Reads of truth values that show such a loop: a generation reads one for each token."""
COMPARED = 300
"""Reads of comparisons that show such a loop: an iteration that goes on until numbers are close."""
BLOCK = 50
"""Reads in a row that get one answer then, before the next answer: values that are close stay so for a while."""
WAITED_FOR = (1e-9, 100.0)
"""Numbers that such a loop gets in turn: converged, and far."""


@cache
def _pool_bytes() -> bytearray:
    """Return bytes for assumed values; they are no tensor, as a later recorded step would have that as its input."""
    count = ASSUMED_BYTES // 2 + SEEDS
    numbers = torch.Generator("cpu").manual_seed(0)
    drawn = torch.empty(count, device=CPU).uniform_(ASSUMED - SPREAD, ASSUMED + SPREAD, generator=numbers)
    return bytearray(drawn.numpy().tobytes())


def _pool() -> torch.Tensor:
    return torch.frombuffer(_pool_bytes(), dtype=torch.float32)


@final
class Plausible:
    """Assumed values of results that are not known."""

    def __init__(self) -> None:
        self._turns: dict[tuple[Any, int], int] = {}

    def result(self, values: KnownValues, func: Any, args: Args, kwargs: Kwargs, results: list[Any]) -> None:
        """Set values of tensors that an op made or changed, if there is a rule for them."""
        rule = RULES.get(func)
        if rule is None:
            return
        changed = [args[1]] if func is _CHECK else results
        for tensor, real in zip(changed, rule(args, kwargs, changed), strict=True):
            if (real is not None and values.of(tensor) is None) or (func in FORCED and real is not None):
                values.keep(tensor, real.to(tensor.dtype).expand(tensor.shape), certain=False)

    def drawn(self, count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
        """Return numbers around one half, integers 0, truth values false; equal seeds give equal ones."""
        if not (dtype.is_floating_point or dtype.is_complex):
            return torch.zeros(count, dtype=dtype, device=CPU)
        first = seed % SEEDS
        return _pool()[first : first + count].to(dtype, copy=True)

    def read(self, value: Any, *, compares: bool = False) -> Any:
        """Return the number that a script reads: finite, and another one if a loop waits for it.

        Args:
            value: the assumed number.
            compares: whether it is the result of a comparison.
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
        """Note that a step of the training is over."""
        self._turns.clear()


VALIDATING = tuple(str(Path(torch.__file__).parent / name) for name in ("distributions",))
"""Folders of code that checks arguments: these are valid, as in a script that runs."""


def _reader() -> FrameType | None:
    """Return the frame of the Python code that reads a number: the caller of torch's dispatch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    return None if frame is None else frame.f_back


def _another(value: Any, block: int) -> Any:
    if isinstance(value, bool):
        return value ^ (not block)
    return WAITED_FOR[block] if isinstance(value, float) else value + 1 - block


# Rules: results of an op whose inputs are not known; None for a result without a rule.


def _number(value: float) -> torch.Tensor:
    return torch.tensor(value, device=CPU)


def _size(args: Args, kwargs: Kwargs, place: int, default: int | None) -> tuple[int | None, int]:
    """Return the dimension of an op, and its size; without a dimension, None and the number of all elements."""
    dim = args[place] if len(args) > place else kwargs.get("dim", default)
    tensor = args[0]
    if dim is None:
        return None, tensor.numel()
    return dim, tensor.shape[dim] if tensor.dim() else 1


def _spread(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return positions in range, one after the other."""
    return (torch.arange(tensor.numel(), device=CPU) % max(1, size)).view(tensor.shape)


def _position(args: Args, kwargs: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
    _, size = _size(args, kwargs, 1, None)
    return [_spread(results[0], size)]


def _with_position(default: int | None, place: int) -> Rule:
    """Make the rule for positions that come with values, as of `max(dim)`."""

    def rule(args: Args, kwargs: Kwargs, results: list[torch.Tensor]) -> list[torch.Tensor | None]:
        if len(results) < 2:
            return [None] * len(results)
        _, size = _size(args, kwargs, place, default)
        return [None, _spread(results[1], size)]

    return rule


def _order(default: int | None, place: int) -> Rule:
    """Make the rule for positions that differ along the dimension, as of `topk` and `sort`.

    Each row begins one further on. So a router that chooses experts gives each as many tokens.
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
    """Count half of the elements as true."""
    if args[0].dtype is not torch.bool:
        return [None]
    counted = args[0].numel() // max(1, results[0].numel())
    return [_number(counted // 2)]


def _constant(value: float) -> Rule:
    return lambda _, __, results: [_number(value)] * len(results)


def _compared(args: Args, _: Kwargs, results: list[torch.Tensor], equal: bool) -> list[torch.Tensor | None]:
    """Compare: `x == x` is true, and no number is infinite."""
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
    aten.max.dim: _with_position(None, 1),
    aten.min.dim: _with_position(None, 1),
    aten.median.dim: _with_position(None, 1),
    aten.nanmedian.dim: _with_position(None, 1),
    aten.mode.default: _with_position(-1, 1),
    aten.kthvalue.default: _with_position(-1, 2),
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
