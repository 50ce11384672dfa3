"""Every way of saving, and what else an estimate keeps a script from: none of it reaches the user's files."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from elbowroom.capture.script import capture_script, landlock
from elbowroom.machine import Machine
from elbowroom.trace import Trace

A100 = Machine.of("a100-40gb")
needs_landlock = pytest.mark.skipif(landlock.version() < 2, reason="this kernel has no Landlock (Linux 5.19)")

TRAINING = """
import builtins, glob, io, json, logging, os, pickle, shutil, socket, sqlite3, subprocess, sys, tempfile, zipfile
from pathlib import Path
import numpy as np
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
def train(steps):
    for _ in range(steps):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
def failing(call):
    try:
        call()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""
train(1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder that looks the same after each test as before it."""
    made = tmp_path / "work"
    (made / "runs" / "old").mkdir(parents=True)
    for name in ("best.pt", "log.csv", "runs/old/events", "a.npy", "notes.txt"):
        (made / name).write_text(f"the user's {name}\n")
    (made / "link.pt").symlink_to("best.pt")
    connection = sqlite3.connect(made / "study.db")
    connection.execute("create table trials (value)")
    connection.commit()
    connection.close()
    monkeypatch.chdir(made)
    before = contents(made)
    yield made
    assert contents(made) == before


def contents(folder: Path) -> dict[str, object]:
    """Every file and folder: bytes, mode, time of the last change."""
    found: dict[str, object] = {}
    for each in folder.rglob("*"):
        status = each.lstat()
        content = os.readlink(each) if each.is_symlink() else each.read_bytes() if each.is_file() else None
        found[str(each.relative_to(folder))] = (content, status.st_mode, status.st_mtime_ns)
    return found


def captured(folder: Path, saving: str, **how: object) -> Trace:
    """Capture a training that does something after its first step, and fails where that does."""
    script = folder.with_name("train.py")
    script.write_text(f"{TRAINING}\n{saving}\ntrain(2)\n")
    trace = capture_script(script, machine=A100, **how)  # pyright: ignore[reportArgumentType]
    assert [remark.name for remark in trace.remarks if remark.kind == "ended_early"] == []
    return trace


def kept_away(trace: Trace) -> set[str]:
    return {remark.name for remark in trace.remarks if remark.kind == "kept_away"}


TENSORS = """
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "tied": [model.weight, model.weight.t()]}
buffer = io.BytesIO()
torch.save(state, buffer)
buffer.seek(0)
places = ["best.pt", Path("runs/old/events"), "runs/new.pt", "link.pt"]
for place in places:
    torch.save(state, place)
with open("from_file.pt", "wb") as file:
    torch.save(state, file)
torch.save(state, "old_format.pt", _use_new_zipfile_serialization=False)
for place in [buffer, *places, "from_file.pt", "old_format.pt"]:
    found = torch.load(place, weights_only=False)
    assert found["model"]["weight"].device == model.weight.device, place
    assert found["tied"][0].untyped_storage().data_ptr() == found["tied"][1].untyped_storage().data_ptr()
    assert found["optimizer"]["state"][0]["exp_avg"].is_cuda
    assert torch.load(place if place is not buffer else "best.pt", map_location="cpu", weights_only=False)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    buffer.seek(0)
pickle.dump(model, open("model.pickle", "wb"))
first, second = torch.empty(1000, device="cuda"), torch.empty(1000, device="cuda")
assert abs(first.data_ptr() - second.data_ptr()) >= 4000  # areas do not overlap, as those who save weights check
assert first[5:].data_ptr() - 20 == first.data_ptr() == first.untyped_storage().data_ptr()
assert pickle.load(open("model.pickle", "rb")).weight.is_cuda
assert os.path.islink("link.pt") and os.path.samefile("link.pt", "best.pt")
"""


def test_torch_and_pickle_save_and_load_in_every_form(folder: Path) -> None:
    captured(folder, TENSORS)


FILES = """
for mode, text in (("w", "new"), ("a", "the user's notes.txt\\nnew"), ("r+", "new user's notes.txt\\n")):
    Path("notes.txt").write_text("the user's notes.txt\\n")
    with open("notes.txt", mode) as file:
        file.write("new")
    assert Path("notes.txt").read_text() == text, mode
