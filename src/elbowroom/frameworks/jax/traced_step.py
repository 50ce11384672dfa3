"""Traced step: calls JAX to trace a training step, and says of each argument what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
from jax.tree_util import (  # pyright: ignore[reportMissingImports]
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_structure,
)

from elbowroom.errors import CaptureError, UsageError
from elbowroom.frameworks.jax.flat_step import FlatInput


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJaxStep:
    """A jaxpr and its arguments.

    Attributes:
        jaxpr: the closed jaxpr.
        inputs: one for each argument that is an array; `becomes` is the number of an output.
        pieces: into how many pieces the dimensions of each are cut; None if it is whole.
        devices: on how many devices the arguments lie.
    """

    jaxpr: Any
    inputs: tuple[FlatInput, ...]
    pieces: tuple[tuple[int, ...] | None, ...]
    devices: int


def traced_step(step: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> TracedJaxStep:
    """Trace a step without computing anything.

    Raises:
        UsageError: it is no function.
        CaptureError: JAX cannot trace it.
    """
    if not callable(step):
        raise UsageError(
            f"capture_jax: given a step of type {type(step).__name__}; allowed is a function, jitted or not; give the "
            "function that does one training step, and then its arguments"
        )
    try:
        return _of_jitted(step, args, kwargs) if _is_jitted(step) else _of_function(step, args, kwargs)
    except (TypeError, ValueError, jax.errors.JAXTypeError) as problem:
        raise CaptureError(
            f"capture_jax: JAX cannot trace the step: {type(problem).__name__}: {str(problem).splitlines()[0]}; "
            "allowed is what jax.jit takes; call the step once with these arguments, and make static what is no array"
        ) from problem


def _is_jitted(step: Any) -> bool:
    return hasattr(step, "trace") and hasattr(step, "lower")


def _of_jitted(step: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> TracedJaxStep:
    """A function under `jax.jit` or `nnx.jit` says itself what is static and what is donated."""
    stage = step.trace(*args, **kwargs)
    stage = getattr(stage, "traced", stage)  # of nnx.jit
    infos, _ = tree_flatten_with_path(stage.args_info)
    shardings = [getattr(info, "sharding", None) for _, info in infos]
    shardings = _own_shardings(args, kwargs, shardings)
    donated = [bool(getattr(info, "donated", False)) for _, info in infos]
    paths = [keystr(path) for path, _ in infos]
    return _found(stage.jaxpr, paths, donated, shardings, stage.args_info[0], stage.out_info)


def _of_function(step: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> TracedJaxStep:
    """Arrays among the arguments of any function are traced; what else there is stays as it is."""
    leaves, structure = tree_flatten((tuple(args), kwargs))
    at = [n for n, leaf in enumerate(leaves) if _is_array(leaf)]
    paths = [keystr(path) for path, _ in tree_flatten_with_path((tuple(args), kwargs))[0]]

    def of_arrays(*arrays: Any) -> Any:
        all_leaves = list(leaves)
        for n, array in zip(at, arrays, strict=True):
            all_leaves[n] = array
        given, named = structure.unflatten(all_leaves)
        found = tree_flatten(step(*given, **named))[0]
        return [leaf for leaf in found if _is_array(leaf)]

    closed = jax.make_jaxpr(of_arrays)(*(leaves[n] for n in at))
    donated = [False] * len(at)
    calls = closed.jaxpr.eqns
    if len(calls) == 1 and list(calls[0].invars) == list(closed.jaxpr.invars):
        donated = [bool(each) for each in calls[0].params.get("donated_invars", donated)]
    arrays = [leaves[n] for n in at]
    shardings = [getattr(array, "sharding", None) for array in arrays]
    return _found(closed, [paths[n] for n in at], donated, shardings, arrays, closed.out_avals)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _own_shardings(args: Sequence[Any], kwargs: dict[str, Any], found: list[Any]) -> list[Any]:
    """Take the shardings of the arguments themselves, if there are as many arrays as the trace has arguments."""
    arrays = [leaf for leaf in tree_flatten((tuple(args), kwargs))[0] if _is_array(leaf)]
    if len(arrays) != len(found):
        return found
    return [getattr(array, "sharding", None) or known for array, known in zip(arrays, found, strict=True)]


def _found(
    closed: Any, paths: list[str], donated: list[bool], shardings: list[Any], args: Any, outputs: Any
) -> TracedJaxStep:
    avals = [var.aval for var in closed.jaxpr.invars]
    if len(avals) != len(paths):
        raise ValueError(f"the program has {len(avals)} arguments, and the step {len(paths)} arrays")
    becomes = _successors(args, outputs, avals, list(closed.out_avals), donated)
    inputs = [
        FlatInput(value=-1, path=path, becomes=at, written_over=over and at is not None)
        for path, at, over in zip(paths, becomes, donated, strict=True)
    ]
    cuts = [_pieces(aval, sharding) for aval, sharding in zip(avals, shardings, strict=True)]
    devices = max((len(sharding.device_set) for sharding in shardings if sharding is not None), default=1)
    return TracedJaxStep(jaxpr=closed, inputs=tuple(inputs), pieces=tuple(cuts), devices=devices)


def _pieces(aval: Any, sharding: Any) -> tuple[int, ...] | None:
    if sharding is None or len(sharding.device_set) < 2:
        return None
    shape = tuple(aval.shape)
    local = sharding.shard_shape(shape)
    return tuple(-(-size // part) if part else 1 for size, part in zip(shape, local, strict=True))


def _kind_of(aval: Any) -> tuple[Any, str]:
    return tuple(aval.shape), str(aval.dtype)


def _successors(args: Any, outputs: Any, avals: list[Any], results: list[Any], donated: list[bool]) -> list[int | None]:
    """Return for each argument the output that takes its place: of donated ones as JAX pairs them, else by structure.

    JAX gives each output the first donated argument of its shape and type that is left (jax/_src/interpreters/mlir.py,
    `_set_up_aliases`).
    """
    found: list[int | None] = [None] * len(avals)
    if any(donated):
        free: dict[Any, list[int]] = {}
        for n, aval in enumerate(avals):
            if donated[n]:
                free.setdefault(_kind_of(aval), []).append(n)
        for at, aval in enumerate(results):
            if waiting := free.get(_kind_of(aval)):
                found[waiting.pop(0)] = at
    _by_structure(args, outputs, avals, results, found)
    return found


def _by_structure(args: Any, outputs: Any, avals: list[Any], results: list[Any], found: list[int | None]) -> None:
    """Pair the parts of arguments and results that are alike as trees: parameters, states, buffers."""
    taken = {at for at in found if at is not None}
    first = 0
    spans: list[tuple[Any, int, int]] = []
    for part in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        count = tree_structure(part).num_leaves
        spans.append((tree_structure(part), first, first + count))
        first += count
    start = 0
    for part in args:
        structure = tree_structure(part)
        end = start + structure.num_leaves
        for other, low, high in spans:
            own, theirs = [_kind_of(a) for a in avals[start:end]], [_kind_of(r) for r in results[low:high]]
            if other.num_leaves == structure.num_leaves and own == theirs and taken.isdisjoint(range(low, high)):
                found[start:end] = [
                    kept if kept is not None else at
                    for kept, at in zip(found[start:end], range(low, high), strict=True)
                ]
                taken.update(range(low, high))
                break
        start = end
