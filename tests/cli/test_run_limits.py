"""`elbowroom run` under a limit that kills: it trains with the same numbers, or refuses with figures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="elbowroom run runs torch scripts")

from elbowroom.demo.limits import DataLimit, GroupLimit, available_kind, hard_limit
from elbowroom.units import format_bytes

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

SOURCES = Path(__file__).parents[2] / "src"
MIB = 2**20
Ended = subprocess.CompletedProcess[str]

# 16 sines of 32 MiB, each of which saves its input: 512 MiB. The process without them holds about 320 MiB, and a step
# with all of them away three or four: 96 to 128 MiB.
SCRIPT = """
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
layer = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
data = torch.randn(16 * 1024, 512)

class Net(torch.nn.Module):
    def forward(self, x):
        x = layer(x)
        for _ in range(16):
            x = x.sin()
        return x

net = Net()
for _ in range(4):
    optimizer.zero_grad()
    loss = net(data).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def python(*words: str) -> list[str]:
    return [sys.executable, *words]


def run(command: list[str], folder: Path) -> Ended:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    environment = {name: value for name, value in environment.items() if not name.startswith("ELBOWROOM_")}
    environment["ELBOWROOM_KEEPS_PLANS"] = "0"
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)


def run_in_group(command: list[str], folder: Path, limit_bytes: int) -> Ended:
    kind = available_kind()
    if kind == "RLIMIT_DATA":
        pytest.skip("this process may make no memory cgroup with a limit")
    with hard_limit(limit_bytes, kind) as limit:
        return run(limit.wrap(command), folder)


def test_auto_trains_with_the_same_numbers_where_the_kernel_kills_plain_training(script: Path, tmp_path: Path) -> None:
    limit_bytes = 580 * MIB
    plain = run(python(str(script)), tmp_path)

    killed = run_in_group(python(str(script)), tmp_path, limit_bytes)
    inside = run_in_group(python("-m", "elbowroom", "run", str(script)), tmp_path, limit_bytes)

    assert killed.returncode == -9
    assert (inside.returncode, inside.stdout) == (0, plain.stdout), inside.stderr


def test_a_budget_above_what_the_limit_leaves_is_held_to_that(script: Path, tmp_path: Path) -> None:
    inside = run_in_group(python("-m", "elbowroom", "run", "--budget", "450MiB", str(script)), tmp_path, 580 * MIB)

    assert inside.returncode == 0, inside.stderr
    assert "given a budget of 450.0 MiB, and memory cgroup" in inside.stderr


def test_a_limit_that_is_too_low_is_refused_with_figures_before_the_kernel_kills(script: Path, tmp_path: Path) -> None:
    refused = run_in_group(python("-m", "elbowroom", "run", str(script)), tmp_path, 340 * MIB)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert "allows 340.0 MiB" in refused.stderr
    assert "Traceback" not in refused.stderr


# A weight of 256 MiB, its gradient and its momentum: the optimizer's step needs all three.
HEAVY = """
import torch

torch.set_num_threads(1)
layer = torch.nn.Linear(8192, 8192, bias=False)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
for _ in range(4):
    optimizer.zero_grad()
    layer(torch.randn(256, 8192)).square().mean().backward()
    optimizer.step()
    print("step", flush=True)
"""


def test_storages_that_fit_into_no_limit_are_refused_in_the_first_backward(tmp_path: Path) -> None:
    # given a limit that leaves room for a capture, and less than the storages of one op
    script = tmp_path / "train.py"
    script.write_text(HEAVY)
    # when
    refused = run_in_group(python("-m", "elbowroom", "run", str(script)), tmp_path, 760 * MIB)
    # then
    assert (refused.returncode, refused.stdout) == (1, ""), refused.stderr
    assert "So says a capture of the script without its numbers" in refused.stderr
    assert "leaves of its 760.0 MiB" in refused.stderr
    assert "is the least that may do" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_limit_that_a_refusal_names_is_enough_where_the_script_loads_data_before_its_first_step(
    tmp_path: Path,
) -> None:
    # given 128 MiB of data, which no storage holds, and a limit below what the optimizer's step takes
    script = tmp_path / "train.py"
    script.write_text(f"import numpy\ndata = numpy.ones(16 << 20)\n{HEAVY}")
    refused = run_in_group(python("-m", "elbowroom", "run", str(script)), tmp_path, 900 * MIB)
    assert (refused.returncode, refused.stdout) == (1, ""), refused.stderr
    # when
    named = re.search(r"A limit of .+ \((\d+) bytes\) is the least that may do", refused.stderr)
    assert named is not None, refused.stderr
    done = run_in_group(python("-m", "elbowroom", "run", str(script)), tmp_path, int(named[1]))
    # then
    assert (done.returncode, done.stdout) == (0, "step\n" * 4), done.stderr


