"""A torchrun script: a small llama cut into stages of a pipeline. It knows nothing of elbowroom.

torchrun --nproc-per-node 4 benchmarks/ranks/pipeline.py --schedule 1F1B
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--schedule", default="1F1B", help="a name that torch.distributed.pipelining knows")
parser.add_argument("--stages", type=int, default=1, help="stages of each rank")
parser.add_argument("--static", action="store_true", help="give each stage the shapes of its inputs and outputs")
parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
parser.add_argument("--dim", type=int, default=1024)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--vocab", type=int, default=16000)
parser.add_argument("--micro-batches", type=int, default=8)
parser.add_argument("--batch", type=int, default=1, help="of a micro-batch")
parser.add_argument("--seq", type=int, default=1024)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--pipelining", help="folder of a torch.distributed.pipelining to take in the place of torch's own")
args = parser.parse_args()
if args.pipelining:
    name, file = "torch.distributed.pipelining", os.path.join(args.pipelining, "__init__.py")
    found: Any = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[args.pipelining])
    sys.modules[name] = module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
from torch.distributed.pipelining import PipelineStage, schedules  # noqa: E402  it is the one that was named


class Block(nn.Module):
    """A block of a llama: attention and a gated network."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.w1, self.w3 = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, 3 * dim, bias=False)
        self.w2 = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, dim = x.shape
        q, k, v = (part.view(batch, rows, -1, 64).transpose(1, 2) for part in self.qkv(self.n1(x)).chunk(3, -1))
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(made.transpose(1, 2).reshape(batch, rows, dim))
        inner = self.n2(x)
        return x + self.w2(functional.silu(self.w1(inner)) * self.w3(inner))


class Part(nn.Module):
    """The layers of one stage; the first one has the embedding, the last one the head."""

    def __init__(self, index: int, count: int) -> None:
        super().__init__()
        torch.manual_seed(index)
        self.emb = nn.Embedding(args.vocab, args.dim) if index == 0 else nn.Identity()
        self.layers = nn.Sequential(*(Block(args.dim) for _ in range(args.layers // count)))
        self.out = nn.Linear(args.dim, args.vocab, bias=False) if index == count - 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.emb(x)))


def stage_of(index: int, count: int, device: torch.device) -> PipelineStage:
    """Make a stage."""
    shapes: dict[str, Any] = {}
    if args.static:
        form = (args.batch, args.seq)
        between = torch.empty(*form, args.dim, device="meta", requires_grad=True)
        first, last = torch.empty(form, dtype=torch.long, device="meta"), torch.empty(*form, args.vocab, device="meta")
        shapes["input_args"] = (first if index == 0 else between,)
        shapes["output_args"] = (last if index == count - 1 else between,)
    return PipelineStage(Part(index, count).to(device), index, count, device, **shapes)


def schedule_of(rank: int, world: int, device: torch.device) -> tuple[Any, list[PipelineStage]]:
    """Make the schedule with the stages of this rank."""
    kind, count = schedules.get_schedule_class(args.schedule), world * args.stages
    mirrored = kind is schedules.ScheduleZBVZeroBubble
    own = (rank, count - 1 - rank) if mirrored else range(rank, count, world)
    stages = [stage_of(index, count, device) for index in own]
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    return kind(stages[0] if single else stages, args.micro_batches, loss_fn=loss_of), stages  # type: ignore[arg-type]


def loss_of(made: Tensor, target: Tensor) -> Tensor:
    """Compare the tokens that are predicted with those that come."""
    return functional.cross_entropy(made.flatten(0, 1), target.flatten())


def main() -> None:
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if args.device == "cuda" else torch.device("cpu")
    if args.device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    schedule, stages = schedule_of(rank, dist.get_world_size(), device)
    weights = [weight for stage in stages for weight in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=3e-4)
    torch.manual_seed(7)
    losses: list[Tensor] = []
    for _ in range(args.steps):
        tokens = torch.randint(0, args.vocab, (args.batch * args.micro_batches, args.seq), device=device)
        optimizer.zero_grad()
        begins, ends = (any(getattr(stage, which) for stage in stages) for which in ("is_first", "is_last"))
        schedule.step(*([tokens] if begins else []), **({"target": tokens, "losses": losses} if ends else {}))
        optimizer.step()
    if args.device == "cpu":
        digest = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in weights))
        print(f"rank {rank}: losses {[each.item() for each in losses]}, weights {digest.hexdigest()[:16]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
