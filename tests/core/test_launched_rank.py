"""Which process of a job this is, by the variables of launchers."""

from __future__ import annotations

import pytest

from elbowroom.hardware.launched_rank import LaunchedRank, launched_rank


def test_a_process_that_nothing_launched_is_the_only_one() -> None:
    assert launched_rank({}) == LaunchedRank(rank=0, ranks=1, local_ranks=1)
    assert not launched_rank({"RANK": "", "WORLD_SIZE": "x"}).of_many


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, (3, 16, 8)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            (0, 2, 2),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, (1, 4, 2)),
        # four processes on each of two computers, and three on the last
        (
            {
                "SLURM_PROCID": "9",
                "SLURM_STEP_NUM_TASKS": "11",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
                "SLURM_NODEID": "2",
            },
            (9, 11, 3),
        ),
        # torchrun inside srun, one on each computer: torchrun's say who trains
        (
            {
                "SLURM_PROCID": "1",
                "SLURM_STEP_NUM_TASKS": "2",
                "RANK": "5",
                "WORLD_SIZE": "8",
                "LOCAL_WORLD_SIZE": "4",
            },
            (5, 8, 4),
        ),
    ],
)
def test_each_launcher_says_which_process_it_is(environment: dict[str, str], wanted: tuple[int, int, int]) -> None:
    found = launched_rank(environment)
    assert (found.rank, found.ranks, found.local_ranks) == wanted
    assert found.of_many


def test_an_sbatch_script_is_one_process_whatever_the_job_has() -> None:
    assert not launched_rank({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NODEID": "0"}).of_many


def test_each_of_many_ranks_has_a_file_of_its_own() -> None:
    rank = LaunchedRank(rank=3, ranks=8, local_ranks=8)
    assert rank.path_of("out.d/page.trace.json") == "out.d/page.rank3.trace.json"
    assert rank.path_of("figures") == "figures.rank3"
    assert rank.path_of("/dev/null") == "/dev/null"
    assert LaunchedRank().path_of("figures.json") == "figures.json"
