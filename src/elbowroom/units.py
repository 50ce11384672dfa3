"""Units: bytes and nanoseconds to text and back, and budgets. No other file formats either.

On screen bytes are in KiB, MiB, GiB (powers of 1024). Sizes that are read may be decimal: 8GB is 8,000,000,000 bytes. A
letter alone is a power of 1024, as in 8G or 8Gi, as schedulers and containers read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from fractions import Fraction

from elbowroom.errors import UsageError
from elbowroom.files.field_rules import MAX_INT, shown

NONE = -1
"""Entry of a column of numbers that stands for no storage, save, window or time."""

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
UNITS: dict[str, int] = {
    **{f"{prefix}ib": 1024**power for prefix, power in _POWERS.items() if prefix},
    **{f"{prefix}b": 1000**power for prefix, power in _POWERS.items()},
    **{f"{prefix}{i}": 1024**power for prefix, power in _POWERS.items() if prefix for i in ("", "i")},
}
"""Bytes of each unit, by its name in lower case."""

AUTO_MARGIN = Fraction(1, 10)
"""The part of the free bytes that a budget of `auto` leaves to other programs, which may need more later."""

_NUMBER = re.compile(r"(\d{1,20}(?:\.\d{0,20})?(?:e\d{1,2})?)\s*([a-z%]*)", re.ASCII)
_SIZES = "8GiB or 8G (powers of 1024), 8GB (of 1000) or bytes, as in 8e9"
_BUDGETS = "8GiB, 8G, 8GB, 8e9, 90%, auto, or these per tier, as in device=8GiB,host=24GiB,pinned=4GiB,disk=200GiB"


def parse_bytes(value: str | int) -> int:
    """Read a size in bytes, as people write it.

    >>> parse_bytes("1.5GiB")
    1610612736

    Args:
        value: a size such as "8GiB", "8 GB", "1234" or 1234; a fraction of a byte is dropped.

    Raises:
        UsageError: it is not a size, is negative or needs more than 63 bits.
    """
    if type(value) is int and 0 <= value <= MAX_INT:
        return value
    found = _NUMBER.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    unit = found[2] if found else None
    if not found or (unit and unit not in UNITS) or (not unit and "." in found[1] and "e" not in found[1]):
        raise UsageError(f"size: given {shown(value)}; allowed is {_SIZES}; write for example 8GiB")
    size_bytes = int(Fraction(found[1]) * UNITS[unit or "b"])
    if size_bytes > MAX_INT:
        raise UsageError(f"size: given {shown(value)}; allowed are at most 2**63 - 1 bytes; write for example 8GiB")
    return size_bytes


def format_bytes(size_bytes: int) -> str:
    """Format a size for the screen.

    >>> format_bytes(1610612736), format_bytes(17)
    ('1.50 GiB', '17 B')
    """
    for unit, digits in (("TiB", 2), ("GiB", 2), ("MiB", 1), ("KiB", 1)):
        if abs(size_bytes) >= UNITS[unit.lower()]:
            return f"{size_bytes / UNITS[unit.lower()]:,.{digits}f} {unit}"
    return f"{size_bytes} B"


def format_exact_bytes(size_bytes: int) -> str:
    """Return bytes for people and for the next command, such as "3.0 MiB (3145728 bytes)"."""
    return f"{format_bytes(size_bytes)} ({size_bytes} bytes)"


def in_gib(size_bytes: int, *, digits: int) -> str:
    """Format a size as a number of GiB, for tables that have the unit in a header.

    >>> in_gib(1610612736, digits=1)
    '1.5'
    """
    return f"{size_bytes / UNITS['gib']:,.{digits}f}"


def format_ns(duration_ns: int) -> str:
    """Format a duration for the screen.

    >>> format_ns(1_234_000_000), format_ns(125_000_000_000)
    ('1.23 s', '2 min 5 s')
    """
    if abs(duration_ns) >= 60_000_000_000:
        minutes, seconds = divmod(round(abs(duration_ns) / 1e9), 60)
        return f"{'-' if duration_ns < 0 else ''}{minutes} min {seconds} s"
    for unit, unit_ns, digits in (("s", 10**9, 2), ("ms", 10**6, 1), ("us", 10**3, 1)):
        if abs(duration_ns) >= unit_ns:
            return f"{duration_ns / unit_ns:.{digits}f} {unit}"
    return f"{duration_ns} ns"


def format_joules(millijoules: int) -> str:
    """Format an energy for the screen.

    >>> format_joules(45_475), format_joules(1_234_567)
    ('45.5 J', '1.23 kJ')
    """
    for unit, unit_millijoules, digits in (("MJ", 10**9, 2), ("kJ", 10**6, 2), ("J", 10**3, 1)):
        if abs(millijoules) >= unit_millijoules:
            return f"{millijoules / unit_millijoules:.{digits}f} {unit}"
    return f"{millijoules} mJ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Part of a tier: a number of bytes, a share of it, the least that a plan needs, or the free bytes.

    Attributes:
        size_bytes: fixed bytes.
        share: share of the tier's capacity, above 0 and at most 1.
        is_least: the least that a plan needs; for the device only, and only when planning for a known trace.
        sharers: processes that share the tier: a share of it, and its free bytes, are divided among them.
    """

    size_bytes: int | None = None
    share: Fraction | None = None
    is_least: bool = False
    sharers: int = 1

    @property
    def is_divided(self) -> bool:
        """Whether other processes get as much of the tier."""
        return self.sharers > 1 and self.size_bytes is None

    @property
    def is_auto(self) -> bool:
        """Whether it is the free bytes."""
        return self.size_bytes is None and self.share is None and not self.is_least

    def resolve(self, total_bytes: int, free_bytes: int) -> int:
        """Return the bytes of this amount on a tier.

        Args:
            total_bytes: capacity of the tier.
            free_bytes: free bytes on it now; `auto` is this less `AUTO_MARGIN` of it.

        Raises:
            UsageError: it is the least, which only planning finds.
        """
        if self.is_least:
            raise UsageError(
                f"budget: given least; allowed here is {_BUDGETS}; `elbowroom plan --budget least` makes such a plan"
            )
        if self.size_bytes is not None:
            return self.size_bytes
        if self.share is not None:
            return int(total_bytes * self.share) // self.sharers
        return (free_bytes - int(free_bytes * AUTO_MARGIN)) // self.sharers

    def __str__(self) -> str:
        if self.size_bytes is not None:
            return format_bytes(self.size_bytes)
        if self.is_least:
            return "least"
        return f"{float(self.share * 100):g}%" if self.share is not None else "auto"


