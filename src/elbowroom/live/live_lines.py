"""Live lines: a run at one moment as three lines of text, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elbowroom.units import format_bytes, format_ns

BAR = 20
"""Characters of the bar that shows the device's memory."""
LINES = 3


def live_lines(figures: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines on a run, each at most `width` characters.

    Args:
        figures: those of `LiveFigures.as_json`.
        width: columns of the terminal.
    """
    lines = [_step(figures), _memory(figures), f"plan: {figures['plan']}{_peak(figures)}"]
    return [line if len(line) <= width else line[: max(0, width - 1)] + "…" for line in lines]


def _step(figures: Mapping[str, Any]) -> str:
    """Say which step runs, and what the last one took and moved."""
    steps, in_step_ns, last = figures["steps"], figures["in_step_ns"], figures["last"]
    now = f"in step {steps + 1} for {format_ns(in_step_ns)}" if in_step_ns is not None else f"{steps} steps ended"
    if figures["last_step_ns"] is None:
        return f"elbowroom: {now}"
    parts = [f"last {format_ns(figures['last_step_ns'])}"]
    if last.get("swapped_out_bytes") or last.get("swapped_back_bytes"):
        moved = f"{format_bytes(last['swapped_out_bytes'])} out, {format_bytes(last['swapped_back_bytes'])} back"
        parts += [moved, f"stall {format_ns(last['stall_ns'])}"]
    if last.get("recomputed_bytes"):
        parts.append(f"{format_bytes(last['recomputed_bytes'])} recomputed")
    if last.get("mismatches"):
        parts.append(f"{last['mismatches']} mismatches")
    return f"elbowroom: {now} | {', '.join(parts)}"


def _memory(figures: Mapping[str, Any]) -> str:
    """Say what each tier holds, the device against its budget."""
    held_bytes, budget_bytes = figures["device_bytes"], figures["budget_bytes"]
    filled = min(BAR, held_bytes * BAR // budget_bytes) if budget_bytes else 0
    peak = " at the peak" if figures["device"] == "cpu" else ""
    held = f"{format_bytes(held_bytes)}{peak}" if held_bytes or not peak else "not yet measured,"
    parts = [f"{figures['device']} [{'#' * filled}{'.' * (BAR - filled)}] {held} of {format_bytes(budget_bytes)}"]
    if peak:
        parts.append(f"resident {format_bytes(figures['resident_bytes'])}")
    parts += [f"{tier} {format_bytes(size)}" for tier, size in figures["lower_bytes"].items()]
    if figures["pinned_bytes"]:
        parts.append(f"pinned {format_bytes(figures['pinned_bytes'])}")
    return " | ".join(parts)


def _peak(figures: Mapping[str, Any]) -> str:
    peak_bytes = figures["planned_peak_bytes"]
    return f"; planned peak {format_bytes(peak_bytes)}" if peak_bytes else ""
