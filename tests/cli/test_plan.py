"""`elbowroom plan` and `elbowroom largest --within`: what is planned, answered, written, and refused."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elbowroom.allocator.settings import VARIABLES
from elbowroom.answers.pareto import Pareto
from elbowroom.capture.job_rank import JobRank
from elbowroom.cli import main
from elbowroom.hardware.interconnects import Communicator, Interconnect
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.step.exchange_times import with_exchange_times
from elbowroom.trace import Event, Exchange, Op, Save, Step, Storage, Trace
from tests.cli.answers import answered

GIB = 2**30
MS = 10**6
capture_module = importlib.import_module("elbowroom.capture.script")


def layers(size_bytes: int, count: int = 6, ns: int = 100 * MS) -> Trace:
    """One step: each of `count` layers makes and saves an activation, and backward reads and frees them in reverse."""
    ops, storages, events, saves = list[Op](), list[Storage](), list[Event](), list[Save]()
    for layer in range(count):
        ops.append(_op("aten.cudnn_convolution", "forward", ns, writes=(layer,)))
        storages.append(Storage(size_bytes=size_bytes, category="activation", dtype="float32"))
        events.append(Event(layer, layer, size_bytes))
        read = 2 * count - 1 - layer
        saves.append(Save(storage=layer, saved_at=layer + 1, idle_from=min(layer + 2, read), read_at=(read,)))
    for layer in reversed(range(count)):
        ops.append(_op("aten.convolution_backward", "backward", ns, reads=(layer,)))
        events.append(Event(len(ops) - 1, layer, -size_bytes))
    return Trace(
        device="cuda:0",
        torch_version="0",
        ops=tuple(ops),
        storages=tuple(storages),
        events=tuple(events),
        saves=tuple(saves),
        steps=(Step(0, len(ops)),),
    )


def _op(name: str, phase: Any, ns: int, reads: tuple[int, ...] = (), writes: tuple[int, ...] = ()) -> Op:
    return Op(name=name, module="Net.conv", phase=phase, reads=reads, writes=writes, duration_ns=ns)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script whose six layers take 1 GiB each for every unit of its one argument, which is 1 if not given."""
    monkeypatch.chdir(tmp_path)
    for name in ("ELBOWROOM_GPU", "ELBOWROOM_BUDGET", "ELBOWROOM_MIN_SIZE", *VARIABLES):
        monkeypatch.delenv(name, raising=False)

    def capture(path: str, argv: Sequence[str] = (), **others: object) -> Trace:
        constants = others.get("constants") or {}
        assert isinstance(constants, Mapping)
        values = [*argv, *constants.values(), 1]
        return layers(GIB * int(values[0]))

    monkeypatch.setattr(capture_module, "capture_script", capture)
    (tmp_path / "train.py").write_text("batch_size = 8\n")
    return "train.py"


def answer(capsys: pytest.CaptureFixture[str], verb: str = "plan") -> dict[str, Any]:
    return answered(capsys.readouterr().out, verb)


