"""Values: ops whose results depend on values that the virtual device lacks: a plausible result, and a remark.

Values from the host, and those made of them alone, are known (known_values.py). The rest is assumed (plausible.py).
"""

from __future__ import annotations

import dis
import sys
from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.host_values.known_values import KnownValues
from elbowroom.capture.virtual.ops import compressed, dependent_shapes, nested, recurrent
from elbowroom.capture.virtual.tensor import CPU, is_real_floats, is_virtual, meta_like, virtual
from elbowroom.capture.virtual.torch_cuda.storage_methods import without_bytes
from elbowroom.engine.mapped_files import MAPPED, of_file
from elbowroom.torch_compat.core import in_backward, node_name, storage_holders, tensor_uses

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import Special, VirtualMode

aten: Any = torch.ops.aten
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def _item(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    (tensor,) = args
    if not is_virtual(tensor):
        return func(*args)
    certain = mode.values.is_certain(tensor)
    if not certain and (tensor.is_cuda or mode.settings.ram):
        mode.ledger.remark("assumed_value", "aten.item")
    known = mode.values.read(tensor)
    value = func(torch.zeros((), dtype=tensor.dtype, device=CPU) if known is None else known)
    return value if certain else mode.plausible.read(value, compares=mode.values.compares(tensor))


def _close(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    outcome = mode.values.computed(func, args, kwargs)
    if outcome is not None and outcome.certain:
        return outcome.found
    mode.ledger.remark("assumed_value", "aten.allclose")
    return True


def _checked(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> None:
    """Check whether a factorisation succeeded; if that is unknown, it did."""
    outcome = mode.values.computed(aten.any.default, args[:1], {})
    if outcome is not None and outcome.certain:
        func(mode.values.of(args[0]), *args[1:], **kwargs)


def _equal(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    outcome = mode.values.computed(func, args, kwargs)
    if outcome is None or not outcome.certain:
        mode.ledger.remark("assumed_value", "aten.equal")
        return args[0].shape == args[1].shape
    return outcome.found


def _to_copy(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    wanted, tensor = kwargs.get("device"), args[0]
    if wanted is not None and wanted.type == "cuda" and nested.is_strided(tensor):
        return nested.copied(mode, tensor, kwargs)
    if wanted is None or wanted.type != "cpu" or not is_virtual(tensor) or not tensor.is_cuda:
        return mode.run(func, args, kwargs)
    made = _read(mode, "aten._to_copy", tensor, kwargs.get("dtype") or tensor.dtype)
    mode.note(func, args, kwargs, None)
    return made


def _read(mode: VirtualMode, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Copy a tensor to the host."""
    if not mode.values.is_certain(tensor):
        mode.ledger.remark("assumed_value", name)
    known = mode.values.read(tensor)
    if known is not None:
        return aten._to_copy(known, dtype=dtype)
    return torch.zeros(tensor.shape, dtype=dtype, device=CPU)


def _copy(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    target, source = args[0], args[1]
    if is_virtual(target) or not is_virtual(source):
        return mode.run(func, args, kwargs)
    return func(target, _read(mode, "aten.copy_", source, source.dtype))


def _lift(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return args[0] if is_virtual(args[0]) else func(*args, **kwargs)


def _where(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Copy a condition of bytes to one of booleans (TensorCompare.cpp: `where_self_out`)."""
    condition, *others = args
    if is_virtual(condition) and condition.dtype == torch.uint8:
        condition = mode.run(aten._to_copy.default, (condition,), {"dtype": torch.bool})
    return mode.run(func, (condition, *others), kwargs)


def _add(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Add two gradients of one tensor, in place if only the engine holds the first one, as on CUDA.

    The engine adds out of place for tensors of a subclass, which the CUDA build's are not. It also does so if backward
    is to be differentiated (input_buffer.cpp: `can_accumulate_inplace`).
    """
    first, second = args[0], args[1]
    if (
        kwargs
        or not in_backward()
        or torch.is_grad_enabled()
        or not is_virtual(first)
        or not is_virtual(second)
        or (first.shape, first.dtype) != (second.shape, second.dtype)
        or not mode.from_engine()
        or not _is_sole(mode, first)
    ):
        return mode.run(func, args, kwargs)
    return mode.run(aten.add_.Tensor, args, kwargs)


def _is_sole(mode: VirtualMode, tensor: torch.Tensor) -> bool:
    uses = tensor_uses(tensor)
    if mode.watch_adds is not None:
        mode.watch_adds(uses)
    dense = tensor.is_contiguous() or tensor.numel() == _span(tensor)
    return dense and storage_holders(tensor) == 1 and uses <= mode.sole_uses


def _span(tensor: torch.Tensor) -> int:
    """Count the elements from the first to the last address; a dense tensor has no others."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


IN_PLACE_NODES: dict[str, set[Any]] = {
    "IndexBackward0": {aten.index_put.default},
    "MaxBackward0": {aten.scatter.src},
    "MinBackward0": {aten.scatter.src},
    "KthvalueBackward0": {aten.scatter.src},
    "MedianBackward1": {aten.scatter.src},
    "ModeBackward0": {aten.scatter.src},
    "SortBackward0": {aten.scatter.src},
    "TopkBackward0": {aten.scatter.src},
    "GatherBackward0": {aten.scatter_add.default},
    "IndexSelectBackward0": {aten.index_add.default},
    "BinaryCrossEntropyWithLogitsBackward0": {aten.sub.Tensor, aten.mul.Tensor},
}
"""Autograd nodes that work in place, except for tensors of a subclass, with the ops in place (FunctionsManual.cpp)."""

IN_PLACE: dict[Any, Any] = {
    aten.index_put.default: aten.index_put_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
}


def _maybe_in_place(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Work in place on a new result of such a node, as the CUDA build's tensors are of no subclass."""
    if (
        in_backward()
        and is_virtual(args[0])
        and mode.from_engine()
        and func in IN_PLACE_NODES.get(node_name(), ())
        and (func is not aten.mul.Tensor or _is_new(mode, args[0]))
    ):
        return mode.run(IN_PLACE[func], args, kwargs)
    return mode.run(func, args, kwargs)


def _is_new(mode: VirtualMode, tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on one of the last two storages: a loss's new result, not a saved weight."""
    number = mode.ledger.number_of(tensor)
    return number is not None and number >= len(mode.ledger.storages) - 2


def _is_pinned(_mode: VirtualMode, _func: Any, args: Args, _kwargs: Kwargs) -> Any:
    return args[0].is_pinned()


def _is_left_aligned(_mode: VirtualMode, _func: Any, _args: Args, _kwargs: Kwargs) -> Any:
    """Say no: the sizes of rows are unknown, so an encoder makes no nested tensor of its padded input."""
    return False


def _pin(_mode: VirtualMode, _func: Any, args: Args, _kwargs: Kwargs) -> Any:
    return args[0].pin_memory()


def _with_kernel(mode: VirtualMode, _func: Any, args: Args, _kwargs: Kwargs) -> Any:
    """Run `_convolution`, as traced code has it: a convolution with settings of its kernels."""
    return mode.run(aten.convolution.default, args[:9], {})


def _on_storage(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run `set_`: a virtual tensor of the host gets a storage without bytes, always the same for one with bytes."""
    tensor, storage, *layout = args
    if is_virtual(tensor) and isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu":
        storage = without_bytes(storage)
    return mode.run(func, (tensor, storage, *layout), kwargs)


def _on_stream(_mode: VirtualMode, _func: Any, _args: Args, _kwargs: Kwargs) -> Any:
    """Run `record_stream`: work of other streams is over at once, so nothing waits."""


def as_virtual_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a real CPU tensor without its bytes; the value of a small one is known."""
    made = virtual(meta_like(tensor), CPU)
    if of_file(tensor):
        vars(made.untyped_storage())[MAPPED] = True
    if KnownValues.current is not None:
        KnownValues.current.alias(made, tensor.detach())
    return made


def give_up_bytes(tensor: torch.Tensor) -> None:
    """Take the bytes from a tensor of floats of the host, in place, as those that are made without bytes have none."""
    if is_real_floats(tensor):
        tensor.data = as_virtual_cpu(tensor)


def _scalar_tensor(mode: VirtualMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Keep the number of `cuda_tensor[index] = number` on the host (python_variable_indexing.cpp)."""
    if stores_item():
        return func(*args, **{**kwargs, "device": CPU})
    return mode.run(func, args, kwargs)


def stores_item() -> bool:
    """Return whether the calling Python code is at `x[index] = value`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    caller = frame.f_back
    return caller is not None and caller.f_code.co_code[caller.f_lasti] == STORE_ITEM


STORE_ITEM = dis.opmap["STORE_SUBSCR"]


OTHERS: dict[Any, Special] = {
    aten._local_scalar_dense.default: _item,
    aten._linalg_check_errors.default: _checked,
    aten.allclose.default: _close,
    aten.equal.default: _equal,
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy,
    aten.lift_fresh.default: _lift,
    aten.add.Tensor: _add,
    aten.where.self: _where,
    **dict.fromkeys(IN_PLACE, _maybe_in_place),
    aten.scalar_tensor.default: _scalar_tensor,
    **dependent_shapes.SPECIALS,
    **nested.SPECIALS,
    aten._cudnn_rnn_flatten_weight.default: recurrent.flatten_weight,
    aten.is_pinned.default: _is_pinned,
    aten._nested_tensor_from_mask_left_aligned.default: _is_left_aligned,
    aten._pin_memory.default: _pin,
    aten.record_stream.default: _on_stream,
    aten._convolution.default: _with_kernel,
    aten.set_.source_Storage_storage_offset: _on_storage,
}

SPECIALS: dict[Any, Special] = OTHERS | compressed.specials(OTHERS)
