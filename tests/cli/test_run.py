"""`elbowroom run`: a script that knows nothing of elbowroom, from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="elbowroom run runs torch scripts")

from tests.cli.answers import answered, checked
from tests.cli.processes import layers, python

pytestmark = pytest.mark.long

# each layer saves an output of 4 MiB
SCRIPT = (
    layers(4096)
    + """
for _ in range(5):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
print(sys.argv[1:])
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_script_trains_inside_a_budget_with_the_same_numbers(folder: Path) -> None:
    plain = python(folder, "train.py", "0")
    options = ["--budget", "32MiB", "--report", "page.html", "--json", "figures.json", "--spill-dir", str(folder)]

    inside = python(folder, "-m", "elbowroom", "run", *options, "train.py", "0")

    assert inside.stdout == plain.stdout
    assert (inside.returncode, plain.returncode) == (0, 0)
    figures = answered((folder / "figures.json").read_text(), "run")
    head, columns, kept, swapped, step, may_move, held = inside.stderr.splitlines()
    # 32 MiB / 4096
    assert may_move.startswith("  Storages of 8.0 KiB or more may move: ")
    assert figures["min_size_bytes"] == 8 * 2**10
    assert head.startswith("elbowroom: budget 32.0 MiB, planned peak ")
    assert head.endswith(" (5 steps, 0 mismatches)")
    assert columns.split() == ["storages", "size"]
    # a storage that is swapped is one of 4 MiB, each row ends with their sum
    assert swapped.split() == f"swapped to disk {figures['swaps']} {4 * figures['swaps']:.1f} MiB".split()
    assert kept.split()[0] == "kept"
    assert f": {4 * figures['swaps']:.1f} MiB out and {4 * figures['swaps']:.1f} MiB back, stall " in step
    assert figures["budget_bytes"] == 32 * 2**20
    assert 0 < figures["measured_peak_allocated_bytes"] <= 32 * 2**20
    assert figures["measured_peak_bytes"] == figures["measured_peak_allocated_bytes"] < figures["keep_all_bytes"]
    assert (figures["over_budget_bytes"], [kind["inputs"] for kind in figures["kinds"]]) == (
        0,
        ["Sequential(4096x256)"],
    )
    assert held.startswith("  keeping everything takes ")
    assert [step["mode"] for step in figures["steps"]] == ["plan"] * 5, "a capture has shown its steps beforehand"
    assert all(step["swapped_out_bytes"] > 0 for step in figures["steps"])
    assert "measured" in (folder / "page.html").read_text("utf-8")
    assert sorted(path.name for path in folder.iterdir()) == ["figures.json", "page.html", "train.py"]


def test_the_scripts_exit_code_and_arguments_are_its_own(folder: Path) -> None:
    done = python(folder, "-m", "elbowroom", "run", "--budget", "1GiB", "train.py", "7", "--budget", "x")

    assert done.returncode == 7
    assert done.stdout.splitlines()[-1] == "['7', '--budget', 'x']"
    assert "it fits, nothing is moved (5 steps)" in done.stderr


def test_a_budget_no_plan_can_meet_is_one_message_and_exit_code_1(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.elbowroom]\nbudget = "1MiB"\n')

    done = python(folder, "-m", "elbowroom", "run", "train.py")

    assert done.returncode == 1
    assert done.stderr.startswith("elbowroom: budget: given 1.0 MiB")
    assert done.stdout == "", "it is known in the first backward"
    assert "Traceback" not in done.stderr


def test_planner_options_and_modules_are_chosen_on_the_command_line(folder: Path) -> None:
    # given a budget that a third of the eight outputs of 4 MiB must leave for
    options = ["--budget", "40MiB", "--planner", "threshold", "--option", "size_bytes=4MiB", "--exclude", "7"]
    command = [
        "-m",
        "elbowroom",
        "run",
        *options,
        "--json",
        "figures.json",
        "--spill-dir",
        str(folder),
        "train.py",
        "0",
    ]

    inside = python(folder, *command)

    assert inside.returncode == 0, inside.stderr
    assert inside.stdout == python(folder, "train.py", "0").stdout
    assert answered((folder / "figures.json").read_text(), "run")["swaps"] == 7

    wrong = python(folder, "-m", "elbowroom", "run", "--include", "encoder", "--spill-dir", str(folder), "train.py")
    assert wrong.returncode == 2
    assert "include: given 'encoder', which no module matches" in wrong.stderr


