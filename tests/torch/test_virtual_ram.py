"""RAM as the device that is captured: what a training on the CPU saves and holds, without its numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import elbowroom as er
from elbowroom.capture.recording.recorder import Recorder
from elbowroom.capture.virtual import VirtualDevice
from elbowroom.capture.virtual.ops.ram_ops import workspace_bytes
from elbowroom.engine.mapped_files import of_file
from elbowroom.step.workspaces import without_workspaces
from elbowroom.trace import Trace

KIB = 2**10
LEAST_BYTES = 16 * KIB
RAM = er.Machine.here(device="cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Kernels take some scratch for each thread, which no bound of a small model has room for."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


class Attention(nn.Module):
    """Attention of four heads, [B, L, 64] to the same."""

    def __init__(self, *, causal: bool = False, masked: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.causal, self.masked, self.dropout = causal, masked, dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if self.masked else None
        made = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout, is_causal=self.causal
        )
        return self.out(made.transpose(1, 2).flatten(2))


class Sums(nn.Module):
    """Layers whose outputs are added to a tensor that was made on the CPU, as attention adds up its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape)
        for layer in self.layers:
            total += layer(x + total).tanh()
        return torch.cat((total, x))


class Last(nn.Module):
    """A recurrent layer, of which the outputs go on."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Autocast(nn.Module):
    """A module under autocast in bfloat16."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.module(x).float()


