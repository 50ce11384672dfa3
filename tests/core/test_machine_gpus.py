"""Machines with a GPU: of the table, of a user's own table, and of this computer as a made-up driver describes it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elbowroom.errors import FormatError, InvalidRecord, UsageError
from elbowroom.hardware import gpus, nvml, outside_measured
from elbowroom.hardware.outside_measured import MeasuredOutside
from elbowroom.machine import ASSUMED_DISK, Link, Machine, Rate, Tier

GIB, MIB = 2**30, 2**20


def ends(machine: Machine) -> list[tuple[str, str]]:
    return [(link.upper, link.lower) for link in machine.links]


# The record


def machine_with(**changes: Any) -> Machine:
    return Machine(name="x", tiers=(Tier(name="device", capacity_bytes=1),), links=(), outside_bytes=5, **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Rate(dtype="fp32", flops_per_s=1),
            r"Rate\.dtype: given 'fp32'; allowed is one of 'float64', 'float32'",
        ),
        (lambda: Rate(dtype="int8", flops_per_s=0), r"Rate\.flops_per_s: given 0; allowed is an int from 1"),
        (lambda: machine_with(compute_capability=-1), r"Machine\.compute_capability: given -1"),
        (lambda: machine_with(multiprocessors=1.0), r"Machine\.multiprocessors: given 1\.0"),
        (lambda: machine_with(rates=[]), r"Machine\.rates: given \[\]; allowed is a tuple of Rate"),
        (
            lambda: machine_with(rates=(Rate(dtype="int8", flops_per_s=1),) * 2),
            r"Machine\.rates\[1\]: given 'int8'; allowed is a value that does not stand before",
        ),
        (
            lambda: machine_with(outside_range_bytes=(1,)),
            r"Machine\.outside_range_bytes: given \(1,\); allowed is a tuple",
        ),
        (lambda: machine_with(outside_range_bytes=(-1, 9)), r"Machine\.outside_range_bytes\[0\]: given -1"),
        (
            lambda: machine_with(outside_range_bytes=(6, 9)),
            r"Machine\.outside_range_bytes: given \(6, 9\); allowed is \(0, 0\), or least and most of outside_bytes=5",
        ),
    ],
)
def test_a_machine_refuses(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidRecord, match="^" + message):
        make()


def test_a_range_that_is_not_known_and_one_around_the_value_are_allowed() -> None:
    assert machine_with().outside_range_bytes == (0, 0)
    assert machine_with(outside_range_bytes=(5, 5)).outside_range_bytes == (5, 5)


# Of the table


@pytest.mark.parametrize("name", gpus.database().gpus)
def test_every_gpu_makes_a_machine(name: str) -> None:
    machine = Machine.of(name)

    assert (machine.name, machine.allocator) == (name, "")
    assert machine.compute_capability >= 37
    assert machine.multiprocessors > 0
    assert machine.flops_per_s == {rate.dtype: rate.flops_per_s for rate in machine.rates}.get("float32", 0)
    least, most = machine.outside_range_bytes
    assert 0 < least < machine.outside_bytes < most < machine.tiers[0].capacity_bytes


def test_a_gpu_stands_above_an_assumed_host_and_disk() -> None:
    machine = Machine.of("RTX 3090")

    assert [(tier.name, tier.capacity_bytes) for tier in machine.tiers] == [
        ("device", 24124 * MIB),
        ("host", 64 * GIB),
        ("disk", 1024 * GIB),
    ]
    assert ends(machine) == [("device", "host"), ("host", "disk")]
    assert machine.links[0].out_bytes_per_s == 26_770_000_000
    assert machine.links[1].out_bytes_per_s == ASSUMED_DISK.out_bytes_per_s
    # the row of capability 8.6: the median of 18 reports of 89 to 524 MiB, and bounds a fifth and a quarter beyond them
    assert (machine.outside_bytes, machine.outside_range_bytes) == (300 * MIB, (70 * MIB, 660 * MIB))
    assert Rate(dtype="bfloat16", flops_per_s=71 * 10**12) in machine.rates
    assert machine.memory_bytes_per_s == 936 * 10**9


def test_what_lies_outside_the_allocator_goes_with_the_generation() -> None:
    # 13 reports of 109 to 266 MiB on Turing, 9 of 491 to 983 on an A100, one card of which held 1,443
    t4, a100 = Machine.of("t4"), Machine.of("a100-40gb")
    assert (t4.outside_bytes, t4.outside_range_bytes) == (140 * MIB, (90 * MIB, 330 * MIB))
    assert (a100.outside_bytes, a100.outside_range_bytes) == (520 * MIB, (390 * MIB, 1450 * MIB))


def test_kernels_that_are_all_loaded_at_once_take_more_by_the_generation_of_the_gpu() -> None:
    # least and most reported for Turing are 300 and 1006 MiB; libraries add 250 MiB to their middle, 650 to the most
    t4 = Machine.of("t4", loading="eager")
    assert (t4.outside_bytes, t4.outside_range_bytes) == ((653 + 250) * MIB, (300 * MIB, (1006 + 650) * MIB))

    # the RTX 3090's own context, 256 MiB, is one with lazy loading
    rtx3090 = Machine.of("rtx3090", loading="eager")
    assert rtx3090.outside_range_bytes == (934 * MIB, (1687 + 650) * MIB)
    assert Machine.of("k80", loading="eager").outside_range_bytes == (200 * MIB, (700 + 650) * MIB)


def test_a_context_that_a_user_measured_counts_however_kernels_are_loaded(tmp_path: Path) -> None:
    table = tmp_path / "own.toml"
    table.write_text('total_bytes = "22 GiB"\ncompute_capability = "8.6"\ncontext_bytes = "1 GiB"\n')

    assert Machine.of(table, loading="eager").outside_range_bytes == Machine.of(table).outside_range_bytes


def test_another_word_for_loading_is_refused() -> None:
    with pytest.raises(UsageError, match=r"machine: given loading='EAGER'; allowed are 'lazy' and 'eager'; take one"):
        Machine.of("t4", loading="EAGER")  # pyright: ignore[reportArgumentType]


def test_a_gpu_on_nvlink_to_its_host_has_that_links_rates() -> None:
    assert Machine.of("v100-nvlink-power9").links[0].out_bytes_per_s == 68 * 10**9
    assert Machine.of("gh200").links[0].back_bytes_per_s == 346 * 10**9


def test_a_gpu_that_has_the_hosts_memory_has_no_host_tier() -> None:
    machine = Machine.of("jetson-agx-orin-64gb")
    assert [tier.name for tier in machine.tiers] == ["device", "disk"]
    assert ends(machine) == [("device", "disk")]


def test_an_unknown_link_is_assumed_to_be_the_slowest_of_today_and_an_unknown_rate_is_0() -> None:
    machine = Machine.of("rtx4060-laptop")
    assert machine.links[0].out_bytes_per_s == 12 * 10**9
    assert (machine.flops_per_s, machine.memory_bytes_per_s, machine.rates) == (0, 0, ())


def test_a_machine_of_the_table_is_saved_and_loaded(tmp_path: Path) -> None:
    Machine.of("h100").save(tmp_path / "machine.json")
    assert Machine.load(tmp_path / "machine.json") == Machine.of("h100-sxm")


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"^machine: given 'rtx4091', .* the nearest are rtx4090.*; allowed are 'here'"
    ):
        Machine.of("rtx4091")


@pytest.mark.parametrize("name", [None, 3, [], 1.5])
def test_a_name_of_another_type_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match=r"^machine: given .*; allowed is a name or a path"):
        Machine.of(name)


# A user's own table


def test_a_path_is_read_as_a_table(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text('total_bytes = "8 GiB"\ncompute_capability = "8.6"\nhost_bytes = "32 GiB"\n')

    machine = Machine.of(path)

    assert machine == Machine.of(str(path))
    assert (machine.name, machine.compute_capability) == ("lab", 86)
    assert [tier.capacity_bytes for tier in machine.tiers] == [8 * GIB, 32 * GIB, 1024 * GIB]


@pytest.mark.parametrize("name", ["gone.toml", "folder/gone"])
def test_a_name_that_looks_like_a_path_is_no_gpu(name: str) -> None:
    with pytest.raises(FormatError, match=rf"^{name}: cannot be read: No such file or directory; check the path$"):
        Machine.of(name)


# This computer


def driver(*, absent: tuple[str, ...] = (), failing: tuple[str, ...] = ()) -> SimpleNamespace:
    """The driver's library as ctypes would load it, with one RTX 3090 in a PCIe 4.0 slot of 8 lanes."""

    def put(*values: object) -> Callable[..., int]:
        def answer(_: object, *targets: Any) -> int:
            for target, value in zip(targets, values, strict=True):
                target._obj.value = value
            return 0

        return answer

    def name(_: object, buffer: Any, length: object) -> int:
        buffer.value = b"NVIDIA GeForce RTX 3090"
        return 0

    def memory(_: object, target: Any) -> int:
        assert target._obj.version == 40 | 2 << 24  # the structure has five words of 8 bytes
        target._obj.total, target._obj.reserved = 24576 * MIB, 452 * MIB
        return 0

    def older_memory(_: object, target: Any) -> int:
        target._obj.total, target._obj.used = 24576 * MIB, 700 * MIB
        return 0

    def processes(_: object, count: Any, found: Any) -> int:
        for place, (pid, used) in enumerate(((1, 300 * MIB), (os.getpid(), 400 * MIB))):
            found[place].pid, found[place].used = pid, used
        count._obj.value = 2
        return 0

    functions: dict[str, Callable[..., int]] = {
        "nvmlInit_v2": lambda: 0,
        "nvmlShutdown": lambda: 0,
        "nvmlDeviceGetHandleByIndex_v2": lambda index, _: 0 if index.value == 0 else 2,
        "nvmlDeviceGetHandleByUUID": lambda uuid, _: 0 if uuid == b"GPU-1" else 2,
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetMemoryInfo_v2": memory,
        "nvmlDeviceGetMemoryInfo": older_memory,
        "nvmlDeviceGetComputeRunningProcesses_v2": processes,
        "nvmlDeviceGetCudaComputeCapability": put(8, 6),
        "nvmlDeviceGetMaxPcieLinkGeneration": put(4),
        "nvmlDeviceGetMaxPcieLinkWidth": put(8),
        "nvmlDeviceGetTotalEnergyConsumption": put(123_456),
    }
    functions |= dict.fromkeys(failing, lambda *_: 999)
    return SimpleNamespace(**{name: function for name, function in functions.items() if name not in absent})


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimpleNamespace | None], None]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def load(library: SimpleNamespace | None) -> None:
        def cdll(_: str) -> SimpleNamespace:
            if library is None:
                raise OSError("libnvidia-ml.so.1: cannot open shared object file: No such file or directory")
            return library

        monkeypatch.setattr(nvml.ctypes, "CDLL", cdll)

    return load


