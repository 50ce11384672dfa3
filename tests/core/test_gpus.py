"""The table of GPUs, names and how they are found, and users' own tables, hostile ones too."""

from __future__ import annotations

import csv
import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.errors import FormatError, UsageError
from elbowroom.hardware import gpus
from elbowroom.hardware.gpu_table import ASSUMED, Figure, Gpu, LinkKind, eager_of, outside_of

GIB = 2**30
OUTSIDE = Path(__file__).parents[2] / "benchmarks" / "accuracy" / "tables" / "outside.csv"
ALL = list(gpus.database().gpus.values())
NAMES = [gpu.name for gpu in ALL]
MINE = """
title = "Mine"
total_bytes = "8 GiB"
compute_capability = "8.6"
"""


def figures_of(gpu: Gpu) -> Iterator[Figure | LinkKind]:
    for field in dataclasses.fields(gpu):
        value = getattr(gpu, field.name)
        if isinstance(value, Figure | LinkKind):
            yield value
    yield from (figure for _, figure in gpu.rates)


def own(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


# The table


def test_there_are_at_least_40_gpus() -> None:
    assert len(ALL) >= 40


@pytest.mark.parametrize(
    "name",
    [
        *("titan-x-maxwell", "titan-x-pascal", "titan-xp", "k80", "m40-12gb", "m40-24gb", "p40", "p100-16gb", "t4"),
        *("v100-16gb", "v100-32gb", "v100-nvlink-power9", "v100-nvlink-power9-32gb"),
        *("rtx2060", "rtx2070", "rtx2080ti", "rtx3060", "rtx3070", "rtx3080", "rtx3090"),
        *("rtx4060", "rtx4070", "rtx4080", "rtx4090", "rtx5060", "rtx5070", "rtx5080", "rtx5090"),
        *("a10", "a10g", "a30", "a40", "a6000", "rtx6000-ada", "l4", "l40s", "a100-40gb", "a100-80gb"),
        *("h100-pcie", "h100-sxm", "h200", "b200", "gh200", "jetson-agx-orin-64gb", "jetson-orin-nano-8gb"),
    ],
)
def test_a_gpu_that_people_train_on_is_in_the_table(name: str) -> None:
    assert gpus.find(name).name == name


@pytest.mark.parametrize("gpu", ALL, ids=NAMES)
def test_a_total_is_less_than_what_is_sold_but_not_by_much(gpu: Gpu) -> None:
    # the driver and ECC keep some: 9 % on a T4 (14913 of 16384 MiB)
    sold_bytes = gpu.capacity_gib * GIB
    assert 0.88 * sold_bytes <= gpu.total_bytes.value <= sold_bytes


@pytest.mark.parametrize("gpu", ALL, ids=NAMES)
def test_every_figure_has_a_source_that_is_listed(gpu: Gpu) -> None:
    assert {figure.source for figure in figures_of(gpu)} <= set(gpus.database().sources)
    assert gpu.total_bytes.source != ASSUMED


def test_every_source_that_is_listed_is_used_and_has_a_title() -> None:
    used = {figure.source for gpu in ALL for figure in figures_of(gpu)}
    used |= {link.source for link in gpus.database().links.values()}
    used |= {row.source for row in (*gpus.database().eager, *gpus.database().outside)}
    assert used == set(gpus.database().sources)
    for source in gpus.database().sources.values():
        assert source.title
        assert not source.url or source.url.startswith("https://")


def test_no_name_title_or_alias_stands_for_two_gpus() -> None:
    keys = [{gpus.key_of(name) for name in (gpu.name, gpu.title, *gpu.aliases)} for gpu in ALL]
    counts = Counter(key for each in keys for key in each)
    assert [key for key, count in counts.items() if count > 1 or not key] == []


LANES = {37: 192, 60: 64, 70: 64, 75: 64, 80: 64}
"""float32 units of a multiprocessor by compute capability; 128 on all others since Maxwell."""


@pytest.mark.parametrize("gpu", [gpu for gpu in ALL if gpu.rates], ids=lambda gpu: gpu.name)
def test_the_float32_rate_is_that_of_the_multiprocessors_at_a_clock_gpus_have(gpu: Gpu) -> None:
    # each unit does a multiplication and an addition per cycle
    assert gpu.multiprocessors
    lanes = LANES.get(gpu.compute_capability.value, 128)
    clock_hz = dict(gpu.rates)["float32"].value / (gpu.multiprocessors.value * lanes * 2)
    assert 0.6e9 < clock_hz < 2.7e9


@pytest.mark.parametrize("gpu", [gpu for gpu in ALL if len(gpu.rates) > 3], ids=lambda gpu: gpu.name)
def test_rates_of_tensor_cores_are_in_the_usual_proportions(gpu: Gpu) -> None:
    rates = {dtype: figure.value for dtype, figure in gpu.rates}
    ratios = [("bfloat16", "float16", 1), ("float8", "bfloat16", 2), ("tf32", "float32", 1), ("int8", "bfloat16", 2)]
    for dtype, other, least in ratios:
        if dtype in rates and other in rates:
            assert rates[dtype] >= 0.98 * least * rates[other], (dtype, other)
    if "float8" in rates:
        assert rates["float8"] == pytest.approx(2 * rates["bfloat16"], rel=0.03)


def test_what_is_not_known_is_none() -> None:
    laptop = gpus.find("rtx4060-laptop")
    assert (laptop.rates, laptop.memory_bytes_per_s, laptop.link, laptop.context_bytes) == ((), None, None, None)


# Names


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("geforce_rtx-4090", "rtx4090"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("H100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("GeForce GTX TITAN X", "titan-x-maxwell"),
        ("NVIDIA TITAN X (Pascal)", "titan-x-pascal"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("V100", "v100-16gb"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "rtx4070-laptop"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX A6000", "a6000"),
        ("A6000", "a6000"),
    ],
)
def test_case_separators_and_the_makers_words_do_not_matter(given_name: str, name: str) -> None:
    if given_name == "NVIDIA RTX A6000":
        assert gpus.find(given_name).title == given_name
    assert gpus.find(given_name).name == name


@pytest.mark.parametrize(
    ("given_name", "nearest"),
    [("rtx4091", "rtx4090"), ("A100-SXM4-8OGB", "a100-80gb"), ("h-100 sxm6", "h100-sxm"), ("jetson orin", "jetson-")],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(given_name: str, nearest: str) -> None:
    with pytest.raises(
        UsageError, match=r"^machine: given .*, which is no GPU of the table; the nearest are "
    ) as problem:
        gpus.find(given_name)
    assert nearest in str(problem.value).split("the nearest are ")[1].split(";")[0]
    assert "`elbowroom machine --list`" in str(problem.value)


@given(st.text())
def test_any_text_is_a_gpu_or_a_short_refusal(name: str) -> None:
    if gpus.known(name) is None:
        with pytest.raises(UsageError) as problem:
            gpus.find(name)
        assert len(str(problem.value)) < 600
    else:
        assert gpus.find(name) in ALL


# Links


def test_pcie_rates_follow_from_generation_and_lanes() -> None:
    # 26.77 GB/s over 16 lanes of generation 4, half of it over 8; generation 1 has a quarter of 12 GB/s
    assert [link.out_bytes_per_s for link in (gpus.pcie(4, 16), gpus.pcie(4, 8), gpus.pcie(1, 16)) if link] == [
        26_770_000_000,
        13_385_000_000,
        3_000_000_000,
    ]
    assert gpus.pcie(0, 16) is None
    assert gpus.pcie(4, 0) is None


# Users' own tables


def test_a_table_needs_no_more_than_memory_and_compute_capability(tmp_path: Path) -> None:
    gpu = gpus.read(own(tmp_path, MINE))

    assert (gpu.name, gpu.title, gpu.total_bytes) == ("mine", "Mine", (8 * GIB, "given"))
    assert (gpu.multiprocessors, gpu.rates, gpu.link) == (None, (), None)
    assert gpu.host_bytes == (64 * GIB, ASSUMED)


def test_a_table_may_have_all_figures_and_sources_of_its_own(tmp_path: Path) -> None:
    text = f"""{MINE}
name = "card"
source = "sheet"
multiprocessors = 10
rates = {{float32 = 1e12, bfloat16 = 4e12}}
memory_bytes_per_s = "100 GB"
link = {{out_bytes_per_s = 10e9, back_bytes_per_s = 11e9}}
context_bytes = {{value = "300 MiB", source = "given"}}
host_bytes = "128 GiB"
disk_bytes = "2 TiB"
[sources]
sheet = {{title = "My data sheet"}}
"""
    gpu = gpus.read(own(tmp_path, text))

    assert gpu.name == "card"
    assert gpu.rates == (("float32", (10**12, "sheet")), ("bfloat16", (4 * 10**12, "sheet")))
    assert gpu.memory_bytes_per_s == (100 * 10**9, "sheet")
    assert gpu.link == ("given", 10 * 10**9, 11 * 10**9, 10_000, "sheet")
    assert gpu.context_bytes == (300 * 2**20, "given")
    assert (gpu.host_bytes.value, gpu.disk_bytes.value) == (128 * GIB, 2 * 2**40)


def test_a_row_of_the_table_is_a_table_of_its_own(tmp_path: Path) -> None:
    text = '[gpu.other]\ntotal_bytes = 1024\ncompute_capability = 12.0\nlink = "pcie-4-x16"\nrates = "unknown"\n'

    gpu = gpus.read(own(tmp_path, text))

    assert (gpu.name, gpu.total_bytes.value, gpu.compute_capability.value) == ("other", 1024, 120)
    assert gpu.link == gpus.database().links["pcie-4-x16"]


HOSTILE: dict[str, tuple[str, str]] = {
    "empty": ("", r"total_bytes: given None; allowed is .*: this one must be known"),
    "no toml": ("{}", r"not TOML: "),
    "deep": ("x = " + "[" * 100_000, r"nested more deeply|not TOML"),
    "twice": (MINE + MINE, r"not TOML: "),
    "unknown field": (MINE + "memory = 1", r"field: given 'memory'; allowed is one of name, title"),
    "no memory": ('compute_capability = "8.6"', r"total_bytes: given None"),
    "unknown memory": (
        'total_bytes = "unknown"\ncompute_capability = "8.6"',
        r"total_bytes: given 'unknown'; .* must be",
    ),
    "no capability": ("total_bytes = 1", r"compute_capability: given None; allowed is major and minor, such as '8.6'"),
    "zero": ('total_bytes = 0\ncompute_capability = "8.6"', r"total_bytes: given 0; allowed is a number above 0"),
    "negative": ('total_bytes = -1\ncompute_capability = "8.6"', r"total_bytes: given -1"),
    "64 bits": (
        'total_bytes = 9223372036854775808\ncompute_capability = "8.6"',
        r"total_bytes: given 9223372036854775808",
    ),
    "true": ('total_bytes = true\ncompute_capability = "8.6"', r"total_bytes: given True"),
    "fraction": ('total_bytes = 1.5\ncompute_capability = "8.6"', r"total_bytes: given 1\.5"),
    "not a number": ('total_bytes = nan\ncompute_capability = "8.6"', r"total_bytes: given nan"),
    "infinite": ('total_bytes = inf\ncompute_capability = "8.6"', r"total_bytes: given inf"),
    "no size": ('total_bytes = "much"\ncompute_capability = "8.6"', r"total_bytes: given 'much'; allowed is a number"),
    "a date": ('total_bytes = 2020-01-01\ncompute_capability = "8.6"', r"total_bytes: given datetime\.date"),
    "capability as int": ("total_bytes = 1\ncompute_capability = 86", r"compute_capability: given 86"),
    "capability of zero": ('total_bytes = 1\ncompute_capability = "0.0"', r"compute_capability: given '0\.0'"),
    "capability as words": ('total_bytes = 1\ncompute_capability = "sm_86"', r"compute_capability: given 'sm_86'"),
    "multiprocessors": (MINE + 'multiprocessors = "many"', r"multiprocessors: given 'many'; allowed is a whole number"),
    "rates of another type": (MINE + "rates = 3", r"rates: given 3; allowed is a table"),
    "rate of an unknown dtype": (MINE + "rates = {fp32 = 1}", r"rates: field: given 'fp32'; allowed is one of float64"),
    "rate as text": (MINE + 'rates = {float32 = "1 TB"}', r"rates: float32: given '1 TB'; allowed is a whole number"),
    "unknown link": (MINE + 'link = "pcie-9"', r"link: given 'pcie-9'; allowed is one of pcie-3-x16, .*, or a table"),
    "link of another type": (MINE + "link = 7", r"link: given 7"),
    "link without a rate": (MINE + "link = {out_bytes_per_s = 1}", r"link: back_bytes_per_s: given None"),
    "link with more": (MINE + "link = {speed = 1}", r"link: field: given 'speed'"),
    "context above memory": (
        MINE + 'context_bytes = "9 GiB"',
        r"context_bytes: given 9663676416; allowed is less than",
    ),
    "unlisted source": (
        MINE + 'source = "rumour"',
        r"source: given 'rumour'; allowed is a key of the table \[sources\]",
    ),
    "unlisted source of a figure": (
        MINE + 'multiprocessors = {value = 1, source = "rumour"}',
        r"multiprocessors\.source: given 'rumour'",
    ),
    "figure with more": (
        MINE + "multiprocessors = {value = 1, unit = 2}",
        r"multiprocessors: given \{.*\}; allowed is a",
    ),
    "source without a title": (MINE + '[sources]\nx = {url = "https://x"}', r"sources\.x: given .*; allowed are title"),
    "source of another type": (MINE + "[sources]\nx = 1", r"sources\.x: given 1; allowed is a table"),
    "sources of another type": ("sources = 1\n" + MINE, r"sources: given 1; allowed is a table"),
    "name of another type": ("name = 1\n" + MINE, r"name: given 1; allowed is text"),
    "empty name": ('name = ""\n' + MINE, r"name: given ''; allowed is text"),
    "aliases of another type": ("aliases = [1]\n" + MINE, r"aliases: given \[1\]; allowed is a list of text"),
    "unified of another type": ('unified = "yes"\n' + MINE, r"unified: given 'yes'; allowed is true or false"),
    "gpu of another type": ("gpu = 1", r"gpu: given 1; allowed is a table"),
    "row of another type": ("[gpu]\nx = 1", r"given 1; allowed is a table"),
    "no gpu": ("[gpu]", r"given 0 GPUs; allowed is one in a file"),
    "two gpus": ("[gpu.a]\n[gpu.b]", r"given 2 GPUs; allowed is one in a file; leave 1 out"),
    "fields beside a gpu": ("total_bytes = 1\n[gpu.a]", r"'total_bytes': given outside \[gpu.NAME\]"),
}


@pytest.mark.parametrize(("text", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_table_is_one_clear_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = own(tmp_path, text)
    with pytest.raises(FormatError, match=message) as problem:
        gpus.read(path)
    assert str(problem.value).startswith(f"{path}: ")
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 600


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"gone\.toml: cannot be read: No such file or directory; check the path$"):
        gpus.read(str(tmp_path / "gone.toml"))
    with pytest.raises(FormatError, match=r"it is a folder; allowed is"):
        gpus.read(str(tmp_path))
    with pytest.raises(FormatError, match=r"cannot be read: embedded null byte"):
        gpus.read("a\0.toml")


def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"title = '\xff'")
    with pytest.raises(FormatError, match=r"not UTF-8 text \(byte 9\)"):
        gpus.read(str(path))
    monkeypatch.setattr(gpus, "MAX_TABLE_BYTES", 5)
    with pytest.raises(FormatError, match=r"larger than the 5 bytes that are allowed"):
        gpus.read(str(path))


def test_what_eager_loading_takes_is_the_row_of_the_generation() -> None:
    # rows begin at 3.0, 6.0 and 8.0; what is older still has the oldest
    assert [gpus.eager(capability).since for capability in (10, 37, 60, 75, 80, 120)] == [30, 30, 60, 60, 80, 80]


@pytest.mark.parametrize(
    ("capability", "row", "message"),
    [
        ("8", {"least_bytes": 1, "most_bytes": 2}, "capability: given '8'; allowed is major and minor"),
        ("8.0", {"least_bytes": 3, "most_bytes": 2}, "least_bytes: given 3; allowed is at most most_bytes, which is 2"),
    ],
)
def test_a_row_of_eager_loading_that_says_nothing_is_refused(
    capability: str, row: dict[str, object], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        eager_of("gpus.toml: eager", capability, {**row, "source": "s"}, {"s"})


def test_what_lies_outside_the_allocator_is_the_row_of_the_generation() -> None:
    # rows begin at 3.0, 7.0, 7.5, 8.0, 8.6, 8.9, 9.0 and 12.0
    capabilities = (10, 61, 70, 75, 80, 87, 89, 103, 121)
    assert [gpus.outside(each).since for each in capabilities] == [30, 30, 70, 75, 80, 86, 89, 90, 120]


def test_a_row_of_what_lies_outside_whose_sizes_do_not_rise_is_refused() -> None:
    row: dict[str, object] = {"least_bytes": 1, "likely_bytes": 3, "most_bytes": 2, "source": "s"}
    with pytest.raises(FormatError, match=r"likely_bytes: given 3; allowed is at most most_bytes, which is 2"):
        outside_of("gpus.toml: outside", "8.0", row, {"s"})


def test_nine_tenths_of_what_was_reported_lie_within_the_interval_of_their_generation() -> None:
    with OUTSIDE.open() as file:
        rows = list(csv.DictReader(file))
    within = 0
    for row in rows:
        major, minor = row["compute_capability"].split(".")
        known = gpus.outside(10 * int(major) + int(minor))
        within += known.least_bytes <= int(row["outside_mib"]) * 2**20 <= known.most_bytes
    assert len(rows) == 85
    assert within >= 0.9 * len(rows)


@pytest.mark.parametrize("row", [row.since for row in gpus.database().outside])
def test_the_likely_bytes_outside_are_the_median_of_what_was_reported(row: int) -> None:
    with OUTSIDE.open() as file:
        found = [
            int(each["outside_mib"])
            for each in csv.DictReader(file)
            if gpus.outside(int(each["compute_capability"].replace(".", ""))).since == row
        ]
    # rounded to 10 MiB in the table
    assert abs(statistics.median(found) - gpus.outside(row).likely_bytes / 2**20) <= 5
