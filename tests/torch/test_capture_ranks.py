"""capture_script of an unchanged torchrun script as one rank of many: what it finds, and what its trace has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from elbowroom.answers.exchanges import collectives_of
from elbowroom.capture.job_rank import JobRank
from elbowroom.capture.script import capture_script
from elbowroom.errors import CaptureError
from elbowroom.hardware.interconnects import Communicator
from elbowroom.machine import Machine
from elbowroom.simulate.simulate import simulate
from elbowroom.step.exchange_times import kind_of
from elbowroom.trace import Category, Trace

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed"),
]

H100 = Machine.of("h100-sxm")
MIB = 2**20
BEGIN = """
import os
import torch
import torch.distributed as dist
from torch import nn

rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
assert torch.cuda.device_count() == int(os.environ["LOCAL_WORLD_SIZE"])
torch.cuda.set_device(local)
torch.manual_seed(rank)  # of every GPU of the computer
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
assert (dist.get_rank(), dist.get_world_size()) == (rank, int(os.environ["WORLD_SIZE"]))
"""
NETWORK = """
device = torch.device(f"cuda:{local}")
layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4)))
model = layers.to(device)
assert next(model.parameters()).device == device and device.index == torch.cuda.current_device() == local
"""
TRAINS = """
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(10):
    model(torch.randn(8, 1024, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DDP = f"""{BEGIN}{NETWORK}
model = nn.parallel.DistributedDataParallel(model, device_ids=[local])
{TRAINS}"""
FSDP2 = f"""{BEGIN}
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
{NETWORK}
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
{TRAINS}"""
META = f"""{BEGIN}
from torch.distributed.fsdp import fully_shard
device = torch.device("cuda", local)
with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device="cuda")
for layer in model:
    layer.reset_parameters()
{TRAINS}"""
ONLY_A_MESH = f"""
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
assert (mesh.get_local_rank("dp"), mesh.get_local_rank("tp")) == (1, 1)
device, model = torch.device("cuda"), nn.Linear(1024, 1024).cuda()
{TRAINS}"""


def captured(folder: Path, text: str, rank: int, ranks: int, local: int | None = None) -> Trace:
    path = folder / "train.py"
    path.write_text(text)
    return capture_script(path, machine=H100, steps=2, job=JobRank.of(rank, ranks, local))


def sizes(trace: Trace, category: Category) -> list[int]:
    return sorted({each.size_bytes for each in trace.storages if each.category == category and each.size_bytes > 4096})


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1024), (1021, 1024)])
def test_a_rank_of_ddp_finds_its_gpu_and_reduces_all_gradients(tmp_path: Path, rank: int, ranks: int) -> None:
    trace = captured(tmp_path, DDP, rank, ranks)

    # 4 weights of 4 MiB, whole on every rank; the first bucket has 1 MiB or one gradient, the other one the rest
    assert (sizes(trace, "parameter"), sizes(trace, "optimizer_state")) == ([4 * MIB], [4 * MIB])
    (reduced,) = (each for each in collectives_of(trace) if each.kind == "all-reduce")
    assert reduced.size_bytes == 16 * MIB


