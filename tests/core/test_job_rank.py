"""One process of a job of many: its numbers, the variables of torchrun, and what is refused."""

from __future__ import annotations

import pytest

from elbowroom.capture.job_rank import JobRank
from elbowroom.errors import UsageError


def test_a_rank_has_the_variables_that_torchrun_sets() -> None:
    # 1,024 ranks on 128 computers: rank 1021 is the sixth of the last one
    job = JobRank.of(1021, 1024)

    found = job.environment()

    assert (job.local_ranks, job.local_rank) == (8, 5)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    assert [found[name] for name in names] == ["1021", "1024", "5", "8", "127", "128"]
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["TORCHELASTIC_RUN_ID"]) == ("127.0.0.1", "29500", "none")


def test_a_job_of_up_to_eight_is_on_one_computer() -> None:
    assert JobRank.of(0, 6).local_ranks == 6
    assert JobRank.of(3, 12, 4).local_rank == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, 0), "ranks: given 0; allowed is a whole number from 1; name the size of the job"),
        ((8, 8), "rank: given 8 of 8 ranks; allowed are 0 to 7; name one of them, or last"),
        ((-1, 8), "rank: given -1 of 8 ranks"),
        ((0, 100, 8), "local: given 8 of 100 ranks; allowed is a divisor of 100, .*, such as 10"),
        ((0, 12), "local: given 8 of 12 ranks; .*, such as 6"),
        ((0, 12, 0), "local: given 0 of 12 ranks"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(given: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        JobRank.of(*given)