open("fresh.txt", "x").close()
assert failing(lambda: open("notes.txt", "x")).startswith("FileExistsError")
os.close(os.open("log.csv", os.O_WRONLY | os.O_TRUNC))
assert os.stat("log.csv").st_size == 0 == os.path.getsize("log.csv")
np.save("a.npy", np.arange(3)); np.savez("b.npz", x=np.ones(2)); np.arange(4).tofile("c.bin")
assert np.load("a.npy").sum() == 3 and np.load("b.npz")["x"].sum() == 2 and np.fromfile("c.bin", dtype=int).sum() == 6
mapped = np.memmap("d.bin", dtype=np.uint8, mode="w+", shape=(8,)); mapped[:] = 7; mapped.flush()
assert Path("d.bin").read_bytes() == bytes([7] * 8)
json.dump({"a": 1}, open("c.json", "w")); assert json.load(open("c.json")) == {"a": 1}
with zipfile.ZipFile("e.zip", "w") as packed:
    packed.writestr("inner", "x")
assert zipfile.ZipFile("e.zip").namelist() == ["inner"]
logging.basicConfig(filename="log.csv", force=True); logging.error("a line"); assert "a line" in open("log.csv").read()
os.makedirs("runs/new/deep", exist_ok=True); Path("runs/new/deep/x.ckpt").write_bytes(b"x")
assert glob.glob("runs/**/*.ckpt", recursive=True) == ["runs/new/deep/x.ckpt"]
assert [str(found) for found in Path("runs").rglob("*.ckpt")] == ["runs/new/deep/x.ckpt"]
assert sorted(os.listdir("runs")) == ["new", "old"] == sorted(entry.name for entry in os.scandir("runs"))
os.rename("runs/new", "runs/newer"); os.replace("c.json", "best.pt"); shutil.move("a.npy", "runs/a.npy")
assert json.load(open("best.pt")) == {"a": 1} and not os.path.exists("a.npy") and os.path.isdir("runs/newer/deep")
os.remove("log.csv"); os.unlink("link.pt"); shutil.rmtree("runs/old"); os.mkdir("empty"); os.rmdir("empty")
assert not os.path.exists("runs/old") and not Path("log.csv").exists()
assert sorted(os.listdir("runs")) == ["a.npy", "newer"]
shutil.copytree("runs", "runs2"); assert Path("runs2/newer/deep/x.ckpt").read_bytes() == b"x"
with tempfile.NamedTemporaryFile("w", delete=False) as file:
    file.write("whole")
os.replace(file.name, "notes.txt"); assert open("notes.txt").read() == "whole"
with tempfile.TemporaryDirectory(dir=".") as inside:
    Path(inside, "y").write_text("y"); shutil.move(f"{inside}/y", "best.pt")
assert open("best.pt").read() == "y"
os.chmod("notes.txt", 0o600); os.utime("notes.txt", (1, 1)); assert os.stat("notes.txt").st_mtime == 1
connection = sqlite3.connect("study.db")
with connection:
    connection.execute("insert into trials values (1)")