Load = Callable[[SimpleNamespace | None], None]


def test_here_finds_a_gpu_without_torch(load: Load, tmp_path: Path) -> None:
    load(driver())

    here = Machine.here(spill_dir=tmp_path)

    # 24576 MiB less the 452 that the driver keeps; 26.77 GB/s over 8 of 16 lanes
    assert [tier.name for tier in here.tiers] == ["device", "host", "disk"]
    assert here.tiers[0].capacity_bytes == 24124 * MIB
    assert here.tiers[1].capacity_bytes == Machine.here(device="cpu").tiers[0].capacity_bytes
    assert here.links[0].out_bytes_per_s == 13_385_000_000
    assert (here.name, here.allocator, here.compute_capability, here.multiprocessors) == ("here", "", 86, 82)
    assert here.rates == Machine.of("rtx3090").rates


def test_here_without_a_driver_is_ram_above_the_disk(load: Load) -> None:
    load(None)
    assert Machine.here().tiers[0] == Machine.here(device="cpu").tiers[0]
    assert [tier.name for tier in Machine.here().tiers] == ["device", "disk"]


def test_here_leaves_the_gpu_out_when_asked_for_the_cpu(load: Load) -> None:
    load(driver())
    assert [tier.name for tier in Machine.here(device="cpu").tiers] == ["device", "disk"]
    with pytest.raises(UsageError, match=r"^machine: given device='gpu'; allowed are 'auto' and 'cpu'; take one$"):
        Machine.here(device="gpu")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "function",
    ["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName", "nvmlDeviceGetCudaComputeCapability"],
)
def test_a_driver_that_fails_or_lacks_a_function_is_no_gpu(load: Load, function: str) -> None:
    load(driver(failing=(function,)))
    assert nvml.first_device() is None
    load(driver(absent=(function,)))
    assert nvml.first_device() is None


