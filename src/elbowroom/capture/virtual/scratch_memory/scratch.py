"""Scratch: the one table of what ops allocate on CUDA in addition to their results, and in which order.

An op that is not in the table makes its results, in their order, and nothing else. Each entry names its source, the
CUDA file of torch that allocates. It adds "rig" if the bytes were compared with the CUDA build of torch 2.11.0:
tests/fakecuda/probe.py shows it op by op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.ops import ctc, grouped, recurrent, sparse
from elbowroom.capture.virtual.scratch_memory import (
    attention_scratch,
    convolution_scratch,
    layer_scratch,
    ram_scratch,
    reductions,
    sorting_scratch,
)
from elbowroom.capture.virtual.scratch_memory.cudnn_workspaces import PassWorkspace
from elbowroom.capture.virtual.scratch_memory.reductions import partial_bytes
from elbowroom.capture.virtual.torch_cuda.library_settings import ModelledDevice

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import VirtualMode

aten: Any = torch.ops.aten
Results = list[torch.Tensor]
Rule = Callable[["ScratchCall"], None]
LT_BYTES = 2**20
"""Of cuBLASLt's workspace (CUDABlas.cpp; rig)."""


@final
class ScratchCall:
    """An op at work: rules say in order what it allocates.

    Attributes:
        func, args, kwargs: the call.
        results: tensors it made, in the order of the schema.
        facts, cudnn: all that a rule may read of the device.
    """

    __slots__ = ("_mode", "_open", "args", "cudnn", "facts", "func", "kwargs", "results")

    def __init__(self, mode: VirtualMode, func: Any, args: Any, kwargs: Any, results: Results) -> None:
        self._mode = mode
        self._open: list[int] = []
        self.func, self.args, self.kwargs, self.results = func, args, kwargs, results
        self.facts, self.cudnn = mode.settings.facts, mode.settings.cudnn

    def out(self, *indices: int) -> None:
        """Allocate these results now."""
        for index in indices:
            self._mode.ledger.alloc(self.results[index])

    def temp(self, size_bytes: int, workspace: bool = False) -> int:
        """Allocate scratch; it is freed at the end, the last one first, if `drop` did not do so before."""
        if size_bytes <= 0:
            return -1
        number = self._mode.ledger.scratch(size_bytes, "workspace" if workspace else "temporary")
        self._open.append(number)
        return number

    def drop(self, *numbers: int) -> None:
        """Give scratch back now."""
        for number in numbers:
            if number >= 0:
                self._open.remove(number)
                self._mode.ledger.release(number)

    def dims(self, index: int) -> list[int]:
        """Return the dimensions of a reduction: argument `index`; empty for all."""
        given: Any = self.args[index] if len(self.args) > index else self.kwargs.get("dim")
        if isinstance(given, bool) or given is None:
            return []
        return [given] if isinstance(given, int) else list(given)

    def reduce(self, input: torch.Tensor, dims: list[int], item_bytes: int, values_at_once: int = 4) -> None:
        """Allocate scratch of a tensor's reduction; `item_bytes` are those of a partial result."""
        self._reduce(tuple(input.shape), input.stride(), dims, item_bytes, values_at_once)

    def reduce_flat(self, count: int, item_bytes: int) -> None:
        """Allocate scratch of a reduction of `count` elements in a row to one."""
        self._reduce((count,), (1,), [], item_bytes)

    def reduce_rows(self, rows: int, width: int, item_bytes: int) -> None:
        """Allocate scratch of adding up rows."""
        self._reduce((rows, width), (width, 1), [0], item_bytes)

    def _reduce(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dims: list[int], item_bytes: int, at_once: int = 4
    ) -> None:
        of = self.facts
        made = reductions.scratch(shape, strides, dims, item_bytes, of.multiprocessors, of.compute_capability, at_once)
        partial, counters = self.temp(made.partial_bytes), self.temp(made.counter_bytes)
        self.drop(counters, partial)

    def workspace(self, wanted: PassWorkspace) -> None:
        """Allocate and free a workspace of cuDNN."""
        if wanted.likely_bytes or wanted.most_bytes:
            self._mode.ledger.remark("workspace_model", "aten.convolution")
        number = self.temp(wanted.likely_bytes, workspace=True)
        if number >= 0 and wanted.least_bytes < wanted.most_bytes:
            self._mode.ledger.bounds[number] = (wanted.least_bytes, wanted.most_bytes)
        self.drop(number)

    def tried(self, likely_bytes: int, most_bytes: int) -> None:
        """Try algorithms in the free room, up to `most_bytes`; then empty the cache."""
        ledger = self._mode.ledger
        room_bytes = max(0, self._mode.settings.total_bytes - ledger.allocated_bytes)
        number = self.temp(min(likely_bytes, room_bytes), workspace=True)
        if number >= 0:
            ledger.bounds[number] = (0, min(most_bytes, room_bytes))
        self.drop(number)
        ledger.empty_cache()

    def is_new(self, name: str) -> bool:
        """Return whether a name is seen for the first time in the process."""
        found = name not in self._mode.made_once
        self._mode.made_once.add(name)
        return found

    def once(self, name: str, first_bytes: int, kept_bytes: int) -> None:
        """Allocate at the first use in the process: a short-lived block, then one that stays."""
        if self.is_new(name):
            self.drop(self.temp(first_bytes))
            self._mode.ledger.scratch(kept_bytes, "workspace")

    def lt(self) -> None:
        """Note that the op uses cuBLASLt, whose first use of a handle on a stream makes a workspace that stays."""
        self._mode.blas(lt=True)

    def unsupported(self, what: str) -> None:
        """Add a remark that something is not, or not wholly, followed."""
        self._mode.ledger.remark("unsupported", what)

    def blas(self) -> None:
        """Note that the op uses cuBLAS."""
        self._mode.blas()

    def end(self) -> None:
        """Free the remaining scratch, and note the remaining results."""
        for result in self.results:
            if result.device.type == "cuda":
                self._mode.ledger.alloc(result)
        while self._open:
            self._mode.ledger.release(self._open.pop())