def test_means_are_allowed_on_the_command_line(folder: Path) -> None:
    # given twelve steps, as a plan with recomputes runs from the sixth on, or later
    (folder / "train.py").write_text(SCRIPT.replace("range(5)", "range(12)"))

    inside = python(folder, "-m", "elbowroom", "run", "--budget", "40MiB", "--allow", "recompute", "train.py")

    assert inside.stdout == python(folder, "train.py").stdout
    (row,) = [line.split() for line in inside.stderr.splitlines() if line.lstrip().startswith("recomputed")]
    assert row == ["recomputed", row[1], f"{4 * int(row[1]):.1f}", "MiB"]

    wrong = python(folder, "-m", "elbowroom", "run", "--allow", "swap,fly", "train.py")
    assert wrong.returncode == 2
    assert "given 'fly'; allowed are swap, recompute, state, gradient, parameter, algorithm" in wrong.stderr


# The second step has twice the rows of the first one: it is observed too, and is the last one.
SHAPES = SCRIPT.replace("data = torch.randn(4096, 256)", "").replace(
    "    loss = model(data)", "    loss = model(torch.randn(4096 + 4096 * _, 256))"
)


def test_what_was_held_beyond_the_budget_is_said_with_an_exit_code_of_its_own(folder: Path) -> None:
    # given a budget that has room for the first step, not for the second one
    (folder / "train.py").write_text(SHAPES.replace("range(5)", "range(2)"))
    options = ["--budget", "32MiB", "--json", "figures.json", "--spill-dir", str(folder)]

    # when
    inside = python(folder, "-m", "elbowroom", "run", *options, "train.py")

    # then
    figures = answered((folder / "figures.json").read_text(), "run")
    held = [kind["measured_peak_allocated_bytes"] for kind in figures["kinds"]]
    assert inside.returncode == 3, inside.stderr
    assert [kind["inputs"] for kind in figures["kinds"]] == ["Sequential(8192x256)", "Sequential(4096x256)"]
    assert held[1] <= 2**25 < held[0] == 2**25 + figures["over_budget_bytes"]
    assert "THE BUDGET WAS NOT HELD: " in inside.stderr
    assert "it fits" not in inside.stderr


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (
            ["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "7"],
            "torchrun --nproc-per-node 2 -m elbowroom run --budget 1GiB train.py 7",
        ),
        (
            ["/usr/bin/accelerate", "launch", "--cpu", "train.py"],
            "accelerate launch --cpu -m elbowroom run --budget 1GiB train.py",
        ),
        (
            ["fabric", "run", "--devices", "2", "train.py"],
            "env LT_CLI_USED=1 LT_DEVICES=2 torchrun --nproc-per-node 2 -m elbowroom run --budget 1GiB train.py",
        ),
        (["torchrun", "--module", "train", "x"], "torchrun -m elbowroom run --budget 1GiB -m train x"),
        (
            ["deepspeed", "--num_gpus", "2", "train.py", "x"],
            "torchrun --nproc-per-node 2 -m elbowroom run --budget 1GiB train.py x",
        ),
        (
            ["python3", "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "pkg.train", "x"],
            "torchrun --nproc-per-node=2 -m elbowroom run --budget 1GiB -m pkg.train x",
        ),
        (
            ["-m", "accelerate.commands.accelerate_cli", "launch", "train.py"],
            "accelerate launch -m elbowroom run --budget 1GiB train.py",
        ),
        (
            ["mpirun", "-n", "2", "python", "train.py"],
            "mpirun -n 2 python -m elbowroom run --budget 1GiB train.py",
        ),
        (["python", "train.py", "7"], "elbowroom run --budget 1GiB train.py 7"),
    ],
)
def test_a_launcher_is_refused_with_the_command_to_use(folder: Path, words: list[str], instead: str) -> None:
    done = python(folder, "-m", "elbowroom", "run", "--budget", "1GiB", *words)

    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(instead)


def test_training_in_processes_of_its_own_is_no_silent_success(folder: Path) -> None:
    (folder / "starts.py").write_text("import subprocess, sys; subprocess.run([sys.executable, '-c', '1', 'train.py'])")

    done = python(folder, "-m", "elbowroom", "run", "--budget", "1GiB", "starts.py")

    assert done.returncode == 3
    assert "started 'train.py' in 1 processes of its own, which are outside the budget" in done.stderr


