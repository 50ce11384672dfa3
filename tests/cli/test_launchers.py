"""Launchers in the place of a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from elbowroom.cli.launchers import without_launcher
from elbowroom.errors import UsageError

VERBS = ("estimate",)


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "accelerate").mkdir()
    monkeypatch.chdir(tmp_path)


GIVEN = [
    ("estimate --gpu l4 torchrun --nproc-per-node 1 train.py --lr 1", "estimate --gpu l4 train.py -- --lr 1", "1"),
    ("estimate torchrun -- --standalone --nproc_per_node=4 train.py", "estimate train.py --", "4"),
    (
        "estimate -m torch.distributed.run --nnodes 2 --nproc-per-node 8 -m pkg.train a",
        "estimate -m pkg.train -- a",
        "16",
    ),
    ("estimate torchrun --nproc-per-node gpu train.py", "estimate train.py --", "1"),
    ("estimate accelerate launch --num_processes 2 train.py -x", "estimate train.py -- -x", "2"),
]


@pytest.mark.parametrize(("given", "wanted", "size"), GIVEN)
def test_the_script_stands_for_its_launcher(given: str, wanted: str, size: str) -> None:
    launched = without_launcher(given.split(), VERBS)
    assert " ".join(launched.words) == wanted
    assert launched.environment["WORLD_SIZE"] == size
    assert launched.environment["RANK"] == "0"


def test_what_a_launcher_tells_by_the_environment_is_told() -> None:
    alone = without_launcher(["estimate", "accelerate", "launch", "--mixed_precision", "bf16", "train.py"], VERBS)
    assert alone.environment == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    fabric = without_launcher(["estimate", "fabric", "run", "--precision=bf16-mixed", "train.py"], VERBS)
    assert fabric.environment["LT_PRECISION"] == "bf16-mixed"
    assert fabric.environment["LT_CLI_USED"] == "1"


@pytest.mark.parametrize("given", ["estimate train.py -- torchrun x", "run torchrun train.py", "estimate accelerate"])
def test_other_words_stay(given: str) -> None:
    assert without_launcher(given.split(), VERBS) == (given.split(), {})


def test_a_launcher_without_a_script_is_refused() -> None:
    with pytest.raises(UsageError, match="torchrun: given no script after it that is there"):
        without_launcher(["estimate", "torchrun", "--nproc-per-node", "2", "absent.py"], VERBS)
