"""Ranks of one job: if one cannot go on, all raise the same error, which names it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import elbowroom as er
from elbowroom.errors import Infeasible, TierFull, UsageError
from elbowroom.run import peers
from elbowroom.run.peers import Peers
from elbowroom.torch_compat.process_groups import Meeting
from tests.rank_ends import end_rank

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this build has no gloo"),
]

PeersOf = Callable[[int], Peers]


@pytest.fixture
def store() -> Any:
    return vars(dist)["HashStore"]()


@pytest.fixture
def rank(store: Any, monkeypatch: pytest.MonkeyPatch) -> PeersOf:
    """Return the peers of a rank of two, as its own process would have them; each call opens its next room."""
    monkeypatch.setattr(peers, "LOOK_S", 0.0)
    rooms = {number: itertools.count() for number in (0, 1)}

    def of(number: int) -> Peers:
        monkeypatch.setattr(peers, "_rooms", rooms[number])
        found = Peers()
        monkeypatch.setattr(peers, "default_meeting", lambda: Meeting(store, number, 2))
        found.look()  # and so it has met the others
        return found

    return of


def infeasible() -> Infeasible:
    return Infeasible("budget: given 5 bytes.", budget_bytes=5, least_feasible_bytes=9, counts_reserved=True)


def test_the_others_raise_the_error_of_the_rank_that_cannot_where_they_look_next(rank: PeersOf) -> None:
    first, second = rank(0), rank(1)

    with pytest.raises(Infeasible, match=r"^rank 1 of 2: budget: given 5 bytes\.$"), second.telling():
        raise infeasible()

    with pytest.raises(Infeasible, match=r"^rank 1 of 2: budget: given 5 bytes\.$") as seen:
        first.look()
    assert vars(seen.value) == vars(infeasible())


def test_the_error_of_a_closed_connection_is_replaced_by_the_one_behind_it(rank: PeersOf) -> None:
    first, second = rank(0), rank(1)

    assert first.instead_of(RuntimeError("of the user's own code")) is None
    assert second.instead_of(TierFull("disk tier: no room", tier="disk")) is None
    found = first.instead_of(RuntimeError("Connection closed by peer"))

    assert isinstance(found, TierFull)
    assert (str(found), found.tier) == ("rank 1 of 2: disk tier: no room", "disk")


def test_what_another_rank_has_told_is_not_told_again_as_ones_own(rank: PeersOf) -> None:
    first, second = rank(0), rank(1)
    second.tell(infeasible())
    with pytest.raises(Infeasible) as seen:
        first.look()

    assert first.instead_of(seen.value) is None
    assert str(seen.value).count("rank") == 1


def test_the_first_of_two_errors_is_the_one_that_all_hear_of(rank: PeersOf, store: Any) -> None:
    first, second = rank(0), rank(1)
    first.tell(UsageError("a"))
    second.tell(UsageError("b"))

    assert b"rank 0 of 2: a" in store.get("elbowroom/start0/room0/failed")


def test_an_error_is_that_of_one_room(rank: PeersOf) -> None:
    # given both ranks fail, and open another room with a larger budget
    first, second = rank(0), rank(1)
    second.tell(infeasible())
    assert first.instead_of(RuntimeError()) is not None

    rank(0).look()
    rank(1).look()


def test_an_error_is_that_of_one_start(rank: PeersOf, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a launcher that starts all ranks again, with the same store
    rank(1).tell(infeasible())
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")

    # then the first room of the other rank hears nothing of it
    assert rank(0).instead_of(RuntimeError()) is None


def test_a_training_that_is_over_neither_tells_nor_hears(rank: PeersOf) -> None:
    first, second = rank(0), rank(1)
    first.close()
    second.tell(infeasible())
    first.look()
    assert first.instead_of(RuntimeError()) is None


def test_a_store_that_is_gone_hides_no_error(rank: PeersOf, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise dist.DistNetworkError("Connection reset by peer")

    first, second = rank(0), rank(1)
    for name in ("check", "compare_set"):
        monkeypatch.setattr(type(store), name, gone)

    with pytest.raises(Infeasible, match="budget: given 5 bytes"), second.telling():
        raise infeasible()
    assert first.instead_of(RuntimeError("Connection closed by peer")) is None


def test_without_a_process_group_nothing_is_asked() -> None:
    alone = Peers()
    alone.look()
    error = infeasible()
    alone.tell(error)
    assert str(error) == "budget: given 5 bytes."


def one_of_two(rank: int, folder: str) -> None:
    """A rank that trains in a budget; that of rank 1 holds no step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]))
    optimizer = torch.optim.SGD(model.parameters())

    def train() -> None:
        for _ in range(100):
            model(torch.randn(4096, 256)).square().mean().backward()
            optimizer.step()

    with pytest.raises(Infeasible) as seen, er.within(("1GiB", "1MiB")[rank]):
        train()
    Path(folder, f"rank{rank}").write_text(f"{seen.value.budget_bytes} {seen.value}")
    end_rank()


def test_a_rank_in_a_collective_raises_the_error_of_the_one_that_left_it_alone(tmp_path: Path) -> None:
    mp.spawn(one_of_two, (str(tmp_path),), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]

    said = [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)]
    assert said[0] == said[1]
    assert said[0].startswith("1048576 rank 1 of 2: budget: given 1.0 MiB (1048576 bytes).")
