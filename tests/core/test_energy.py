"""Energy: joules by hand arithmetic, what is not known, and plans that are chosen by joules."""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from elbowroom.errors import UsageError
from elbowroom.hardware import gpus
from elbowroom.hardware.power import COMPUTE_SHARE, IDLE_SHARE, STREAM_POWER_SHARE, Spread, device_power
from elbowroom.machine import Link, Machine, Rate, Tier
from elbowroom.plan import Plan, Recompute, Swap
from elbowroom.planners import plan
from elbowroom.report import subject_of
from elbowroom.report.comparison import headline_differences, sides_of
from elbowroom.report.figures import energy
from elbowroom.simulate.energy import HOST_COPY, Energy, EnergyPrices, energy_of, kept_energy
from elbowroom.simulate.simulate import simulate
from elbowroom.trace import Op, Trace
from elbowroom.units import format_joules
from tests.core.build import Build, chain

OP_NS = 10_000_000
POWER_TABLE = Path(__file__).parents[2] / "benchmarks" / "energy" / "zeus_power.csv"


def board(watts: int = 100, idle: int = 20, rate: int = 10**9) -> Machine:
    """A GPU of 1 GFLOP/s and 1 GB/s of memory over a host; links move a byte in a ns at the default rate."""
    link = Link(upper="device", lower="host", out_bytes_per_s=rate, back_bytes_per_s=rate, latency_ns=0)
    return Machine(
        name="board",
        tiers=(Tier(name="device", capacity_bytes=10**12), Tier(name="host", capacity_bytes=10**12)),
        links=(link,),
        flops_per_s=10**9,
        rates=(Rate(dtype="float32", flops_per_s=10**9),),
        memory_bytes_per_s=10**9,
        board_watts=watts,
        idle_watts=idle,
    )


def with_ops(trace: Trace, **changes: object) -> Trace:
    return replace(trace, ops=tuple(replace(op, **changes) for op in trace.ops))


def likely(found: Energy | None) -> int:
    assert found is not None
    return found.likely_millijoules


def test_an_op_that_arithmetic_limits_draws_the_compute_share_of_the_board() -> None:
    # given one op of 10 ms that does as many FLOPs as the device can
    trace = with_ops(chain([8], ns=OP_NS), flops=9_000_000)

    # then 2 ops of 10 ms at 90 W of 100 take 1.8 J; the least is at 71 W, the most at 91 W
    assert kept_energy(trace, board()) == Energy(
        least_millijoules=1420, likely_millijoules=1800, most_millijoules=1820, copies_millijoules=0
    )


def test_an_op_that_moves_bytes_draws_the_share_of_streams_and_one_of_neither_idles() -> None:
    # given 9 MB that an op of 10 ms writes and one reads: 90 % of 1 GB/s, which is all that streams reach
    streams = chain([9_000_000], ns=OP_NS)
    # and one of a few bytes
    idles = chain([8], ns=OP_NS)

    # then 20 ms at 74 W, and at the 20 W of an idling board
    assert likely(kept_energy(streams, board())) == 1480
    assert likely(kept_energy(idles, board())) == 400


def test_a_short_op_draws_for_the_part_of_its_launch_in_which_it_is_busy() -> None:
    # given ops of 5 us, of which 2.5 us are for 2250 bytes at 0.9 bytes per ns
    trace = chain([2250], ns=5000)

    # then half of what streams draw beyond the idle power: 20 W + 27 W for 10 us are 0.47 mJ
    assert likely(kept_energy(trace, board(watts=100_000, idle=20_000))) == 470


def test_a_device_without_its_own_idle_power_gets_the_usual_share() -> None:
    assert [round(power.idle) for power in device_power(100, 0)] == [14, 20, 30]
    assert [power.idle for power in device_power(100, 37)] == [37, 37, 37]