class Checkpointed(Autocast):
    """A module whose forward runs again in backward."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.module, x, use_reentrant=False)


def given() -> nn.Module:
    """Layers whose weights are set to numbers of numpy, as recommenders do."""
    made = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    for weight in (made[0].weight, made[2].weight):
        assert isinstance(weight, nn.Parameter)
        weight.data = torch.tensor(numpy.random.default_rng(0).uniform(size=tuple(weight.shape)).astype("float32"))
    return made


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2, padding=1, groups=8),
        nn.Dropout(0.1),
        nn.GELU(),
        nn.ConvTranspose2d(24, 8, 2, stride=2),
        nn.MaxPool2d(2),
        nn.SiLU(),
    )


def volumes() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(3, 8, 3, padding=1),
        nn.InstanceNorm3d(8),
        nn.ReLU(),
        nn.Conv3d(8, 8, 1),
        nn.ConvTranspose3d(8, 4, 2, 2),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Dropout(0.2), nn.Linear(256, 64))


SEQUENCES, IMAGES, VOLUMES = (8, 48, 64), (4, 3, 32, 32), (1, 3, 16, 16, 16)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, SEQUENCES),
    "weights of numpy": (given, SEQUENCES),
    "sums": (Sums, SEQUENCES),
    "convolutions": (convolutions, IMAGES),
    "volumes": (volumes, VOLUMES),
    "attention": (Attention, SEQUENCES),
    "causal attention": (lambda: Attention(causal=True), SEQUENCES),
    "attention with a mask": (lambda: Attention(masked=True), SEQUENCES),
    "attention with dropout": (lambda: Attention(dropout=0.1), SEQUENCES),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), SEQUENCES),
    "LSTM": (lambda: Last(nn.LSTM(64, 40, num_layers=2, dropout=0.2)), SEQUENCES),
    "LSTM of both directions": (lambda: Last(nn.LSTM(64, 40, bidirectional=True, batch_first=True)), SEQUENCES),
    "LSTM without biases": (lambda: Last(nn.LSTM(64, 40, bias=False)), SEQUENCES),
    "GRU": (lambda: Last(nn.GRU(64, 40)), SEQUENCES),
    "autocast": (lambda: Autocast(perceptron()), SEQUENCES),
    "checkpoint": (lambda: Checkpointed(perceptron()), SEQUENCES),
}


def train(model: nn.Module, x: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()


def captured(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Trace:
    with VirtualDevice(RAM, steps=3, min_size_bytes=LEAST_BYTES) as device:
        train(make(), torch.randn(shape), 9)
    return device.trace()


def observed(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Trace:
    gc.collect()  # what tests before have left would count
    with er.within("8GiB", min_size=LEAST_BYTES) as room:
        train(make(), torch.randn(shape), 4)
    assert room.trace is not None
    return room.trace


def saved(trace: Trace) -> list[tuple[int, str]]:
    first_op, end_op = trace.steps[-1]
    storages = [trace.storages[save.storage] for save in trace.saves if first_op <= save.saved_at < end_op]
    return [(each.size_bytes, each.dtype) for each in storages if each.size_bytes >= LEAST_BYTES]


def peak_bytes(trace: Trace) -> int:
    held = most = 0
    for event in trace.events:
        held += event.size_bytes
        most = max(most, held if event.op in range(*trace.steps[-1]) else 0)
    return most


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_step_saves_and_holds_what_a_step_on_the_cpu_does(name: str) -> None:
    # given
    found, real = captured(*MODELS[name]), observed(*MODELS[name])
    # then
    assert found.device == "cpu"
    assert saved(found) == saved(real)
    # and what it holds lies between its storages alone, and these with the most that ops may take besides
    # (an observed step is rounded up: it counts the gradients of the step before, and an input that only a copy reads)
    others = [each.size_bytes for each in real.storages if each.category in ("gradient", "input")]
    spare_bytes = 64 * KIB + sum(others)
    assert peak_bytes(without_workspaces(found)) <= peak_bytes(real) + spare_bytes
    assert peak_bytes(real) <= peak_bytes(found) + spare_bytes


def look_up(steps: int) -> None:
    """Train tables whose gradients have rows for what was looked up alone: 8,192 of 64 numbers, 2 MiB."""
    tables, out = nn.EmbeddingBag(20_000, 64, mode="sum", sparse=True), nn.Linear(64, 1)
    optimizer = torch.optim.SGD([*tables.parameters(), *out.parameters()], lr=0.1)
    begins = torch.arange(0, 8192, 8)
    for _ in range(steps):
        optimizer.zero_grad()
        out(tables(torch.randint(20_000, (8192,)), begins)).square().mean().backward()
        optimizer.step()


def test_a_capture_counts_the_rows_of_a_sparse_gradient() -> None:
    # given
    gc.collect()
    with er.within("8GiB", min_size=LEAST_BYTES) as room:
        look_up(4)
    with VirtualDevice(RAM, steps=3) as device:
        look_up(9)
    # then the table of 4.9 MiB has no gradient of its size; an observed step counts the rows of the step before too
    assert room.trace is not None
    rows_bytes = 8192 * 64 * 4
    assert peak_bytes(room.trace) == pytest.approx(peak_bytes(device.trace()) + rows_bytes, abs=256 * KIB)


def test_a_module_that_a_transform_calls_with_tensors_of_its_own_is_captured() -> None:
    # given an ensemble: the weights of four networks side by side, of which vmap calls the module with each
    shape = perceptron().to("meta")
    with VirtualDevice(RAM, steps=3) as device:
        weights, buffers = torch.func.stack_module_state([perceptron() for _ in range(4)])
        optimizer = torch.optim.SGD(weights.values(), lr=0.1)

        def one(own: dict[str, Tensor], x: Tensor) -> Tensor:
            return torch.func.functional_call(shape, (own, buffers), (x,))

        for _ in range(9):
            optimizer.zero_grad()
            made = torch.vmap(one, (0, None), randomness="different")(weights, torch.randn(SEQUENCES))
            made.square().mean().backward()
            optimizer.step()
    # then what the layers in the middle hold is that of four
    assert max(size_bytes for size_bytes, _ in saved(device.trace())) == 4 * 8 * 48 * 256 * 4


@pytest.mark.parametrize(
    ("steps", "batch", "width", "hidden"),
    [(1, 1, 16, 16), (10, 4, 32, 16), (10, 4, 16, 32), (7, 3, 5, 9), (50, 7, 513, 255), (129, 11, 40, 90)],
)
def test_the_workspace_of_an_lstm_is_that_of_onednn(steps: int, batch: int, width: int, hidden: int) -> None:
    weights = [torch.zeros(4 * hidden, width), torch.zeros(4 * hidden, hidden), *torch.zeros(2, 4 * hidden)]
    states = torch.zeros(2, batch, hidden)
    settings = (False, [], 2, hidden, 1, True, False, False, True)
    made = torch.ops.aten.mkldnn_rnn_layer(torch.zeros(steps, batch, width), *weights, *states, *settings)
    assert workspace_bytes(steps, batch, width, hidden) == made[3].nbytes


def test_nothing_of_a_capture_stays_behind() -> None:
    before = torch.nn.Parameter.__new__, torch.Tensor.device, torch.load
    captured(perceptron, SEQUENCES)
    assert before == (torch.nn.Parameter.__new__, torch.Tensor.device, torch.load)
    # and the same training runs with its numbers again
    train(perceptron(), torch.randn(SEQUENCES), 1)


def test_a_device_that_is_not_there_is_refused_as_by_torch() -> None:
    with pytest.raises((RuntimeError, AssertionError)), VirtualDevice(RAM):
        nn.Linear(4, 4).to("cuda")


def between(*, evaluates: bool) -> Trace:
    """The trace of a training of a batch that is made anew for each step, with an evaluation of much more after it."""
    with VirtualDevice(RAM, steps=3) as device:
        model = perceptron()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(9):
            raw = torch.randn(64, *SEQUENCES) if evaluates else torch.randn(1, *SEQUENCES)
            x = raw.sin()[0] + raw.cos()[0]
            del raw
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            del x
            if evaluates:
                with torch.no_grad():
                    model(torch.randn(64 * SEQUENCES[0], *SEQUENCES[1:])).mean().item()
    return device.trace()


def test_what_runs_between_steps_is_in_no_trace_as_in_no_plan() -> None:
    assert peak_bytes(between(evaluates=True)) <= peak_bytes(between(evaluates=False)) + 64 * KIB


def test_a_lazy_module_runs_as_ever() -> None:
    with VirtualDevice(RAM):
        model = nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(8))
        assert model(torch.randn(4, 4)).shape == (4, 8)


def test_files_that_are_mapped_into_memory_are_no_memory(tmp_path: Path) -> None:
    rows = numpy.memmap(tmp_path / "rows", dtype="float32", mode="w+", shape=(1024, 1024))
    assert of_file(torch.from_numpy(rows)[4:8])
    assert not of_file(torch.zeros(1024, 1024))
    assert not of_file(torch.from_numpy(numpy.zeros((1024, 1024), "float32")))
    assert not of_file(torch.zeros(1024, 1024).share_memory_())


@pytest.mark.parametrize("trains", [False, True])
def test_weights_of_a_file_are_no_memory_of_a_step_unless_they_are_trained(tmp_path: Path, trains: bool) -> None:
    # given 4 MiB of weights in a file, as safetensors gives them, and a layer of 4 KiB that is trained
    numpy.memmap(tmp_path / "weights", dtype="float32", mode="w+", shape=(1024, 1024)).flush()

    def model() -> nn.Module:
        weights = torch.from_numpy(numpy.memmap(tmp_path / "weights", dtype="float32", mode="c", shape=(1024, 1024)))
        made = nn.Sequential(nn.Linear(1, 1024), nn.Linear(1024, 1024, bias=False))
        made[1].weight = nn.Parameter(weights, requires_grad=trains)
        return made

    # then both a capture and a recording count them, and their gradient, if they are trained
    for trace in (captured(model, (16, 1)), observed(model, (16, 1))):
        assert (peak_bytes(trace) >= 2 * 1024 * 4 * KIB) == trains
        assert (peak_bytes(trace) < 1024 * KIB) == (not trains)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_file_counts_if_one_of_the_tensors_on_it_is_trained_whichever_is_met_first(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    weights = torch.from_numpy(numpy.memmap(tmp_path / "weights", dtype="float32", mode="w+", shape=(1024, 1024)))
    tensors = (weights, nn.Parameter(weights))
    recorder = Recorder(lambda _: None, torch.device("cpu"))

    recorder.start(tensors=[tensors[place] for place in order])
    recording = recorder.stop()

    exists = next(note for note in recording.notes if note.what == "exists")
    assert [block.size_bytes for block in exists.blocks] == [4 * 1024 * KIB]