def test_the_driver_says_what_a_gpu_holds_in_all_and_for_this_process(load: Load) -> None:
    load(driver())
    assert nvml.used() == nvml.Used(700 * MIB, 400 * MIB)
    # inside a container processes have other numbers, or none
    load(driver(failing=("nvmlDeviceGetComputeRunningProcesses_v2",)))
    assert nvml.used() == nvml.Used(700 * MIB, None)
    load(None)
    assert nvml.used() is None


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELBOWROOM_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    return tmp_path / "outside.json"


def test_what_was_measured_outside_the_allocator_is_used_from_then_on(
    load: Load, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(driver())
    assert Machine.here().outside_bytes == 300 * MIB

    kept = outside_measured.keep("NVIDIA GeForce RTX 3090", MeasuredOutside(250 * MIB, 330 * MIB))

    # kernels took 80 MiB over the context; as much again is the most
    assert kept == cache
    assert Machine.here().outside_bytes == 330 * MIB
    assert Machine.here().outside_range_bytes == (250 * MIB, 410 * MIB)
    # it was measured with kernels loaded at their first use
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    assert Machine.here().outside_range_bytes == (934 * MIB, (1687 + 650) * MIB)


def test_a_second_measurement_takes_the_place_of_the_first_one_of_its_gpu(cache: Path) -> None:
    outside_measured.keep("A", MeasuredOutside(1, 2))
    outside_measured.keep("B", MeasuredOutside(3, 4))
    outside_measured.keep("A", MeasuredOutside(5, 6))

    assert (outside_measured.of("A"), outside_measured.of("B")) == (MeasuredOutside(5, 6), MeasuredOutside(3, 4))
    assert [file.name for file in cache.parent.iterdir()] == ["outside.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[1]",
        '{"magic": "elbowroom.outside", "version": 2, "measured": []}',
        '{"magic": "elbowroom.outside", "version": 1, "measured": 7}',
        '{"magic": "elbowroom.outside", "version": 1, "measured": [7, {"gpu": "A", "loading": "lazy"}]}',
        '{"magic": "elbowroom.outside", "version": 1, "measured": '
        '[{"gpu": "A", "loading": "lazy", "context_bytes": 9, "outside_bytes": 8}]}',
        '{"magic": "elbowroom.outside", "version": 1, "measured": '
        '[{"gpu": "A", "loading": "lazy", "context_bytes": -1, "outside_bytes": 8}]}',
    ],
)
def test_a_file_of_measurements_that_says_nothing_counts_as_none(cache: Path, text: str) -> None:
    cache.write_text(text)
    assert outside_measured.of("A") is None