def test_copies_add_the_energy_of_their_bytes_and_stalls_that_of_an_idling_board() -> None:
    # given a storage of 9 MB that goes to the host and comes back when it is read
    trace = chain([9_000_000, 8], ns=OP_NS)
    swap = Swap(storage=0, tier="host", out_after_op=0, back_before_op=3)
    line = simulate(trace, board(), Plan(trace_id=trace.id, planner="by hand", budget_bytes=10**9, swaps=(swap,)))
    found = energy_of(line, trace, board())

    # then four ops take 40 ms, the two of 9 MB at 74 W and the two of 8 bytes at 20 W. Compute waits 9 ms for each copy
    # at 20 W: 1.48 + 0.4 + 0.36 J; 18 MB at 35 pJ a bit take 5.04 mJ
    assert line.stall_ns == 18_000_000
    assert found is not None
    assert found.copies_millijoules == round(18e6 * HOST_COPY * 1e3) == 5
    assert found.likely_millijoules == 2245


def test_without_the_power_of_the_board_there_is_no_figure() -> None:
    trace = chain([8], ns=OP_NS)
    unknown = replace(board(), board_watts=0, idle_watts=0)

    assert kept_energy(trace, unknown) is None
    assert energy_of(simulate(trace, unknown), trace, unknown) is None
    assert kept_energy(chain([8], ns=0), board()) is None
    with pytest.raises(UsageError, match="power of whose board is not known"):
        EnergyPrices(trace, unknown)


def test_tf32_is_told_from_float32_by_the_rate_that_an_op_reaches() -> None:
    # given an op that does twice the FLOPs of float32, and a machine with TF32 of four times its rate
    fast = replace(board(), rates=(*board().rates, Rate(dtype="tf32", flops_per_s=4 * 10**9)))
    trace = with_ops(chain([8], ns=5000), flops=10_000)

    # then it keeps 10 / (4 x 0.63 x 5) of the arithmetic busy: 20 + 0.794 x 70 W for 10 us in thousands are 0.756 mJ
    assert likely(kept_energy(trace, replace(fast, board_watts=100_000, idle_watts=20_000))) == 756


def stalling() -> Trace:
    """Three layers whose first one may be rebuilt by an op of 10 ms, or be fetched while compute waits."""
    build = Build()
    made = [build.storage(10, "parameter")]
    for size in (9_000_000, 9_000_000, 4_000_000):
        made.append(build.save(build.op("aten.relu", OP_NS, make=size, reads=(made[-1],))))
        if len(made) > 2:
            build.idle(made[-2])
    build.phase = "backward"
    for storage in reversed(made[1:]):
        build.read(storage)
        build.op("aten.threshold_backward", OP_NS, reads=(storage,))
        build.free(storage)
    return build.trace()


def test_a_plan_by_energy_waits_for_a_copy_where_one_by_time_runs_an_op_again() -> None:
    # given a link on which the first layer takes 18 ms each way, where an op makes it again in 10
    trace, machine = stalling(), board(rate=5 * 10**8)
    budget = simulate(trace, machine).peak_allocated_bytes - 3_000_000

    by_time = simulate(trace, machine, plan(trace, machine, budget))
    by_energy = simulate(trace, machine, plan(trace, machine, budget, objective="energy"))

    assert by_energy.step_ns >= by_time.step_ns
    assert likely(energy_of(by_energy, trace, machine)) < likely(energy_of(by_time, trace, machine))
    assert by_time.recompute_ns > by_energy.recompute_ns == 0


def test_prices_make_the_time_of_a_plan_its_joules() -> None:
    # given two plans of one step: one that swaps, one that recomputes
    trace, machine = stalling(), board(rate=10**10)
    swap = Swap(storage=1, tier="host", out_after_op=0, back_before_op=4)
    again = Recompute(storages=(2,), recipe=(1,), before_op=4)
    empty = Plan(trace_id=trace.id, planner="by hand", budget_bytes=10**9)
    plans = (empty, replace(empty, swaps=(swap,)), replace(empty, recomputes=(again,)))
    kept, swapped, rebuilt = (likely(energy_of(simulate(trace, machine, each), trace, machine)) for each in plans)

    # then recomputing op 1, 10 ms at 74 W, is 10 ms of idling and 2.7 times as much on top
    assert EnergyPrices(trace, machine).times(1) == pytest.approx(2.7)
    assert rebuilt - kept == 740
    # and copies of 9 MB each way that hide behind compute take 5 mJ
    assert swapped - kept == 5


