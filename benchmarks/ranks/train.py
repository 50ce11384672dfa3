"""A torchrun script: a small llama, sharded in the ways of torch.distributed. It knows nothing of elbowroom.

torchrun --nproc-per-node 8 benchmarks/ranks/train.py --mode fsdp2 --bf16
"""

from __future__ import annotations

import argparse
import contextlib
import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
MODES = ("ddp", "fsdp2", "hsdp", "fsdp1", "tp", "2d", "experts", "norms")
parser.add_argument("--mode", default="ddp", choices=MODES)
parser.add_argument("--dim", type=int, default=1024)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--vocab", type=int, default=16000)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--seq", type=int, default=1024)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--tp", type=int, default=8)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--optimizer", default="adamw", choices=("adamw", "sgd", "zero"))
parser.add_argument("--strategy", default="FULL_SHARD")
parser.add_argument("--reshard", default="yes", help="yes, no, or a number of ranks")
for flag in (
    "bf16",
    "autocast",
    "meta",
    "checkpoint",
    "offload",
    "clip",
    "sequence",
    "bucket-view",
    "static",
    "unused",
):
    parser.add_argument(f"--{flag}", action="store_true")
parser.add_argument("--foreach", default="default", choices=("default", "no"))
args = parser.parse_args()


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.head = dim // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, _ = x.shape
        q, k, v = (w(x).view(batch, rows, -1, self.head).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(made.transpose(1, 2).reshape(batch, rows, -1))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """An expert on each rank: tokens are sent to them and back."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.own = FeedForward(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        from torch.distributed.nn.functional import all_to_all_single

        flat = x.reshape(-1, x.shape[-1]).contiguous()
        here = all_to_all_single(torch.empty_like(flat), flat)
        made = self.own(here).contiguous()
        return all_to_all_single(torch.empty_like(made), made).view_as(x)


class Normed(nn.Module):
    """A batch norm in the middle, whose statistics are those of all ranks."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.norm = nn.BatchNorm1d(hidden)

    def forward(self, x: Tensor) -> Tensor:
        made = self.norm(self.w1(x).transpose(1, 2).contiguous())
        return self.w2(functional.relu(made).transpose(1, 2))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.att = Attention(dim, heads)
        self.ff = {"experts": Experts, "norms": Normed}.get(args.mode, FeedForward)(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.att(self.n1(x))
        return x + self.ff(self.n2(x))


class Llama(nn.Module):
    def __init__(self, dim: int, layers: int, vocab: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim, dim // 64) for _ in range(layers))
        self.norm, self.out = nn.RMSNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.emb(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.checkpoint else layer(x)
        return self.out(self.norm(x))


def fully_sharded(model: Any, mesh: Any) -> Any:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    how: dict[str, Any] = {"mesh": mesh}
    if args.bf16:
        how["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if args.offload:
        how["offload_policy"] = CPUOffloadPolicy()
    reshard = {"yes": True, "no": False}.get(args.reshard) if args.reshard in ("yes", "no") else int(args.reshard)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard, **how)
    return fully_shard(model, reshard_after_forward=reshard, **how)


def fully_sharded_1(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        sharding_strategy=ShardingStrategy[args.strategy],
        mixed_precision=half if args.bf16 else None,
        cpu_offload=CPUOffload(offload_params=True) if args.offload else None,
        device_id=torch.cuda.current_device(),
        use_orig_params=True,
    )


def tensor_parallel(model: Llama, mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    columns = dict.fromkeys(("att.wq", "att.wk", "att.wv", "ff.w1", "ff.w3"), ColwiseParallel())
    rows: dict[str, Any] = dict.fromkeys(("att.wo", "ff.w2"), RowwiseParallel())
    if args.sequence:
        gathers = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        rows = dict.fromkeys(rows, RowwiseParallel(output_layouts=Shard(1)))
        rows |= dict.fromkeys(("n1", "n2"), SequenceParallel()) | dict.fromkeys(("att", "ff"), gathers)
        ends: dict[str, Any] = {
            "emb": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(model, mesh, ends)
    for layer in model.layers:
        parallelize_module(layer, mesh, {**columns, **rows})


def parallel(model: Any, world: int, local: int) -> Any:
    """Shard the model as the mode says."""
    if args.mode == "norms":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if args.mode in ("ddp", "experts", "norms"):
        return nn.parallel.DistributedDataParallel(
            model,
            device_ids=[local],
            gradient_as_bucket_view=args.bucket_view,
            static_graph=args.static,
            find_unused_parameters=args.unused,
        )
    if args.mode == "fsdp2":
        return fully_sharded(model, init_device_mesh("cuda", (world,)))
    if args.mode == "hsdp":
        names = ("replicate", "shard")
        return fully_sharded(model, init_device_mesh("cuda", (world // 8, 8), mesh_dim_names=names))
    if args.mode == "fsdp1":
        return fully_sharded_1(model)
    mesh = init_device_mesh("cuda", (world // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
    tensor_parallel(model, mesh["tp"])
    return fully_sharded(model, mesh["dp"]) if args.mode == "2d" else model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    foreach = False if args.foreach == "no" else None
    if args.optimizer == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=3e-4)
    if args.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=foreach)
    return torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=foreach)


def model_of(world: int, local: int) -> Any:
    with torch.device("meta") if args.meta else contextlib.nullcontext():
        model = Llama(args.dim, args.layers, args.vocab)
    if not args.meta and not args.offload:
        model = model.to(f"cuda:{local}")
    model = parallel(model, world, local)
    if args.meta:
        model.to_empty(device="cpu" if args.offload else "cuda")
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
    return model


def backward(model: Any, device: torch.device) -> None:
    """Gradients of a step: of one batch, or of some."""
    for turn in range(args.accumulate):
        last = turn == args.accumulate - 1
        if args.mode in ("fsdp2", "hsdp"):
            model.set_requires_gradient_sync(last)
        quiet = args.mode in ("ddp", "fsdp1") and not last
        tokens = torch.randint(0, args.vocab, (args.batch, args.seq), device=device)
        amp = torch.autocast("cuda", torch.bfloat16) if args.autocast else contextlib.nullcontext()
        with model.no_sync() if quiet else contextlib.nullcontext():
            with amp:
                loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
            loss.backward()


def main() -> None:
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("cuda:nccl,cpu:gloo" if args.offload else "nccl")
    model, device = model_of(dist.get_world_size(), local), torch.device("cuda", local)
    optimizer = optimizer_of(model)
    for _ in range(args.steps):
        optimizer.zero_grad()
        backward(model, device)
        if args.clip:
            model.clip_grad_norm_(1.0) if args.mode == "fsdp1" else nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
