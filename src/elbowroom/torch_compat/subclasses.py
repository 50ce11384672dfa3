"""Private torch symbols for tensors that stand for others: subclasses, and levels of torch.func.

Checked on 2.11.0 (its CUDA build, on the rig) and 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch

_FUNCTORCH: Any = vars(torch._C)["_functorch"]


def wraps_others(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor names the tensors that it wraps by `__tensor_flatten__`. The query's module is private."""
    if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
        return False
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return is_traceable_wrapper_subclass(tensor)


stands_for_zeros: Callable[[torch.Tensor], bool] = vars(torch._C.TensorBase)["_is_zerotensor"]
"""Tells whether a tensor is all zeros without bytes, as forward-mode derivatives make; no public query exists."""

base_of: Callable[[torch.Tensor], torch.Tensor | None] = attrgetter("_base")
"""Returns the tensor that this one is a view of; None if it is no view. It has no public name in Python."""


def jagged_attention() -> Any:
    """Return the module that chooses the kernel of attention on jagged tensors, by functions of torch.backends.cuda."""
    from torch.nested._internal import sdpa

    return sdpa


def have_dtensor_draw(mode: type[Any], draw: Callable[..., Any]) -> None:
    """Let `draw(mode, op, args, kwargs)` run a random op of a DTensor's own part under a mode.

    From torch 2.13 on, DTensor calls a higher-order operator for it. A mode that does not know the operator refuses it.
    """
    from torch._prims import rng_prims

    operator: Any = vars(rng_prims).get("run_dtensor_rng_op")
    if operator is not None and mode not in operator.python_key_table:
        operator.py_impl(mode)(lambda at, _start, _end, op, *args, **kwargs: draw(at, op, args, kwargs))


def finish(tensor: Any) -> None:
    """Wait for the collective that an AsyncCollectiveTensor is the result of; its class has no public name."""
    with torch.no_grad():
        tensor.trigger_wait()


def adds_no_dispatch(kind: type) -> bool:
    """Tell whether ops on a subclass are those on plain tensors: it does not define `__torch_dispatch__`."""
    return getattr(kind, "__torch_dispatch__", None) is torch._C._disabled_torch_dispatch_impl


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor with the bytes and the version counter of one whose subclass adds no dispatch."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor).detach()


def bare_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the version counter of one that wraps others, without references to the others.

    Below Python's dispatch, detach copies the outer tensor only, which has no bytes.
    """
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
        return tensor.detach()


made_by_a_transform: Callable[[torch.Tensor], bool] = _FUNCTORCH.is_functorch_wrapped_tensor
"""Tells whether torch.func made a tensor to stand for another one at one of its levels."""

transform_now: Callable[[], int | None] = _FUNCTORCH.maybe_current_level
"""Returns the present level of torch.func; None outside of it."""


@contextmanager
def transforms_allowed(ours: Callable[..., Any]) -> Iterator[None]:
    """Let torch.func's transforms begin while these saved-tensor hooks are on.

    grad, vjp, jacrev and hessian call torch.autograd.graph.disable_saved_tensors_hooks, which refuses if hooks are on.
    If ours are the innermost, they are switched off meanwhile instead, as the compiler does while it traces. Hooks of
    the user are refused as before.

    Args:
        ours: our pack hook.
    """
    graph: Any = torch.autograd.graph
    autograd: Any = vars(torch._C)["_autograd"]
    before = graph.disable_saved_tensors_hooks

    @contextmanager
    def disable(message: str) -> Iterator[None]:
        innermost = autograd._top_saved_tensors_default_hooks(True)
        if not message.startswith("torch.func") or innermost is None or innermost[0] != ours:
            with before(message):
                yield
            return
        earlier = autograd._saved_tensors_hooks_get_disabled_error_message()
        autograd._saved_tensors_hooks_disable(message, False)
        try:
            yield
        finally:
            if earlier is None:
                autograd._saved_tensors_hooks_enable()
            else:
                autograd._saved_tensors_hooks_disable(earlier, False)

    graph.disable_saved_tensors_hooks = disable
    try:
        yield
    finally:
        graph.disable_saved_tensors_hooks = before
