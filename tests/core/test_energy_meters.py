"""Energy meters: counters of a made-up computer, those that begin anew, and those that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elbowroom.hardware import nvml
from elbowroom.hardware.energy_meters import EnergyCounter, EnergyMeter, meter_of


def zone(powercap: Path, name: str, label: str, microjoules: int, most: int = 10**9) -> Path:
    """A zone of RAPL, as the kernel shows it."""
    folder = powercap / name
    folder.mkdir()
    (folder / "name").write_text(f"{label}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder


def test_a_processor_is_the_sum_of_its_packages_and_their_memory(tmp_path: Path) -> None:
    # given two packages, of which one counts its memory; cores are part of a package's own count
    first = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 1_000_000)
    cores = zone(tmp_path, "intel-rapl:0:0", "core", 3_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 7_000_000)
    meter = meter_of("cpu", powercap=tmp_path)
    assert meter is not None
    assert (meter.source, meter.millijoules()) == ("RAPL", 0)

    # when they count 2, 0.5, 1 and 3 J more
    for folder, microjoules in ((first, 7_000_000), (memory, 1_500_000), (cores, 4_000_000), (second, 10_000_000)):
        (folder / "energy_uj").write_text(str(microjoules))

    assert meter.millijoules() == 5500


def test_a_counter_that_began_anew_goes_on(tmp_path: Path) -> None:
    # given a counter of 1000 J at 999 J
    folder = zone(tmp_path, "intel-rapl:0", "package-0", 999_000_000)
    meter = meter_of("cpu", powercap=tmp_path)
    assert meter is not None

    (folder / "energy_uj").write_text("4000000")
    assert meter.millijoules() == 5000
    (folder / "energy_uj").write_text("6000000")
    assert meter.millijoules() == 7000


@pytest.mark.parametrize("lost", ["energy_uj", "max_energy_range_uj"])
def test_a_computer_whose_counters_cannot_be_read_has_no_meter(tmp_path: Path, lost: str) -> None:
    folder = zone(tmp_path, "intel-rapl:0", "package-0", 1)
    (folder / lost).write_text("no number")
    assert meter_of("cpu", powercap=tmp_path) is None
    assert meter_of("cpu", powercap=tmp_path / "gone") is None


def test_a_counter_that_is_lost_midway_leaves_no_figure() -> None:
    values = iter([5, 8, None, 12])
    meter = EnergyMeter("NVML", [EnergyCounter(lambda: next(values), 0)])

    assert [meter.millijoules() for _ in range(3)] == [3, None, None]


def test_a_gpu_is_counted_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def total(index: int) -> int:
        asked.append(index)
        return 1000 * len(asked)

    monkeypatch.setattr(nvml, "total_millijoules", total)
    meter = meter_of("cuda", 1)

    # then it was asked whether it counts, and where it begins
    assert meter is not None
    assert (meter.source, meter.millijoules(), set(asked)) == ("NVML", 1000, {1})


def test_a_gpu_whose_driver_counts_nothing_has_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    none: Callable[[int], None] = lambda _: None  # noqa: E731
    monkeypatch.setattr(nvml, "total_millijoules", none)
    assert meter_of("cuda") is None