def test_a_process_that_its_limit_has_ended_names_the_limit_that_is_enough(script: Path, tmp_path: Path) -> None:
    # given a limit that leaves no room for a capture next to the training, and a request that goes beyond it
    script.write_text(SCRIPT + "\n" + "import atexit; atexit.register(print, 'trained')\n")
    refused = run_in_group(python("-m", "elbowroom", "run", str(script)), tmp_path, 430 * MIB)
    assert (refused.returncode, refused.stdout) == (1, ""), refused.stderr
    # when it says two limits: one for the last request alone, and one for all
    alone, enough = (int(each) for each in re.findall(r"limit of at least .+ \((\d+) bytes\)", refused.stderr))
    assert alone < enough
    assert "a capture of the script says that its steps need" in refused.stderr
    done = run_in_group(python("-m", "elbowroom", "run", str(script)), tmp_path, enough)
    # then the second one trains, and nothing is left of the looking
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("trained\n")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("elbowroom-")] == []


# 600 layers of 1 MiB each: reading what was recorded of a step takes more memory than training with all of them away.
DEEP = SCRIPT.replace("for _ in range(16):", "for _ in range(600):").replace("16 * 1024, 512", "512, 512")

# Eight weights of 16 MiB on a file: with gradients and two states 512 MiB, and the process without them about 320 MiB.
ON_FILE = """
import sys
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(8)])
if sys.argv[1:]:
    torch.save(model.state_dict(), "weights.pt")
    sys.exit()
model = model.to("meta")
model.load_state_dict(torch.load("weights.pt", mmap=True), assign=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(64, 2048)
for _ in range(4):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
print(sum(each.double().sum().item() for each in model.state_dict().values()).hex())
"""


def test_trained_weights_of_a_file_stream_below_a_limit_that_kills_plain_training(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_FILE)
    assert run(python(str(script), "save"), tmp_path).returncode == 0
    plain = run(python(str(script)), tmp_path)
    inside = ("-m", "elbowroom", "run", "--allow", "swap,recompute,state,gradient,parameter", str(script))

    killed = run_in_group(python(str(script)), tmp_path, 520 * MIB)
    ended = run_in_group(python(*inside), tmp_path, 520 * MIB)

    assert killed.returncode == -9
    assert (ended.returncode, ended.stdout) == (0, plain.stdout), ended.stderr
    assert "parameters swapped to disk" in ended.stderr


def test_a_limit_that_leaves_no_room_for_a_plan_ends_nothing(tmp_path: Path) -> None:
    # given: a limit that leaves some MiB more than the training with each storage away; plain training takes 850 MiB
    script = tmp_path / "train.py"
    script.write_text(DEEP)
    plain = run(python(str(script)), tmp_path)

    inside = run_in_group(python("-m", "elbowroom", "run", str(script)), tmp_path, 310 * MIB)

    assert (inside.returncode, inside.stdout) == (0, plain.stdout), inside.stderr
    assert "storages leave in each step as early as they can" in inside.stderr
    # and the limit that it names, in the warning and at the end, is one that has a plan
    named = re.findall(r"A limit of [^(]+\((\d+) bytes\) would do", inside.stderr)
    assert len(named) == 2
    assert named[0] == named[1]
    planned = run_in_group(python("-m", "elbowroom", "run", str(script)), tmp_path, int(named[0]))
    assert (planned.returncode, planned.stdout) == (0, plain.stdout), planned.stderr
    assert "planned peak" in planned.stderr


def test_a_run_that_is_looked_at_fits_the_same_limit(script: Path, tmp_path: Path) -> None:
    # given: threads of its own, whose stacks RLIMIT_DATA counts, and the modules of a web server
    plain = run(python(str(script)), tmp_path)
    live = ("-m", "elbowroom", "run", "--live", "--live-port", "0", str(script))

    inside = run_in_group(python(*live), tmp_path, 600 * MIB)

    assert (inside.returncode, inside.stdout) == (0, plain.stdout), inside.stderr
    assert "elbowroom: this run is at http://127.0.0.1:" in inside.stderr