def test_storages_of_small_models_may_leave(folder: Path) -> None:
    # given outputs of 512 KiB, below the 1 MiB that storages of large models have at least
    (folder / "train.py").write_text(SCRIPT.replace("randn(4096, 256)", "randn(512, 256)"))
    options = ["--json", "figures.json", "--spill-dir", str(folder)]
    plain = python(folder, "-m", "elbowroom", "run", "--budget", "1GiB", *options, "train.py")
    needed = answered((folder / "figures.json").read_text(), "run")["keep_all_bytes"]

    # when
    inside = python(folder, "-m", "elbowroom", "run", "--budget", str(needed * 3 // 4), *options, "train.py")

    # then
    assert (inside.returncode, inside.stdout) == (0, plain.stdout), inside.stderr
    assert answered((folder / "figures.json").read_text(), "run")["swaps"] > 0


# Writes to standard output in each way there is, then trains.
LOUD = """
import atexit, os, subprocess, sys
print("from print")
os.write(1, b"from os.write\\n")
subprocess.run(["echo", "from a child"])
atexit.register(print, "from its end")
""" + SCRIPT.replace("range(5)", "range(2)")


def test_with_json_on_standard_output_nothing_else_is_there(folder: Path) -> None:
    # given a script that prints in Python, past Python, in a child and at its end
    (folder / "train.py").write_text(LOUD)
    plain = python(folder, "train.py", "0")

    inside = python(folder, "-m", "elbowroom", "run", "--budget", "1GiB", "--json", "-", "train.py", "0")

    # then standard output is one object, and what the script printed is on standard error
    assert inside.returncode == 0, inside.stderr
    found = answered(inside.stdout, "run")
    assert (found["script"], found["exit_code"], len(found["steps"])) == ("train.py", 0, 2)
    printed = inside.stderr.splitlines()
    assert [line for line in plain.stdout.splitlines() if line not in printed] == []
    assert {"from print", "from os.write", "from a child", "from its end"} <= set(printed)
    assert "elbowroom: budget 1.00 GiB, planned peak " in inside.stderr


@pytest.mark.parametrize(
    ("line", "code", "kind", "message"),
    [
        ("raise ValueError('x')", 1, "ScriptError", "ValueError: x"),
        ("import elbowroom; elbowroom.Machine.of('gpu of nobody')", 2, "UsageError", "machine: given 'gpu of nobody'"),
    ],
)
def test_a_run_without_an_end_writes_its_error_in_json(
    folder: Path, line: str, code: int, kind: str, message: str
) -> None:
    (folder / "train.py").write_text(f"print('begins')\n{line}\n")

    done = python(folder, "-m", "elbowroom", "run", "--json", "-", "train.py")

    found = checked(done.stdout)
    assert (done.returncode, found["verb"], found["exit_code"]) == (code, "run", code)
    assert (found["schema"], found["error"]["type"]) == ("elbowroom.answer.error", kind)
    assert found["error"]["message"].startswith(message)
    assert (found["error"]["of_elbowroom"], found["error"]["budget_bytes"]) == (False, None)
    assert "begins" in done.stderr


def test_a_budget_that_no_plan_meets_is_an_error_in_json_with_the_least(folder: Path) -> None:
    options = ["--budget", "1MiB", "--json", "figures.json", "--spill-dir", str(folder)]

    done = python(folder, "-m", "elbowroom", "run", *options, "train.py")

    found = checked((folder / "figures.json").read_text())
    assert (done.returncode, found["exit_code"], found["error"]["type"]) == (1, 1, "Infeasible")
    assert found["error"]["least_feasible_bytes"] > found["error"]["budget_bytes"] == 2**20
    assert done.stdout == "", "it ends in its first backward, before the script has said anything"
    assert "So says a capture of the script without its numbers" in found["error"]["message"]
    # and where no capture is wanted, after the steps that have shown it
    seen = python(folder, "-m", "elbowroom", "run", "--no-check", *options, "train.py")
    assert (seen.returncode, len(seen.stdout.splitlines())) == (1, 2)


def test_the_code_of_a_script_that_leaves_by_itself_is_in_its_answer(folder: Path) -> None:
    options = ["--budget", "1GiB", "--json", "figures.json"]

    done = python(folder, "-m", "elbowroom", "run", *options, "train.py", "7")

    assert done.returncode == 7
    assert answered((folder / "figures.json").read_text(), "run")["exit_code"] == 7
