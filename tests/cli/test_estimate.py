"""`elbowroom estimate` and `elbowroom largest`: verdicts, exit codes, tables, JSON, and what is refused."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elbowroom.allocator.settings import VARIABLES
from elbowroom.capture.job_rank import JobRank
from elbowroom.cli import main, scripts
from elbowroom.errors import CaptureError, TimeOver, UsageError
from elbowroom.machine import Machine
from elbowroom.trace import Event, Op, Phase, Remark, Step, Storage, Trace
from tests.cli.answers import answered

GIB = 2**30
capture_module = importlib.import_module("elbowroom.capture.script")
CALLS: tuple[tuple[str, Phase], ...] = (
    ("aten.cudnn_convolution", "forward"),
    ("aten.convolution_backward", "backward"),
)


def trace_of(size_bytes: int, remarks: Sequence[Remark] = ()) -> Trace:
    """Two steps; in each a forward op makes an activation of this size, which backward frees."""
    ops: list[Op] = []
    storages: list[Storage] = []
    events: list[Event] = []
    for number in range(2):
        for name, phase in CALLS:
            ops.append(Op(name=name, module="Net.conv", phase=phase, reads=(), writes=(), duration_ns=1))
        storages.append(Storage(size_bytes=size_bytes, category="activation", dtype="float32"))
        events += [Event(2 * number, number, size_bytes), Event(2 * number + 1, number, -size_bytes)]
    return Trace(
        device="cuda:0",
        torch_version="0",
        ops=tuple(ops),
        storages=tuple(storages),
        events=tuple(events),
        saves=(),
        steps=(Step(0, 2), Step(2, 4)),
        remarks=tuple(remarks),
    )


class Captures:
    """Stands in for capture_script: a script whose one activation takes so many bytes; notes how it was called."""

    def __init__(self, size_bytes: Callable[[int], int], remarks: Sequence[Remark] = ()) -> None:
        self.size_bytes, self.remarks = size_bytes, remarks
        self.values: list[int] = []
        self.asked: frozenset[str] = frozenset()
        self.calls: list[dict[str, Any]] = []
        self.in_parts: list[dict[str, Any]] = []

    def __call__(
        self,
        path: str | None,
        argv: Sequence[str] = (),
        *,
        machine: Machine,
        module: str | None,
        steps: int,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        constants: Mapping[str, int] | None = None,
        on_step: Callable[[int], None] | None = None,
        on_phase: Callable[[str], None] | None = None,
        on_asked: Callable[[frozenset[str]], None] | None = None,
        network: bool = False,
        compiled: bool = False,
        job: JobRank | None = None,
        interconnect: str | None = None,
        in_parts: bool = False,
        parameters: bool = False,
        min_size: int = 0,
    ) -> Trace:
        (self.in_parts if in_parts else self.calls).append(
            {
                "job": job,
                "interconnect": interconnect,
                "path": path,
                "module": module,
                "argv": tuple(argv),
                "machine": machine,
                "steps": steps,
                "timeout_s": timeout_s,
                "network": network,
                "min_size": min_size,
            }
        )
        given = [*argv, *(environment or {}).values(), *(constants or {}).values()]
        self.values.append(int(given[-1]) if given else 0)
        if on_asked is not None:
            on_asked(self.asked)
        return trace_of(self.size_bytes(self.values[-1]), self.remarks)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    for name in ("ELBOWROOM_GPU", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text("batch_size = 8\n")
    return "train.py"


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Captures]:
    def make(size_bytes: Callable[[int], int], remarks: Sequence[Remark] = ()) -> Captures:
        found = Captures(size_bytes, remarks)
        monkeypatch.setattr(capture_module, "capture_script", found)
        return found

    return make


def answer(capsys: pytest.CaptureFixture[str], verb: str = "estimate") -> dict[str, Any]:
    return answered(capsys.readouterr().out, verb)


def test_a_script_that_fits_exits_with_0_and_one_that_does_not_with_1(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    captures(lambda _: 10 * GIB)

    assert main(["estimate", script, "--gpu", "a100-40gb"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^train\.py on a100-40gb: fits, \d+\.\d\d GiB are free at the peak", out)
    assert re.search(r"peak allocated +10\.00 GiB", out)
    assert "The allocated peak: step 1, forward, aten.cudnn_convolution in Net.conv (op 1 of 2)" in out
    assert re.search(r"activation +10\.00 GiB +100\.0%", out)
    assert re.search(r"Net\.conv +10\.00 GiB +100\.0%", out)

    assert main(["estimate", script, "--gpu", "rtx2080ti"]) == 0
    captures(lambda _: 12 * GIB)
    assert main(["estimate", script, "--gpu", "rtx2080ti"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"train\.py on rtx2080ti: does not fit: .* of device memory are missing", out)
    assert "What next: `elbowroom plan` with the same words (--gpu rtx2080ti)" in out
    assert "The first allocation that fails: step 1, forward, aten.cudnn_convolution in Net.conv" in out


def test_what_cannot_be_told_exits_with_2(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> Trace:
        raise CaptureError("train.py: it ended after 0 optimizer steps")

    monkeypatch.setattr(capture_module, "capture_script", fails)

    assert main(["estimate", script, "--gpu", "a100-40gb"]) == 2
    assert capsys.readouterr().err == "elbowroom: train.py: it ended after 0 optimizer steps\n"


def test_json_has_every_figure_in_bytes(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    captures(lambda _: GIB, [Remark(kind="assumed_value", name="item", count=3)])

    assert main(["estimate", script, "--gpu", "a100-40gb", "--json"]) == 0
    found = answer(capsys)

    machine = Machine.of("a100-40gb")
    (one,) = found["estimates"]
    assert (found["script"], found["fits"], one["machine"]) == ("train.py", True, "a100-40gb")
    assert one["capacity_bytes"] == machine.tiers[0].capacity_bytes
    assert one["peak_allocated_bytes"] == one["peak_reserved_bytes"] == {"low": GIB, "likely": GIB, "high": GIB}
    least, most = machine.outside_range_bytes
    assert one["peak_device_bytes"] == {"low": GIB + least, "likely": GIB + machine.outside_bytes, "high": GIB + most}
    assert one["categories"] == {"activation": GIB}
    assert one["modules"] == [{"module": "Net.conv", "modules": 1, "size_bytes": GIB, "source_line": ""}]
    assert (one["peak"]["step"], one["peak"]["phase"], one["peak"]["op_name"]) == (
        1,
        "forward",
        "aten.cudnn_convolution",
    )
    assert one["failure"] is None
    assert one["remarks"] == [{"kind": "assumed_value", "name": "item", "count": 3}]


def test_several_gpus_are_one_table_and_all_must_fit(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    made = captures(lambda _: 16 * GIB)

    assert main(["estimate", script, "--gpu", "a100-40gb,rtx2080ti"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"a100-40gb +.* fits ", out)
    assert re.search(r"rtx2080ti +.* does not fit ", out)
    assert [call["machine"].name for call in made.calls] == ["a100-40gb", "rtx2080ti"]


def test_each_rank_that_is_named_is_captured_as_the_process_that_it_is(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    made = captures(lambda _: GIB)

    # given 1,024 ranks, 4 on each computer
    words = ["estimate", script, "--gpu", "h100,t4", "--ranks", "1024", "--local", "4", "--rank", "0,last"]
    assert main([*words, "--json"]) == 0

    # then both ranks are captured for both GPUs, and the answer has them in this order
    jobs = [(call["job"].rank, call["job"].ranks, call["job"].local_ranks) for call in made.calls]
    assert jobs == [(0, 1024, 4), (1023, 1024, 4)] * 2
    found = answer(capsys)
    assert (found["ranks"], found["local_ranks"]) == (1024, 4)
    named = [("h100-sxm", 0), ("h100-sxm", 1023), ("t4", 0), ("t4", 1023)]
    assert [(each["machine"], each["rank"]) for each in found["estimates"]] == named

    # and the table has a column for them, the answer of one rank a title
    assert main(words) == 0
    assert re.search(r"h100-sxm +1023 .* fits ", capsys.readouterr().out)
    assert main(["estimate", script, "--gpu", "t4", "--ranks", "2"]) == 0
    assert "train.py, rank 0 of 2 on t4: fits" in capsys.readouterr().out
    assert main(["estimate", script, "--gpu", "t4", "--json"]) == 0
    found = answer(capsys)
    assert (found["ranks"], found["local_ranks"], found["estimates"][0]["rank"]) == (None, None, None)
    assert made.calls[-1]["job"] is None


def test_a_launcher_says_how_many_ranks_there_are(
    script: str, captures: Callable[..., Captures], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = captures(lambda _: GIB)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")  # and taken away at the end

    main(["estimate", "--gpu", "t4", "--rank", "last", "torchrun", "--nnodes", "2", "--nproc-per-node", "3", script])

    assert [call["job"] for call in made.calls] == [JobRank(rank=5, ranks=6, local_ranks=3)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "0"], "--ranks: given 0; allowed is a whole number from 1"),
        (["--ranks", "8", "--rank", "8"], "--rank: given 8 of 8 ranks; allowed are 0 to 7; name one of them, or last"),
        (["--ranks", "8", "--rank", "0,first"], "--rank: given 'first'; allowed is a rank or several, as in 0,7"),
        (["--ranks", "8", "--rank", "7,last"], "--rank: given last twice; allowed is each once; leave one out"),
        (
            ["--ranks", "128", "--rank", "all"],
            "--rank: given all of 128 ranks; allowed is up to 64, as each",
        ),
        (["--ranks", "100", "--local", "8"], "--local: given 8 of 100 ranks; allowed is a divisor of 100"),
        (["--rank", "1"], "--rank: given 1 without --ranks; allowed is both; add the size of the job, as in --ranks 8"),
        (["--local", "4"], "--local: given 4 without --ranks"),
        (["--ranks", "8", "--rank", "0,1", "-o", "x.json"], "--out: given with 2 GPUs or ranks; allowed is one"),
    ],
)
def test_ranks_that_are_not_there_are_refused_before_anything_runs(
    words: list[str],
    said: str,
    script: str,
    captures: Callable[..., Captures],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    made = captures(lambda _: GIB)

    assert main(["estimate", script, "--gpu", "t4", *words]) == 2

    assert said in capsys.readouterr().err
    assert made.calls == []


def test_a_trace_is_of_the_rank_it_was_made_for(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace_of(GIB).save("trace.json")

    assert main(["estimate", "trace.json", "--gpu", "t4", "--ranks", "8"]) == 2
    assert "--ranks: given with the trace trace.json; allowed is a script" in capsys.readouterr().err


def test_a_module_stands_in_the_place_of_a_script(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    # given a package with a script in it
    Path("job").mkdir()
    Path("job/train.py").write_text("batch_size = 8\n")
    found = captures(lambda _: GIB)

    # when it is named as python -m names it
    code = main(["estimate", "-m", "job.train", "--gpu", "t4", "--json", "--", "--size", "1"])

    # then the module is run, with its own words
    assert code == 0
    assert found.calls[0]["path"] is None
    assert (found.calls[0]["module"], found.calls[0]["argv"]) == ("job.train", ("--size", "1"))
    assert answer(capsys)["script"] == "-m job.train"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "job.nothing"], "-m: given job.nothing, and there is no job; allowed is the dotted name"),
        ([], "estimate: given no script; allowed is the path of one, or -m and the name of a module"),
    ],
)
def test_a_module_that_is_not_there_and_no_script_at_all_are_usage_errors(
    words: list[str], said: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *words, "--gpu", "t4"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "captured_for"),
    [(frozenset[str](), ["h100-sxm", "rtx4090"]), (frozenset({"memory"}), ["h100-sxm", "h200", "rtx4090"])],
)
def test_one_capture_stands_for_gpus_with_the_same_kernels_unless_the_script_asked_which_it_is(
    asked: frozenset[str], captured_for: list[str], script: str, captures: Callable[..., Captures]
) -> None:
    # given two GPUs of capability 9.0 with 132 multiprocessors and more or less memory, and another one
    found = captures(lambda _: 100 * GIB)
    found.asked = asked

    # when a script that takes 100 GiB is estimated on all three
    code = main(["estimate", script, "--gpu", "h100-sxm,h200,rtx4090", "--json"])

    # then it ran once for the two, and each has a verdict of its own
    assert [call["machine"].name for call in found.calls] == captured_for
    assert code == 1


def test_the_scripts_own_words_follow_after_two_dashes(script: str, captures: Callable[..., Captures]) -> None:
    made = captures(lambda _: GIB)

    main(["estimate", script, "--gpu", "a100-40gb", "--steps", "4", "--timeout", "60", "--", "--gpu", "x", "--", "9"])

    (call,) = made.calls
    assert (call["argv"], call["steps"]) == (("--gpu", "x", "--", "9"), 4)
    assert 50 < call["timeout_s"] <= 60  # seconds in all, of which this run has what is left


def test_the_gpu_comes_from_the_command_line_then_the_environment_then_the_project(
    script: str, captures: Callable[..., Captures], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = captures(lambda _: GIB)
    Path("pyproject.toml").write_text('[tool.elbowroom]\ngpu = "t4"\n')

    main(["estimate", script])
    monkeypatch.setenv("ELBOWROOM_GPU", "l4")
    main(["estimate", script])
    main(["estimate", script, "--gpu", "rtx4090"])

    assert [call["machine"].name for call in made.calls] == ["t4", "l4", "rtx4090"]


def test_without_a_gpu_here_one_must_be_named(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("elbowroom.hardware.nvml.first_device", lambda: None)

    assert main(["estimate", script]) == 2
    assert (
        "no NVIDIA GPU is there; allowed are the names that `elbowroom machine --list` shows" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py", "--gpu", "t4"], "estimate: given 'nowhere.py', which is not there"),
        (["train.py", "--gpu", "rtx4909"], "the nearest are rtx4090"),
        (["train.py", "--gpu", "t4,T4"], "--gpu: given t4 twice"),
        (["train.py", "--gpu", "t4,l4", "-o", "x.json"], "--out: given with 2 GPUs or ranks; allowed is one"),
        (["train.py", "--gpu", "t4,l4", "--report", "x.html"], "--report: given with 2 GPUs or ranks; allowed is one"),
        (
            ["train.py", "--gpu", "t4", "--report", "x.pdf"],
            "--report: given 'x.pdf'; allowed are names ending in .html",
        ),
    ],
)
def test_what_is_not_allowed_is_said(
    words: list[str], said: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_allocators_settings_in_the_environment_count(
    script: str, captures: Callable[..., Captures], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    captures(lambda _: 12 * 2**20)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

    main(["estimate", script, "--gpu", "t4", "--json"])

    # a page of 20 MiB
    assert answer(capsys)["estimates"][0]["peak_reserved_bytes"]["likely"] == 20 * 2**20


def test_the_trace_can_be_kept(script: str, captures: Callable[..., Captures]) -> None:
    captures(lambda _: GIB)

    assert main(["estimate", script, "--gpu", "t4", "-o", "trace.json"]) == 0
    assert Trace.load("trace.json") == trace_of(GIB)


def test_the_answer_can_be_a_page(script: str, captures: Callable[..., Captures]) -> None:
    captures(lambda _: GIB)

    assert main(["estimate", script, "--gpu", "t4", "--report", "page.html"]) == 0

    page = Path("page.html").read_text("utf-8")
    assert '<div class="answer fits"><p>On t4 it fits' in page
    assert "What holds 1.00 GiB at the peak, by module" in page


def test_the_largest_value_and_the_next_are_found_and_shown(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    # given 1 GiB for each sample
    made = captures(lambda value: value * GIB)
    t4 = Machine.of("t4")
    fitting = (t4.tiers[0].capacity_bytes - t4.outside_bytes) // GIB

    assert main(["largest", script, "--vary", "batch_size=1..512", "--gpu", "t4"]) == 0
    out = " ".join(capsys.readouterr().out.split())

    assert "batch_size is the constant batch_size = 8" in out
    assert (
        f"train.py on t4: the largest value of the constant batch_size that fits is {fitting}: it needs {fitting}."
        in out
    )
    assert f"; {fitting + 1} would need {fitting + 1}." in out
    assert f"{len(made.values)} values were looked at" in out
    assert len(made.values) <= 5


def test_largest_answers_in_json(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    captures(lambda value: value * GIB)
    words = ["largest", script, "--vary", "arg:batch=8..512", "--multiple-of", "8", "--gpu", "t4", "--json"]

    assert main(words) == 0
    found = answer(capsys, "largest")

    t4 = Machine.of("t4")
    # 14.7 GiB and a little outside the allocator: 8 fit, 16 do not
    assert found["largest"] == {"value": 8, "needed_bytes": 8 * GIB + t4.outside_bytes}
    assert found["next"] == {"value": 16, "needed_bytes": 16 * GIB + t4.outside_bytes}
    assert (found["kind"], found["name"], found["captures"]) == ("arg", "--batch", 2)
    assert [(probe["value"], probe["fits"]) for probe in found["probes"]] == [(8, True), (16, False)]


def test_where_not_even_the_smallest_fits_the_exit_code_is_1(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    captures(lambda value: (20 + value) * GIB)

    assert main(["largest", script, "--vary", "batch_size=1..8", "--gpu", "t4"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "not even the constant batch_size = 1 fits: it needs 21." in out


def test_a_knob_that_changes_nothing_is_said_with_an_exit_code_of_its_own(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    made = captures(lambda _: GIB)

    assert main(["largest", script, "--vary", "batch_size=1..800", "--gpu", "t4"]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert "the constant batch_size has no effect: the captures of 1, 2 and 800 are the same; does the script" in out
    assert made.values == [1, 2, 800]
    assert main(["largest", script, "--vary", "batch_size=1..800", "--gpu", "t4", "--json"]) == 2
    found = answer(capsys, "largest")
    assert (found["changes_anything"], found["same_from"], found["largest"]["value"]) == (False, 1, 800)


def test_a_knob_that_stops_mattering_is_said(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    # given a data set of 6 samples
    captures(lambda value: min(value, 6) * GIB)

    assert main(["largest", script, "--vary", "batch_size=1,2,4,8,16,32", "--gpu", "t4"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "every value of the constant batch_size up to 32 fits; beyond 8 it has no effect: the captures of 8" in out
    assert main(["largest", script, "--vary", "batch_size=1,2,4,8,16,32", "--gpu", "t4", "--json"]) == 0
    found = answer(capsys, "largest")
    assert (found["changes_anything"], found["same_from"], found["largest"]["value"]) == (True, 8, 32)


def test_a_name_that_was_guessed_and_changes_nothing_is_refused(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    captures(lambda _: GIB)

    assert main(["largest", script, "--vary", "depth=1..8", "--gpu", "t4"]) == 2
    err = capsys.readouterr().err
    assert "tried as the argument --depth, and it has no effect: the captures of 1, 2 and 8 are the same" in err


def test_a_value_with_which_the_script_fails_ends_the_range_and_its_error_is_said(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def capture(*_: object, constants: Mapping[str, int], **__: object) -> Trace:
        if constants["batch_size"] > 5:
            raise CaptureError("train.py: ValueError: batch too big (train.py, line 9)")
        return trace_of(constants["batch_size"] * GIB)

    monkeypatch.setattr(capture_module, "capture_script", capture)

    assert main(["largest", script, "--vary", "batch_size=1..64", "--gpu", "t4"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "that fits is 5: it needs 5." in out
    assert "; with 6 the script fails: with the constant batch_size = 6 (batch_size is the constant" in out
    assert "ValueError: batch too big (train.py, line 9)" in out
    assert main(["largest", script, "--vary", "batch_size=1..64", "--gpu", "t4", "--json"]) == 0
    found = answer(capsys, "largest")
    assert (found["largest"]["value"], found["next"], found["failed"]["value"]) == (5, None, 6)


@pytest.mark.parametrize(("end", "said"), [(KeyboardInterrupt, "interrupted: "), (TimeOver("x"), "stopped after ")])
def test_a_search_that_is_ended_early_says_the_best_so_far(
    end: BaseException, said: str, script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a third capture that is interrupted, or for which no time is left
    made: list[int] = []

    def capture(*_: object, constants: Mapping[str, int], **__: object) -> Trace:
        made.append(constants["batch_size"])
        if len(made) == 3:
            raise end
        return trace_of(constants["batch_size"] * GIB)

    monkeypatch.setattr(capture_module, "capture_script", capture)

    assert main(["largest", script, "--vary", "batch_size=1..64", "--gpu", "a100-80gb", "--json"]) == 0
    found = answer(capsys, "largest")
    assert (found["largest"]["value"], len(made)) == (2, 3)
    assert found["early"].startswith(said)
    assert found["early"].endswith(": 2 fits; nothing above it was tried")


def test_a_failure_at_a_value_names_the_value_and_how_it_was_given(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> Trace:
        raise CaptureError("train.py: the script refused its arguments")

    monkeypatch.setattr(capture_module, "capture_script", fails)

    assert main(["largest", script, "--vary", "depth=4..8", "--gpu", "t4"]) == 2
    assert capsys.readouterr().err == (
        "elbowroom: with the argument --depth = 4 (train.py does not mention depth: it is tried as the argument "
        "--depth): train.py: the script refused its arguments\n"
    )


def test_machines_have_the_settings_of_the_first_variable_that_is_set() -> None:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}

    assert scripts.machines_of("t4", environment) == [replace(Machine.of("t4"), allocator="max_split_size_mb:64")]
    with pytest.raises(UsageError, match="given t4 twice"):
        scripts.machines_of("t4,t4", {})


def test_the_way_that_cuda_loads_kernels_comes_from_the_environment() -> None:
    # given the variable in any case; when machines are made; then more lies outside the allocator
    eager = Machine.of("t4", loading="eager")

    assert scripts.machines_of("t4", {"CUDA_MODULE_LOADING": "EAGER"}) == [replace(eager, allocator="")]
    assert scripts.machines_of("t4", {"CUDA_MODULE_LOADING": "LAZY"}) == [replace(Machine.of("t4"), allocator="")]


def test_a_trace_is_estimated_and_what_is_no_script_is_not_run(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = captures(lambda _: 10 * GIB)
    assert main(["estimate", script, "--gpu", "a100-40gb", "-o", "trace.json"]) == 0
    capsys.readouterr()

    assert main(["estimate", "trace.json", "--gpu", "rtx2080ti", "--json"]) == 0
    found = answer(capsys)
    assert (found["script"], found["estimates"][0]["peak_allocated_bytes"]["likely"]) == ("trace.json", 10 * GIB)
    assert len(asked.calls) == 1

    Path("other.json").write_text('{"a": 1}')
    assert main(["estimate", "other.json", "--gpu", "rtx2080ti"]) == 2
    assert capsys.readouterr().err.startswith("elbowroom: other.json: ")
    for verb, name in (("largest", "trace.json"), ("estimate", "job.sh")):
        Path("job.sh").write_text("python train.py")
        assert main([verb, name, "--gpu", "rtx2080ti"]) == 2
        assert f"{verb}: given '{name}', which is no Python script by its name" in capsys.readouterr().err
    assert len(asked.calls) == 1


def test_a_trace_of_a_cpu_is_no_estimate_of_a_gpu(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    replace(trace_of(GIB), device="cpu").save("trace.json")

    assert main(["estimate", "trace.json", "--gpu", "rtx2080ti"]) == 2
    assert "given a trace of device cpu; allowed is one of a GPU" in capsys.readouterr().err


def test_what_does_not_fit_is_captured_in_parts_and_planned_and_what_fits_is_not(
    script: str, captures: Callable[..., Captures], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = captures(lambda _: 12 * GIB)

    assert main(["estimate", script, "--gpu", "a100-40gb,rtx2080ti", "--json"]) == 1
    fits, full = answer(capsys)["estimates"]

    # no plan can move the activation, as nothing saves it
    assert fits["planned"] is None
    assert full["planned"] == {
        "fits": False,
        "means": ["swap", "state", "gradient", "parameter"],
        "slowdown": None,
        "step_ns": None,
        "kept_step_ns": None,
        "host_bytes": None,
        "disk_bytes": None,
        "needed_bytes": 12 * GIB + Machine.of("rtx2080ti").outside_bytes,
    }
    assert [(each["machine"].name, each["min_size"]) for each in asked.in_parts] == [("rtx2080ti", 2**20)]
    assert main(["estimate", script, "--gpu", "rtx2080ti"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "No plan that was tried makes it fit: the least found needs" in out


def test_an_answer_is_kept_where_the_capture_for_its_plan_fails(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def once(*_: object, in_parts: bool = False, **__: object) -> Trace:
        if in_parts:
            raise CaptureError("train.py: its optimizer cannot step in parts")
        return trace_of(12 * GIB)

    monkeypatch.setattr(capture_module, "capture_script", once)

    assert main(["estimate", script, "--gpu", "rtx2080ti", "--json"]) == 1
    assert answer(capsys)["estimates"][0]["planned"] is None
