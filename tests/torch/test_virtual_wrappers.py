"""Tensors that wrap others on the virtual device: hand-written ones, jagged ones, DTensor."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100

aten: Any = torch.ops.aten


class Rounded(torch.Tensor):
    """A float tensor kept as bytes with one scale for each row, as libraries of quantised training write them."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls: type, codes: torch.Tensor, scale: torch.Tensor) -> Any:
        make: Any = torch.Tensor._make_wrapper_subclass  # pyright: ignore[reportAttributeAccessIssue]
        return make(cls, codes.shape, device=codes.device, dtype=scale.dtype)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Any], *_: Any) -> Any:
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Any:
        scale = tensor.abs().amax(1, keepdim=True) / 127
        return cls((tensor / scale).to(torch.int8), scale)

    def whole(self) -> torch.Tensor:
        return self.codes * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0]
        if func in (aten.detach.default, aten._to_copy.default):
            device = (kwargs or {}).get("device")
            return cls(*(part.detach() if device is None else part.to(device) for part in (first.codes, first.scale)))
        if func is aten.copy_.default and isinstance(first, Rounded):
            new = cls.of(args[1])
            first.codes.copy_(new.codes)
            first.scale.copy_(new.scale)
            return first
        return func(*(each.whole() if isinstance(each, Rounded) else each for each in args), **(kwargs or {}))


class Momentum(torch.optim.Optimizer):
    """SGD with a momentum of one byte for each weight, made in its first step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["momentum"] = Rounded.of(torch.zeros_like(parameter))
            moved = state["momentum"] * 0.9 + parameter.grad
            state["momentum"].copy_(moved)
            parameter.sub_(moved, alpha=0.1)


def held(on: VirtualDevice, category: str) -> list[int]:
    """Sizes of the live storages of a category, the largest first."""
    lines = [on.ledger.storages[number] for number in on.ledger.live()]
    return sorted((line.size_bytes for line in lines if line.category == category), reverse=True)


def test_a_state_of_bytes_that_the_first_step_makes_is_counted_by_its_bytes() -> None:
    # given a layer of 256 x 128 weights, and an optimizer whose states wrap bytes
    with VirtualDevice(H100, None) as on:
        layer = nn.Linear(128, 256, bias=False).cuda()
        optimizer = Momentum(layer.parameters())

        # when it trains
        for _ in range(2):
            layer(torch.randn(16, 128, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        # then the state is on cuda with a byte for each weight, and 4 for the scale of each row
        state = optimizer.state[layer.weight]["momentum"]
        assert (type(state), str(state.device), state.is_cuda, state.is_meta) == (Rounded, "cuda:0", True, False)
        assert held(on, "optimizer_state") == [256 * 128, 256 * 4]


def test_a_weight_of_bytes_moves_to_the_gpu_and_takes_no_gradient_beside_one_that_does() -> None:
    # given a rounded weight of the host that is frozen, and two thin matrices beside it, as LoRA has them
    with VirtualDevice(H100, None) as on:
        layer = nn.Module()
        layer.weight = nn.Parameter(Rounded.of(torch.randn(512, 256)), requires_grad=False)
        layer.down, layer.up = nn.Linear(256, 8, bias=False), nn.Linear(8, 512, bias=False)
        layer.cuda()
        optimizer = torch.optim.SGD([*layer.down.parameters(), *layer.up.parameters()], lr=0.1)

        # when it trains
        for _ in range(2):
            x = torch.randn(4, 256, device="cuda")
            (F.linear(x, layer.weight) + layer.up(layer.down(x))).sum().backward()
            optimizer.step()

        # then the weight is itself, on the GPU, with a byte for each number
        assert isinstance(layer.weight, Rounded)
        assert (str(layer.weight.device), layer.weight.codes.is_cuda) == ("cuda:0", True)
        assert 512 * 256 in [on.ledger.storages[number].size_bytes for number in on.ledger.live()]
        assert layer.down.weight.grad is not None
        assert layer.weight.grad is None


def test_a_rounded_tensor_that_is_saved_for_backward_comes_back_as_it_was() -> None:
    # given a product with a tensor that wraps others and that nobody else holds
    with VirtualDevice(H100, None) as on:
        x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        y = x * Rounded.of(torch.zeros(1024, 1024, device="cuda"))
        y.sum().backward()

        # then what autograd saved of it were its parts
        assert x.grad is not None
        assert x.grad.is_cuda
        assert on.ledger.saves


def test_a_rounded_tensor_is_saved_in_a_file_and_loaded() -> None:
    with VirtualDevice(H100, None):
        tensor = Rounded.of(torch.zeros(8, 4, device="cuda"))
        loaded = pickle.loads(pickle.dumps(tensor))
        assert type(loaded) is Rounded
        assert (str(loaded.device), loaded.codes.shape, str(loaded.scale.device)) == ("cuda:0", (8, 4), "cuda:0")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(("dtype", "kernel"), [(torch.float32, "_efficient"), (torch.bfloat16, "_flash")])
def test_jagged_tensors_go_through_linear_layers_and_attention(dtype: torch.dtype, kernel: str) -> None:
    # given rows of 5, 9 and 30 words of the host
    with VirtualDevice(H100, None) as on:
        rows = [torch.randn(n, 64) for n in (5, 9, 30)]
        layers = [nn.Linear(64, 192, dtype=dtype, device="cuda"), nn.Linear(64, 64, dtype=dtype, device="cuda")]
        words = torch.nested.nested_tensor(rows, layout=torch.jagged).to("cuda", dtype)
        assert (str(words.device), words.is_cuda, words.shape[0]) == ("cuda:0", True, 3)

        # when they go through attention and back
        heads = [each.unflatten(-1, [2, 32]).transpose(1, 2) for each in layers[0](words).chunk(3, dim=-1)]
        found = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)
        made = layers[1](found).values()
        made.float().sum().backward()

        # then there is one row for each word, from the kernel that a GPU of this type takes
        assert made.shape == (5 + 9 + 30, 64)
        assert layers[0].weight.grad is not None
        names = [op.name for op in on.ledger.ops]
        assert f"aten.{kernel}_attention_forward" in names
        assert f"aten.{kernel}_attention_backward" in names


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualDevice]:
    """The one process of a group, as torchrun starts it."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with VirtualDevice(H100, None) as on:
        dist.init_process_group("nccl")
        try:
            yield on
        finally:
            dist.destroy_process_group()


