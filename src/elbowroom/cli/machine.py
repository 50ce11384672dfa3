"""`elbowroom machine`: what this computer has."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from elbowroom.cli import output
from elbowroom.machine import Machine
from elbowroom.units import format_bytes, format_ns

if TYPE_CHECKING:
    from rich.table import Table


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("machine", help="what this computer has: memory, disk, and the links between them")
    parser.add_argument("--measure", action="store_true", help="measure the links instead of assuming usual rates")
    parser.add_argument("--spill-dir", metavar="DIR", help="directory of the disk tier (default: TMPDIR)")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the machine to a file that other verbs read")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Describe this computer."""
    machine = Machine.here(measure=arguments.measure, spill_dir=arguments.spill_dir)
    if arguments.out:
        machine.save(arguments.out)
    if arguments.json:
        print(output.as_json(_figures(machine, measured=arguments.measure)))
        return 0
    console = output.console()
    console.print(_tiers(machine))
    console.print(_links(machine, measured=arguments.measure))
    return 0


def _figures(machine: Machine, *, measured: bool) -> dict[str, object]:
    return {
        "name": machine.name,
        "measured": measured,
        "tiers": [{"name": tier.name, "capacity_bytes": tier.capacity_bytes} for tier in machine.tiers],
        "links": [
            {
                "upper": link.upper,
                "lower": link.lower,
                "out_bytes_per_s": link.out_bytes_per_s,
                "back_bytes_per_s": link.back_bytes_per_s,
                "latency_ns": link.latency_ns,
                "shared_by": link.shared_by,
            }
            for link in machine.links
        ],
        "memory_bytes_per_s": machine.memory_bytes_per_s,
    }


def _tiers(machine: Machine) -> Table:
    from elbowroom.report.terminal import plain_table

    table = plain_table(title="Tiers")
    table.add_column("")
    table.add_column("capacity", justify="right")
    for tier in machine.tiers:
        table.add_row(tier.name, format_bytes(tier.capacity_bytes))
    return table


def _links(machine: Machine, *, measured: bool) -> Table:
    from elbowroom.report.terminal import plain_table

    how = "measured now" if measured else "assumed; --measure measures them"
    table = plain_table(title=f"\nLinks ({how})")
    for name in ("", "out", "back", "latency"):
        table.add_column(name, justify="right" if name else "left")
    for link in machine.links:
        rates = (f"{format_bytes(link.out_bytes_per_s)}/s", f"{format_bytes(link.back_bytes_per_s)}/s")
        table.add_row(f"{link.upper} to {link.lower}", *rates, format_ns(link.latency_ns))
    if machine.memory_bytes_per_s:
        table.add_row("within memory", "", f"{format_bytes(machine.memory_bytes_per_s)}/s", "")
    return table
