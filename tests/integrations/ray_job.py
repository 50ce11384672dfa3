"""A job of Ray Train: two workers that share batches, plain or within a budget each. Prints what came out as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

STEPS = 6


def train(config: dict[str, Any]) -> None:
    import ray.train  # pyright: ignore[reportMissingImports]
    import ray.train.torch  # pyright: ignore[reportMissingImports]
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    pairs = [nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)) for _ in range(4)]
    model = ray.train.torch.prepare_model(nn.Sequential(*pairs))
    optimizer = torch.optim.AdamW(model.parameters())
    rank, losses = ray.train.get_context().get_world_rank(), []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        loss = model(torch.randn(512, 128, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    said = {"losses": losses, "weights": hashlib.sha256(weights).hexdigest()}
    Path(config["folder"], f"rank{rank}.json").write_text(json.dumps(said))


def ended(folder: str, room: Any) -> None:
    from elbowroom.run.room import run_of

    run, last = run_of(room), room.steps[-1]
    said = {
        "mode": last.mode,
        "steps": len(room.steps),
        "swapped": last.swapped_out_bytes,
        "mismatches": sum(step.mismatches for step in room.steps),
        "measured": room.measured and room.measured.peak_allocated_bytes,
        "keep_all": run.kinds.keep_all_bytes,
    }
    import ray.train  # pyright: ignore[reportMissingImports]

    Path(folder, f"room{ray.train.get_context().get_world_rank()}.json").write_text(json.dumps(said))


def main(folder: str, budget: str) -> None:
    from functools import partial

    import ray  # pyright: ignore[reportMissingImports]
    import ray.train  # pyright: ignore[reportMissingImports]
    from ray.train.torch import TorchConfig, TorchTrainer  # pyright: ignore[reportMissingImports]

    from elbowroom.integrations.ray import RoomTorchConfig

    paths = {"PYTHONPATH": ":".join(sys.path[1:]), "RAY_TRAIN_V2_ENABLED": "1"}
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, runtime_env={"env_vars": paths})
    config = TorchConfig(backend="gloo")
    if budget != "plain":
        config = RoomTorchConfig(
            backend="gloo", budget=budget, options={"min_size": 1024, "measure": True}, ended=partial(ended, folder)
        )
    scaling = ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    run = ray.train.RunConfig(storage_path=str(Path(folder, "ray")))
    TorchTrainer(
        train, train_loop_config={"folder": folder}, torch_config=config, scaling_config=scaling, run_config=run
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
