"""Library settings: assumptions about the machine and its closed libraries, which have no source to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elbowroom.capture.gpu_facts import Facts
from elbowroom.capture.virtual.scratch_memory.cudnn_workspaces import ConvolutionCall, PassWorkspace, usual_workspace
from elbowroom.hardware.gpus import title_of
from elbowroom.machine import Machine

MIB = 2**20


def no_reserve(_shape: tuple[int, ...], _item_bytes: int) -> int:
    """Return 0: cuDNN's batch norm keeps a reserve only for its fused (NHWC half) kernels."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentCall:
    """One recurrent network that cuDNN runs.

    Attributes:
        gates: 4 of an LSTM, 3 of a GRU, else 1.
        rows: time steps times batch.
        hidden, output: sizes of the state and of the output.
        layers, directions: numbers of layers and directions.
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
    """Return bytes of one layer's gates before their nonlinearity, in training also their gradients; not measured."""
    return call.directions * call.gates * call.rows * call.hidden * call.item_bytes * (2 if call.train else 1)


def gate_reserve(call: RecurrentCall) -> int:
    """Return bytes of all gates, an LSTM's cells or a GRU's candidates, outputs between layers; not measured."""
    kept = call.gates + 1 if call.gates > 1 else 1
    within = call.layers * call.directions * kept * call.rows * call.hidden
    return (within + (call.layers - 1) * call.directions * call.rows * call.output) * call.item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnModel:
    """Model of the bytes that cuDNN needs.

    Attributes:
        workspace: workspace of a convolution call; cudnn_workspaces.py has the usual model.
        batch_norm_reserve: kept from a batch norm's forward to its backward, by the input's shape and element bytes.
        dropout_state_bytes: bytes of the random generator's states of RNN dropout.
        rnn_workspace, rnn_reserve: workspace and reserve of a recurrent network.
    """

    workspace: Callable[[ConvolutionCall], PassWorkspace] = usual_workspace
    batch_norm_reserve: Callable[[tuple[int, ...], int], int] = no_reserve
    dropout_state_bytes: int = MIB
    rnn_workspace: Callable[[RecurrentCall], int] = gate_workspace
    rnn_reserve: Callable[[RecurrentCall], int] = gate_reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledDevice:
    """The device that is modelled.

    Attributes:
        facts: all facts of the GPU that rules may read.
        total_bytes: its memory.
        name: result of torch.cuda.get_device_name().
        allocator: its settings, as in PYTORCH_ALLOC_CONF.
        cudnn: model of the bytes that cuDNN needs.
        cublas_handles: number of handles with a workspace: one of forward's thread, one of backward's.
        fake_host: whether parameters and large float tensors made on the CPU have no bytes either.
        ram: whether the device is RAM, and not a GPU.
        gpus: GPUs that the computer has; this one stands for all of them.
    """

    facts: Facts = field(default_factory=Facts)
    total_bytes: int = 80 * 2**30
    name: str = "virtual"
    allocator: str = ""
    cudnn: CudnnModel = field(default_factory=CudnnModel)
    cublas_handles: int = 2
    fake_host: bool = True
    ram: bool = False
    gpus: int = 1

    @property
    def cublas_bytes(self) -> int:
        """Bytes of a cuBLAS handle: 32 MiB from Hopper on, else 4096 KiB * 2 + 16 KiB * 8 (CublasHandlePool.cpp)."""
        return 32 * MIB if self.facts.compute_capability // 10 in (9, 10, 12) else 4096 * 1024 * 2 + 16 * 1024 * 8

    @classmethod
    def of(cls, machine: Machine, cudnn: CudnnModel, fake_host: bool, cublas_handles: int = 2) -> ModelledDevice:
        """Make the settings for the device of a machine."""
        return cls(
            facts=Facts.of(machine),
            total_bytes=machine.tiers[0].capacity_bytes,
            name=title_of(machine.name),
            allocator=machine.allocator,
            cudnn=cudnn,
            fake_host=fake_host,
            cublas_handles=cublas_handles,
            ram=not machine.compute_capability,
        )