@final
class BlasWorkspaces:
    """cuBLAS's workspaces: one for each thread's handle and each stream, made at the first use and kept."""

    def __init__(self, settings: ModelledDevice) -> None:
        self._settings = settings
        self._have: set[tuple[int, int, bool]] = set()

    def asked(self, ledger: Ledger, *, backward: bool, lt: bool) -> None:
        """Note the use of a handle: of backward's thread if `backward`, and by cuBLASLt if `lt`."""
        handle = min(int(backward), self._settings.cublas_handles - 1), ledger.streams.current()
        self._made(ledger, (*handle, False), self._settings.cublas_bytes)
        if lt:
            self._made(ledger, (*handle, True), LT_BYTES)

    def _made(self, ledger: Ledger, key: tuple[int, int, bool], size_bytes: int) -> None:
        if key not in self._have:
            self._have.add(key)
            ledger.scratch(size_bytes, "workspace")


def allocate(mode: VirtualMode, func: Any, args: Any, kwargs: Any, results: Results) -> None:
    """Note everything that one op allocates and frees."""
    if mode.settings.ram:
        ram_scratch.allocate(mode.ledger, func, args, results)
        return
    rule = RULES.get(func)
    if rule is None:
        for result in results:
            if result.device.type == "cuda":
                mode.ledger.alloc(result)
        return
    if not any(each.device.type == "cuda" for each in results) and results:
        return
    call = ScratchCall(mode, func, args, kwargs, results)
    rule(call)
    call.end()


def _blas(call: ScratchCall) -> None:
    """cublas: results, copies of matrices that it cannot read, the handle's workspace (Blas.cpp; rig)."""
    first = 1 if call.func in (aten.addmm.default, aten.baddbmm.default) else 0
    if call.args[first].layout is torch.sparse_coo:
        if not first:
            call.temp(call.results[0].numel() * call.results[0].element_size())  # zeros that the product is added to
        sparse.product(call, *call.args[first : first + 2])
        return
    call.out(*range(len(call.results)))
    if any(map(sparse.is_compressed, call.args)):
        sparse.dense_copy(call, *(each for each in call.args[first : first + 2] if not sparse.is_compressed(each)))
        return
    for matrix in reversed(call.args[first : first + 2]):
        if not _is_read_by_blas(matrix):
            call.temp(matrix.numel() * matrix.element_size())
    call.blas()


