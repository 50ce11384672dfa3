"""What leaves torch's usual ways on the virtual device: CUDA graphs, DLPack, TorchScript, loaders with workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch.utils import dlpack as places
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from elbowroom.allocator.blocks import PRIVATE
from elbowroom.answers.estimate import estimate
from elbowroom.capture.virtual import VirtualDevice
from elbowroom.errors import CaptureError
from tests.torch.virtual_gpu import H100


def said(on: VirtualDevice, what: str) -> bool:
    return any(name.startswith(what) for kind, name in on.ledger.remarks if kind == "unsupported")


def test_a_step_that_is_captured_as_a_graph_is_a_step_and_its_pool_is_said_to_count_to_the_end() -> None:
    # given a step that a graph captures, as torch's documentation has it
    with VirtualDevice(H100, None) as on:
        layer = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = torch.randn(8, 64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layer(x).sum().backward()
            optimizer.step()

        # when it is replayed
        before = len(on.ledger.ops)
        graph.replay()
        graph.reset()

        # then it was one step, and the replay allocates nothing
        assert on.steps_seen == 1
        assert len(on.ledger.ops) == before
        assert torch.cuda.graph_pool_handle() != graph.pool()
        assert not torch.cuda.is_current_stream_capturing()
        assert said(on, "CUDA graphs")


def test_a_script_is_left_once_its_graph_is_captured_and_replayed() -> None:
    # given 11 steps to warm up on a stream beside, which are more than are wanted
    with VirtualDevice(H100, steps=3, cublas_handles=1) as on:
        layer = nn.Linear(64, 64, bias=False).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = torch.randn(8, 64, device="cuda")
        graph = torch.cuda.CUDAGraph()

        def step() -> None:
            layer(x).sum().backward()
            optimizer.step()

        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(11):
                step()

        # when one more is captured, and replayed without end
        with torch.cuda.graph(graph):
            step()
        while True:
            graph.replay()

    # then the capture is in the trace, with the workspaces of both streams
    assert on.steps_seen == 12
    assert [line.size_bytes for line in on.ledger.storages].count(32 * 2**20) == 2


def test_graphed_callables_train_as_what_they_are() -> None:
    with VirtualDevice(H100, None) as on:
        layer = nn.Linear(64, 64).cuda()
        make: Any = torch.cuda.make_graphed_callables
        graphed = make(layer, (torch.randn(8, 64, device="cuda"),))
        graphed(torch.randn(8, 64, device="cuda")).sum().backward()
        assert layer.weight.grad is not None
        assert said(on, "CUDA graphs")


def test_graphed_callables_keep_what_they_save_and_a_workspace_of_their_stream() -> None:
    # given a layer whose workspace of 32 MiB there is, on the default stream
    with VirtualDevice(H100, None, cublas_handles=1):
        layer = nn.Linear(64, 64, bias=False).cuda()
        x = torch.randn(8, 64, device="cuda")
        layer(x)
        before = torch.cuda.memory_allocated()

        # when it is graphed, and called
        make: Any = torch.cuda.make_graphed_callables
        graphed = make(layer, (x,))
        made = torch.cuda.memory_allocated()
        graphed(x).sum().item()

        # then the streams of warming up and of the capture have one each; what is captured is there: the output
        # and its gradient (2 KiB each), that of the weight (16 KiB), and seed and offset (512 bytes each)
        assert made - before == 2 * 32 * 2**20 + 2 * 2048 + 16_384 + 2 * 512


def test_a_pool_of_memory_has_its_own_segments() -> None:
    # given one segment of 2 MiB, in which there is room
    with VirtualDevice(H100, None) as on:
        held = [torch.zeros(256, device="cuda")]
        assert torch.cuda.memory_reserved() == 2 * 2**20

        # when a pool takes memory
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            held.append(torch.zeros(256, device="cuda"))

        # then it has another, which stays
        del held[1]
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 4 * 2**20
        assert said(on, "torch.cuda.MemPool")


def test_each_stream_has_its_own_memory_and_backward_that_of_the_forward() -> None:
    # given a product on another stream
    with VirtualDevice(H100, None, cublas_handles=1) as on:
        x = torch.ones(256, 256, device="cuda", requires_grad=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            y = x @ x

        # when backward begins on the default stream
        y.sum().backward()

        # then the workspace, the product and the gradients are of the other one, and the sum of the default stream
        lines = on.ledger.storages
        first, *others = [line.stream for line in lines if line.size_bytes == 256 * 256 * 4]
        assert (first, set(others)) == (0, {1})
        assert [line.stream for line in lines if line.category == "workspace"] == [1]
        assert {line.stream for line in lines if line.size_bytes == 4} == {0}


def test_the_trace_names_what_streams_and_pools_allocated_and_the_estimate_reserves_for_them() -> None:
    # given a step that is captured; the weight of 1 MiB is in a segment of 2 MiB, as all small blocks of a stream
    with VirtualDevice(H100, None) as on:
        weight = nn.Parameter(torch.ones(512, 512, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (weight * 2.0).sum().backward()
            optimizer.step()
        reserved = torch.cuda.max_memory_reserved()
        trace = on.trace()

    # then the stream of the capture has seed and offset, and its pool the rest
    streams = {stream for _, stream in trace.streams}
    assert {stream < PRIVATE for stream in streams} == {True, False}
    assert len(streams) == 2
    assert estimate(trace, H100).peak_reserved_bytes == reserved


def test_a_tensor_that_goes_through_dlpack_is_the_same_memory() -> None:
    with VirtualDevice(H100, None) as on:
        dlpack: Any = places
        x = torch.zeros(256, device="cuda")
        both = [dlpack.from_dlpack(dlpack.to_dlpack(x)), torch.from_dlpack(x)]
        assert all(each.is_cuda and each.data_ptr() == x.data_ptr() for each in both)
        assert on.ledger.allocated_bytes == 1024
        assert torch.from_dlpack(torch.arange(3)).tolist() == [0, 1, 2]
        assert dlpack.to_dlpack(torch.arange(3)) is not None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_what_is_traced_has_a_graph_and_runs() -> None:
    with VirtualDevice(H100, None) as on:
        layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten()).cuda()
        traced: Any = torch.jit.trace(layer, torch.randn(2, 3, 8, 8, device="cuda"))
        assert [each.kind().rpartition("::")[2] for each in traced.inlined_graph.nodes() if "aten" in each.kind()] == [
            "_convolution",
            "add_",
            "batch_norm",
            "flatten",
        ]
        assert traced(torch.randn(4, 3, 8, 8, device="cuda")).shape == (4, 288)
        assert said(on, "torch.jit.trace")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_cannot_be_traced_without_values_runs_as_it_is() -> None:
    def fails_when_traced(x: torch.Tensor) -> torch.Tensor:
        if jit.is_tracing():
            raise ValueError
        return x + 1

    jit: Any = torch.jit

    with VirtualDevice(H100, None) as on:
        assert torch.jit.trace(fails_when_traced, torch.zeros(2, device="cuda")) is fails_when_traced
        assert said(on, "torch.jit.trace (this could not be traced")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_numbers_of_traced_code_are_tensors() -> None:
    # given sizes that traced code computes with, which TorchScript keeps in tensors
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.size(0) // 2, x.size(1) * 2)

    with VirtualDevice(H100, None):
        traced: Any = torch.jit.trace(halves, torch.zeros(4, 6, device="cuda"))
        assert [tuple(traced(torch.zeros(n, 6, device="cuda")).shape) for n in (2, 8, 8)] == [(1, 12), (4, 12), (4, 12)]


class Numbers(Dataset[Any]):
    """Numbers that only a worker that was set up can read."""

    ready = False

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert self.ready
        return torch.full((4,), float(index)), info.id


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, 6, info.num_workers))


def set_up(_: int) -> None:
    info: Any = get_worker_info()
    info.dataset.ready = True


def test_a_loader_with_workers_gives_page_locked_batches_from_one_that_stands_for_them() -> None:
    # given loaders whose workers stay, are set up, and ask which one they are
    with VirtualDevice(H100, None):
        how: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "spawn"}
        loader = DataLoader(Numbers(), batch_size=4, pin_memory=True, worker_init_fn=set_up, **how)
        for _ in range(2):
            batches = [x for x, _ in loader]
            assert [x[:, 0].tolist() for x in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert all(x.is_pinned() for x in batches)

        # then a stream begins again in each epoch, and nobody else takes itself for a worker
        stream = DataLoader(Stream(), batch_size=3, **how)
        assert [[x.tolist() for x in stream] for _ in range(2)] == [[[0, 1, 2], [3, 4, 5]]] * 2
        assert get_worker_info() is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_of_strided_layout_is_a_jagged_one_on_the_gpu() -> None:
    # given rows of 3 and 5 words of 64 numbers
    with VirtualDevice(H100, None) as on:
        layer = nn.Linear(64, 8).cuda()
        rows = [torch.randn(3, 64), torch.randn(5, 64)]
        made = [torch.nested.nested_tensor(rows).cuda(), torch.nested.nested_tensor(rows, device="cuda")]
        made.append(torch.nested.as_nested_tensor([row.cuda() for row in rows]))

        # when they go through a layer and back
        for words in made:
            assert words.is_nested
            assert words.is_cuda
            padded = torch.nested.to_padded_tensor(layer(words), 0.0)
            padded.sum().backward()
            assert padded.shape == (2, 5, 8)

        # then it is said; and rows that have no jagged form are refused with what to do
        assert said(on, "nested tensors of strided layout")
        with pytest.raises(CaptureError, match="pad them, or use a list of tensors"):
            torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(2, 4)]).cuda()


def test_positions_of_four_bytes_are_copied_to_eight() -> None:
    # given 1,000 positions; by the CUDA build a copy of 8,000 bytes is there while rows are read, and while they change
    with VirtualDevice(H100, None) as on:
        x, where = torch.zeros(10, 4, device="cuda"), torch.zeros(1000, device="cuda", dtype=torch.int32)
        for op in (lambda: x[where], lambda: x[where.long()], lambda: x.index_put((where,), x[:1].expand(1000, 4))):
            begin = len(on.ledger.events)
            op()
            sizes = [size for _, _, size in on.ledger.events[begin:]]
            assert 8000 in sizes
        begin = len(on.ledger.events)
        made = x[where]
        assert [size for _, _, size in on.ledger.events[begin:]] == [8000, made.nbytes, -8000]


def test_the_largest_of_all_is_looked_for_in_a_dense_copy() -> None:
    # 200 x 300 floats are 240,000 bytes
    with VirtualDevice(H100, None) as on:
        x = torch.zeros(300, 200, device="cuda").t()
        for op in (x.max, x.min, x.argmax):
            begin = len(on.ledger.events)
            op()
            assert 240_000 in [size for _, _, size in on.ledger.events[begin:]]
        begin = len(on.ledger.events)
        x.t().max()
        x.amax()
        assert 240_000 not in [size for _, _, size in on.ledger.events[begin:]]
