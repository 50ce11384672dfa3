"""Tensors of the virtual device: their type, their device, and that "meta" stays meta."""

from __future__ import annotations

import copy
import importlib
import pickle
from typing import Any

import pytest
import torch
import torch.nn as nn

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100


def device(steps: int | None = None) -> VirtualDevice:
    return VirtualDevice(H100, steps)


class Named(torch.Tensor):
    """A subclass as libraries have them: with an attribute that every function hands on."""

    place: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(made, cls):
            made.place = next((each.place for each in args if isinstance(each, cls)), "")
        return made


def test_a_tensor_on_cuda_is_of_torchs_own_type_and_has_its_names() -> None:
    # given a tensor and a parameter on cuda
    with device():
        x, weight = torch.zeros(2, 3, device="cuda"), nn.Linear(3, 2).cuda().weight

        # then scripts that look at types find those of torch on cuda
        assert type(x) is torch.Tensor
        assert type(x).__module__ == "torch"
        assert type(weight) is nn.Parameter
        assert x.type() == "torch.cuda.FloatTensor"
        assert isinstance(x, torch.cuda.FloatTensor)  # pyright: ignore[reportAttributeAccessIssue]
        assert not isinstance(x, torch.cuda.HalfTensor)  # pyright: ignore[reportAttributeAccessIssue]
        assert not isinstance(x, torch.FloatTensor)
        assert (x.is_cuda, x.is_cpu, x.is_meta, x.get_device()) == (True, False, False, 0)


def test_tensors_are_made_and_converted_by_the_names_of_types() -> None:
    with device():
        types: Any = torch.cuda
        made = [types.FloatTensor(2, 3), types.LongTensor([1, 2]), types.HalfTensor(torch.Size([4]))]
        assert [(each.dtype, tuple(each.shape)) for each in made] == [
            (torch.float32, (2, 3)),
            (torch.int64, (2,)),
            (torch.float16, (4,)),
        ]
        assert all(each.is_cuda for each in made)
        assert made[0].type("torch.cuda.HalfTensor").type() == "torch.cuda.HalfTensor"
        assert made[0].type(torch.FloatTensor).type() == "torch.FloatTensor"
        assert torch.ones(3).type(torch.cuda.DoubleTensor).is_cuda  # pyright: ignore[reportAttributeAccessIssue]
        assert made[0].type(torch.bfloat16).type() == "torch.cuda.BFloat16Tensor"


def test_a_device_may_be_a_number_everywhere() -> None:
    # given one GPU; when it is named by its number
    with device():
        x = torch.ones(3)
        moved = [x.to(0), x.cuda(0), x.to(device=0), torch.zeros(3, device=0), torch.zeros_like(x, device=0)]
        moved += [x.new_zeros(3, device=0), nn.Linear(3, 3).to(0).weight, nn.Linear(3, 3).cuda(0).weight]
        with torch.device(0):
            moved.append(torch.arange(3))

        # then all are on it, and a device is one of torch's
        assert {str(each.device) for each in moved} == {"cuda:0"}
        assert torch.device(0) == torch.device("cuda:0")
        assert isinstance(torch.device("cpu"), torch.device)
        assert pickle.loads(pickle.dumps(torch.device("cuda", 0))) == torch.device("cuda", 0)
    assert type(torch.device("cpu")) is torch.device


@pytest.mark.parametrize("way", ["context", "argument", "move"])
def test_what_is_made_on_meta_is_meta_and_counts_nothing(way: str) -> None:
    # given a layer of 400 MB on meta
    with device() as on:
        if way == "context":
            with torch.device("meta"):
                layer = nn.Linear(10_000, 10_000, bias=False)
        else:
            layer = nn.Linear(10_000, 10_000, bias=False, device="meta" if way == "argument" else None).to("meta")

        # when it runs on meta
        layer(torch.empty(4, 10_000, device="meta")).sum().backward()

        # then it is torch's own, and nothing is on the GPU
        assert layer.weight.is_meta
        assert layer.weight.grad is not None
        assert layer.weight.grad.is_meta
        assert torch.empty_like(layer.weight).is_meta
        assert on.ledger.events == []

        # and once it is emptied onto cuda, weight and gradient are
        layer.to_empty(device="cuda")
        assert on.ledger.allocated_bytes == 2 * 10_000 * 10_000 * 4


def test_a_move_from_meta_is_refused_as_by_torch_and_an_assigned_state_is_taken() -> None:
    with device():
        layer = nn.Linear(3, 4, device="meta")
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            layer.to("cuda")
        state = {name: value.cuda() for name, value in nn.Linear(3, 4).state_dict().items()}
        layer.load_state_dict(state, assign=True)
        assert layer.weight.is_cuda
        assert torch.zeros(2, device="cuda").to("meta").is_meta


