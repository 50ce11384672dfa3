"""The survey of public scripts on the rig, on a script of its own: alone on a small card, and in a run there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.wild.__main__ import main
from tests.fakecuda.test_within_peaks import rig

MIB = 1 << 20
__all__ = ["rig"]

# 24 sines of 16 MiB, each of which saves its input: 384 MiB. It goes on for ever, and is ended after six steps.
MANIFEST = '''
licence = "Apache-2.0"

[[script]]
path = "train.py"
rig = "--rows 4096"
steps = 6
cards = [0.6]

[script.files]
"train.py" = """
import sys
import torch

rows = int(sys.argv[sys.argv.index("--rows") + 1])
model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
while True:
    x = model(torch.zeros(rows, 1024, device="cuda"))
    for _ in range(24):
        x = x.sin()
    x.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
'''


@pytest.mark.timeout(0)
def test_a_script_that_runs_out_of_memory_on_a_card_trains_there_in_a_run(rig: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(MANIFEST)
    out = tmp_path / "rig.json"
    folders = [str(tmp_path), str(tmp_path), "--manifests", str(tmp_path), "--rig", str(rig)]

    main(["rig", *folders, "--trials", "cards", "--out", str(out)])

    result = json.loads(out.read_text())
    (row,) = result["scripts"]
    (card,) = row["cards"]
    assert result["case"] == "wild_rig"
    assert row["alone"]["steps"] == 6
    assert row["alone"]["reserved_bytes"] > 384 * MIB
    assert (card["alone"]["ran_out"], card["alone"]["steps"]) == (True, 0)
    assert (card["run"]["exit_code"], card["run"]["steps"]) == (0, 6), card["run"]
    assert card["run"]["reserved_bytes"] <= card["capacity_bytes"] < 0.6 * row["alone"]["reserved_bytes"] + 2 * MIB
