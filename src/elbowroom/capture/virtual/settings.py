"""What the virtual device is told about the machine and its libraries, which have no open source to read it from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, Self

from elbowroom.capture.facts import Facts
from elbowroom.machine import Machine

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall:
    """One pass of a convolution that cuDNN runs.

    Attributes:
        input_shape, weight_shape, output_shape: of the forward convolution.
        item_bytes: bytes of an element.
        pass_: "forward", "input" (gradient of the input) or "weight" (gradient of the weight).
        channels_last: whether the tensors are in the layout of tensor cores.
        tensor_cores: whether the call may use them: half precision, or float32 as TF32 from capability 8.0 on.
        stride, dilation: of the spatial dimensions; one number stands for all.
        groups: parts whose channels do not mix.
        compute_capability: of the GPU, major * 10 + minor.
        deterministic: whether only algorithms that give the same bits again are allowed.
        benchmark: whether the fastest of all algorithms is taken, not the one that is thought to be.
    """

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    item_bytes: int
    pass_: str
    channels_last: bool = False
    tensor_cores: bool = False
    stride: tuple[int, ...] = (1,)
    dilation: tuple[int, ...] = (1,)
    groups: int = 1
    compute_capability: int = 90
    deterministic: bool = False
    benchmark: bool = False


class Wanted(NamedTuple):
    """Workspace of one pass.

    Attributes:
        likely_bytes, least_bytes, most_bytes: of the algorithm that runs.
        tried_bytes: of the hungriest algorithm that `cudnn.benchmark` tries.
    """

    likely_bytes: int
    least_bytes: int
    most_bytes: int
    tried_bytes: int

    @classmethod
    def exactly(cls, size_bytes: int) -> Self:
        """So much, whatever the algorithm."""
        return cls(size_bytes, size_bytes, size_bytes, size_bytes)


def no_workspace(_call: ConvolutionCall) -> Wanted:
    """As in a test against a cuDNN that needs none."""
    return Wanted.exactly(0)


def layout_workspace(call: ConvolutionCall) -> Wanted:
    """Copies of all three tensors in the layout of tensor cores, where they have another one: stated, not measured.

    Kernels of other kinds (implicit products) need none, or next to none; a Winograd or FFT kernel may need more.
    """
    if call.channels_last or not call.tensor_cores:
        return Wanted.exactly(0)
    copies = sum(prod(shape) for shape in (call.input_shape, call.weight_shape, call.output_shape)) * call.item_bytes
    return Wanted(copies, 0, 2 * copies, 2 * copies)


def no_reserve(_shape: tuple[int, ...], _item_bytes: int) -> int:
    """cuDNN's batch norm keeps a reserve only for its fused (NHWC half) kernels."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentCall:
    """One recurrent network that cuDNN runs.

    Attributes:
        gates: 4 of an LSTM, 3 of a GRU, else 1.
        rows: time steps times batch.
        hidden, output: sizes of the state and of what is put out.
        layers, directions: how many.
        item_bytes: bytes of an element.
        train: whether backward follows.
    """

    gates: int
    rows: int
    hidden: int
    output: int
    layers: int
    directions: int
    item_bytes: int
    train: bool


def gate_workspace(call: RecurrentCall) -> int:
    """The gates of one layer before their nonlinearity, and in training their gradients: plausible, not measured."""
    return call.directions * call.gates * call.rows * call.hidden * call.item_bytes * (2 if call.train else 1)


def gate_reserve(call: RecurrentCall) -> int:
    """Gates of every layer, an LSTM's cells or a GRU's candidates, outputs between layers: plausible, not measured."""
    kept = call.gates + 1 if call.gates > 1 else 1
    within = call.layers * call.directions * kept * call.rows * call.hidden
    return (within + (call.layers - 1) * call.directions * call.rows * call.output) * call.item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnModel:
    """Bytes that cuDNN asks for.

    Attributes:
        workspace: of a convolution call.
        batch_norm_reserve: kept from a batch norm's forward to its backward, by the input's shape and element bytes.
        dropout_state_bytes: states of the random generator of RNN dropout.
        rnn_workspace, rnn_reserve: of a recurrent network.
    """

    workspace: Callable[[ConvolutionCall], Wanted] = layout_workspace
    batch_norm_reserve: Callable[[tuple[int, ...], int], int] = no_reserve
    dropout_state_bytes: int = MIB
    rnn_workspace: Callable[[RecurrentCall], int] = gate_workspace
    rnn_reserve: Callable[[RecurrentCall], int] = gate_reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The device that is modelled.

    Attributes:
        facts: of the GPU; all that rules may read of it.
        total_bytes: its memory.
        name: what torch.cuda.get_device_name() says.
        cudnn: what cuDNN asks for.
        cublas_handles: handles that ask for a workspace: one of the thread that runs forward, one of backward's.
        fake_host: parameters and large float tensors made on the CPU have no bytes either.
    """

    facts: Facts = field(default_factory=Facts)
    total_bytes: int = 80 * 2**30
    name: str = "virtual"
    cudnn: CudnnModel = field(default_factory=CudnnModel)
    cublas_handles: int = 2
    fake_host: bool = True

    @property
    def cublas_bytes(self) -> int:
        """Of a cuBLAS handle: 32 MiB from Hopper on, else 4096 KiB * 2 + 16 KiB * 8 (CublasHandlePool.cpp)."""
        return 32 * MIB if self.facts.compute_capability // 10 in (9, 10, 12) else 4096 * 1024 * 2 + 16 * 1024 * 8

    @classmethod
    def of(cls, machine: Machine, cudnn: CudnnModel, fake_host: bool, cublas_handles: int = 2) -> Settings:
        """Settings for a machine."""
        return cls(
            facts=Facts.of(machine),
            total_bytes=machine.tiers[0].capacity_bytes,
            name=machine.name,
            cudnn=cudnn,
            fake_host=fake_host,
            cublas_handles=cublas_handles,
        )
