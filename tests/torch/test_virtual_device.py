"""The virtual device: what torch says on it, what it allocates, and when it stops."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import elbowroom
from elbowroom.capture import capture
from elbowroom.capture.virtual import CudnnModel, VirtualDevice
from elbowroom.capture.virtual.scratch_memory.cudnn_workspaces import PassWorkspace
from elbowroom.errors import CaptureError, UsageError
from elbowroom.machine import Machine
from elbowroom.trace import Trace
from tests.torch.virtual_gpu import H100

MIB = 2**20
Lines = list[tuple[str, int]]


def device(steps: int | None = None, **settings: Any) -> VirtualDevice:
    return VirtualDevice(H100, steps, cudnn=CudnnModel(workspace=lambda _: PassWorkspace(0, 0, 0, 0)), **settings)


def events_of(work: Callable[..., Any], setup: Callable[[], Any] = lambda: None) -> Lines:
    """Allocations and frees of some work, after what comes before it."""
    with device() as on:
        kept = setup()
        first = len(on.ledger.events)
        made = work() if kept is None else work(*kept)
        found = [("a" if size > 0 else "f", abs(size)) for _, _, size in on.ledger.events[first:]]
        del made, kept
    return found


def linear_training(steps: int, optimizer: str = "AdamW") -> Callable[[], Callable[[], None]]:
    def setup() -> Callable[[], None]:
        net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16)).cuda()
        made = getattr(torch.optim, optimizer)(net.parameters(), lr=0.1)
        x, y = torch.randn(64, 256).cuda(), torch.zeros(64, dtype=torch.long, device="cuda")

        def step() -> None:
            F.cross_entropy(net(x), y).backward()
            made.step()
            made.zero_grad()

        return step

    return setup


def test_torch_says_that_there_is_one_gpu_and_forgets_it_afterwards() -> None:
    # given the CPU build of torch
    with device():
        inside = (torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_capability())
        memory = torch.cuda.mem_get_info()
        x = torch.zeros(1024, device="cuda")
        where = (str(x.device), x.is_cuda, torch.cuda.memory_allocated())

    # then inside there is the machine's GPU, with 4 * 1024 bytes on it, and outside there is none
    assert inside == (True, 1, (9, 0))
    assert memory == (80 * 2**30, 80 * 2**30)
    assert where == ("cuda:0", True, 4096)
    assert not torch.cuda.is_available()


def test_what_tells_gpus_with_the_same_kernels_apart_is_noted_when_it_is_asked_for() -> None:
    # given a script that looks at capability and multiprocessors, which are facts that rules read too
    with VirtualDevice(H100, None) as device:
        properties = torch.cuda.get_device_properties(0)
        assert (properties.major, properties.multi_processor_count) == (9, 132)
        torch.cuda.get_device_capability()

        # then nothing tells it from another such GPU, until it asks for the name and the memory
        assert device.ledger.asked == set()
        torch.cuda.get_device_name(0)
        assert device.ledger.asked == {"name"}
        assert properties.total_memory == torch.cuda.mem_get_info()[1]
        assert device.ledger.asked == {"name", "memory"}


@pytest.mark.parametrize("way", ["function", "decorator", "method"])
def test_torch_compile_is_left_out_with_a_remark(way: str) -> None:
    # given a step whose model is compiled in one of three ways
    def setup() -> Callable[[], None]:
        model = torch.nn.Linear(64, 64).cuda()
        compiled: Any = torch.compile(model, mode="max-autotune") if way == "function" else model
        if way == "method":
            model.compile()

        def forward(x: torch.Tensor) -> torch.Tensor:
            return compiled(x).sum()

        forward = torch.compile(fullgraph=True)(forward) if way == "decorator" else forward
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            forward(torch.randn(8, 64, device="cuda")).backward()
            optimizer.step()

        return step

    # when it is captured
    trace = capture(setup, machine=H100, steps=2)

    # then both steps are there, and the trace says once that compiling was left out
    assert len(trace.steps) == 2
    told = [each for each in trace.remarks if each.kind == "unsupported"]
    assert [(each.name.partition(" (as eager")[0], each.count) for each in told] == [("torch.compile", 1)]


def test_tensors_come_onto_it_by_every_way() -> None:
    with device():
        host = torch.ones(8)
        ways = [
            host.to("cuda"),
            host.cuda(),
            torch.ones(8, device="cuda"),
            torch.tensor([1.0] * 8, device="cuda"),
            host.to(torch.device("cuda", 0), non_blocking=True),
            torch.empty_like(host, device="cuda"),
        ]
        with torch.device("cuda"):
            ways.append(torch.zeros(8))

        assert [(str(each.device), tuple(each.shape)) for each in ways] == [("cuda:0", (8,))] * 7
        assert host.sum().item() == 8.0  # what stays on the host keeps its values


def test_values_read_back_are_plausible_and_remarked() -> None:
    with device() as on:
        loss = nn.Linear(4, 1, device="cuda")(torch.empty(2**18, 4, device="cuda")).mean()
        number = loss.item()
        said = (f"{loss:.2f}", bool(torch.isfinite(loss).all()), bool(torch.isnan(loss).any()))
        host = loss.cpu()

    assert 0.25 <= number <= 0.75
    assert said == (f"{number:.2f}", True, False)
    assert host.device.type == "cpu"
    assert on.ledger.remarks == {
        ("assumed_value", "aten.item"): 4,
        ("assumed_value", "aten._to_copy"): 1,
        ("not_compared", "aten.any.default bool"): 1,
    }


def test_a_linear_step_allocates_what_the_cuda_build_does() -> None:
    # given the second step of a linear layer with SGD: no state, gradients are made and freed
    def setup() -> tuple[Any, ...]:
        net = nn.Linear(256, 512, device="cuda")
        x = torch.empty(64, 256, device="cuda")
        net(x).sum().backward()
        net.zero_grad()
        return net, x

    found = events_of(lambda net, x: net(x).sum().backward(), setup)  # type: ignore[misc]

    # then: the output 64 * 512 * 4, the sum 4; 64 * 512 elements are summed by blocks of 4 * 512 values, one launch;
    # its gradient 4; of the weight 256 * 512 * 4, a copy of the expanded gradient for that product, the bias 512 * 4
    sizes = [size for what, size in found if what == "a"]
    assert sizes == [131_072, 4, 4, 524_288, 131_072, 2_048]


def test_dropout_saves_a_mask_of_one_byte_an_element() -> None:
    found = events_of(lambda x: F.dropout(x, 0.5), lambda: (torch.empty(1000, device="cuda"),))  # type: ignore[misc]

    # then the mask of 1000 bytes comes before the result of 1000 * 4, and goes as nothing needs it
    assert found == [("a", 1000), ("a", 4000), ("f", 1000)]


def test_batch_norm_is_cudnns_with_its_reserve() -> None:
    model = CudnnModel(batch_norm_reserve=lambda shape, _item: 8 * shape[0])
    with VirtualDevice(H100, None, cudnn=model) as on:
        net, x = nn.BatchNorm2d(16).cuda(), torch.empty(4, 16, 8, 8, device="cuda")
        first = len(on.ledger.events)
        made = net(x)
        sizes = [size for _, _, size in on.ledger.events[first:] if size > 0]

    # then num_batches_tracked counts in place; result 4 * 16 * 64 * 4, mean and variance 16 * 4 each, reserve 8 * 4
    assert sizes == [16_384, 64, 64, 32]
    assert made.grad_fn is not None
    assert made.grad_fn.name() == "CudnnBatchNormBackward0"


@pytest.mark.parametrize(
    ("dtype", "capability", "mask", "chosen"),
    [
        (torch.bfloat16, 90, False, "ScaledDotProductCudnnAttentionBackward0"),
        (torch.bfloat16, 80, False, "ScaledDotProductFlashAttentionBackward0"),
        (torch.float32, 80, False, "ScaledDotProductEfficientAttentionBackward0"),
        (torch.float16, 80, True, "ScaledDotProductEfficientAttentionBackward0"),
        (torch.float16, 75, False, "ScaledDotProductEfficientAttentionBackward0"),
    ],
)
def test_attention_takes_the_kernel_that_cuda_takes(
    dtype: torch.dtype, capability: int, mask: bool, chosen: str
) -> None:
    machine = Machine(name="gpu", tiers=H100.tiers, links=(), compute_capability=capability, multiprocessors=100)
    with VirtualDevice(machine, None):
        q, k, v = (torch.empty(2, 4, 128, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        bias = torch.zeros(2, 4, 128, 128, device="cuda", dtype=dtype) if mask else None
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    assert made.grad_fn is not None
    assert made.grad_fn.name() == chosen


def test_grouped_heads_in_float32_take_the_plain_products() -> None:
    with device():
        q = torch.empty(2, 8, 128, 64, device="cuda", requires_grad=True)
        k, v = (torch.empty(2, 2, 128, 64, device="cuda", requires_grad=True) for _ in range(2))
        made = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    assert made.grad_fn is not None
    assert "ScaledDotProduct" not in made.grad_fn.name()


def test_autocast_keeps_one_copy_of_each_weight_until_its_end() -> None:
    with device() as on:
        net, x = nn.Linear(64, 64, bias=False).cuda(), torch.empty(8, 64, device="cuda")
        net(x)
        first = len(on.ledger.events)
        with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
            made = net(x), net(x)
        found = [size for _, _, size in on.ledger.events[first:]]

    # then with no gradients: input 8 * 64 * 2 twice, the weight 64 * 64 * 2 once, freed when the context ends
    assert {each.dtype for each in made} == {torch.bfloat16}
    assert found.count(8_192) == 1
    assert found[-1] == -8_192


def test_gradients_of_one_tensor_are_added_in_place() -> None:
    # given x used twice
    def setup() -> tuple[Any, ...]:
        return (torch.empty(1000, device="cuda", requires_grad=True),)

    found = events_of(lambda x: ((x * 2.0) * 3.0 + (x * 2.0) * 5.0).backward(torch.ones_like(x)), setup)  # type: ignore[misc]

    # then backward makes four products of 4000 bytes and no sum: forward 4 + 1, the ones 1, backward 4
    assert sum(what == "a" for what, _ in found) == 10


def test_the_optimizer_runs_over_lists_as_on_cuda() -> None:
    trace = capture(linear_training(3), machine=H100, steps=3)

    first, end = trace.steps[-1]
    names = {op.name for op in trace.ops[first:end] if op.phase == "optimizer"}
    assert "aten._foreach_addcdiv_" in names


def test_a_trace_has_steps_categories_modules_and_saves() -> None:
    trace = capture(linear_training(3), machine=H100, steps=3)

    assert trace.device == "cuda:0"
    assert len(trace.steps) == 3
    by_category = totals(trace)
    # parameters (256 * 512 + 512 + 512 * 16 + 16) * 4; AdamW keeps two of each
    parameters = (256 * 512 + 512 + 512 * 16 + 16) * 4
    assert by_category["parameter"] == parameters
    assert by_category["optimizer_state"] == 2 * parameters
    assert by_category["workspace"] == (2 * 32 + 1) * MIB  # cuBLAS: one in forward, one in backward; cuBLASLt: 1
    modules = {op.module for op in trace.ops if op.name == "aten.addmm"}
    assert modules == {"Sequential.0", "Sequential.2"}
    # the ReLU's result 64 * 512 * 4 is saved and read back; the batch 64 * 256 * 4 belongs to the script
    saved = {trace.storages[save.storage].size_bytes: save for save in trace.saves}
    assert saved[64 * 512 * 4].read_at
    assert saved[64 * 512 * 4].idle_from is not None
    assert saved[64 * 256 * 4].idle_from is None


@pytest.mark.parametrize("together", [True, False], ids=["in one graph", "in two graphs, one after the other"])
def test_a_storage_is_saved_once_as_long_as_a_graph_has_it(together: bool) -> None:
    # given a batch that two products save, read back in one backward or in two
    def setup() -> Callable[[], None]:
        weight = torch.zeros(256, 8, device="cuda", requires_grad=True)
        batch = torch.zeros(64, 256, device="cuda")
        optimizer = torch.optim.SGD([weight])

        def step() -> None:
            if together:
                ((batch @ weight).sum() + (batch @ weight).sum()).backward()
            else:
                (batch @ weight).sum().backward()
                (batch @ weight).sum().backward()
            optimizer.step()

        return step

    # when
    trace = capture(setup, machine=H100, steps=2)

    # then it is one save with two reads, or two saves with one read each, as in a run
    of_batch = [save for save in trace.saves if trace.storages[save.storage].size_bytes == 64 * 256 * 4]
    reads = [len(save.read_at) for save in of_batch]
    assert reads == ([2] if together else [1, 1]) * 2


def totals(trace: Trace) -> dict[str, int]:
    """Bytes of each category, of storages that are never freed or of the trace's only ones."""
    freed = {event.storage for event in trace.events if event.size_bytes < 0}
    found: dict[str, int] = {}
    for number, storage in enumerate(trace.storages):
        if number not in freed:
            found[storage.category] = found.get(storage.category, 0) + storage.size_bytes
    return found


