"""capture_script: a user's script in a child process, and what is said when that does not work."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from elbowroom.capture.script import capture_script
from elbowroom.capture.script.find_module import module_file
from elbowroom.errors import CaptureError, UsageError
from elbowroom.machine import Machine

pytestmark = pytest.mark.long

A100 = Machine.of("a100-40gb")

TRAINING = """
import os, sys
import torch
from torch import nn

BATCH = 64
batch = int(os.environ.get("BATCH_OF_TEST", BATCH))
if len(sys.argv) > 1:
    batch = int(sys.argv[1])
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.randn(batch, 1024, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item())
"""


def script(folder: Path, text: str, name: str = "train.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def inputs_of(path: str, *arguments: str, **how: object) -> set[int]:
    """Sizes of what is as large as an activation of some batch: rows of 1024 numbers of 4 bytes, as numbers of rows."""
    trace = capture_script(path, arguments, machine=A100, steps=2, **how)  # pyright: ignore[reportArgumentType]
    weight = 1024 * 1024 * 4
    rows = {storage.size_bytes // 4096 for storage in trace.storages if storage.size_bytes % 4096 == 0}
    return {each for each in rows if 0 < each < weight // 4096 and each != 1}


def test_whoever_waits_for_a_capture_may_end_it(tmp_path: Path) -> None:
    def given_up() -> None:
        raise CaptureError("given up")

    endless = script(tmp_path, "import time\nwhile True:\n    time.sleep(1)\n")
    with pytest.raises(CaptureError, match="given up"):
        capture_script(endless, machine=A100, on_wait=given_up)


def test_a_script_is_captured_until_its_steps_are_done(tmp_path: Path) -> None:
    seen: list[int] = []
    trace = capture_script(script(tmp_path, TRAINING), machine=A100, steps=3, on_step=seen.append)

    assert len(trace.steps) == 3
    assert trace.device == "cuda:0"
    assert seen == sorted(set(seen))
    # two weights of 4 MiB, two biases of 4 KiB
    parameters = sorted(storage.size_bytes for storage in trace.storages if storage.category == "parameter")
    assert parameters == [4096, 4096, 2**22, 2**22]


def test_what_a_script_has_a_process_of_its_own_train_is_captured_at_its_end(tmp_path: Path) -> None:
    text = "import multiprocessing\ndef train(rank):\n" + textwrap.indent(TRAINING, "    ") + "\n"
    text += "if __name__ == '__main__':\n    multiprocessing.set_start_method('spawn')\n"
    text += "    for rank in range(2):\n        multiprocessing.Process(target=train, args=(rank,)).start()\n"
    trace = capture_script(script(tmp_path, text), machine=A100, steps=3)

    assert len(trace.steps) == 3
    assert any("2 processes" in remark.name for remark in trace.remarks)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # as torch.cuda: 40,441 MiB of an A100's 40 GiB
        ("--query-gpu=memory.total,memory.used --format=csv,nounits,noheader", "40441, 0"),
        ("--query-gpu index,memory.free,fan.speed --format=csv", "index, memory.free, fan.speed\\n0, 40441 MiB, [N/A]"),
        ("-L", "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-00000000-0000-0000-0000-000000000000)"),
    ],
)
def test_nvidia_smi_tells_of_the_gpu_that_is_not_there(words: str, said: str, tmp_path: Path) -> None:
    asks = f"import os\nassert os.popen('nvidia-smi {words}').read().strip() == '{said}'\n"
    assert capture_script(script(tmp_path, asks + TRAINING), machine=A100, steps=2)


def test_arguments_environment_and_constants_reach_the_script(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINING)

    assert 64 in inputs_of(path)
    assert 32 in inputs_of(path, "32")
    assert 16 in inputs_of(path, environment={"BATCH_OF_TEST": "16"})
    assert 8 in inputs_of(path, constants={"BATCH": 8})
    assert "BATCH = 64" in Path(path).read_text()


def test_a_script_runs_as_main_with_its_own_folder_first(tmp_path: Path) -> None:
    script(tmp_path, "BATCH = 48", "beside.py")
    text = TRAINING.replace(
        "BATCH = 64", "from beside import BATCH\nassert __name__ == '__main__' and __file__ == sys.argv[0]"
    )

    assert 48 in inputs_of(script(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "print('hello')",
            r"train\.py: it ended after 0 optimizer steps, and nothing was on cuda; allowed .*\n +hello",
        ),
        (
            "import sys; sys.exit(2)",
            r"train\.py:1: the script refused its arguments \(it exited with code 2\); .*after --",
        ),
        ("open('missing.bin')", r"train\.py:1: it needs 'missing\.bin': No such file or directory; .*stand-in"),
        ("import no_such_package", r"train\.py:1: it imports no_such_package, .*; .*install no_such_package"),
        (
            "import torch\ntorch.eye(4).to_sparse_bsr((2, 2)).cuda()",
            r"train\.py:2: virtual device: given a tensor of layout torch\.sparse_bsr; allowed are dense ones",
        ),
        ("import flash_attn", r"it imports flash_attn, .*CUDA's compiler; .*attn_implementation=\"sdpa\""),
        ("raise ImportError('FlashAttention2 has been toggled on')", r"FlashAttention2 .*scaled_dot_product_attention"),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--enable_xformers', action='store_true')\n"
            "import xformers",
            r"train\.py:4: it imports xformers, .*the script's own --enable_xformers",
        ),
        ("x = 1\nraise KeyError('lr')", r"train\.py:2: the script failed with KeyError: 'lr'"),
        ("def (:", r"train\.py:1: the script failed with SyntaxError"),
        ("import os; print('bye', flush=True); os._exit(3)", r"train\.py:1: the script exited with code 3; .*\n +bye"),
        (
            "import threading, os, time; threading.Thread(target=os._exit, args=[3]).start(); time.sleep(60)",
            r"exit code 3 and without a word",
        ),
        (
            "import os, sys; os.execv(sys.executable, ['python', '-c', ''])",
            r"train\.py:1: it puts another program in its place \(\S+, by os\.exec\); .*ELBOWROOM_ESTIMATE",
        ),
        ("import os; os.abort()", r"its process crashed \(SIGABRT\); allowed are scripts"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", r"was killed \(SIGKILL\), .*runs out of memory"),
    ],
)
def test_a_script_that_fails_is_one_message(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=f"(?s){said}"):
        capture_script(script(tmp_path, text), machine=A100)


def test_a_part_of_cuda_that_the_virtual_gpu_does_not_have_is_named(tmp_path: Path) -> None:
    said = r"train\.py:\d+: it uses a part of CUDA that the virtual GPU does not have"
    fails = "import torch\nraise RuntimeError('PyTorch is not linked with support for cuda devices')\n"
    with pytest.raises(CaptureError, match=f"(?s){said}"):
        capture_script(script(tmp_path, fails), machine=A100)


def test_a_module_runs_as_python_m_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a package whose script has relative imports, and says how it was started
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "job"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("BATCH = 48")
    started = "from .sizes import BATCH\nimport sys\nassert (__name__, __package__) == ('__main__', 'job')\n"
    started += "assert (sys.path[0], sys.argv[0]) == (PLACE, PLACE + '/job/' + FILE)\n"
    text = started.replace("PLACE", repr(str(tmp_path))) + TRAINING.replace("\nBATCH = 64\n", "\n")
    (package / "train.py").write_text(text.replace("FILE", "'train.py'"))
    (package / "__main__.py").write_text(text.replace("FILE", "'__main__.py'"))

    # when the module, and the package itself, are captured
    for name, argv in (("job.train", ["20"]), ("job", ["24"])):
        trace = capture_script(module=name, argv=argv, machine=A100, steps=2)

        # then they ran, with their words: the input has so many rows of 1024 numbers of 4 bytes
        assert int(argv[0]) * 4096 in {storage.size_bytes for storage in trace.storages}


def test_a_module_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a package that cannot be imported, in a folder of the working directory
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "unkind"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError")
    (package / "train.py").write_text("")

    # then its module is found, and what is not there is said
    assert module_file("unkind.train") == os.path.join("unkind", "train.py")
    with pytest.raises(UsageError, match=r"given unkind\.nothing, and there is no unkind\.nothing; allowed is"):
        module_file("unkind.nothing")
    with pytest.raises(UsageError, match=r"given unkind, and it has no Python source to run \(a package needs a"):
        module_file("unkind")
    with pytest.raises(UsageError, match=r"given 'train\.py job'; allowed is the dotted name of a module"):
        module_file("train.py job")
    with pytest.raises(UsageError, match="given a path and a module, or neither"):
        capture_script("train.py", module="unkind.train", machine=A100)


def test_a_script_gpu_or_constant_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINING)

    with pytest.raises(UsageError, match=r"given the script 'nowhere\.py', which is not there"):
        capture_script("nowhere.py", machine=A100)
    with pytest.raises(UsageError, match="the nearest are rtx4090"):
        capture_script(path, machine="rtx4909")
    with pytest.raises(UsageError, match="given the constant WIDTH; allowed are BATCH"):
        capture_script(path, machine=A100, constants={"WIDTH": 1})
    with pytest.raises(UsageError, match="given steps=0"):
        capture_script(path, machine=A100, steps=0)
    with pytest.raises(UsageError, match="which has no NVIDIA GPU"):
        capture_script(path, machine=Machine.here(device="cpu"))


def test_nothing_is_left_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)

    capture_script(script(tmp_path, TRAINING), machine=A100, steps=2)

    assert not os.listdir(folder)
