"""The harness that tries strangers' scripts, on two scripts of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.wild.__main__ import main
from benchmarks.wild.comparing import compare_lines, compare_weights
from benchmarks.wild.manifest import HERE, Script, read_all, read_manifest
from benchmarks.wild.page import cards_table, own_words, table
from benchmarks.wild.sandbox import block_of, differences
from benchmarks.wild.trial import environment_of, said

pytestmark = pytest.mark.long

TRAINS = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    loss = model(torch.randn(8, 64, device=device)).pow(2).mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    print("loss", loss.item())
torch.save(model.state_dict(), "best.pt")
"""
FAILS = "import torch\nraise ValueError('this script is wrong')\n"


def tried(folder: Path, scripts: dict[str, str], trials: str) -> dict[str, dict]:
    pytest.importorskip("torch")
    (folder / "scripts").mkdir()
    for name, text in scripts.items():
        (folder / "scripts" / name).write_text(text)
    out = folder / "wild.json"
    main(["run", str(folder / "scripts"), str(folder), "--every", "--out", str(out), "--trials", trials])
    return {row["script"]: row for row in json.loads(out.read_text())["scripts"]}


@pytest.mark.timeout(400)
def test_a_folder_of_two_scripts_is_estimated_and_nothing_that_they_wrote_is_changed(tmp_path: Path) -> None:
    rows = tried(tmp_path, {"trains.py": TRAINS, "fails.py": FAILS}, "plain,estimate")
    trains, fails = rows["trains.py"], rows["fails.py"]
    assert trains["plain"]["exit_code"] == 0
    assert trains["plain"]["peak_rss_bytes"] > 50 << 20  # torch alone takes more
    assert trains["estimate"]["outcome"] == "answered"
    assert trains["estimate"]["peak_allocated_bytes"] >= 4 * 4 * (64 * 64 + 64)  # weights, gradients, two moments
    assert trains["estimate"]["files_changed"] == []  # best.pt of the plain run is there
    assert fails["plain"]["exit_code"] == 1
    assert "ValueError: this script is wrong" in fails["plain"]["said"][-1]
    assert fails["estimate"]["outcome"] == "failed"
    assert "runs" not in fails


@pytest.mark.timeout(400)
def test_a_script_is_run_within_budgets_and_its_lines_and_weights_are_compared(tmp_path: Path) -> None:
    plenty, *shares = tried(tmp_path, {"trains.py": TRAINS}, "run")["trains.py"]["runs"]
    assert (plenty["exit_code"], plenty["lines"]["lines"], plenty["lines"]["differing"]) == (0, 4, 0)
    assert plenty["weights"] == {"steps": 4, "same": True, "first_differing_step": None}
    assert [run["share"] for run in shares] == [0.6, 0.35]


def test_the_table_has_a_line_for_each_script_and_its_cause() -> None:
    estimate = {"outcome": "answered", "peak_reserved_bytes": 3 << 19, "seconds": 4.0}
    run = {"share": 0.6, "exit_code": 0, "budget": "1", "weights": {"same": True}, "lines": {"differing": 0}}
    rows = [
        {"script": "a.py", "source": "a.py", "estimate": estimate, "runs": [run]},
        {"script": "b.py", "source": "https://x/b.py", "estimate": {"outcome": "failed", "seconds": 2.0}},
    ]
    assert table(rows, {"b.py": "the script is wrong"})[2:] == [
        "| a.py | answered | 1.5 MiB | 4 |  | same |  |  |",
        "| [b.py](https://x/b.py) | failed |  | 2 |  |  |  | the script is wrong |",
    ]


def test_lines_that_show_a_clock_are_not_compared_but_numbers_are() -> None:
    plain = "loss 1.5 took 3.1 s\nepoch 1\nat 12:31:02\n"
    assert compare_lines(plain, "loss 1.5 took 9.9 s\nepoch 1\nat 14:00:00\n")["differing"] == 0
    assert compare_lines(plain, "loss 1.6 took 3.1 s\nepoch 1\nat 12:31:02\n")["differing"] == 1


def test_a_line_in_which_two_plain_runs_differ_is_not_counted() -> None:
    assert compare_lines("a 1\nb 2\n", "a 7\nb 2\n", again="a 3\nb 2\n")["differing"] == 0
    assert compare_lines("a 1\nb 2\n", "a 7\nb 3\n", again="a 3\nb 2\n")["differing"] == 1


