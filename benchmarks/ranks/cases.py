"""The ways of torch.distributed that are compared, each as one rank of a job, and the two sides of a comparison."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from benchmarks.on_rig import environment_of
from elbowroom.answers.estimate import Estimate, estimate
from elbowroom.capture.job_rank import JobRank
from elbowroom.capture.script import capture_script
from elbowroom.machine import Machine

FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "train.py"
GPU = "h100-sxm"


class Case(NamedTuple):
    """A configuration.

    Attributes:
        title: its name in the table.
        ranks: processes of the job.
        rank: the one that is looked at.
        arguments: those of the script.
    """

    title: str
    ranks: int
    rank: int
    arguments: str

    @property
    def job(self) -> JobRank:
        """The process that is looked at."""
        return JobRank.of(self.rank, self.ranks)


CASES = (
    Case("DDP", 8, 0, "--mode ddp"),
    Case("DDP, the last of 1,024", 1024, 1023, "--mode ddp"),
    Case("DDP, gradients as views of buckets", 8, 3, "--mode ddp --bucket-view"),
    Case("DDP, static graph, checkpoints", 8, 0, "--mode ddp --static --checkpoint"),
    Case("DDP, unused parameters looked for", 8, 0, "--mode ddp --unused"),
    Case("DDP, autocast, 2 batches a step", 64, 0, "--mode ddp --autocast --accumulate 2"),
    Case("DDP, ZeroRedundancyOptimizer", 8, 0, "--mode ddp --optimizer zero"),
    Case("DDP, ZeroRedundancyOptimizer, the last", 8, 7, "--mode ddp --optimizer zero"),
    Case("DDP, experts (all-to-all)", 8, 7, "--mode experts"),
    Case("DDP, SyncBatchNorm", 8, 3, "--mode norms"),
    Case("FSDP2", 8, 0, "--mode fsdp2"),
    Case("FSDP2, bfloat16", 1024, 0, "--mode fsdp2 --bf16"),
    Case("FSDP2, bfloat16, the last of 1,024", 1024, 1023, "--mode fsdp2 --bf16"),
    Case("FSDP2, weights stay after forward", 64, 0, "--mode fsdp2 --bf16 --reshard no"),
    Case("FSDP2, resharded to 8 ranks", 64, 0, "--mode fsdp2 --bf16 --reshard 8"),
    Case("FSDP2, 3 batches a step", 64, 5, "--mode fsdp2 --bf16 --accumulate 3"),
    Case("FSDP2, checkpoints, clipped", 64, 0, "--mode fsdp2 --bf16 --checkpoint --clip"),
    Case("FSDP2, CPUOffloadPolicy", 128, 0, "--mode fsdp2 --bf16 --offload"),
    Case("FSDP2, made on meta", 128, 0, "--mode fsdp2 --bf16 --meta"),
    Case("FSDP2, SGD one by one", 16, 0, "--mode fsdp2 --optimizer sgd --foreach no"),
    Case("HSDP", 1024, 0, "--mode hsdp"),
    Case("HSDP, bfloat16, weights stay", 64, 63, "--mode hsdp --bf16 --reshard no"),
    Case("FSDP1", 8, 0, "--mode fsdp1"),
    Case("FSDP1, bfloat16, clipped", 8, 7, "--mode fsdp1 --bf16 --clip"),
    Case("FSDP1, SHARD_GRAD_OP", 16, 15, "--mode fsdp1 --strategy SHARD_GRAD_OP"),
    Case("FSDP1, HYBRID_SHARD", 1024, 0, "--mode fsdp1 --strategy HYBRID_SHARD"),
    Case("FSDP1, 2 batches a step", 8, 0, "--mode fsdp1 --accumulate 2"),
    Case("FSDP1, CPUOffload", 8, 0, "--mode fsdp1 --offload"),
    Case("tensor parallel", 8, 0, "--mode tp --foreach no"),
    Case("tensor parallel, autocast", 8, 0, "--mode tp --autocast --foreach no"),
    Case("tensor and sequence parallel", 1024, 5, "--mode tp --sequence"),
    Case("tensor parallel and FSDP2", 1024, 1023, "--mode 2d --bf16"),
    Case("tensor, sequence parallel and FSDP2, made on meta", 64, 0, "--mode 2d --bf16 --sequence --meta"),
)


def estimated(case: Case) -> Estimate:
    """What elbowroom estimates."""
    trace = capture_script(SCRIPT, case.arguments.split(), machine=GPU, job=case.job)
    return estimate(trace, Machine.of(GPU), plans=False)


def command(rig: Path, case: Case) -> tuple[list[str], dict[str, str]]:
    """The process on the rig, and its environment.

    The device has pages of its own, which nothing touches: DistributedDataParallel reads some on the host.
    """
    variables = {
        **case.job.environment(),
        "FAKECUDA_DEVICES": str(case.job.local_ranks),
        "FAKECUDA_CC": "90",
        "FAKECUDA_SMS": "132",
        "FAKECUDA_CAPACITY": str(80 << 30),
        "FAKECUDA_COPIES": str(1 << 20),
    }
    environment = environment_of(variables=variables)
    del environment["FAKECUDA_BACKING"]
    words = [str(rig / "fake_torch.sh"), str(FOLDER / "around.py"), str(SCRIPT), *case.arguments.split()]
    return words, environment


def on_rig(rig: Path, case: Case) -> tuple[int, int]:
    """Allocated and reserved peak of the CUDA build."""
    words, environment = command(rig, case)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if "@@" not in done.stdout:
        raise RuntimeError(f"{case.title} failed on the rig:\n{done.stderr[-4000:]}")
    allocated, reserved = done.stdout.partition("@@")[2].split()
    return int(allocated), int(reserved)
