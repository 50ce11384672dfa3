"""What torch.cuda and torch.accelerator say on the virtual device: as a build with CUDA and one GPU.

Expected texts and numbers are those of torch 2.11.0 with CUDA on the rig (tools/rig).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn

from elbowroom.allocator.settings import VARIABLES
from elbowroom.answers.estimate import estimate
from elbowroom.capture.virtual import VirtualDevice
from elbowroom.machine import Machine
from elbowroom.simulate.simulate import simulate
from elbowroom.trace import Trace

A100 = Machine.of("a100-80gb")
MIB = 2**20


def device() -> VirtualDevice:
    return VirtualDevice(A100, None)


def test_the_allocator_says_what_it_holds() -> None:
    # given 1,000,000 floats: 4,000,256 bytes in blocks of 512, in a segment of 20 MiB
    with device() as on:
        x = torch.zeros(1000, 1000, device="cuda")
        assert torch.cuda.memory_allocated() == torch.cuda.memory_allocated(device="cuda:0") == 4_000_256
        assert torch.cuda.memory_reserved(0) == 20 * MIB
        assert torch.accelerator.memory_reserved() == 20 * MIB
        assert torch.cuda.mem_get_info(device="cuda")[0] == 85_095_088_128 - 20 * MIB

        # when it is freed, its segment stays until the cache is emptied
        del x
        assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (0, 4_000_256)
        assert torch.cuda.memory_reserved() == 20 * MIB
        torch.cuda.empty_cache()
        assert (torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()) == (0, 20 * MIB)
        assert on.ledger.empties == [2]
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_reserved() == torch.cuda.max_memory_allocated() == 0


def _in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def _by_a_call(_: pytest.MonkeyPatch) -> None:
    ask: Any = torch._C
    ask._accelerator_setAllocatorSettings("expandable_segments:True")


@pytest.mark.parametrize("sets", [_in_the_environment, _by_a_call])
def test_settings_that_a_script_makes_before_it_uses_the_allocator_count(
    sets: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(early: bool) -> Trace:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        with VirtualDevice(A100, 2) as on:
            if early:
                sets(monkeypatch)
            model = nn.Linear(2000, 2000).cuda()
            optimizer = torch.optim.Adam(model.parameters())
            if not early:
                sets(monkeypatch)
            for _ in range(2):
                model(torch.zeros(1500, 2000, device="cuda")).sum().backward()
                optimizer.step()
        return on.trace()

    expandable = replace(A100, allocator="expandable_segments:True")
    late, early = trained(early=False), trained(early=True)
    assert ("allocator_settings", "expandable_segments:True") in [(each.kind, each.name) for each in early.remarks]
    assert "allocator_settings" not in [each.kind for each in late.remarks]
    assert estimate(early, A100).peak_reserved == estimate(late, expandable).peak_reserved
    assert estimate(early, A100).peak_reserved != estimate(late, A100).peak_reserved
    assert simulate(early, A100).curves == simulate(early, expandable).curves


def test_summaries_and_snapshots_are_made_as_ever() -> None:
    with device():
        kept = torch.zeros(10, device="cuda")
        stats = torch.cuda.memory_stats()
        assert (stats["allocation.all.current"], stats["requested_bytes.all.peak"]) == (1, 40)
        assert (stats["segment.small_pool.current"], stats["inactive_split_bytes.all.current"]) == (1, 2 * MIB - 512)
        assert "PyTorch CUDA memory summary, device ID 0" in torch.cuda.memory_summary()
        (segment,) = torch.cuda.memory_snapshot()
        assert [(each["size"], each["state"]) for each in segment["blocks"]] == [
            (512, "active_allocated"),
            (2 * MIB - 512, "inactive"),
        ]
        torch.cuda.memory._record_memory_history(max_entries=10)
        assert set(torch.cuda.memory._snapshot()) >= {"segments", "device_traces"}
        torch.cuda.memory._record_memory_history(enabled=None)
        assert kept.is_cuda


def test_memory_that_no_tensor_is_on_counts_too() -> None:
    with device() as on:
        address = torch.cuda.caching_allocator_alloc(1 * MIB)
        assert on.ledger.allocated_bytes == 1 * MIB
        torch.cuda.caching_allocator_delete(address)
        assert on.ledger.allocated_bytes == 0


def test_streams_and_events_take_all_their_arguments() -> None:
    with device():
        side = torch.cuda.Stream(device="cuda", priority=-1)
        assert isinstance(side, torch.cuda.Stream)
        assert isinstance(side, torch.Stream)
        assert (str(side.device), side.device_index, side.priority, side.query()) == ("cuda:0", 0, -1, True)
        assert side != torch.cuda.Stream()
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side
            x = torch.ones(4, device="cuda")
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(torch.cuda.current_stream())
        begin, end = torch.cuda.Event(enable_timing=True, blocking=False), torch.cuda.Event(True)
        begin.record()
        end.record(side)
        side.wait_event(end)
        torch.cuda.synchronize(device=0)
        assert begin.elapsed_time(end) > 0
        with pytest.raises(ValueError, match="enable_timing=True"):
            begin.elapsed_time(torch.cuda.Event())
        assert isinstance(torch.Stream(device="cuda"), torch.cuda.Stream)
        assert torch.Event("cuda").device.type == "cuda"
        with torch.cuda.stream(None), torch.cuda.device(0), torch.cuda.device_of(x):
            pass


def test_backward_runs_on_the_stream_of_its_forward_whatever_was_gathered_on_another_one_since() -> None:
    # given a layer of 1 MiB on the default stream, and a copy on a side stream right after it, as FSDP gathers weights
    with device() as on:
        layer, x = nn.Linear(512, 512, bias=False).cuda(), torch.ones(4, 512, device="cuda")
        side = torch.cuda.Stream()
        made = layer(x)
        with torch.cuda.stream(side), torch.no_grad():
            layer.weight.clone()
        made.sum().backward()

        # then the copy alone is on the side stream, and the gradient is not
        assert [line.stream for line in on.ledger.storages if line.size_bytes == MIB] == [0, 1, 0]

        # and backward of what was computed on the side stream allocates there
        with torch.cuda.stream(side):
            made = layer(x)
        layer.weight.grad = None
        made.sum().backward()
        assert [line.stream for line in on.ledger.storages if line.size_bytes == MIB] == [0, 1, 0, 1]


def test_it_says_what_a_gpu_it_is() -> None:
    with device() as on:
        assert on.ledger.asked == set()
        properties = torch.cuda.get_device_properties("cuda")
        assert torch.cuda.get_device_capability(torch.device("cuda")) == (properties.major, properties.minor) == (8, 0)
        assert on.ledger.asked == set()
        assert torch.cuda.get_device_name() == "NVIDIA A100-SXM4-80GB"
        assert on.ledger.asked == {"name"}
        assert torch.cuda.is_bf16_supported()
        assert torch.backends.cuda.is_built()
        assert (torch.version.cuda or "").split(".")[0] == ("13" if torch.__version__ >= "2.11" else "12")
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.accelerator.current_device_index() == torch.cuda.current_device() == 0
        assert torch.get_device_module() is torch.cuda
    assert not torch.backends.cuda.is_built()


def test_another_gpu_is_counted_with_the_first_and_said() -> None:
    with device() as on:
        torch.cuda.set_device(1)
        assert on.ledger.remarks["unsupported", "cuda:1 (counted with cuda:0, as one GPU)"] == 1


def test_ranges_profilers_and_random_states_are_there() -> None:
    with device():
        torch.cuda.nvtx.range_push("step")
        torch.cuda.nvtx.range_pop()
        with torch.cuda.nvtx.range("step"), torch.autograd.profiler.emit_nvtx():
            torch.cuda.profiler.start()
            torch.cuda.profiler.stop()
        torch.manual_seed(7)
        assert torch.cuda.initial_seed() == 7
        state = torch.cuda.get_rng_state()
        assert (tuple(state.shape), state.dtype) == ((16,), torch.uint8)
        torch.cuda.manual_seed_all(9)
        torch.cuda.set_rng_state_all([state])
        assert torch.cuda.initial_seed() == 7
        with torch.random.fork_rng(devices=[0]):
            torch.cuda.manual_seed(3)
        assert torch.cuda.initial_seed() == 7
        torch.backends.cudnn.benchmark_limit = 5
        torch.cuda.set_sync_debug_mode("warn")


def test_libraries_of_cuda_are_there_and_take_settings() -> None:
    with device():
        torch.zeros(10, device="cuda")
        nccl: Any = getattr(torch.cuda, "nccl")  # noqa: B009  stubs lack it
        assert nccl.version() == (2, 28, 9)
        assert torch.cuda.device_memory_used() == 2 * MIB
        torch.backends.cuda.preferred_linalg_library("magma")
        plans: Any = torch.backends.cuda.cufft_plan_cache
        plans[0].max_size = 8
        plans.clear()
        assert (plans[0].max_size, plans.size) == (8, 0)
        tunable: Any = torch.cuda.tunable
        tunable.set_filename("tuned.csv")
        tunable.set_max_tuning_duration(10)
        tunable.record_untuned_enable(False)
        assert (tunable.tuning_is_enabled(), tunable.get_max_tuning_iterations(), tunable.get_results()) == (
            True,
            100,
            (),
        )


def test_numpy_is_refused_as_by_torch() -> None:
    with device():
        x = torch.zeros(2, device="cuda")
        for ask in (lambda: x.numpy(), lambda: np.asarray(x), lambda: nn.Linear(2, 2).cuda().weight.numpy()):
            with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
                ask()
        assert x.numpy(force=True).shape == x.cpu().numpy().shape == (2,)
        large = torch.randn(1024, 1024, device="cuda")  # as TensorBoard's histograms of weights read it
        assert large.cpu().numpy().shape == large.numpy(force=True).shape == (1024, 1024)


SAID: list[tuple[Any, str]] = [
    (lambda: torch.arange(3, device="cuda"), "tensor([0, 1, 2], device='cuda:0')"),
    (lambda: torch.zeros((), device="cuda"), "tensor(0., device='cuda:0')"),
    (lambda: nn.Parameter(torch.zeros(1, device="cuda")) * 2, "tensor([0.], device='cuda:0', grad_fn=<MulBackward0>)"),
    (lambda: nn.Linear(1, 1).cuda()(torch.ones(1, 1).cuda()).sum(), "grad_fn=<SumBackward0>)"),
]


@pytest.mark.parametrize(("make", "text"), SAID)
def test_a_tensor_is_shown_as_by_torch(make: Any, text: str) -> None:
    with device():
        shown = make()
        assert repr(shown).endswith(text)
        if shown.dim():
            with pytest.raises(TypeError, match="unsupported format string passed to Tensor"):
                f"{shown:.3f}"
        else:
            assert f"{shown:.3f}" == f"{shown.item():.3f}"


def test_type_as_moves_between_devices() -> None:
    with device():
        assert torch.zeros(2).type_as(torch.zeros(1, device="cuda", dtype=torch.half)).type() == "torch.cuda.HalfTensor"
        assert torch.zeros(2, device="cuda").type_as(torch.zeros(1)).type() == "torch.FloatTensor"