def test_the_first_step_with_other_weights_is_named() -> None:
    found = compare_weights([["a", "b", "c"]], [["a", "x", "y"]])
    assert found == {"steps": 3, "same": False, "first_differing_step": 2}


def test_changed_removed_and_added_files_are_told_apart() -> None:
    found = differences({"kept": "1", "changed": "2", "removed": "3"}, {"kept": "1", "changed": "9", "added": "4"})
    assert found == {"changed": ["changed", "removed"], "added": ["added"]}


def test_every_script_of_the_manifests_has_a_source_a_commit_and_a_licence() -> None:
    scripts = read_all(HERE)
    assert len(scripts) > 20
    assert [each.name for each in scripts if not each.licence] == []
    theirs = [each for each in scripts if each.path not in each.files]  # those of this project have their text there
    assert [each.name for each in theirs if not each.repository.startswith("https://")] == []
    assert [each.name for each in theirs if len(each.commit) != 40] == []


def test_a_block_of_a_readme_is_a_script(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# A\n```bash\nls\n```\n```python\nfirst\n```\n```python\nread('path/to/images')\n```\n")
    script = Script(name="a/b.py", path="b.py", readme=2, replaced={"path/to": "my"})
    assert block_of(readme, script) == "read('my/images')\n"
    with pytest.raises(ValueError, match="block 2 does not have 'absent', which is replaced"):
        block_of(readme, replace(script, replaced={"absent": ""}))
    with pytest.raises(ValueError, match="given block 3; it has 2 of Python"):
        block_of(readme, replace(script, readme=3))


def test_each_card_has_a_line_with_what_a_run_reserved_there() -> None:
    run = {"exit_code": 0, "reserved_bytes": 5 << 30, "steps": 4}
    larger = {**run, "exit_code": 1, "steps": 0, "capacity_bytes": 7 << 30, "refused": {"least_bytes": 6 << 30}}
    cards = [
        {"capacity_bytes": 6 << 30, "alone": {"ran_out": True, "exit_code": 1}, "run": run},
        {"capacity_bytes": 3 << 30, "alone": {"ran_out": True, "exit_code": 1}, "run": larger},
    ]
    estimate = {"reserved_bytes": 990, "alone_reserved_bytes": 1000}
    row = {"script": "a.py", "source": "a.py", "alone": {"reserved_bytes": 8 << 30}, "estimate": estimate}
    assert cards_table([{**row, "cards": cards}], {"a.py on a card": "values"})[2:] == [
        "| a.py | 8.0 GiB | -1.0% | 6.0 GiB | runs out | 5.0 GiB | 4 | values |",
        "| a.py | 8.0 GiB | -1.0% | 7.0 GiB | runs out | refused | 0 | a card of 3.0 GiB was refused |",
    ]


def test_a_manifest_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('repo = "x"\n')
    with pytest.raises(ValueError, match=r"given \['repo'\]"):
        read_manifest(tmp_path / "a.toml")


def test_what_elbowroom_said_is_kept_with_the_last_lines() -> None:
    lines = ["elbowroom: it fails, because of this", *(f"line {n}" for n in range(9))]
    assert said("\n".join(lines), 2) == [lines[0], "line 7", "line 8"]


def test_a_manifest_adds_to_the_python_path(tmp_path: Path) -> None:
    path = environment_of(tmp_path / "src", tmp_path, tmp_path, {"PYTHONPATH": "/theirs"})["PYTHONPATH"].split(":")
    assert path[-2:] == [str(tmp_path / "src"), "/theirs"]


def test_a_row_without_a_right_answer_says_why_in_the_words_that_were_printed() -> None:
    said = ["elbowroom: train.py:3: the script failed; allowed is a script that trains", "last line"]
    assert own_words({"estimate": {"outcome": "failed", "said": said}}) == "train.py:3: the script failed"
    assert own_words({"estimate": {"outcome": "answered"}}) == ""
    assert own_words({"not_tried": "no data"}) == "no data"


def test_times_of_other_lengths_are_no_other_lines() -> None:
    found = compare_lines("epoch 1 | time:  9.95s | loss 2.5", "epoch 1 | time: 10.02s | loss 2.5")
    assert (found["lines"], found["differing"]) == (1, 0)