def test_a_weight_that_is_distributed_trains_on_a_mesh_of_one(alone: VirtualDevice) -> None:
    # given a weight of 4 MiB, distributed
    mesh = init_device_mesh("cuda", (1,))
    weight = nn.Parameter(distribute_tensor(torch.randn(1024, 1024), mesh, [Shard(0)]))
    optimizer = torch.optim.AdamW([weight])

    # when it trains
    for _ in range(2):
        x = distribute_tensor(torch.randn(8, 1024, device="cuda"), mesh, [Shard(0)])
        F.linear(x, weight).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    # then it and its two states are on the GPU, once each
    assert isinstance(weight, DTensor)
    assert (str(weight.device), weight.is_cuda, weight.to_local().is_cuda) == ("cuda:0", True, True)
    assert held(alone, "parameter") == [4 * 2**20]
    assert held(alone, "optimizer_state")[:2] == [4 * 2**20] * 2


def test_fully_sharded_weights_are_there_twice_only_while_their_layer_works(alone: VirtualDevice) -> None:
    # given 6 layers of 1 MiB, each sharded
    layers = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(6)]).cuda()
    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)

    # when they work without gradients, after a first time
    with torch.no_grad():
        layers(torch.randn(4, 512, device="cuda"))
        alone.ledger.peak_bytes = alone.ledger.allocated_bytes
        layers(torch.randn(4, 512, device="cuda"))

    # then there are 6 MiB of shards, and fewer than three whole layers at a time
    extra = alone.ledger.peak_bytes - alone.ledger.allocated_bytes
    assert 2**20 < extra < 3.5 * 2**20