def _is_read_by_blas(matrix: torch.Tensor) -> bool:
    """Return whether rows or columns are contiguous: those of an expanded gradient are not (CUDABlas.cpp)."""
    return sparse.in_order(matrix) or (matrix.is_contiguous() and 0 not in matrix.stride()[-2:]) or matrix.numel() < 2


def _gemv(call: ScratchCall) -> None:
    """A product with a vector, which is copied if it was expanded (Blas.cpp; rig)."""
    call.out(0)
    vector = call.args[-1]
    if sparse.is_compressed(call.args[-2]):
        sparse.dense_copy(call, vector)
        return
    if vector.stride() == (0,) and vector.numel() > 1:
        call.temp(vector.numel() * vector.element_size())
    call.blas()


def _addmm(call: ScratchCall) -> None:
    """A product with a bias for each column: cuBLASLt makes a workspace that stays (CUDABlas.cpp; rig)."""
    _blas(call)
    if call.args[0].dim() == 1:
        call.lt()


def _scaled_mm(call: ScratchCall) -> None:
    """A product of eight-bit numbers: always cuBLASLt's (ScaledBlas.cpp; rig)."""
    call.out(0)
    call.lt()


def _native_dropout(call: ScratchCall) -> None:
    """The mask comes before the result (Dropout.cu; rig)."""
    call.out(1, 0)


def _nll_loss2d(call: ScratchCall) -> None:
    """The total weight comes before the result, which is resized later (NLLLoss2d.cu; rig)."""
    call.out(1, 0)


def _sum(call: ScratchCall) -> None:
    """A large reduction; of truth values and short integers, that of a copy in int64 (Reduce.cuh; rig)."""
    call.out(0)
    input, made = call.args[0], call.results[0]
    widened = not input.dtype.is_floating_point and not input.dtype.is_complex and input.dtype is not made.dtype
    call.temp(input.numel() * made.element_size() if widened else 0)
    call.reduce(call.args[0], call.dims(1), partial_bytes(call.args[0].dtype))


def _vector_norm(call: ScratchCall) -> None:
    """A large reduction, with the order of the norm before the dimensions (ReduceNormKernel.cu; rig)."""
    call.out(0)
    call.reduce(call.args[0], call.dims(2), partial_bytes(call.args[0].dtype))


def _truth(call: ScratchCall) -> None:
    """any, all: partial results are as wide as the input (ReduceLogicKernel.cu; rig)."""
    call.out(0)
    call.reduce(call.args[0], call.dims(1), call.args[0].element_size())


def _variance(call: ScratchCall) -> None:
    """var, std: Welford's mean, sum of squares and counts (ReduceMomentKernel.cu; rig)."""
    call.out(*range(len(call.results)))
    call.reduce(call.args[0], call.dims(1), 16, values_at_once=2)


def _extreme(call: ScratchCall) -> None:
    """max, min with indices: a value and its index (ReduceMinValuesKernel.cu, ReduceMaxValuesKernel.cu; rig)."""
    call.out(*range(len(call.results)))
    call.reduce(call.args[0], call.dims(1), 16 if len(call.results) > 1 else call.args[0].element_size())


def _extreme_of_all(call: ScratchCall) -> None:
    """The one largest or smallest, of a dense copy (ReduceAllOps.cpp; rig)."""
    call.out(0)
    _reduce_all(call, call.args[0].element_size())


def _reduce_all(call: ScratchCall, item_bytes: int) -> None:
    input = call.args[0]
    copy = -1 if input.is_contiguous() else call.temp(input.numel() * input.element_size())
    call.reduce_flat(input.numel(), item_bytes)
    call.drop(copy)


def _argument(call: ScratchCall) -> None:
    """argmax, argmin: a value and its index (ReduceArgMaxKernel.cu; rig)."""
    call.out(0)
    if call.dims(1):
        call.reduce(call.args[0], call.dims(1), 16)
    else:
        _reduce_all(call, 16)


