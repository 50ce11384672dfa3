"""Libraries that open files below Python are given the path of the right layer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from elbowroom.capture.arrivals import Arrivals
from elbowroom.capture.script import safetensors_opened, savers
from elbowroom.capture.script.kept_away import loggers_off, surroundings
from elbowroom.capture.script.overlay import Overlay
from elbowroom.capture.script.safetensors_opened import opener
from elbowroom.capture.script.savers import ANEW, FOLDER, KEEP, READ, at, given_to, with_mode
from elbowroom.capture.virtual import tensor


@pytest.fixture
def overlay(tmp_path: Path) -> Overlay:
    (tmp_path / "old.bin").write_bytes(b"old")
    (tmp_path / "own").mkdir()
    return Overlay(str(tmp_path / "own"))


def test_a_library_reads_below_until_the_file_is_written_and_above_from_then_on(
    overlay: Overlay, tmp_path: Path
) -> None:
    old, above = str(tmp_path / "old.bin"), f"{overlay.upper}{tmp_path}/old.bin"

    assert given_to(overlay, old, READ) == old
    assert given_to(overlay, old, KEEP) == above
    assert Path(above).read_bytes() == b"old"
    assert given_to(overlay, old, ANEW) == above
    assert given_to(overlay, old, READ) == above
    Path(given_to(overlay, tmp_path / "new", FOLDER), "x").write_bytes(b"x")
    assert Path(overlay.reading(tmp_path / "new" / "x")).read_bytes() == b"x"
    assert (tmp_path / "old.bin").read_bytes() == b"old"
    assert not (tmp_path / "new").exists()
    assert given_to(overlay, 7, ANEW) == 7


@pytest.mark.parametrize(
    ("mode", "kept"),
    [("r", None), (None, None), ("a", b"old"), ("r+", b"old"), ("w", b""), ("wb", b"")],
)
def test_the_mode_says_whether_a_file_is_read_kept_or_written_anew(
    mode: str | None, kept: bytes | None, overlay: Overlay, tmp_path: Path
) -> None:
    opens = with_mode(0)(overlay, lambda path, mode=None: (path, mode))

    for found in (opens(str(tmp_path / "old.bin"), mode), opens(str(tmp_path / "old.bin"), mode=mode)):
        path, _ = found
        assert path.startswith(overlay.upper) == (kept is not None)
        assert Path(path).read_bytes() == (b"old" if kept is None else kept)


def test_a_path_by_position_is_replaced_and_nothing_else(overlay: Overlay, tmp_path: Path) -> None:
    saves = at(1, ANEW)(overlay, lambda *args, **how: (args, how))

    (what, path, more), how = saves("what", tmp_path / "new.bin", 3, a=1)

    assert (what, path, more, how) == ("what", f"{overlay.upper}{tmp_path}/new.bin", 3, {"a": 1})
    assert saves("what") == (("what",), {})


def test_a_path_by_name_is_replaced_too(overlay: Overlay, tmp_path: Path) -> None:
    def save(what: str, path: Path, mode: str = "r") -> tuple[str, Path]:
        return what, path

    above = f"{overlay.upper}{tmp_path}/new.bin"

    assert at(1, ANEW)(overlay, save)("what", path=tmp_path / "new.bin") == ("what", above)
    assert with_mode(1)(overlay, save)("what", path=tmp_path / "new.bin", mode="w") == ("what", above)
    assert at(0, ANEW)(overlay, print)() is None


def test_weights_of_onnx_beside_a_model_are_those_of_the_layer_that_has_them(overlay: Overlay, tmp_path: Path) -> None:
    opens = savers.SAVERS["onnx.external_data_helper"]["_open_external_data_fd"](overlay, lambda *args: args)

    assert opens(str(tmp_path), "old.bin", "w", True) == (f"{tmp_path}/", "old.bin", "w", True)
    assert opens(str(tmp_path), "old.bin", "w", False) == (f"{overlay.upper}{tmp_path}/", "old.bin", "w", False)
    assert opens(str(tmp_path), "old.bin", "w", True) == (f"{overlay.upper}{tmp_path}/", "old.bin", "w", True)


def test_a_module_is_changed_when_it_arrives_and_not_when_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a module that is looked for before it is imported, as libraries do to know what is installed
    (tmp_path / "a_saver_of_ours.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    arrived: list[ModuleType] = []
    finder = Arrivals({"a_saver_of_ours": arrived.append, "nobody_has_this": arrived.append})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import importlib.util

    assert importlib.util.find_spec("a_saver_of_ours") is not None
    assert importlib.util.find_spec("nobody_has_this") is None
    assert arrived == []

    module = importlib.import_module("a_saver_of_ours")

    assert arrived == [module]
    monkeypatch.delitem(sys.modules, "a_saver_of_ours")


class _Moved:
    """Stands for a tensor: knows where it was moved to."""

    def __init__(self, place: object = "cpu") -> None:
        self.place = place

    def to(self, place: object) -> _Moved:
        return _Moved(place)


def test_tensors_of_safetensors_come_to_the_gpu_by_way_of_the_cpu(overlay: Overlay, tmp_path: Path) -> None:
    # given a stand-in for the library
    calls: list[Any] = []

    class File:
        keys = staticmethod(lambda: ["a"])

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

        def get_tensor(self, name: str) -> _Moved:
            return _Moved()

        def get_tensors(self) -> dict[str, _Moved]:
            return {"a": _Moved()}

        def get_slice(self, name: str) -> Any:
            return _Sliced()

    def real(*args: Any, **how: Any) -> File:
        calls.append((args, how))
        return File()

    safe_open = opener(overlay, real)

    # when a file is opened for the GPU
    with safe_open(tmp_path / "m", framework="pt", device="cuda:0") as file:
        found = [file.get_tensor("a"), file.get_tensors()["a"], file.get_slice("a")[0:2]]
        names = file.keys()

    # then it was opened for the CPU, and what is read is moved
    assert calls == [((tmp_path / "m", "pt"), {})]
    assert [each.place for each in found] == ["cuda:0"] * 3
    assert names == ["a"]
    assert isinstance(safe_open(tmp_path / "m", "pt"), File)
    assert calls[-1] == ((tmp_path / "m", "pt"), {"device": "cpu"})


class _Sliced:
    def __getitem__(self, what: object) -> _Moved:
        return _Moved()


def test_databases_are_copied_with_what_lies_beside_them(overlay: Overlay, tmp_path: Path) -> None:
    seen: list[str] = []
    connect = savers.SAVERS["sqlite3"]["connect"](overlay, lambda database, **_: seen.append(str(database)))
    for name in ("a.db", "a.db-wal"):
        (tmp_path / name).write_bytes(b"x")

    connect(tmp_path / "a.db")
    connect(":memory:")
    connect("")
    connect(f"file:{tmp_path}/a.db?mode=ro", uri=True)
    connect("file::memory:?cache=shared", uri=True)

    above = f"{overlay.upper}{tmp_path}/a.db"
    assert seen == [above, ":memory:", "", f"file:{above}?mode=ro", "file::memory:?cache=shared"]
    assert Path(f"{above}-wal").read_bytes() == b"x"


def test_a_tokenizer_reads_the_files_that_the_script_wrote(overlay: Overlay, tmp_path: Path) -> None:
    seen: list[Any] = []
    read = savers.read_from(1, "files", "merges")(overlay, lambda *args, **how: seen.append((args, how)))
    above = overlay.writing(str(tmp_path / "a"), os.O_WRONLY | os.O_CREAT, tmp_path / "a")
    Path(above).write_text("x")

    read("self", [str(tmp_path / "a")], "merges", "[UNK]")
    read("self", files=tmp_path / "a", unknown="[UNK]")
    read("self", None)

    assert seen == [
        (("self", [above], os.path.abspath("merges"), "[UNK]"), {}),
        (("self",), {"files": above, "unknown": "[UNK]"}),
        (("self", None), {}),
    ]


def test_a_trainer_of_sentencepiece_writes_above(overlay: Overlay, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    train = savers.SAVERS["sentencepiece"]["SentencePieceTrainer._Train"](overlay, lambda _, **how: seen.append(how))
    above = overlay.writing(str(tmp_path / "text"), os.O_WRONLY | os.O_CREAT, tmp_path / "text")
    Path(above).write_text("x")

    train.__func__(input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=8)
    train.__func__("--input=a")

    assert seen == [
        {"input": [above], "model_prefix": f"{overlay.upper}{tmp_path}/m", "vocab_size": 8},
        {},
    ]


def test_loggers_and_hubs_are_off_and_scripts_can_ask() -> None:
    assert loggers_off("wandb", {"mode": "online", "a": 1}) == {"mode": "disabled", "a": 1}
    assert loggers_off("another", {"a": 1}) == {"a": 1}
    found = surroundings("/tmp/x")
    assert (found["ELBOWROOM_ESTIMATE"], found["TMPDIR"], found["HF_HUB_OFFLINE"]) == ("1", "/tmp/x/tmp", "1")
    assert "HF_HUB_OFFLINE" not in surroundings("/tmp/x", network=True)
    assert found["WANDB_MODE"] == "disabled"


def save(*args: Any) -> None:
    """Stands for `safetensors.torch.save_file`."""
    SAVED.append(args)


SAVED: list[Any] = []
_TYPES = {"F32": torch.float32, "I64": torch.int64}


def test_large_tensors_of_the_virtual_gpu_are_holes_in_a_file_of_safetensors(
    overlay: Overlay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two tensors, of which the large one stands for one of the virtual GPU
    monkeypatch.setattr(safetensors_opened, "LARGE_BYTES", 1000)
    tensors = {"count": torch.tensor(7), "weight": torch.ones(100, 1000)}
    monkeypatch.setattr(tensor, "is_virtual", lambda each: each is tensors["weight"])
    path = tmp_path / "own" / "m.safetensors"
    save_file = safetensors_opened.saver(overlay, save)

    save_file(tensors, path, {"a": "b"})

    # then the file is what the format says: an int64 of 8 bytes, then 100,000 numbers of 4 bytes, as zeros
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + length]) == {
        "__metadata__": {"a": "b"},
        "count": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]},
        "weight": {"dtype": "F32", "shape": [100, 1000], "data_offsets": [8, 400_008]},
    }
    assert content[8 + length :] == (7).to_bytes(8, "little") + bytes(400_000)
    assert SAVED == []

    # and the library itself writes where little of it is virtual
    save_file({"count": tensors["count"]}, path)
    assert [({"count": tensors["count"]}, path, None)] == SAVED