AUTO = Amount()
LEAST = Amount(is_least=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Amounts allowed per tier, resolved on the machine they are for. Pinned memory is a part of the host tier."""

    device: Amount = AUTO
    host: Amount = AUTO
    pinned: Amount = AUTO
    disk: Amount = AUTO

    def among(self, sharers: int, *, device: bool) -> Budget:
        """Return the budget of one of several processes on a computer. Bytes that were given stay.

        Args:
            sharers: how many they are.
            device: whether they share the device too, as RAM.
        """
        own, host, pinned, disk = (
            replace(amount, sharers=sharers) for amount in (self.device, self.host, self.pinned, self.disk)
        )
        return Budget(device=own if device else self.device, host=host, pinned=pinned, disk=disk)


def parse_budget(value: str | int | Budget) -> Budget:
    """Read a budget as people write it: one amount for the device, or amounts per tier; a tier not named is `auto`.

    The device's amount may be `least` when a plan is made.

    >>> str(parse_budget("8GiB,disk=90%").disk)
    '90%'

    Raises:
        UsageError: it is not an allowed budget.
    """
    if isinstance(value, Budget):
        return value
    if not isinstance(value, str):
        return Budget(device=_parse_amount(value, value))
    names = [field.name for field in fields(Budget)]
    amounts: dict[str, Amount] = {}
    for position, part in enumerate(value.split(",")):
        name, given, amount = part.rpartition("=")
        name = name.strip() if given or position else "device"
        if name not in names:
            raise UsageError(f"budget: given tier {shown(name)} in {shown(value)}; allowed is {_BUDGETS}")
        if name in amounts:
            raise UsageError(f"budget: given {name} twice in {shown(value)}; allowed is once; leave one out")
        is_least = name == "device" and amount.strip().lower() == "least"
        amounts[name] = LEAST if is_least else _parse_amount(amount, value)
    return Budget(**amounts)


def _parse_amount(part: str | int, whole: str | int) -> Amount:
    text = part.strip().lower() if isinstance(part, str) else part
    if text == "auto":
        return AUTO
    found = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if found and found[2] == "%":
        share = Fraction(found[1]) / 100
        if not 0 < share <= 1:
            raise UsageError(f"budget: given {shown(whole)}; allowed are shares above 0% and up to 100%; write 90%")
        return Amount(share=share)
    try:
        return Amount(size_bytes=parse_bytes(text))
    except UsageError:
        raise UsageError(f"budget: given {shown(whole)}; allowed is {_BUDGETS}") from None