def _foreach_norm(call: ScratchCall) -> None:
    """One partial result for each 65,536 elements of each tensor of the longest list (ForeachReduceOp.cu; rig)."""
    tensors = call.args[0]
    chunks = max((-(-tensor.numel() // 65_536) for tensor in tensors), default=0)
    call.temp(len(tensors) * chunks * partial_bytes(tensors[0].dtype))
    call.out(*range(len(call.results)))


def _bce_with_logits(call: ScratchCall) -> None:
    """log_sigmoid, weights of positive targets, then one less the target, gone at the end (Loss.cpp; rig)."""
    input, target = call.args[0], call.args[1]
    positive = call.args[3] if len(call.args) > 3 else call.kwargs.get("pos_weight")
    log_sigmoid = call.temp(input.numel() * input.element_size())
    if positive is not None:
        less_one = call.temp(positive.numel() * positive.element_size())
        each = torch.broadcast_shapes(positive.shape, target.shape).numel()
        weights = call.temp(each * torch.promote_types(positive.dtype, target.dtype).itemsize)
        call.drop(less_one, weights)
    if (call.args[4] if len(call.args) > 4 else call.kwargs.get("reduction", 1)) == 0:
        call.out(0)
        call.drop(log_sigmoid)
        return
    call.temp(input.numel() * input.element_size())
    call.out(0)
    call.reduce_flat(input.numel(), partial_bytes(input.dtype))


def _pointwise_loss(call: ScratchCall) -> None:
    """The loss of each element, and the result, which had the same size at first (Loss.cpp; rig)."""
    call.out(0)
    if (call.args[2] if len(call.args) > 2 else 1) and call.results:
        count = call.results[0].untyped_storage().nbytes()
        each = call.temp(count)
        item = call.results[0].element_size()
        call.reduce_flat(count // item, partial_bytes(call.results[0].dtype))
        call.drop(each)


def _roll(call: ScratchCall) -> None:
    """One dimension after the other (TensorTransformations.cpp; rig)."""
    dims = call.args[2] if len(call.args) > 2 else ()
    for _ in range(len(dims) - 1):
        call.temp(call.args[0].numel() * call.args[0].element_size())
    call.out(0)


def _number_to_power(call: ScratchCall) -> None:
    """The number becomes a tensor of 8 bytes, if it is not 1 (Pow.cpp); rig."""
    call.out(0)
    if call.args[0] != 1:
        call.temp(8)


def _embedding_bag(call: ScratchCall) -> None:
    """Sizes and positions of bags before the result (EmbeddingBag.cu; rig)."""
    call.out(2, 1, 0)


RULES: dict[Any, Rule] = {
    aten.mm.default: _blas,
    aten.addmm.default: _addmm,
    aten.bmm.default: _blas,
    aten.baddbmm.default: _blas,
    aten.mv.default: _gemv,
    aten.native_dropout.default: _native_dropout,
    aten.nll_loss2d_forward.default: _nll_loss2d,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _sum,
    aten.mean.dim: _sum,
    aten.prod.default: _sum,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.any.default: _truth,
    aten.any.dim: _truth,
    aten.all.default: _truth,
    aten.all.dim: _truth,
    aten.var.correction: _variance,
    aten.std.correction: _variance,
    aten.var_mean.correction: _variance,
    aten.max.default: _extreme_of_all,
    aten.min.default: _extreme_of_all,
    aten.max.dim: _extreme,
    aten.min.dim: _extreme,
    aten.amax.default: _extreme,
    aten.amin.default: _extreme,
    aten.argmax.default: _argument,
    aten.argmin.default: _argument,
    aten._foreach_norm.Scalar: _foreach_norm,
    aten.binary_cross_entropy_with_logits.default: _bce_with_logits,
    aten._scaled_mm.default: _scaled_mm,
    **attention_scratch.rules(),
    **convolution_scratch.rules(),
    **layer_scratch.rules(),
    aten.roll.default: _roll,
    aten.mse_loss.default: _pointwise_loss,
    aten.smooth_l1_loss.default: _pointwise_loss,
    aten._embedding_bag.default: _embedding_bag,
    aten._embedding_bag_forward_only.default: _embedding_bag,
    **sorting_scratch.rules(),
    aten.pow.Scalar: _number_to_power,
    **recurrent.RULES,
    **sparse.RULES,
    **ctc.RULES,
    **grouped.RULES,
}
