"""`elbowroom run` of DistributedDataParallel in each of its ways behind torchrun: two ranks over gloo, bit by bit."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="elbowroom run runs torch scripts")

import torch.distributed as dist

from tests.cli.answers import answered
from tests.cli.test_run_ranks import two_ranks

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this build has no gloo"),
]

# 8 linear layers of 256 x 256 on 4096 rows: each saves an output of 4 MiB, and AdamW has 4 MiB of states in all.
# How it ends: Note: [The end of a rank] in tests/rank_ends.py.
SCRIPT = """
import contextlib, hashlib, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as checkpoint, torch.distributed.nn
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

way = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8))
        self.spare = nn.Linear(256, 256)

    def forward(self, x, spare=False):
        for layer in self.layers:
            x = layer(x)
        return self.spare(x) if spare else x


def train():
    how = {"gradient_as_bucket_view": True} if way == "bucket_view" else {}
    how |= {"bucket_cap_mb": 0.5} if way == "buckets" else {}
    how |= {"find_unused_parameters": True} if way in ("unused", "join") else {}
    how |= {"static_graph": True} if way == "static" else {}
    net = Net()
    if way not in ("unused", "join"):
        del net.spare
    model = DistributedDataParallel(net, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    draws = torch.Generator().manual_seed(rank)
    data = [torch.randn(4096, 256, generator=draws) for _ in range(3)]
    parts = 3 if way == "no_sync" else 1
    steps = 6 + (2 * rank if way == "join" else 0)
    with Join([model]) if way == "join" else contextlib.nullcontext():
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(parts):
                with model.no_sync() if part < parts - 1 else contextlib.nullcontext():
                    given = {"spare": True} if way == "unused" and step % 2 and rank else {}
                    loss = model(data[(step + part) % 3], **given).square().mean()
                    loss.backward()
            optimizer.step()
            if way == "checkpoint" and step == 3:
                saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
                checkpoint.async_save(saved, checkpoint_id="saved").result()
                for each in net.parameters():
                    each.data.add_(1.0)
                again = {"model": net.state_dict()}
                checkpoint.load(again, checkpoint_id="saved")
                net.load_state_dict(again["model"])
    tensors = [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]
    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in tensors)).hexdigest()
    print(f"rank {rank}: {loss.item().hex()} {digest}\\n", end="", flush=True)


train()
dist.destroy_process_group()
"""
WAYS = ("buckets", "bucket_view", "static", "no_sync", "unused", "join", "checkpoint")


@pytest.mark.parametrize("way", WAYS)
def test_each_rank_has_the_numbers_it_has_without_a_budget(tmp_path: Path, way: str) -> None:
    for name in ("plain", "within"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(SCRIPT)
    plain = two_ranks(tmp_path / "plain", "train.py", way)

    options = ["--budget", "44MiB", "--json", "figures.json"]
    inside = two_ranks(tmp_path / "within", "-m", "elbowroom", "run", *options, "train.py", way)

    # then losses, weights and states are equal, of each rank
    assert plain.returncode == 0, plain.stderr
    assert inside.returncode == 0, inside.stderr
    assert plain.stdout.count("rank ") == 2, plain.stderr
    assert sorted(inside.stdout.split("\n")) == sorted(plain.stdout.split("\n"))
    # then the budget was short, kept, and met by moving storages
    figures = [answered((tmp_path / "within" / f"figures.rank{rank}.json").read_text(), "run") for rank in (0, 1)]
    assert all(each["keep_all_bytes"] > each["budget_bytes"] for each in figures)
    assert all(each["swaps"] > 0 for each in figures)
    assert [each["over_budget_bytes"] for each in figures] == [0, 0]
