"""Launched rank: which process of a job this one is, by the variables that its launcher has set.

torchrun (and accelerate, which uses it), Open MPI, Hydra (MPICH, Intel MPI) and Slurm's srun set such variables. Those
of Slurm that an sbatch script has too say nothing of how many processes run, so only those of a job step are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class _Variables(NamedTuple):
    """Names of a launcher's variables: number of this process, of all, and of those on this computer."""

    rank: str
    ranks: str
    local_ranks: str


_LAUNCHERS = (
    _Variables("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    _Variables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    _Variables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)
_NODE = "SLURM_NODEID"
"""Variable of srun: which of the counts in SLURM_STEP_TASKS_PER_NODE is that of this computer."""
_COUNTS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRank:
    """One process of a job, or the only one.

    Attributes:
        rank: its number, from 0.
        ranks: processes of the job.
        local_ranks: processes of the job on this computer.
    """

    rank: int = 0
    ranks: int = 1
    local_ranks: int = 1

    @property
    def of_many(self) -> bool:
        """Whether the job has other processes."""
        return self.ranks > 1

    @property
    def label(self) -> str:
        """Its name in messages, such as "rank 1 of 8"."""
        return f"rank {self.rank} of {self.ranks}"

    def path_of(self, path: str) -> str:
        """Return the name of its own file where all ranks were given the same: "a.rank1.json" for "a.json".

        A pipe or a device, such as /dev/stderr, keeps its name.
        """
        if not self.of_many or (os.path.exists(path) and not os.path.isfile(path)):
            return path
        folder, name = os.path.split(path)
        stem, dot, ending = name.partition(".")
        return os.path.join(folder, f"{stem}.rank{self.rank}{dot}{ending}")


def launched_rank(environment: Mapping[str, str] | None = None) -> LaunchedRank:
    """Return which process this is; the only one if no launcher says otherwise.

    Args:
        environment: variables to read; None for those of this process.
    """
    given = os.environ if environment is None else environment
    for names in _LAUNCHERS:
        rank, ranks = given.get(names.rank, ""), given.get(names.ranks, "")
        if rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks):
            local_ranks = _here(given.get(names.local_ranks, ""), given.get(_NODE, ""))
            return LaunchedRank(rank=int(rank), ranks=int(ranks), local_ranks=min(local_ranks, int(ranks)))
    return LaunchedRank()


def _here(counts: str, node: str) -> int:
    """Return the number of processes on this computer. Slurm writes "4(x2),3" for computers with 4, 4 and 3."""
    each = [int(count) for count, times in _COUNTS.findall(counts) for _ in range(int(times or 1))]
    at = int(node) if node.isdecimal() and len(each) > 1 else 0
    return max(1, each[at]) if at < len(each) else 1