def test_auto_keeps_to_a_limit_of_the_process_itself(script: Path, tmp_path: Path) -> None:
    # given: RLIMIT_DATA counts what is mapped, such as the stacks of threads, and no code
    plain = run(python(str(script)), tmp_path)
    limit = DataLimit(600 * MIB)

    failed = run(limit.wrap(python(str(script))), tmp_path)
    inside = run(limit.wrap(python("-m", "elbowroom", "run", str(script))), tmp_path)

    assert "allocate memory" in failed.stderr
    assert (inside.returncode, inside.stdout) == (0, plain.stdout), inside.stderr


@pytest.mark.parametrize("limit_bytes", [900 * MIB, 1500 * MIB])
def test_a_limit_of_address_space_ends_in_the_same_numbers_or_in_figures(
    script: Path, tmp_path: Path, limit_bytes: int
) -> None:
    # given: a Slurm job's limit, as RLIMIT_AS: it counts code and stacks too, which differ between systems
    plain = run(python(str(script)), tmp_path)

    command = ["sh", "-c", f'ulimit -v {limit_bytes // 1024} && exec "$@"', "sh"]
    inside = run([*command, *python("-m", "elbowroom", "run", str(script))], tmp_path)

    if inside.returncode:
        assert f"RLIMIT_AS allows {format_bytes(limit_bytes)}" in inside.stderr
        assert "Traceback" not in inside.stderr
    else:
        assert inside.stdout == plain.stdout


def test_a_limit_of_the_process_that_is_too_low_is_refused_with_figures(script: Path, tmp_path: Path) -> None:
    limit = DataLimit(380 * MIB)

    refused = run(limit.wrap(python("-m", "elbowroom", "run", str(script))), tmp_path)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert "RLIMIT_DATA allows 380.0 MiB" in refused.stderr
    assert "Traceback" not in refused.stderr


LOWERED = """    if n == 3: open(os.environ["LIMIT_FILE"], "w").write(os.environ["LOWERED_TO"])
"""
EIGHT = SCRIPT.replace("for _ in range(4):", "for n in range(8):")
BETWEEN = EIGHT + LOWERED
# Steps that fit run without hooks after a while.
MANY = SCRIPT.replace("for _ in range(4):", "for n in range(16):")
IN_FORWARD = LOWERED.replace("    ", " " * 12, 1).replace("n == 3", "n == 14")
WITHIN = MANY.replace("            x = x.sin()\n", f"            x = x.sin()\n{IN_FORWARD}")


def lowered(folder: Path, patch: pytest.MonkeyPatch, script: str, lowered_bytes: int) -> tuple[Ended, Ended]:
    """Run steps, which begin with plenty, by themselves and under a limit that is lowered in the middle."""
    (folder / "train.py").write_text("import os\n" + script)
    kind = available_kind()
    if kind == "RLIMIT_DATA":
        pytest.skip("this process may make no memory cgroup with a limit")
    patch.setenv("LIMIT_FILE", os.devnull)
    patch.setenv("LOWERED_TO", str(lowered_bytes))
    plain = run(python("train.py"), folder)
    with hard_limit(2048 * MIB, kind) as limit:
        assert isinstance(limit, GroupLimit)
        name = "memory.limit_in_bytes" if "v1" in kind else "memory.max"
        patch.setenv("LIMIT_FILE", str(limit.folder / name))
        inside = run(limit.wrap(python("-m", "elbowroom", "run", "train.py")), folder)
    left = {each.name for each in folder.iterdir()}
    assert {name for name in left if not name.startswith("torchinductor")} == {"train.py"}  # torch's own folder
    return plain, inside


@pytest.mark.parametrize("lowered_bytes", [1100 * MIB, 800 * MIB, 580 * MIB])
def test_a_training_goes_on_below_a_limit_that_is_lowered_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lowered_bytes: int
) -> None:
    plain, inside = lowered(tmp_path, monkeypatch, BETWEEN, lowered_bytes)

    assert (inside.returncode, inside.stdout) == (0, plain.stdout), inside.stderr


@pytest.mark.parametrize(
    ("script", "lowered_bytes"), [(BETWEEN, 360 * MIB), (WITHIN, 560 * MIB)], ids=["between steps", "within a step"]
)
def test_a_limit_that_is_lowered_too_far_is_refused_and_never_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, lowered_bytes: int
) -> None:
    plain, inside = lowered(tmp_path, monkeypatch, script, lowered_bytes)

    assert inside.returncode == 1, inside.stderr
    assert plain.stdout.startswith(inside.stdout)
    assert f"allows {lowered_bytes // MIB}.0 MiB" in inside.stderr
    assert "Traceback" not in inside.stderr
