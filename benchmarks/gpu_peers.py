"""What training on a GPU is compared with, and how far each gets: the peers of benchmarks.gpu, run in its parts.

A peer is a context around each step, made once from the model; `Absent` says why one cannot run here.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import elbowroom as er
from benchmarks.planning.models import setup_of

PEERS = ("save_on_cpu", "checkpoint on blocks", "OffloadActivations of TRL", "compiled, memory budget 0.5")
LARGEST: dict[str, tuple[str, int, int]] = {"resnet50": ("batch", 16, 512), "unet3d": ("resolution", 16, 256)}
"""What is searched: the setting, its step, and where the search ends."""
WARM = 3
"""Steps after which a size is held to fit: elbowroom has observed and planned by then."""


class Absent(Exception):
    """A peer that cannot run here."""


def around_steps(peer: str, model: nn.Module) -> Callable[[], AbstractContextManager[Any]]:
    """Make a model ready for a peer; what each step then runs in.

    Raises:
        Absent: it cannot run here.
    """
    if peer == "save_on_cpu":
        return partial(torch.autograd.graph.save_on_cpu, pin_memory=True)
    if peer == "checkpoint on blocks":
        blocks = list(blocks_of(model))
        if not blocks:
            raise Absent(f"{type(model).__name__} has no list of blocks")
        for block in blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    elif peer == "OffloadActivations of TRL":
        try:
            from trl.models.activation_offloading import OffloadActivations  # pyright: ignore[reportMissingImports]
        except ImportError as problem:
            raise Absent(f"TRL is not installed: {problem}") from None
        return OffloadActivations  # pyright: ignore[reportUnknownVariableType]
    else:
        if find_spec("triton") is None:
            raise Absent("triton is not installed, with which the compiler makes kernels")
        from torch._functorch import config

        config.activation_memory_budget = 0.5
        model.compile()
    return nullcontext


def trained(name: str, settings: dict[str, Any]) -> tuple[Callable[[], Any], nn.Module]:
    """The step of a case, and its model."""
    step, (model,) = with_models(setup_of(name, **settings))
    return step, model


def with_models(make: Callable[[], Callable[[], Any]]) -> tuple[Callable[[], Any], list[nn.Module]]:
    """The step that is made, and its models: the outermost modules with parameters that were not there before."""
    before = {id(module) for module in _modules()}
    step = make()
    made = [module for module in _modules() if id(module) not in before]
    inside = {id(child) for module in made for child in module.children()}
    outermost = [module for module in made if id(module) not in inside]
    return step, [module for module in outermost if any(True for _ in module.parameters())]


def _modules() -> list[nn.Module]:
    return [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]


def blocks_of(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks that a user would put checkpoints around: the members of lists, and of the lists in these."""
    for child in model.children():
        if _holds_blocks(child):
            yield from _blocks_in(child)


def _blocks_in(blocks: nn.Module) -> Iterator[nn.Module]:
    for each in blocks.children():
        if _holds_blocks(each):
            yield from _blocks_in(each)
        elif any(True for _ in each.children()):
            yield each


def _holds_blocks(module: nn.Module) -> bool:
    """Whether a module is a list of more than layers."""
    return isinstance(module, nn.ModuleList | nn.Sequential) and any(any(True for _ in m.children()) for m in module)


def largest(name: str, within: str, settings: str, limit_bytes: str) -> Iterator[dict[str, Any]]:
    """The largest batch or resolution of a case whose steps run in so much memory, plain or within a budget.

    What has been found by then is told after each that fits: whoever ends the search has that.

    Args:
        name: one of LARGEST.
        within: "plain", or "within".
        settings: of the case, as JSON.
        limit_bytes: of the allocator, for both.
    """
    setting, stride, most = LARGEST[name]
    limit = int(limit_bytes)
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    base = json.loads(settings)
    asked = {"setting": setting, "stride": stride, "limit_bytes": limit, "ends_at": most}
    for low, through in search(lambda value: _fits(name, {**base, setting: value}, within, limit), stride, most):
        yield {**asked, "largest": low, "through": through}


def search(fits: Callable[[int], bool], stride: int, most: int) -> Iterator[tuple[int, bool]]:
    """The largest multiple of a stride that fits, by doubling and then halving.

    Args:
        fits: whether a value does; no larger one than one that does not.
        stride: the least value, and how closely it is searched.
        most: the largest value of interest.

    Yields:
        The largest known by now, and whether that is all.
    """
    low, high = 0, stride
    while high <= most and fits(high):
        low, high = high, 2 * high
        yield low, False
    high = min(high, most + stride)
    while high - low > stride:
        middle = (low + high) // 2 // stride * stride
        if fits(middle):
            low = middle
            yield low, False
        else:
            high = middle
    yield low, True


def _fits(name: str, settings: dict[str, Any], within: str, limit_bytes: int) -> bool:
    gc.collect()
    torch.cuda.empty_cache()
    try:
        with torch.device("cuda"):
            step = setup_of(name, **settings)()
        with er.within(limit_bytes) if within == "within" else nullcontext():
            for _ in range(WARM):
                step()
        torch.cuda.synchronize()
    except (torch.OutOfMemoryError, er.Infeasible, er.TierError):
        return False
    return True
