"""`elbowroom run` of a pipeline behind torchrun: two ranks over gloo, each with stages of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="elbowroom run runs torch scripts")

import torch.distributed as dist

from tests.cli.answers import answered
from tests.cli.test_run_ranks import two_ranks

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this build has no gloo"),
]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ranks" / "pipeline.py"
SAID = re.compile(r"rank \d: .*?weights [0-9a-f]{16}")
SMALL = ("--device", "cpu", "--dim", "128", "--layers", "4", "--vocab", "500", "--seq", "256", "--steps", "6")


@pytest.mark.parametrize(
    ("words", "budget"),
    [
        (("--schedule", "GPipe"), "24MiB"),
        (("--schedule", "1F1B"), "18MiB"),
        (("--schedule", "Interleaved1F1B", "--stages", "2"), "20MiB"),
        (("--schedule", "ZBVZeroBubble", "--stages", "2"), "24MiB"),
    ],
    ids=["GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"],
)
def test_losses_and_weights_of_each_stage_are_those_without_a_budget(
    tmp_path: Path, words: tuple[str, ...], budget: str
) -> None:
    plain = two_ranks(tmp_path, str(SCRIPT), *SMALL, *words)

    options = ["--budget", budget, "--json", "figures.json", "--spill-dir", str(tmp_path)]
    inside = two_ranks(tmp_path, "-m", "elbowroom", "run", *options, str(SCRIPT), *SMALL, *words)

    assert plain.returncode == 0, plain.stderr
    assert inside.returncode == 0, inside.stderr
    # the digests are of all weights, of each rank; the ends of two lines may come together if Python does not buffer
    said = [sorted(SAID.findall(each.stdout)) for each in (plain, inside)]
    assert len(said[0]) == 2
    assert said[1] == said[0]
    assert [SAID.sub("", each.stdout).strip() for each in (plain, inside)] == ["", ""], "they print nothing else"
    figures = [answered((tmp_path / f"figures.rank{rank}.json").read_text(), "run") for rank in (0, 1)]
    assert all(each["keep_all_bytes"] > each["budget_bytes"] for each in figures), "the budget was short"
    over = [each["over_budget_bytes"] > 0 for each in figures]
    assert inside.stderr.count("THE BUDGET WAS NOT HELD") == sum(over)
    # a zero-bubble schedule reads what is saved twice, and an observed step does not send it away again in between
    assert not any(over) or "ZBVZeroBubble" in words