def test_a_default_device_is_where_new_tensors_are() -> None:
    with device():
        torch.set_default_device("cuda")
        assert nn.Linear(2, 2).weight.is_cuda
        torch.set_default_device(None)
        with torch.device("cuda"):
            assert torch.tensor([1.0]).is_cuda
        torch.set_default_tensor_type(torch.cuda.FloatTensor)  # pyright: ignore[reportAttributeAccessIssue]
        assert torch.ones(2).is_cuda
        torch.set_default_tensor_type("torch.FloatTensor")
        assert not torch.ones(2).is_cuda


def test_a_subclass_on_the_host_is_that_subclass_on_the_gpu() -> None:
    # given a tensor of a subclass with an attribute, on the host
    with device():
        host: Any = torch.randn(2, 100).as_subclass(Named)
        host.place = "image"

        # when it moves, is computed with and trained through
        x = host.to("cuda")
        layer = nn.Linear(100, 4).cuda()
        loss = layer(x * 2.0).mean()
        loss.backward()

        # then it is what it was
        assert (type(x), x.place, str(x.device)) == (Named, "image", "cuda:0")
        assert type(torch.zeros(2, device="cuda").as_subclass(Named)) is Named
        assert isinstance(loss, Named)
        assert layer.weight.grad is not None
        assert layer.weight.grad.is_cuda


def test_parameters_stay_the_same_objects_when_a_module_moves() -> None:
    # given a module on the host, whose optimizer was made there
    with device(steps=None) as on:
        layer = nn.Linear(8, 8)
        before = list(layer.parameters())
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        # when it goes to the GPU, trains, and comes back with its gradients
        layer.cuda()
        layer(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        layer.cpu()

        # then optimizer and module have the same parameters, and the GPU is left
        assert all(now is then for now, then in zip(layer.parameters(), before, strict=True))
        assert layer.weight.grad is not None
        assert not layer.weight.grad.is_cuda
        assert on.steps_seen == 1


def test_modules_run_on_the_host_first() -> None:
    # given a recurrent network, and a lazy one that takes its shapes from data on the host
    with device():
        lstm, lazy = nn.LSTM(10, 20), nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d())
        assert lstm(torch.randn(5, 2, 10))[0].shape == (5, 2, 20)
        assert lazy(torch.randn(4, 50)).abs().sum() > 0

        # then they run on the GPU after that
        assert lstm.cuda()(torch.randn(5, 2, 10).cuda())[0].is_cuda
        assert lazy.cuda()(torch.randn(4, 50).cuda()).is_cuda