def test_two_plans_are_compared_by_their_joules_and_a_measured_step_has_none() -> None:
    trace, machine = stalling(), board(rate=10**10)
    kept = Plan(trace_id=trace.id, planner="by hand", budget_bytes=10**9)
    again = replace(kept, recomputes=(Recompute(storages=(2,), recipe=(1,), before_op=4),))
    sides = sides_of({"trace": trace, "machine": machine, "kept": kept, "again": again})

    # then the 10 ms at 74 W that run again are the difference
    (row,) = (each for each in headline_differences(sides) if each.name == "energy, simulated")
    assert row.difference.startswith("+740 mJ (")

    line = simulate(trace, machine)
    assert energy(subject_of(trace, machine), replace(line, source="measured")) is None
    assert energy(subject_of(trace, machine), line) == energy_of(line, trace, machine)


def test_only_the_planner_that_weighs_energy_is_asked_for_it() -> None:
    trace = chain([8, 8], ns=OP_NS)
    with pytest.raises(UsageError, match="'energy' with planner 'swap_all'; allowed is one of time, energy"):
        plan(trace, board(), 10**6, "swap_all", objective="energy")
    with pytest.raises(UsageError, match="given 'joules'"):
        plan(trace, board(), 10**6, objective="joules")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("network", "spread"),
    [("ncf", IDLE_SHARE), ("shufflenetv2", STREAM_POWER_SHARE), ("bert_base_uncased", COMPUTE_SHARE)],
)
def test_the_shares_are_those_of_the_published_table(network: str, spread: Spread) -> None:
    by_gpu: dict[str, list[float]] = {}
    for row in csv.DictReader(POWER_TABLE.read_text().splitlines()):
        if row["network"] == network:
            by_gpu.setdefault(row["gpu"], []).append(float(row["average_watts"]) / float(row["limit_watts"]))
    found = [statistics.median(shares) for shares in by_gpu.values()]

    assert len(found) == 4
    assert spread.least == pytest.approx(min(found), abs=0.01)
    assert spread.likely == pytest.approx(statistics.median(found), abs=0.01)
    assert spread.most == pytest.approx(max(found), abs=0.01)


def test_most_gpus_of_the_table_have_a_board_power_and_idle_below_it() -> None:
    rows = gpus.database().gpus.values()
    known = [gpu for gpu in rows if gpu.board_watts is not None]

    assert len(known) >= len(rows) - 7
    assert all(15 <= gpu.board_watts.value <= 1000 for gpu in known if gpu.board_watts)
    assert [gpu.name for gpu in rows if gpu.board_watts is None and not gpu.name.endswith("laptop")] == ["gh200"]
    assert Machine.of("rtx4090").board_watts == 450


def test_an_op_without_time_draws_nothing() -> None:
    op = Op(name="aten.view", module="", phase="forward", reads=(), writes=(), duration_ns=0)
    trace = replace(chain([8], ns=OP_NS), ops=(op, *chain([8], ns=OP_NS).ops[1:]))
    assert likely(kept_energy(trace, board())) == 200


@pytest.mark.parametrize(
    ("millijoules", "said"), [(0, "0 mJ"), (999, "999 mJ"), (-1500, "-1.5 J"), (2 * 10**9, "2.00 MJ")]
)
def test_joules_are_said_in_the_unit_that_suits_them(millijoules: int, said: str) -> None:
    assert format_joules(millijoules) == said