def test_an_older_driver_tells_the_total_with_what_it_keeps(load: Load) -> None:
    load(driver(absent=("nvmlDeviceGetMemoryInfo_v2",)))
    found = nvml.first_device()
    assert found
    assert found.total_bytes == 24576 * MIB


def test_a_driver_that_does_not_tell_the_slot_leaves_it_to_the_table(load: Load) -> None:
    load(driver(absent=("nvmlDeviceGetMaxPcieLinkGeneration",), failing=("nvmlDeviceGetMaxPcieLinkWidth",)))
    assert Machine.here().links[0] == Machine.of("rtx3090").links[0]


def test_a_gpu_that_the_table_does_not_have_is_described_by_the_driver_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "first_device", lambda: nvml.NvmlDevice("NVIDIA Z1000", 2 * GIB, 130, 0, 0))

    here = Machine.here()

    assert (here.tiers[0].capacity_bytes, here.compute_capability, here.multiprocessors) == (2 * GIB, 130, 0)
    # as the newest generation that is known, 12.0
    assert (here.rates, here.outside_bytes) == ((), 510 * MIB)
    assert here.links[0] == Link(
        upper="device", lower="host", out_bytes_per_s=12 * 10**9, back_bytes_per_s=12 * 10**9, latency_ns=10_000
    )


def test_a_gpu_on_another_link_than_pcie_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "first_device", lambda: nvml.NvmlDevice("NVIDIA GH200 480GB", GIB, 90, 5, 16))
    assert Machine.here().links[0] == Machine.of("gh200").links[0]


@pytest.mark.parametrize(
    ("visible", "found"), [("", False), ("-1", False), ("0,1", True), ("5", False), ("GPU-1", True), ("GPU-2", False)]
)
def test_the_gpu_is_the_first_visible_one(
    load: Load, monkeypatch: pytest.MonkeyPatch, visible: str, found: bool
) -> None:
    load(driver())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (nvml.first_device() is not None) == found


@pytest.mark.parametrize(
    ("visible", "index", "found"), [("0", 0, 123_456), ("5,0", 1, 123_456), ("0", 1, None), ("0,5", 1, None)]
)
def test_the_energy_is_that_of_the_visible_gpu_that_is_asked_for(
    load: Load, monkeypatch: pytest.MonkeyPatch, visible: str, index: int, found: int | None
) -> None:
    load(driver())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.total_millijoules(index) == found


def test_a_board_before_volta_counts_no_energy(load: Load) -> None:
    load(driver(failing=("nvmlDeviceGetTotalEnergyConsumption",)))
    assert nvml.total_millijoules() is None
    load(driver(absent=("nvmlDeviceGetTotalEnergyConsumption",)))
    assert nvml.total_millijoules() is None
