"""The demo: its limits really limit, its arithmetic is what it says, and it works."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli import demo_verb, output
from elbowroom.cli import main as command
from elbowroom.demo import limited_run, limits, main, weights
from elbowroom.demo.limited_run import LimitedTrial
from elbowroom.demo.limits import DataLimit, available_kind, hard_limit
from elbowroom.demo.trainer import TrainingOrder, memory
from elbowroom.errors import UsageError
from tests.cli.answers import answered

pytestmark = pytest.mark.long

MIB = 2**20
SOURCES = Path(__file__).parents[2] / "src"
HOLD = "import sys; held = bytearray(int(sys.argv[1])); held[::4096] = b'x' * len(held[::4096]); print('held')"


def hold(limit: limits.CommandLimit, size_bytes: int) -> subprocess.CompletedProcess[str]:
    words = limit.wrap([sys.executable, "-c", HOLD, str(size_bytes)])
    return subprocess.run(words, capture_output=True, text=True, check=False)


def ended(
    *, exit_code: int = 0, output: str = "", losses: tuple[float, ...] = (), **figures: dict[str, Any]
) -> LimitedTrial:
    """A trial that reported these losses, a step of 3 s each, and these events."""
    steps = [{"event": "step", "loss": loss, "step_ns": 3_000_000_000} for loss in losses]
    others = [{"event": name, **values} for name, values in figures.items()]
    return LimitedTrial(events=(*steps, *others), exit_code=exit_code, peak_rss_bytes=700 * MIB, output=output)


PLAIN = ended(
    losses=(0.5, 0.25, 0.125),
    bare={"rss_bytes": 400 * MIB, "anonymous_bytes": 300 * MIB, "data_bytes": 450 * MIB, "allocated_bytes": 16 * MIB},
    trained={"peak_rss_bytes": 1600 * MIB, "weights_sha256": "same"},
    measured={"peak_allocated_bytes": 960 * MIB},
)
KILLED = ended(exit_code=-9)
WITHIN = ended(
    losses=(0.5, 0.25, 0.125),
    trained={"peak_rss_bytes": 730 * MIB, "weights_sha256": "same"},
    measured={
        "peak_allocated_bytes": 330 * MIB,
        "simulated_peak_allocated_bytes": 330 * MIB,
        "simulated_step_ns": 3_100_000_000,
        "swapped_out_bytes": 630 * MIB,
        "swapped_back_bytes": 630 * MIB,
        "stall_ns": 1_000_000,
    },
)


def outcome(
    plain: LimitedTrial = PLAIN, limited: LimitedTrial = KILLED, within: LimitedTrial = WITHIN
) -> main.DemoOutcome:
    return main.DemoOutcome(
        limit_kind="memory cgroup v2",
        limit_bytes=720 * MIB,
        bare_bytes=300 * MIB,
        budget_bytes=340 * MIB,
        plain=plain,
        limited=limited,
        within=within,
    )


def test_the_strictest_limit_there_is_stops_a_process_and_leaves_nothing_behind() -> None:
    kind = available_kind()

    with hard_limit(128 * MIB, kind) as limit:
        small, large = hold(limit, 32 * MIB), hold(limit, 256 * MIB)

    assert small.stdout == "held\n"
    assert large.returncode != 0
    assert large.stdout == ""
    assert limit.limit_bytes <= 128 * MIB
    if isinstance(limit, limits.GroupLimit):
        assert not limit.folder.exists()


def test_rlimit_data_stops_a_process_anywhere() -> None:
    limit = DataLimit(128 * MIB)

    small, large = hold(limit, 32 * MIB), hold(limit, 256 * MIB)

    assert (small.stdout, large.stdout) == ("held\n", "")
    assert "MemoryError" in large.stderr


def group_tree(root: Path, monkeypatch: pytest.MonkeyPatch, mount: str, groups: str) -> None:
    """A made-up /proc whose cgroup mount is a folder: files can be written there, but no process can join."""
    (root / "mounts").write_text(f"cgroup {root}/group {mount} 0 0\n")
    (root / "cgroup").write_text(groups)
    monkeypatch.setattr(limits, "MOUNTS", root / "mounts")
    monkeypatch.setattr(limits, "OWN_GROUPS", root / "cgroup")


def test_a_group_that_cannot_be_made_gives_way_to_rlimit_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a mount that is not there
    group_tree(tmp_path, monkeypatch, "cgroup2 rw", "0::/user.slice/session.scope\n")

    assert available_kind() == "RLIMIT_DATA"


def test_groups_are_tried_from_the_root_then_from_ours_upwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group_tree(tmp_path, monkeypatch, "cgroup2 rw", "1:name=systemd:/\n0::/user.slice/app.slice/x.scope\n")
    group = tmp_path / "group"

    assert list(limits._places()) == [
        (group, limits.V2),
        (group / "user.slice/app.slice/x.scope", limits.V2),
        (group / "user.slice/app.slice", limits.V2),
        (group / "user.slice", limits.V2),
    ]


def test_version_1_is_taken_where_it_has_the_memory_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group_tree(tmp_path, monkeypatch, "cgroup rw,cpu", "4:memory:/\n")
    assert list(limits._places()) == []

    group_tree(tmp_path, monkeypatch, "cgroup rw,relatime,memory", "4:memory:/\n")
    assert list(limits._places()) == [(tmp_path / "group", limits.V1)]


def test_the_limit_is_the_bare_process_and_a_share_of_what_training_needs() -> None:
    # Needed above the bare process: 1600 - 400 = 1200 MiB; 35 % of it is 420 MiB.
    # Charged to a cgroup: 300 MiB, so the limit is 720 MiB; storages may take 16 + 420 - 96 = 340 MiB.
    assert main.amounts(PLAIN, "memory cgroup v1") == (300 * MIB, 340 * MIB, 720 * MIB)


def test_under_rlimit_data_stacks_come_on_top_but_never_above_40_percent() -> None:
    # 420 + 64 = 484 MiB, but 40 % of 1200 MiB is 480; address space is 450 MiB; 16 + 480 - 96 - 64 = 336.
    assert main.amounts(PLAIN, "RLIMIT_DATA") == (450 * MIB, 336 * MIB, 930 * MIB)


def test_a_job_too_small_for_the_margin_is_refused() -> None:
    trained = {"peak_rss_bytes": 600 * MIB, "weights_sha256": ""}
    tiny = ended(bare=dict(PLAIN.all_of("bare")[0]), trained=trained)

    # 35 % of 200 MiB
    with pytest.raises(main.DemoFailed, match=r"leaves 70\.0 MiB above the bare process; .* the 96\.0 MiB kept free"):
        main.amounts(tiny, "memory cgroup v2")


def test_the_json_object_has_the_named_fields() -> None:
    answer = answered(json.dumps(output.as_object(demo_verb.figures(outcome())), allow_nan=False), "demo")

    assert (answer["limit_bytes"], answer["limit_kind"]) == (720 * MIB, "memory cgroup v2")
    assert (answer["bit_equal"], answer["step_ratio"]) == (True, 1.0)
    nothing_moved = dict.fromkeys(
        ("swapped_out_bytes", "swapped_back_bytes", "stall_ns", "simulated_peak_allocated_bytes")
    )
    assert answer["plain"] == {
        "failed": False,
        "peak_allocated_bytes": 960 * MIB,
        "peak_rss_bytes": 1600 * MIB,
        "step_ns": 3_000_000_000,
        "losses": [0.5, 0.25, 0.125],
        **nothing_moved,
    }
    assert answer["limited"] == {
        "failed": True,
        "peak_allocated_bytes": None,
        "peak_rss_bytes": 700 * MIB,
        "step_ns": None,
        "losses": [],
        **nothing_moved,
    }
    within = answer["within"]
    assert (within["peak_allocated_bytes"], within["swapped_out_bytes"]) == (330 * MIB, 630 * MIB)
    assert (within["stall_ns"], within["simulated_peak_allocated_bytes"]) == (1_000_000, 330 * MIB)


def test_it_went_as_it_should_only_with_the_same_numbers_under_a_limit_that_limits() -> None:
    other_loss = ended(losses=(0.5, 0.25, 0.1250001), trained={"weights_sha256": "same"})
    other_weights = ended(losses=(0.5, 0.25, 0.125), trained={"weights_sha256": "other"})

    assert outcome().as_it_should
    assert not outcome(within=other_loss).as_it_should
    assert not outcome(within=other_weights).as_it_should
    assert not outcome(limited=PLAIN).as_it_should
    assert not outcome(within=KILLED).as_it_should


def test_out_of_memory_is_told_from_other_failures() -> None:
    assert KILLED.out_of_memory
    assert KILLED.ending() == "killed by the kernel: out of memory"
    refused = ended(exit_code=1, output="Traceback\nRuntimeError: DefaultCPUAllocator: can't allocate memory: 12\n\n")
    assert refused.out_of_memory
    assert refused.ending() == "exit code 1: RuntimeError: DefaultCPUAllocator: can't allocate memory: 12"
    assert not ended(exit_code=1, output="ImportError: no module").out_of_memory


def test_a_child_reports_over_its_pipe_and_its_death_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # given a child that reports one event, half of another, says something, and is killed
    code = (
        "import json, os, signal, sys; order = json.loads(sys.argv[1]); print('last words', flush=True);"
        'os.write(order[\'pipe\'], b\'{"event": "step", "loss": 1.0}\\n{"event"\');'
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    fake = tmp_path / "python"
    fake.write_text(f"#!{sys.executable}\nimport sys\nsys.argv[1:] = sys.argv[3:]\n{code}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    seen: list[Any] = []

    order = TrainingOrder(mode="plain", pipe=-1, shape_XYZ=(1, 1, 1), seed=0, steps=1, folder=str(tmp_path))
    done = limited_run.run(order, None, seen.append)

    assert seen == [{"event": "step", "loss": 1.0}]
    assert (done.exit_code, done.out_of_memory, done.output) == (-9, True, "last words\n")
    assert done.peak_rss_bytes > MIB


def test_what_elbowroom_warned_of_is_found_in_the_output() -> None:
    told = ended(output="a.py:3: RuntimeWarning: elbowroom: no plan\n  x = 1\nUserWarning: other\n")

    assert told.warnings() == ["a.py:3: RuntimeWarning: elbowroom: no plan"]


def test_a_process_knows_what_it_holds() -> None:
    held = memory()

    assert held["peak_rss_bytes"] >= held["rss_bytes"] >= held["anonymous_bytes"] > MIB


def test_missing_packages_are_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "monai" else find(name))

    with pytest.raises(UsageError, match=r"monai not installed; .* pip install 'elbowroom\[demo\]'"):
        main.check_packages()


def weights_outcome(
    limited: LimitedTrial = KILLED, within: LimitedTrial = WITHIN, small_within: LimitedTrial = WITHIN
) -> weights.WeightsOutcome:
    return weights.WeightsOutcome(
        limit_kind="memory cgroup v2",
        limit_bytes=300 * MIB,
        training_bytes=900 * MIB,
        small_training_bytes=200 * MIB,
        limited=limited,
        within=within,
        small_plain=PLAIN,
        small_within=small_within,
    )


def test_the_demo_of_weights_went_as_it_should_only_if_the_loss_fell_and_the_smaller_model_has_equal_numbers() -> None:
    rising = ended(losses=(0.25, 0.5, 0.375), trained={"weights_sha256": "same"})

    assert weights_outcome().as_it_should
    assert not weights_outcome(limited=PLAIN).as_it_should
    assert not weights_outcome(within=rising).as_it_should
    assert not weights_outcome(within=KILLED).as_it_should
    assert not weights_outcome(small_within=rising).as_it_should
    assert not weights_outcome(small_within=KILLED).as_it_should


def test_the_json_object_of_weights_has_the_named_fields() -> None:
    answer = answered(
        json.dumps(output.as_object(demo_verb.weights_figures(weights_outcome())), allow_nan=False), "demo-weights"
    )

    assert (answer["limit_bytes"], answer["training_bytes"]) == (300 * MIB, 900 * MIB)
    assert (answer["loss_fell"], answer["bit_equal"]) == (True, True)
    assert (answer["limited"]["failed"], answer["within"]["failed"]) == (True, False)


def test_the_bytes_of_a_model_are_those_of_four_words_for_each_parameter() -> None:
    weights_job = pytest.importorskip("elbowroom.demo.weights_job", reason="the demo trains with torch")
    # Embeddings 256 x 64 and 64 x 64, and one block: norms 4 x 64; products 64 x 192 + 192, 64 x 64 + 64,
    # 64 x 256 + 256 and 256 x 64 + 64. The last norm 2 x 64 and the head 64 x 256 + 256.
    block = 256 + (64 * 192 + 192) + (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64)
    count = 256 * 64 + 64 * 64 + block + 128 + (64 * 256 + 256)

    assert weights_job.training_bytes(width=64, depth=1) == 4 * 4 * count


@pytest.mark.timeout(900)
def test_the_small_demo_of_weights_works(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")]))

    code = command(["demo", "--weights", "--size", "small", "--json", "--out", str(tmp_path)])

    captured = capfd.readouterr()
    assert code == 0, captured.err
    answer = answered(captured.out, "demo-weights")
    assert answer["bit_equal"] is True
    assert answer["loss_fell"] is True
    assert answer["limited"]["failed"] is True
    # the whole process stays below a third of its weights, gradients and states
    assert answer["training_bytes"] >= 3 * answer["limit_bytes"]
    # and each step moves about all of them
    assert answer["within"]["swapped_out_bytes"] > answer["training_bytes"] - 2 * answer["limit_bytes"]


@pytest.mark.timeout(600)
def test_the_small_demo_works(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("monai", reason="the demo trains MONAI's 3D U-Net")
    pytest.importorskip("nibabel", reason="the demo trains on nibabel's brain MRI")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")]))

    code = command(["demo", "--size", "small", "--json", "--out", str(tmp_path)])

    captured = capfd.readouterr()
    assert code == 0, captured.err
    answer = answered(captured.out, "demo")
    assert answer["bit_equal"] is True
    assert (answer["plain"]["failed"], answer["limited"]["failed"], answer["within"]["failed"]) == (False, True, False)
    # The limit is at most 40 % of what plain training needs above the bare process.
    need = answer["plain"]["peak_rss_bytes"] - answer["bare_bytes"]
    assert answer["limit_bytes"] - answer["bare_bytes"] <= 0.4 * need
    measured, simulated = answer["within"]["peak_allocated_bytes"], answer["within"]["simulated_peak_allocated_bytes"]
    assert measured is not None, captured.err
    assert abs(measured - simulated) <= 0.01 * simulated + MIB
    assert measured <= answer["budget_bytes"]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"trace.json", "machine.json", "plan.json", "simulated.json", "measured.json", "report.html"}
