"""The verb `machine`: this computer, a GPU of the table, a user's own, and the list of all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from elbowroom.capture import link_probe, outside_probe
from elbowroom.cli import main
from elbowroom.hardware import gpus, nvml
from elbowroom.hardware.disk_probe import DiskRates
from elbowroom.hardware.outside_measured import MeasuredOutside
from elbowroom.machine import Machine
from tests.cli.answers import answered

GPU = nvml.NvmlDevice("NVIDIA GeForce RTX 3090", 24124 * 2**20, 86, 4, 16)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvml, "first_device", lambda: None)
    monkeypatch.setenv("ELBOWROOM_CACHE_DIR", str(tmp_path / "cache"))


def test_machine_describes_this_computer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "machine.json"

    assert main(["machine", "--json", "-o", str(saved), "--spill-dir", str(tmp_path)]) == 0

    answer = answered(capsys.readouterr().out, "machine")
    machine = Machine.load(saved)
    assert [tier["name"] for tier in answer["tiers"]] == ["device", "disk"]
    assert answer["tiers"][0]["capacity_bytes"] == machine.tiers[0].capacity_bytes > 0
    assert answer["measured"] is False
    assert set(answer["links"][0]) == {
        "upper",
        "lower",
        "out_bytes_per_s",
        "back_bytes_per_s",
        "latency_ns",
        "shared_by",
    }


def test_machine_says_whether_rates_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine"]) == 0

    out = capsys.readouterr().out
    assert "Links (assumed; --measure measures them)" in out
    assert "device to disk" in out


def test_a_measurement_without_a_gpu_says_what_was_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given no driver, and a disk that is not waited for
    monkeypatch.setattr("elbowroom.hardware.nvml.first_device", lambda: None)
    monkeypatch.setattr("elbowroom.machine.measure_disk", lambda _: DiskRates(3, 4, 5, True))

    assert main(["machine", "--measure"]) == 0

    said = " ".join(capsys.readouterr().out.split())
    assert "not measured, as the driver's library (NVML) shows no NVIDIA GPU on this computer" in said


def test_the_link_of_a_gpu_is_measured_with_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a GPU, and what copying to it and to the disk was measured to take
    monkeypatch.setattr(nvml, "first_device", lambda: GPU)
    monkeypatch.setattr(link_probe, "measure_link", lambda: link_probe.LinkRates(7, 8, 9))
    monkeypatch.setattr("elbowroom.machine.measure_disk", lambda _: DiskRates(3, 4, 5, True))
    monkeypatch.setattr(outside_probe, "measure_outside", lambda: MeasuredOutside(300, 420))

    assert main(["machine", "--measure", "--json"]) == 0

    answer = answered(capsys.readouterr().out, "machine")
    to_host, to_disk = answer["links"]
    # what was measured outside the allocator counts now and from now on; 120 bytes of kernels may double
    assert (answer["outside_bytes"], answer["outside_range_bytes"]) == (420, [300, 540])
    assert (Machine.here().outside_bytes, Machine.here().outside_range_bytes) == (420, (300, 540))
    assert [to_host[name] for name in ("out_bytes_per_s", "back_bytes_per_s", "latency_ns")] == [7, 8, 9]
    assert [to_disk[name] for name in ("out_bytes_per_s", "back_bytes_per_s", "latency_ns")] == [3, 4, 5]


def child(returncode: int, out: str, error: str = "") -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda command, **_: subprocess.CompletedProcess(command, returncode, out, error)


def test_the_childs_last_line_is_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", child(0, "a library's own words\n[5, 8]\n"))
    assert outside_probe.measure_outside() == MeasuredOutside(5, 8)


def test_a_measurement_that_fails_says_why_and_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvml, "first_device", lambda: GPU)
    monkeypatch.setattr(link_probe, "measure_link", lambda: link_probe.LinkRates(7, 8, 9))
    monkeypatch.setattr(subprocess, "run", child(1, "", "torch sees no CUDA device\n"))

    assert main(["machine", "--measure"]) == 2

    said = " ".join(capsys.readouterr().err.split())
    assert "could not be measured: torch sees no CUDA device; needed are a build of torch for CUDA" in said


def test_a_gpu_is_described_with_what_lies_outside_the_allocator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "t4"]) == 0
    assert "Outside torch's allocator: 140.0 MiB (from 90.0 MiB to 330.0 MiB)" in capsys.readouterr().out


def test_the_list_has_every_gpu_and_says_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "--list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[2:]}
    assert list(rows) == list(gpus.database().gpus)
    # 24081 MiB / 1024 = 23.516; 1008e9 / 2**30 = 938.77; 26.77e9 / 2**30 = 24.93
    assert rows["rtx4090"].split() == ["rtx4090", "23.52", "8.9", "82.6", "165.2", "938.8", "24.9"]
    assert rows["rtx4060-laptop"].count("unknown") == 4
    assert (rows["v100-16gb"].count("unknown"), rows["v100-16gb"].count("none")) == (0, 1)  # no bfloat16 before Ampere
    assert max(map(len, lines)) <= 120


def test_the_list_is_whole_at_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert main(["machine", "--list"]) == 0

    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("24.9") > 10  # the last column


def test_the_list_in_json_has_every_figure_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "--list", "--json"]) == 0

    answer = answered(capsys.readouterr().out, "machine-list")
    figures = [figure for gpu in answer["gpus"] for figure in gpu["figures"].values()]
    assert len(answer["gpus"]) == len(gpus.database().gpus)
    assert {figure["source"] for figure in figures if figure is not None} <= set(answer["sources"])
    assert None in figures


def test_a_gpu_is_described_with_the_source_of_each_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "RTX 6000 Ada"]) == 0

    out = capsys.readouterr().out
    assert "NVIDIA RTX 6000 Ada Generation" in out
    assert "https://github.com/unslothai/unsloth-zoo/pull/1053" in out
    assert "assumed, no figure of this GPU" in out  # the host's memory
    assert "device to host" in out


def test_a_gpu_in_json_is_its_machine_and_its_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "machine.json"

    assert main(["machine", "h100", "--json", "-o", str(saved)]) == 0

    answer = answered(capsys.readouterr().out, "machine")
    assert (answer["name"], answer["title"]) == ("h100-sxm", "NVIDIA H100 80GB HBM3")
    assert answer["rates"]["bfloat16"] == 989_400_000_000_000
    assert answer["figures"]["context_bytes"] is None
    assert Machine.load(saved) == Machine.of("h100")


def test_a_users_own_table_is_described_and_its_text_is_no_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.toml"
    table.write_text('title = "[red]mine[/red]"\ntotal_bytes = "8 GiB"\ncompute_capability = "8.6"\n')

    assert main(["machine", str(table)]) == 0

    out = capsys.readouterr().out
    assert "[red]mine[/red]" in out
    assert "the table given" in out


def test_an_unknown_name_is_an_error_that_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "rtx4091"]) == 2

    assert "given 'rtx4091', which is no GPU of the table; the nearest are rtx4090" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rtx4090", "--measure"], "given measure with the machine rtx4090"),
        (["rtx4090", "--spill-dir", "/tmp"], "given spill-dir with the machine rtx4090"),
        (["--list", "rtx4090"], "given name with --list"),
        (["--list", "--out", "x.json"], "given out with --list"),
    ],
)
def test_options_that_say_nothing_of_a_gpu_elsewhere_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", *words]) == 2

    assert message in capsys.readouterr().err
