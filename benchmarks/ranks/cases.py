"""The ways of torch.distributed that are compared, each as one rank of a job, and the two sides of a comparison."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.on_rig import environment_of
from elbowroom.answers.estimate import Estimate, estimate
from elbowroom.capture.job_rank import JobRank
from elbowroom.capture.script import capture_script
from elbowroom.machine import Machine

FOLDER = Path(__file__).parent
PIPELINE = "pipeline.py"
GPU = "h100-sxm"


class Case(NamedTuple):
    """A configuration.

    Attributes:
        title: its name in the table.
        ranks: processes of the job.
        rank: the one that is looked at.
        arguments: those of the script.
        script: its name.
    """

    title: str
    ranks: int
    rank: int
    arguments: str
    script: str = "train.py"

    @property
    def path(self) -> Path:
        """The script."""
        return FOLDER / self.script

    @property
    def together(self) -> range:
        """Ranks that run on the rig: all stages of a pipeline, as they ask each other for shapes."""
        return range(self.ranks) if self.script == PIPELINE else range(self.rank, self.rank + 1)

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
    Case("pipeline, GPipe", 4, 0, "--schedule GPipe", PIPELINE),
    Case("pipeline, 1F1B", 4, 0, "--schedule 1F1B", PIPELINE),
    Case("pipeline, 1F1B, a stage between", 4, 1, "--schedule 1F1B", PIPELINE),
    Case("pipeline, 1F1B, the last stage", 4, 3, "--schedule 1F1B", PIPELINE),
    Case("pipeline, 1F1B, shapes given", 4, 2, "--schedule 1F1B --static", PIPELINE),
    Case("pipeline, Interleaved1F1B", 4, 3, "--schedule Interleaved1F1B --stages 2", PIPELINE),
    Case("pipeline, ZBVZeroBubble", 4, 0, "--schedule ZBVZeroBubble --stages 2", PIPELINE),
)


def estimated(case: Case, rig: Path) -> Estimate:
    """What elbowroom estimates; the schedules of a pipeline are the rig's, as versions of torch differ in theirs."""
    words = case.arguments.split()
    if case.script == PIPELINE:
        words += ["--pipelining", str(rig.resolve() / "unpacked" / "torch" / "distributed" / "pipelining")]
    trace = capture_script(case.path, words, machine=GPU, job=case.job)
    return estimate(trace, Machine.of(GPU), plans=False)


def command(rig: Path, case: Case, job: JobRank, mail: str) -> tuple[list[str], dict[str, str]]:
    """The process of a rank on the rig, and its environment.

    The device has pages of its own, which nothing touches: DistributedDataParallel reads some on the host.
    """
    variables = {
        **job.environment(),
        "FAKECUDA_DEVICES": str(job.local_ranks),
        "FAKECUDA_CC": "90",
        "FAKECUDA_SMS": "132",
        "FAKECUDA_CAPACITY": str(80 << 30),
        "FAKECUDA_COPIES": str(1 << 20),
        "MAIL": mail,
    }
    environment = environment_of(variables=variables)
    del environment["FAKECUDA_BACKING"]
    words = [str(rig / "fake_torch.sh"), str(FOLDER / "around.py"), str(case.path), *case.arguments.split()]
    return words, environment


def on_rig(rig: Path, case: Case) -> tuple[int, int]:
    """Allocated and reserved peak of the CUDA build."""
    with tempfile.TemporaryDirectory() as mail, ExitStack() as running:
        jobs = [JobRank.of(rank, case.ranks) for rank in case.together]
        processes = [running.enter_context(_started(*command(rig, case, job, mail))) for job in jobs]
        said = [process.communicate() for process in processes][case.rank - jobs[0].rank]
    if "@@" not in said[0]:
        raise RuntimeError(f"{case.title} failed on the rig:\n{said[1][-4000:]}")
    allocated, reserved = said[0].partition("@@")[2].split()
    return int(allocated), int(reserved)


def _started(words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
