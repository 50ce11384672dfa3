"""Run inside the rig: a torchrun script as one rank of many, over torch's fake process group. It prints its peaks.

    RANK=0 WORLD_SIZE=1024 ... fake_torch.sh around.py train.py [ARGS]

Objects go through files in the folder MAIL, where other ranks run beside it: stages of a pipeline ask for shapes so.

A work that sends or receives holds its tensor, as one of NCCL does (`outputs_` in torch's ProcessGroupNCCL.cpp); one of
the fake group does not.

The rig has no NCCL. Collectives of a fake group end at once and give no values. DistributedDataParallel needs what they
return: a hook gives it its bucket back.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
AT = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")


def _init(*_args: Any, **_how: Any) -> None:
    real("fake", rank=RANK, world_size=RANKS, store=FakeStore())


def _of_fake(*args: Any, **how: Any) -> Any:
    """Make each further group a fake one too."""
    given = [*args[:3], "fake", *args[4:]] if len(args) > 3 else list(args)
    return made(*given, **({**how, "backend": "fake"} if len(args) <= 3 else how))


def _ended(result: Any) -> Any:
    future: Any = torch.futures.Future(devices=[torch.device("cuda", torch.cuda.current_device())])
    future.set_result(result)
    return future


def _of_bucket(state: object, bucket: Any) -> Any:
    del state
    return _ended(bucket.buffer())


_of_bucket.__annotations__.clear()  # torch takes no other annotation than its own


def _ddp(self: Any, *args: Any, **how: Any) -> None:
    begin(self, *args, **how)
    self.register_comm_hook(None, _of_bucket)


def _gathered(output: torch.Tensor, given: torch.Tensor, *args: Any, **how: Any) -> Any:
    """A fake group takes only tensors that are cut along their first dimension."""
    return gathered(output.view(-1), given.view(-1), *args, **how)


class Holding:
    """A work with its tensor."""

    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self.work, self.tensor = work, tensor

    def wait(self) -> Any:
        return self.work.wait()


def _holding(function: Any) -> Any:
    def begun(tensor: torch.Tensor, *args: Any, **how: Any) -> Holding:
        return Holding(function(tensor, *args, **how), tensor)

    return begun


def _send_objects(objects: list[Any], dst: int, **_how: Any) -> None:
    path = MAIL / f"{RANK}-{dst}-{passed[RANK, dst]}"
    passed[RANK, dst] += 1
    path.with_suffix(".new").write_bytes(pickle.dumps(objects))
    path.with_suffix(".new").rename(path)


def _receive_objects(objects: list[Any], src: int, **_how: Any) -> int:
    path = MAIL / f"{src}-{RANK}-{passed[src, RANK]}"
    passed[src, RANK] += 1
    while not path.exists():
        time.sleep(0.01)
    objects[:] = pickle.loads(path.read_bytes())
    return src


MAIL = Path(os.environ.get("MAIL", "."))
passed: Counter[tuple[int, int]] = Counter()
for name in ("isend", "irecv"):
    vars(dist)[name] = vars(distributed_c10d)[name] = _holding(getattr(dist, name))
vars(dist).update(send_object_list=_send_objects, recv_object_list=_receive_objects)
OF_EACH = "_new_process_group_helper"
real, made, begin = dist.init_process_group, vars(distributed_c10d)[OF_EACH], DistributedDataParallel.__init__
gathered = dist.all_gather_into_tensor
vars(dist)["all_gather_into_tensor"] = _gathered
for place in (dist, distributed_c10d, device_mesh):
    vars(place)["init_process_group"] = _init
setattr(distributed_c10d, OF_EACH, _of_fake)
for place in (dist, sys.modules[DistributedDataParallel.__module__]):
    for name in ("_verify_params_across_processes", "_verify_param_shape_across_processes"):
        vars(place)[name] = lambda *_args, **_how: None
DistributedDataParallel.__init__ = _ddp

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
    stats = torch.cuda.memory_stats()
    print("@@", *(stats[name] for name in AT))