def test_it_stops_the_script_once_the_steps_are_done() -> None:
    done: list[int] = []
    with device(steps=2) as on:
        step = linear_training(2)()
        for number in range(100):
            step()
            done.append(number)

    assert on.steps_seen == 2
    assert done == [0, 1]


def test_several_optimizers_make_one_step() -> None:
    with device() as on:
        nets = [nn.Linear(8, 8).cuda() for _ in range(2)]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
        for _ in range(3):
            for net, optimizer in zip(nets, optimizers, strict=True):
                net(torch.empty(4, 8, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    assert on.steps_seen == 3
    assert len(on.trace().steps) == 3


def test_a_loader_with_workers_and_pinned_memory_does_not_hang() -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(8, 4), torch.arange(8))
    with device():
        loader = torch.utils.data.DataLoader(
            data, batch_size=4, num_workers=2, pin_memory=True, persistent_workers=True
        )
        labels = [y.to("cuda", non_blocking=True).shape[0] + int(y[0]) for _, y in loader]

    assert labels == [4, 8]  # host data keeps its values: the second batch begins with 4


def test_a_gradient_scaler_and_clipping_work() -> None:
    with device(steps=None) as on:
        net = nn.Linear(16, 16).cuda()
        optimizer, scaler = torch.optim.Adam(net.parameters()), torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", torch.float16):
                loss = net(torch.empty(4, 16, device="cuda")).float().sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert on.steps_seen == 2
    assert "aten._foreach_norm" in {op.name for op in on.ledger.ops}


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_cudnns(cell: str) -> None:
    with device() as on:
        net = getattr(nn, cell)(16, 32, 2, batch_first=True, dropout=0.1).cuda()
        out, _ = net(torch.empty(4, 8, 16, device="cuda", requires_grad=True))
        out.sum().backward()

    assert tuple(out.shape) == (4, 8, 32)
    assert {"aten._cudnn_rnn", "aten._cudnn_rnn_backward"} <= {op.name for op in on.ledger.ops}
    assert len({p.untyped_storage().data_ptr() for p in net.parameters()}) == 1  # flat, as cuDNN wants them


def test_large_weights_take_no_memory_on_the_host() -> None:
    with device():
        weight = nn.Linear(200_000, 100_000, bias=False).weight  # 80 GB

    assert weight.numel() == 20_000_000_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"machine": "no-such-gpu"}, "no-such-gpu"),
        ({"machine": H100, "steps": 1}, "allowed is an int of at least 2"),
        ({"machine": Machine(name="x", tiers=H100.tiers, links=())}, "which has no CUDA GPU"),
    ],
)
def test_a_capture_that_is_not_allowed_says_what_is(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        capture(linear_training(2), **given)


def test_a_run_without_a_step_says_what_to_do() -> None:
    with device(steps=2) as on:
        nn.Linear(4, 4).cuda()(torch.empty(1, 4, device="cuda"))

    with pytest.raises(CaptureError, match=r"without a training step on cuda.*let an optimizer step"):
        on.trace()


def test_an_lstm_cell_is_two_products_and_one_kernel_that_keeps_its_gates() -> None:
    # given 32 rows and states of 128, seen on the rig: two products of 32 x 512 floats, gates of as many, two states
    def setup() -> tuple[Any, ...]:
        torch.mm(*2 * [torch.zeros(8, 8, device="cuda")])
        return nn.LSTMCell(64, 128).cuda(), torch.randn(32, 64).cuda(), torch.zeros(32, 128, device="cuda")

    def work(cell: nn.Module, x: torch.Tensor, h: torch.Tensor) -> Any:
        return cell(x, (h, h))

    products, gates, states = [("a", 65536)] * 2, [("a", 65536)], [("a", 16384)] * 2
    assert events_of(work, setup) == products + gates + states


def test_a_script_that_holds_itself_to_a_budget_is_estimated_without_it() -> None:
    before = elbowroom.within
    with VirtualDevice(H100) as device:
        model = nn.Linear(512, 512)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with elbowroom.within("1KiB", allow=("swap", "recompute"), measure=True) as room:
            assert room.place(model) is model
            assert model.weight.is_cuda
            for _ in range(3):
                model(torch.randn(64, 512, device="cuda")).sum().backward()
                optimizer.step()
            room.measure_next_step()
        assert (room.plan, room.beyond_bytes) == (None, 0)
        assert "on a virtual GPU" in room.summary()
        assert device.steps_seen == 3
    assert elbowroom.within is before
    assert any("without a budget" in name for _, name in device.ledger.remarks)


def test_tensors_move_in_inference_mode() -> None:
    """There an op comes as it was called, with the device by its place."""
    with device():
        nn.Linear(8, 8).cuda()(torch.zeros(4, 8, device="cuda")).sum().backward()
        with torch.inference_mode():
            host = torch.zeros(4, 8)
            made = host.to(torch.device("cuda"), torch.float16)
            assert (made.device, made.dtype) == (torch.device("cuda:0"), torch.float16)
            assert host.half().to(made).device == made.device
            assert host.type("torch.cuda.FloatTensor").device == made.device
            assert torch.tensor([1, 2]).to(made).dtype is torch.float16
            assert made.to(torch.device("cpu"), torch.float32).device.type == "cpu"


def test_a_model_that_the_script_drops_is_gone() -> None:
    # given a layer of 4 MiB and a bias of 4 KiB that ran
    with VirtualDevice(H100, None) as on:
        layer = nn.Linear(1024, 1024, device="cuda")
        layer(torch.ones(1, 1024, device="cuda"))
        held = on.ledger.allocated_bytes

        # when the script drops it
        del layer

        # then its weights are given back
        assert held - on.ledger.allocated_bytes == 4 * 2**20 + 4096


@pytest.mark.parametrize("ending", ["returns", "exits"])
def test_what_a_script_lets_go_as_it_ends_is_no_part_of_its_last_step(ending: str) -> None:
    # given a script whose function makes all, trains for some steps and is over
    def script(steps: int) -> None:
        step = linear_training(0)()
        for _ in range(steps):
            step()

    def trace_of(steps: int) -> Trace:
        on = device(3)
        with suppress(SystemExit), on:
            script(steps)
            if ending == "exits":
                raise SystemExit
        return on.trace()

    # when it ends by itself after its third step, or goes on and is stopped there
    over, stopped = trace_of(3), trace_of(5)
    # then the last step is the same
    assert over.ops[-1].name == stopped.ops[-1].name
    assert over.storages == stopped.storages
    assert over.events == stopped.events
    # and weights, their optimizer's state and the batches are there after it
    freed = {event.storage for event in over.events if event.size_bytes < 0}
    kept = {over.storages[each].category for each in range(len(over.storages)) if each not in freed}
    assert {"parameter", "optimizer_state", "input"} <= kept