def test_a_copy_of_a_tensor_takes_its_bytes_once() -> None:
    with device() as on:
        x = torch.zeros(1024, device="cuda")
        both = copy.deepcopy([x, x])
        assert both[0] is both[1]
        assert both[0].is_cuda
        assert on.ledger.allocated_bytes == 2 * 4096


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripts_of_torchscript_are_compiled_as_without_the_device() -> None:
    with device():

        def padded(x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(4, device=x.device)

        assert torch.jit.script(padded)(torch.ones(4, device="cuda")).is_cuda


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_a_script_makes_beside_a_weight_of_the_host_lies_on_the_host() -> None:
    def beside(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(1024, device=x.device)

    with device() as on:
        made = torch.jit.script(beside)(nn.Linear(1024, 1024).weight)
        assert (made.is_cuda, on.ledger.allocated_bytes) == (False, 0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripts_of_sparse_tensors_are_compiled_too() -> None:
    with device():

        def sparse(indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return torch.sparse_coo_tensor(indices, values, [4])

        assert torch.jit.script(sparse)(torch.tensor([[0, 2]]), torch.ones(2)).is_sparse


def test_afterwards_torchscript_knows_the_functions_that_it_knew_before() -> None:
    table = importlib.import_module("torch.jit._builtins")._get_builtin_table()
    before = dict(table)
    with device():
        torch.zeros(4, device="cuda")
    assert {key: name for key, name in table.items() if name.startswith("aten::zeros")} == {
        key: name for key, name in before.items() if name.startswith("aten::zeros")
    }


def test_a_parameter_has_no_attribute_that_its_owner_did_not_set() -> None:
    # as those who make one again hand on all that it has
    with device():
        weight = nn.Linear(3, 2).cuda().weight
        again = nn.Parameter(weight.to("meta"), **vars(weight), requires_grad=weight.requires_grad)
        assert again.is_meta


def test_a_tensor_or_a_module_goes_where_another_tensor_is() -> None:
    with device():
        x = torch.zeros(3, device="cuda", dtype=torch.half)
        host: Any = torch.ones(5)
        moved = [host.to(x), host.type_as(x), host.to(tensor=x)]
        assert [each.type() for each in moved] == ["torch.cuda.HalfTensor"] * 3
        assert x.to(host).type() == x.type_as(host).type() == "torch.FloatTensor"
        assert nn.Linear(3, 3).to(x).weight.type() == "torch.cuda.HalfTensor"
        assert host.to(host.double()).type() == "torch.DoubleTensor"
        # a second copy is made where it is asked for, as VideoMAE's position embeddings do
        copied = host.type_as(x).to(device=x.device, copy=True)
        assert copied.is_cuda


@pytest.mark.parametrize("place", ["cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda:0"}])
def test_a_file_with_values_is_loaded_onto_the_gpu(place: Any, tmp_path: Any) -> None:
    # given a checkpoint of the host, written before
    torch.save({"weight": torch.arange(3.0)}, tmp_path / "best.pt")
    with device() as on:
        loaded = torch.load(tmp_path / "best.pt", map_location=place)["weight"]

        # then it is on the GPU with its values, and takes a block there
        assert loaded.is_cuda
        assert loaded.tolist() == [0.0, 1.0, 2.0]
        assert on.ledger.allocated_bytes == 512

        # and so is what the GPU wrote
        torch.save(nn.Linear(2, 2).cuda().state_dict(), tmp_path / "new.pt")
        assert torch.load(tmp_path / "new.pt", map_location=place)["weight"].is_cuda


def test_a_storage_is_where_its_tensors_are() -> None:
    with device():
        x = torch.zeros(8, device="cuda")
        storages = [each.untyped_storage() for each in (x, x[2:], nn.Linear(2, 2).weight, torch.ones(3))]
        assert [str(each.device) for each in storages] == ["cuda:0", "cuda:0", "cpu", "cpu"]
        assert [each.is_cuda for each in storages] == [True, True, False, False]
        assert str(torch.empty(3, device="meta").untyped_storage().device) == "meta"
        assert x[2:].data_ptr() - storages[0].data_ptr() == 8


def test_a_storage_that_is_emptied_and_filled_again_is_another_block() -> None:
    # given a tensor of 1 MiB
    with device() as on:
        x = torch.zeros(2**18, device="cuda")
        storage = x.untyped_storage()

        # when its storage is given back, comes again, and grows, as sharded weights do
        sizes = [on.ledger.allocated_bytes]
        for size in (0, 2**20, 2**21):
            storage.resize_(size)
            sizes.append(on.ledger.allocated_bytes)
        grown = torch.empty(0, device="cuda").resize_(2**18)
        grown.resize_(2**19)

        # then it is counted as what it is; a new block is there before the old one goes
        assert sizes == [2**20, 0, 2**20, 2**21]
        assert on.ledger.allocated_bytes == 2 * 2**21
        assert [size // 2**20 for _, _, size in on.ledger.events] == [1, -1, 1, 2, -1, 1, 2, -1]
        assert str(storage.device) == "cuda:0"


def test_memory_of_the_host_is_page_locked_in_name() -> None:
    with device() as on:
        x = torch.arange(6.0)
        pinned, large = x.pin_memory(), torch.empty(2**20, pin_memory=True)
        assert (pinned.is_pinned(), large.is_pinned(), x.is_pinned()) == (True, True, False)
        assert pinned is not x
        assert pinned.tolist() == x.tolist()
        assert pinned.pin_memory() is pinned
        assert pinned.cuda(non_blocking=True).tolist() == x.tolist()
        with pytest.raises(RuntimeError, match=r"cannot pin 'torch\.cuda\.FloatTensor'"):
            x.cuda().pin_memory()
        assert on.ledger.allocated_bytes == 0


def test_a_shared_tensor_stays_where_it_is() -> None:
    with device():
        layer = nn.Linear(600, 600).share_memory()
        assert layer.weight.is_shared()
        assert str(layer.cuda().share_memory().weight.device) == "cuda:0"
        assert torch.ones(3).share_memory_().is_shared()


def test_a_condition_of_bytes_chooses_as_one_of_booleans_and_is_copied() -> None:
    with device() as on:
        # given 64 bytes as a condition
        chosen = (torch.arange(64, device="cuda") % 2).byte()
        x = torch.ones(64, device="cuda", requires_grad=True)
        before = len(on.ledger.storages)

        # when they choose, then there is a copy of them (64 bytes) before the result (64 floats)
        y = torch.where(chosen, x, 2 * x.detach())
        assert [each.size_bytes for each in on.ledger.storages[before:]] == [256, 64, 256]
        assert y.tolist() == [2.0, 1.0] * 32
        y.sum().backward()
        assert x.grad is not None