def test_a_plan_is_made_said_and_written(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    # given 6 GiB of activations on a GPU of 24 GiB, and 4 GiB allowed
    code = main(["plan", script, "--gpu", "rtx4090", "--budget", "4GiB", "-o", "plan.json", "--trace", "trace.json"])

    out, errors = capsys.readouterr()
    assert code == 0
    assert "needs its trace" not in errors
    made, trace = Plan.load("plan.json"), Trace.load("trace.json")
    assert (made.trace_id, made.budget_bytes) == (trace.id, 4 * GIB)
    # a layer is 100 ms and a copy of 1 GiB at some 25 GB/s 43 ms: nothing is waited for
    assert "train.py on rtx4090: a step of 1.20 s within 4.00 GiB, 1.000 times as long" in out
    assert "of 6 saved storages: 4.00 GiB kept (4), 2.00 GiB swapped to host (2)" in out
    assert "compute busy" in out
    assert "peak reserved" in out
    assert "written: trace.json (trace), plan.json (plan)" in out


def test_a_plan_that_is_written_without_its_trace_is_said_to_need_it(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", script, "--gpu", "rtx4090", "--budget", "4GiB"]

    codes = [main([*words, "-o", "plan.json"]), main(words)]

    out, errors = capsys.readouterr()
    assert codes == [0, 0]
    assert errors.count("start `elbowroom run --plan plan.json --trace trace.json`") == 1
    assert out.count("written: plan.json (plan)") == 1


def test_a_budget_that_leaves_no_room_outside_the_allocator_is_warned_of(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a GPU of 24081 MiB, of which some 310 lie outside the allocator, and a step that holds 6 * 4000 MiB
    monkeypatch.setattr(capture_module, "capture_script", lambda *_, **__: layers(4000 * 2**20))
    words = ["plan", script, "--gpu", "rtx4090", "--planner", "swap_greedy"]

    assert main([*words, "--budget", "24081MiB"]) == 0
    assert (
        "The device has 23.52 GiB: with 310.0 MiB outside the allocator 23.74 GiB are needed" in capsys.readouterr().out
    )
    assert main([*words, "--budget", "auto"]) == 0
    assert "outside the allocator" not in capsys.readouterr().out


def test_a_budget_that_cannot_be_met_exits_with_1_and_names_the_least(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", script, "--gpu", "rtx4090", "--budget", "1GiB"]) == 1
    said = capsys.readouterr().err
    assert "budget: given 1.00 GiB (1073741824 bytes).\nThe least that" in said
    assert max(map(len, said.splitlines())) <= 100

    assert main(["plan", script, "--gpu", "rtx4090", "--budget", "1GiB", "--json"]) == 1
    out, err = capsys.readouterr()
    found = answered(out, "plan")
    assert (found["feasible"], found["budget_bytes"], found["swaps"]) == (False, GIB, None)
    assert found["least_feasible_bytes"] >= 2 * GIB
    assert found["moved"] is None
    assert found["everything_kept"]["peak_allocated_bytes"] == 6 * GIB
    assert err == f"elbowroom: {found['message']}\n"


def test_json_has_the_plan_in_figures(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", script, "--gpu", "rtx4090", "--budget", "4GiB", "--json", "--planner", "swap_greedy"]) == 0
    found = answer(capsys)
    assert (found["script"], found["feasible"], found["planner"]) == ("train.py", True, "swap_greedy")
    assert (found["machine"], found["least_feasible_bytes"], found["message"]) == ("rtx4090", None, None)
    assert found["budget_bytes"] == 4 * GIB
    assert found["decided"] == [
        {"what": "kept", "storages": 4, "size_bytes": 4 * GIB},
        {"what": "swapped to host", "storages": 2, "size_bytes": 2 * GIB},
    ]
    assert found["everything_kept"]["peak_allocated_bytes"] == 6 * GIB
    assert found["simulated"]["peak_reserved_bytes"] <= 4 * GIB
    assert found["simulated"]["utilisation"] == 1.0
    (moved,) = found["moved"]
    assert (moved["category"], moved["upper"], moved["lower"]) == ("activation", "device", "host")
    assert moved["out_bytes"] == moved["back_bytes"] == 2 * GIB


def test_the_least_budget_at_a_slowdown(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    budgets: list[int] = []
    for words in ([], ["--slowdown", "1.0"], ["--slowdown", "3"]):
        assert main(["plan", script, "--gpu", "rtx4090", "--budget", "least", "--json", *words]) == 0
        budgets.append(answer(capsys)["budget_bytes"])
    # with any time 2 GiB will do: what a layer makes beside the one before it, which is being written
    assert budgets[0] == budgets[2] == 2 * GIB
    assert 2 * GIB <= budgets[1] < 6 * GIB


def test_a_trace_is_planned_without_a_capture(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    layers(GIB, count=4).save("trace.json")
    words = ["plan", "trace.json", "--gpu", "a100-40gb", "--budget", "3GiB", "--planner", "tflms", "--json"]
    assert main([*words, "--option", "swapout_threshold=3", "--option", "swapin_ahead=2"]) == 0
    # given distances of 7, 5, 3 and 1: the first two are above 3
    assert answer(capsys)["decided"][1]["storages"] == 2

    # a trace of a CPU is planned for this computer
    replace(layers(2**20, count=4), device="cpu").save("cpu.json")
    assert main(["plan", "cpu.json", "--budget", "3MiB", "--json"]) == 0
    assert "swapped to disk" in [share["what"] for share in answer(capsys)["decided"]]


def test_the_curve_is_written_as_data_or_as_a_page(script: str) -> None:
    words = ["plan", script, "--gpu", "rtx4090", "--budget", "4GiB", "--planner", "swap_greedy"]
    assert main([*words, "--pareto", "curve.json"]) == 0
    curve = Pareto.load("curve.json")
    assert curve.planners == ("swap_greedy",)
    assert curve.points[0].budget_bytes == 2 * GIB
    assert main([*words, "--pareto", "curve.html", "--report", "report.html"]) == 0
    shown, reported = (Path(name).read_text() for name in ("curve.html", "report.html"))
    assert "<title>elbowroom: budget against step time, swap_greedy within 4.00 GiB" in shown
    assert "<title>elbowroom: swap_greedy within 4.00 GiB" in reported
    assert ('"pareto":' in shown, '"pareto":' in reported) == (True, False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "rtx4090,a100-40gb"], "--gpu: given 2 GPUs; allowed is one here; run it once for each"),
        (["--planner", "best"], "--planner: given 'best'; allowed is one of keep_all, "),
        (["--option", "x"], "--option: given 'x'; allowed is NAME=VALUE; write for example swapin_ahead=4"),
        (["--option", "x=1", "--planner", "keep_all"], "options: given 'x' for planner 'keep_all'; it has none"),
        (
            ["--allow", "swap,magic"],
            "allow: given 'magic'; allowed are swap, recompute, state, gradient, parameter, alg",
        ),
        (["--pareto", "curve.png"], "--pareto: given 'curve.png'; allowed are names ending in .json, .html, .txt"),
        (["--report", "report.png"], "--report: given 'report.png'; allowed are names ending in .html"),
        (["--budget", "40GiB"], "budget: given 40.00 GiB for the device of machine 'rtx4090', which has"),
        (["--slowdown", "1.2"], "slowdown: given 1.2 with budget auto; allowed is it with 'least' only"),
        (["--budget", "4GiB,pinned=2GiB,host=1GiB"], "budget: given pinned=2.00 GiB (2147483648 bytes) where the host"),
    ],
)
def test_what_is_not_allowed_is_refused(
    script: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    gpu = [] if "--gpu" in words else ["--gpu", "rtx4090"]
    assert main(["plan", script, *gpu, *words]) == 2
    assert capsys.readouterr().err.startswith(f"elbowroom: {message}")


# the largest value that can be planned


def test_the_largest_value_within_a_slowdown(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    # given 6 GiB a unit, and 2 GiB a unit at least, on a GPU that has less than 24 GiB for them
    capacity = Machine.of("rtx4090").tiers[0].capacity_bytes - Machine.of("rtx4090").outside_bytes
    values: dict[str, int] = {}
    for within in ("", "1x", "1.5x", "100x"):
        words = ["largest", script, "--vary", "batch_size=1..64", "--gpu", "rtx4090", "--json"]
        assert main([*words, *(["--within", within, "--planner", "swap_greedy"] if within else [])]) == 0
        found = answer(capsys, "largest")
        values[within] = found["largest"]["value"]
        assert found["within"] == (float(within[:-1]) if within else None)
        if within:
            best = next(probe for probe in found["probes"] if probe["value"] == values[within])["planned"]
            assert best["fits"]
            assert best["slowdown"] <= float(within[:-1])
            assert best["step_ns_per_value"] == best["step_ns"] / values[within]

    # then as many layers as are there fit without a plan, and with one at any price two of them
    assert values[""] == capacity // (6 * GIB)
    assert values["100x"] == capacity // (2 * GIB)
    assert values[""] <= values["1x"] <= values["1.5x"] <= values["100x"]


def test_the_table_says_what_plans_make_of_each_value(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["largest", script, "--vary", "batch_size=1..8", "--gpu", "rtx4090", "--within", "1.5", "--planner"]
    assert main([*words, "swap_greedy"]) == 0
    out = capsys.readouterr().out
    assert "with a plan" in out
    assert "per value" in out


def test_micro_batches_that_hide_the_copies_are_found(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given 48 layers of about 1 GiB with each value, on 24 GiB: 2 ms for a layer and a unit, and copies of some 43 ms
    def capture(path: str, argv: Sequence[str] = (), **others: Any) -> Trace:
        (value,) = others["constants"].values()
        return layers(GIB + 512 * value, count=48, ns=2 * MS * value)

    monkeypatch.setattr(capture_module, "capture_script", capture)
    words = ["largest", script, "--vary", "batch_size=1..64", "--gpu", "rtx4090", "--within", "1.2x", "--planner"]

    assert main([*words, "swap_greedy", "--json"]) == 0
    found = answer(capsys, "largest")
    assert main([*words, "swap_greedy"]) == 0
    said = " ".join(capsys.readouterr().out.split())

    # then with more compute the same copies are hidden, and all values from there on are fast enough
    slow, fast = found["too_slow"]["value"], found["fast_from"]["value"]
    assert slow + 1 == fast
    slowdowns = {probe["value"]: probe["planned"]["slowdown"] for probe in found["probes"]}
    assert slowdowns[fast] <= 1.2 < slowdowns[slow]
    assert found["largest"]["value"] == 64
    assert f"From {fast} on a plan is fast enough; with {slow} it is not" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--within", "0.5x"], "--within: given '0.5x'; allowed is a factor of 1 or more on the step time"),
        (["--within", "fast"], "--within: given 'fast'; allowed is a factor of 1 or more on the step time"),
        (["--planner", "lms"], "--planner: given without --within, and so nothing is planned"),
        (["--within", "2x", "--planner", "best"], "--planner: given 'best'; allowed is one of keep_all, "),
    ],
)
def test_a_slowdown_that_cannot_be_is_refused(
    script: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["largest", script, "--vary", "batch_size=1..8", "--gpu", "rtx4090", *words]) == 2
    assert capsys.readouterr().err.startswith(f"elbowroom: {message}")


def test_what_cannot_be_planned_is_said_before_the_capture(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(capture_module, "capture_script", None)

    assert main(["plan", script, "--gpu", "rtx3060", "--budget", "12GiB"]) == 2
    assert "which is less than the number a card is sold with; write auto" in capsys.readouterr().err
    assert main(["plan", script, "--gpu", "rtx3060", "--planner", "best"]) == 2
    assert "--planner: given 'best'; allowed is one of keep_all, " in capsys.readouterr().err


def exchanging(seen: list[Mapping[str, object]]) -> Any:
    """A capture of layers of 1 GiB each of which the last op of a step is an all-reduce of 1 GiB over 8 GPUs."""

    def capture(_path: str, _argv: Sequence[str] = (), **others: object) -> Trace:
        seen.append(others)
        trace = layers(GIB)
        reduced = _op("c10d.allreduce", "backward", 0, reads=(0,))
        ops = (*trace.ops, reduced)
        made = replace(
            trace,
            ops=ops,
            steps=(Step(0, len(ops)),),
            events=(*trace.events[:-1], Event(len(ops) - 1, 0, -GIB)),
            communicators=(Communicator(8, 8, 8),),
            exchanges=(Exchange(len(ops) - 1, 0, GIB),),
        )
        wires = Interconnect.of_gpu("rtx4090", 89, others.get("interconnect"))  # type: ignore[arg-type]
        return with_exchange_times(made, wires)

    return capture


def test_a_plan_of_a_rank_counts_the_time_of_its_collectives(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Mapping[str, object]] = []
    monkeypatch.setattr(capture_module, "capture_script", exchanging(seen))
    words = ["plan", script, "--gpu", "rtx4090", "--budget", "4GiB", "--ranks", "8", "--rank", "last", "--json"]

    assert main([*words, "--interconnect", "1GB/s,1xethernet-25", "--trace", "slow.json"]) == 0
    slow = answer(capsys)
    assert main([*words, "--interconnect", "100GB/s,1xethernet-25"]) == 0
    fast = answer(capsys)

    # then the last rank was captured, with the links that were named
    assert [each["job"] for each in seen] == [JobRank.of(7, 8)] * 2
    assert [each["interconnect"] for each in seen] == ["1GB/s,1xethernet-25", "100GB/s,1xethernet-25"]
    # a ring of 8 moves 2 * 7/8 of 1 GiB over each link: at least 1.8 s at 1 GB/s, and 18 ms at 100 GB/s
    saved_s = (slow["simulated"]["step_ns"] - fast["simulated"]["step_ns"]) / 1e9
    assert saved_s > 1.7
    assert slow["everything_kept"]["step_ns"] - fast["everything_kept"]["step_ns"] > 1.7e9

    # then a trace has the times that it was made with, and gets other ones where links are named
    of_trace = ["plan", "slow.json", "--gpu", "rtx4090", "--budget", "4GiB", "--json"]
    assert main(of_trace) == 0
    assert answer(capsys)["simulated"]["step_ns"] == slow["simulated"]["step_ns"]
    assert main([*of_trace, "--interconnect", "100GB/s,1xethernet-25"]) == 0
    assert answer(capsys)["simulated"]["step_ns"] == fast["simulated"]["step_ns"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.py", "--ranks", "8", "--rank", "0,last"), "--rank: given 2 ranks; plan takes one"),
        (("trace.json", "--ranks", "8"), "--ranks: given with the trace trace.json; allowed is a script"),
        (("train.py", "--ranks", "8", "--interconnect", "fast"), "interconnect"),
    ],
)
def test_ranks_that_no_plan_is_of_are_refused(
    script: str, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layers(GIB).save(Path(script).with_name("trace.json"))

    assert main(["plan", *words, "--gpu", "rtx4090", "--budget", "4GiB"]) == 2
    assert said in capsys.readouterr().err