@pytest.mark.parametrize("text", [FSDP2, META], ids=["FSDP2", "made on meta"])
def test_a_rank_of_fsdp_has_its_shards_and_gathers_weights(tmp_path: Path, text: str) -> None:
    # given 16 ranks, of which each has a sixteenth of 4 MiB, 4 times
    trace = captured(tmp_path, text, 13, 16)

    # then weights and states are shards, not what is on meta or gathered
    assert sizes(trace, "optimizer_state") == [MIB // 4]
    assert sizes(trace, "parameter") == [MIB // 4]
    found = {each.kind: each for each in collectives_of(trace)}
    assert found["reduce-scatter"].size_bytes == 16 * MIB
    # gathered in forward and again in backward, but for the last layer's
    assert found["all-gather"].size_bytes in (28 * MIB, 32 * MIB)


SYNCED = f"""{BEGIN}
found = [None]
dist.scatter_object_list(found, [f"of {{each}}" for each in range(dist.get_world_size())])
assert found == [f"of {{rank}}"]
device = torch.device("cuda", local)
layers = nn.Sequential(nn.Linear(1024, 1024), nn.BatchNorm1d(1024))
model = nn.SyncBatchNorm.convert_sync_batchnorm(layers).to(device)
model = nn.parallel.DistributedDataParallel(model, device_ids=[local])
{TRAINS}"""


def test_statistics_of_a_batch_norm_are_those_of_all_ranks(tmp_path: Path) -> None:
    trace = captured(tmp_path, SYNCED, 2, 8)

    # a step gathers 2 * 1024 + 1 floats of each of 8 ranks; backward reduces 2 * 1024 sums and the gradients
    found = {each.kind: (each.calls, each.size_bytes) for each in collectives_of(trace)}
    assert found["all-gather"] == (1, 8 * (2 * 1024 + 1) * 4)
    assert found["all-reduce"][1] >= 2 * 1024 * 4 + 4 * MIB


def test_a_mesh_starts_the_group_itself(tmp_path: Path) -> None:
    assert len(captured(tmp_path, ONLY_A_MESH, 5, 8).steps) == 2


def test_a_script_that_starts_no_group_trains_alone_and_is_refused(tmp_path: Path) -> None:
    text = f"import torch\nfrom torch import nn\ndevice, model = 'cuda', nn.Linear(1024, 1024).cuda()\n{TRAINS}"

    with pytest.raises(CaptureError, match="given --ranks 8, and it starts no process group, so each process would"):
        captured(tmp_path, text, 0, 8)


def test_a_job_that_trains_on_the_cpu_is_told_from_one_on_gpus(tmp_path: Path) -> None:
    text = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
device, model = "cpu", nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024))
"""

    with pytest.raises(CaptureError, match="made with 2 tensors on cpu, and nothing was on cuda"):
        captured(tmp_path, text + TRAINS.replace("range(10)", "range(30)"), 0, 2)


def test_a_group_of_another_size_is_refused(tmp_path: Path) -> None:
    text = "import torch.distributed as dist\ndist.init_process_group('nccl', world_size=4, rank=0)\n"

    with pytest.raises(CaptureError, match=r"its process group has 4 processes, and --ranks is 8; .* WORLD_SIZE"):
        captured(tmp_path, text, 0, 8)


def test_objects_of_another_rank_are_not_made_up(tmp_path: Path) -> None:
    text = f"{BEGIN}found = [rank]\ndist.broadcast_object_list(found)\nassert found == [rank]\n"
    text += "dist.recv_object_list([None])\n"  # of any rank

    with pytest.raises(CaptureError, match="it receives objects from another rank, which is not there"):
        captured(tmp_path, text, 0, 8)


def test_a_group_of_any_backend_is_of_the_virtual_gpu(tmp_path: Path) -> None:
    text = f"""{BEGIN}
beside = dist.new_group(ranks=[0, rank], backend="gloo")
flag = torch.ones(1)
dist.all_reduce(flag, group=beside)
assert dist.get_world_size(beside) == 2
{NETWORK}{TRAINS}"""

    assert len(captured(tmp_path, text, 3, 8).steps) == 2


TWO_WAYS = f"""{BEGIN}
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cuda", (dist.get_world_size() // 4, 4), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(1024, 4096, bias=False), nn.Linear(4096, 1024, bias=False)).cuda()
parallelize_module(model, mesh["tp"], {{"0": ColwiseParallel(), "1": RowwiseParallel()}})
fully_shard(model, mesh=mesh["dp"])
device = torch.device("cuda", local)
{TRAINS}"""


def test_a_trace_has_the_group_and_the_bytes_of_each_collective(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_WAYS)
    trace = capture_script(str(tmp_path / "train.py"), machine=H100, job=JobRank.of(0, 16, 8))

    # 4 ranks of a tensor on this computer; 4 ranks of data, 2 of them here, as every fourth of 16 is one
    groups = {trace.communicators[each.communicator] for each in trace.exchanges}
    assert groups == {Communicator(4, 4, 8), Communicator(4, 2, 8)}
    sizes = {kind_of(trace.ops[each.op].name): each for each in trace.exchanges}
    # a rank of a tensor has 2 * 1,024 * 1,024 float32, which its ranks of data gather and scatter: 8 MiB
    assert {kind: sizes[kind].size_bytes // MIB for kind in ("all-gather", "reduce-scatter")} == {
        "all-gather": 8,
        "reduce-scatter": 8,
    }
    # 8 rows of 1,024 float32 are reduced over the ranks of a tensor
    assert sizes["all-reduce"].size_bytes == 8 * 1024 * 4
    assert trace.communicators[sizes["all-reduce"].communicator] == Communicator(4, 4, 8)
    assert all(trace.ops[each.op].duration_ns > 3_600 for each in trace.exchanges), "the least latency"


def test_gatherings_of_fsdp_are_called_by_a_stream_of_their_own_and_run_ahead(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FSDP2)
    slow = capture_script(
        str(tmp_path / "train.py"), machine=H100, job=JobRank.of(0, 8), interconnect="1GB/s,1xethernet-10"
    )

    called = {op for op, _ in slow.op_streams}
    gathers = [each.op for each in slow.exchanges if kind_of(slow.ops[each.op].name) == "all-gather"]
    assert gathers
    assert called >= set(gathers)
    line = simulate(slow, H100)
    lane = [span for span in line.spans if span.kind == "exchange"]
    # 4 MiB at 1 GB/s and more: the links are busy nearly all the time, and compute waits for them
    assert sum(span.end_ns - span.start_ns for span in lane) > 0.95 * line.step_ns
    assert line.wait_ns + line.busy_ns == line.step_ns
    assert line.wait_ns > 0.9 * line.step_ns
