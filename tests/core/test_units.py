"""Sizes, durations and budgets as people write and read them."""

from __future__ import annotations

import doctest
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom import units
from elbowroom.errors import UsageError
from elbowroom.units import AUTO, Amount, Budget, format_bytes, format_ns, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8GiB", 8_589_934_592),  # 8 * 1024**3
        ("8GB", 8_000_000_000),  # 8 * 1000**3
        ("512MiB", 536_870_912),  # 512 * 1024**2
        ("1.5GiB", 1_610_612_736),  # 3 * 512 * 1024**2
        ("0.1 kb", 100),
        ("1.0009kB", 1000),  # 1000.9 bytes, the rest dropped
        (" 2 TiB ", 2_199_023_255_552),  # 2 * 1024**4
        ("17B", 17),
        ("8G", 8_589_934_592),  # as 8GiB
        ("8g", 8_589_934_592),
        ("8Gi", 8_589_934_592),
        ("512M", 536_870_912),  # as 512MiB
        ("12 GB", 12_000_000_000),
        ("1e9", 1_000_000_000),
        ("1.5e9", 1_500_000_000),
        ("1234", 1234),
        (1234, 1234),
        (0, 0),
    ],
)
def test_sizes_are_read_in_powers_of_1024_and_of_1000(text: str | int, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "8X",
        "1e999",
        "-1",
        "-8GiB",
        "1e",
        "nan",
        "inf",
        "8 GiB 3",
        "1.5",
        "0x10",
        "٣GiB",
        "9" * 30,
        -1,
        True,
        1.5,
        2**63,
        None,
    ],
)
def test_what_is_not_a_size_is_refused_with_what_is_allowed(text: Any) -> None:
    with pytest.raises(UsageError, match=r"^size: given .*; allowed .*; write for example 8GiB$"):
        parse_bytes(text)


def test_a_size_beyond_63_bits_is_refused() -> None:
    # 2**63 bytes are 2**23 TiB = 8388608 TiB
    assert parse_bytes("8388607TiB") == 8388607 * 2**40
    with pytest.raises(UsageError, match=r"given '8388608TiB'; allowed are at most 2\*\*63 - 1 bytes"):
        parse_bytes("8388608TiB")


@given(st.integers(0, 2**63 - 1))
def test_a_number_of_bytes_reads_back_as_itself(size_bytes: int) -> None:
    assert parse_bytes(str(size_bytes)) == parse_bytes(f"{size_bytes}B") == size_bytes


@given(st.integers(0, 2**60))
def test_a_size_on_screen_reads_back_within_its_last_digit(size_bytes: int) -> None:
    # one tenth of a KiB or MiB, one hundredth of a larger unit: at most 1/20 of the smallest value shown in a unit
    again = parse_bytes(format_bytes(size_bytes).replace(",", ""))
    assert abs(again - size_bytes) <= size_bytes / 20


def test_sizes_on_screen_carry_their_unit() -> None:
    shown = [format_bytes(size) for size in (0, 1023, 1024, 1536 * 2**10, 2**30, 5 * 2**38, -(2**30))]
    assert shown == ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "1.00 GiB", "1.25 TiB", "-1.00 GiB"]


def test_durations_on_screen_carry_their_unit() -> None:
    shown = [format_ns(ns) for ns in (0, 999, 1500, 12_300_000, 1_234_000_000, 125_000_000_000, -1500)]
    assert shown == ["0 ns", "999 ns", "1.5 us", "12.3 ms", "1.23 s", "2 min 5 s", "-1.5 us"]


def test_a_budget_of_one_amount_is_for_the_device() -> None:
    assert parse_budget("8GiB") == Budget(device=Amount(size_bytes=8 * 2**30))
    assert parse_budget(1024) == Budget(device=Amount(size_bytes=1024))
    assert parse_budget("auto") == Budget(device=AUTO)
    assert parse_budget(parse_budget("90%")) == Budget(device=Amount(share=Fraction(9, 10)))


def test_a_budget_names_tiers() -> None:
    assert parse_budget("device=8GiB, host=24GiB,pinned=50%,disk=auto") == Budget(
        device=Amount(size_bytes=8 * 2**30), host=Amount(size_bytes=24 * 2**30), pinned=Amount(share=Fraction(1, 2))
    )
    assert parse_budget("2GiB,disk=1GiB").disk == Amount(size_bytes=2**30)


@pytest.mark.parametrize(
    "text",
    ["", "8GiB,9GiB", "gpu=8GiB", "device=", "=8GiB", "host=1GiB,host=2GiB", "0%", "101%", "%", "1,,", -1, True],
)
def test_what_is_not_a_budget_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match=r"^budget: given .*; allowed "):
        parse_budget(text)


@pytest.mark.parametrize("text", ["12 apples", "12X", "1,5GiB"])
def test_a_refused_budget_is_said_in_less_than_thirty_words(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_budget(text)
    assert len(str(refused.value).split()) < 30


def test_amounts_are_resolved_on_a_tier() -> None:
    # given a tier of 1000 bytes of which 500 are free
    resolved = [Amount(size_bytes=700), Amount(share=Fraction(1, 3)), AUTO]

    # then: bytes as they are; 1000 / 3 = 333.3; 500 less a tenth of it
    assert [amount.resolve(1000, 500) for amount in resolved] == [700, 333, 450]
    assert [str(amount) for amount in (Amount(size_bytes=2**30), Amount(share=Fraction(9, 10)), AUTO)] == [
        "1.00 GiB",
        "90%",
        "auto",
    ]


def test_what_several_processes_share_is_divided_and_given_bytes_are_not() -> None:
    # given 4 ranks, and a tier of 1000 bytes of which 500 are free
    budget = parse_budget("device=90%,host=700,disk=auto").among(4, device=True)

    # then: 900 / 4; bytes as they are; (500 less a tenth of it) / 4 = 112.5
    assert [amount.resolve(1000, 500) for amount in (budget.device, budget.host, budget.disk)] == [225, 700, 112]
    assert [amount.is_divided for amount in (budget.device, budget.host, budget.disk)] == [True, False, True]
    assert parse_budget("90%").among(4, device=False).device.resolve(1000, 500) == 900
    assert budget.disk.is_auto


def test_the_examples_of_the_documentation_run() -> None:
    result = doctest.testmod(units)
    assert result.attempted >= 4
    assert result.failed == 0