assert connection.execute("select count(*) from trials").fetchone() == (1,)
connection.close()
assert sqlite3.connect("file:study.db?mode=ro", uri=True).execute("select count(*) from trials").fetchone() == (1,)
Path("written.py").write_text("VALUE = 3")
os.makedirs("made/inner")
Path("made/inner/deep.py").write_text("VALUE = 4")
sys.path.append(".")
import importlib.util, written
from made.inner import deep
spec = importlib.util.spec_from_file_location("named", "made/inner/deep.py")
named = importlib.util.module_from_spec(spec)
spec.loader.exec_module(named)
assert (written.VALUE, deep.VALUE, named.VALUE) == (3, 4, 4)
os.chdir("runs"); Path("here.txt").write_text("1"); os.chdir(".."); assert Path("runs/here.txt").exists()
"""


def test_files_are_written_moved_and_removed_and_seen_so_by_the_script_alone(folder: Path) -> None:
    captured(folder, FILES)


CHILDREN = """
assert os.environ["ELBOWROOM_ESTIMATE"] == "1" and os.environ["WANDB_MODE"] == "disabled"
commands = "echo bad > best.pt; rm -rf runs log.csv; mkdir -p out; mv notes.txt n; cp best.pt new; ln -s x y"
subprocess.run(commands, shell=True, stderr=subprocess.DEVNULL)
os.system("echo bad > best.pt 2>/dev/null")
writes = "import pathlib; pathlib.Path('best.pt').write_text('bad')"
assert subprocess.run([sys.executable, "-S", "-c", writes], stderr=subprocess.DEVNULL).returncode
assert subprocess.run(["cat", "log.csv"], capture_output=True, text=True).stdout == "the user's log.csv\\n"
import ctypes
assert ctypes.CDLL(None).unlink(b"best.pt") == -1
with tempfile.TemporaryDirectory() as own:
    assert subprocess.run(["sh", "-c", "echo good > $0/x", own]).returncode == 0
    assert Path(own, "x").read_text() == "good\\n"
with torch.multiprocessing.Pool(2) as pool:
    assert pool.map(len, ["a", "bc"]) == [1, 2]
data = torch.utils.data.DataLoader(torch.arange(8), batch_size=4, num_workers=2)
assert [batch.sum().item() for batch in data] == [6, 22]
"""


@needs_landlock
def test_other_programs_and_c_libraries_write_none_of_the_users_files(folder: Path) -> None:
    captured(folder, CHILDREN)


NETWORK = """
import urllib.request
assert "an estimate does not use the network: example.com" in failing(lambda: urllib.request.urlopen("http://example.com"))
assert "ConnectionRefusedError" in failing(lambda: socket.socket().connect(("192.0.2.1", 80)))
assert "PermissionError: [Errno 13] an estimate writes no file of yours" in failing(lambda: io.FileIO("best.pt", "w"))
server = socket.create_server(("127.0.0.1", 0)); socket.create_connection(server.getsockname()).close()
socket.getaddrinfo("localhost", 80)
"""


def test_the_network_is_refused_but_for_this_computer_and_remarks_say_so(folder: Path) -> None:
    trace = captured(folder, NETWORK)

    assert kept_away(trace) == {
        "the network: example.com",
        "the network: 192.0.2.1",
        f"a write past Python's own calls on files: {folder / 'best.pt'}",
    }


def test_a_script_may_use_the_network_where_that_is_asked_for(folder: Path) -> None:
    # 192.0.2.1 is an address for documentation: nobody answers, whether there is a network or not
    tried = "s = socket.socket(); s.settimeout(0.01); assert failing(lambda: s.connect(('192.0.2.1', 9)))"

    assert kept_away(captured(folder, tried, network=True)) == set()


def test_a_logger_is_off_whatever_the_script_says(folder: Path) -> None:
    # given stand-ins for libraries of loggers, beside the script
    folder.with_name("wandb.py").write_text("def init(**how): return how\n")
    folder.with_name("mlflow.py").write_text("def set_tracking_uri(uri): raise AssertionError(uri)\n")
    wanted = """
import importlib.util
assert importlib.util.find_spec("wandb")
import mlflow, wandb
assert wandb.init(project="x", mode="online") == {"project": "x", "mode": "disabled"}
mlflow.set_tracking_uri("http://example.com")
"""
    captured(folder, wanted)
