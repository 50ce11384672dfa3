"""`elbowroom machine`: what this computer has, and the known figures of GPUs that it does not have."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elbowroom.cli import output
from elbowroom.cli.answer_types import ListedGpu, MachineAnswer, MachineListAnswer
from elbowroom.errors import UsageError
from elbowroom.hardware import gpus, nvml, outside_measured
from elbowroom.hardware.gpu_table import ASSUMED, GIVEN, Figure, Gpu
from elbowroom.machine import Machine, gpu_of
from elbowroom.units import format_bytes, format_ns, in_gib

if TYPE_CHECKING:
    from rich.table import Table

UNKNOWN = "unknown"
NO_GPU = (
    "\nOutside torch's allocator: not measured, as the driver's library (NVML) shows no NVIDIA GPU on this computer"
)
BFLOAT16_SINCE = 80
"""First compute capability whose tensor cores have bfloat16."""


def add(verbs: Any) -> None:
    """Add this verb to the parser."""
    parser = verbs.add_parser("machine", help="what this computer has, or what is known of a GPU")
    parser.add_argument("name", nargs="?", help="a GPU, or the path of a .toml file (default: this computer)")
    parser.add_argument("--list", action="store_true", help="list the GPUs that are known")
    parser.add_argument("--measure", action="store_true", help="measure links and memory outside the allocator")
    parser.add_argument("--spill-dir", metavar="DIR", help="directory of the disk tier (default: TMPDIR)")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the machine to a file that other verbs read")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Describe this computer, a GPU, or all GPUs."""
    _check(arguments)
    if arguments.list:
        return _list(as_json=arguments.json)
    name = arguments.name or "here"
    gpu = None if name == "here" else gpu_of(name)
    machine = _here(arguments) if gpu is None else Machine.of(name)
    if arguments.out:
        machine.save(arguments.out)
    if arguments.json:
        output.write_answer(_figures(machine, gpu, measured=arguments.measure), output.STDOUT)
        return 0
    console = output.console()
    console.print(_tiers(machine))
    console.print(_links(machine, how=_how(arguments, gpu)))
    if machine.compute_capability:
        console.print(_outside(machine))
    elif arguments.measure:
        console.print(NO_GPU)
    if gpu is not None:
        console.print(_sourced(gpu))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    elsewhere = arguments.name not in (None, "here")
    given = [option for option in ("measure", "spill_dir", "out") if getattr(arguments, option)]
    wrong = arguments.list and (["name"] if arguments.name else given)
    wrong = wrong or (elsewhere and [option for option in given if option != "out"])
    if wrong:
        what = "--list" if arguments.list else f"the machine {arguments.name}"
        raise UsageError(
            f"machine: given {wrong[0].replace('_', '-')} with {what}; allowed is it on this computer alone, "
            "which is what is described without a name; leave one out"
        )


def _here(arguments: argparse.Namespace) -> Machine:
    machine = Machine.here(measure=arguments.measure, spill_dir=arguments.spill_dir)
    if not arguments.measure or not machine.compute_capability:
        return machine
    from elbowroom.capture.link_probe import measure_link
    from elbowroom.capture.outside_probe import measure_outside

    measured = measure_link()._asdict()
    machine = replace(machine, links=(replace(machine.links[0], **measured), *machine.links[1:]))
    outside = measure_outside()
    found = nvml.first_device()
    if found is not None:
        outside_measured.keep(found.name, outside)
    return machine.with_outside(outside)


def _how(arguments: argparse.Namespace, gpu: Gpu | None) -> str:
    if gpu is not None:
        return "usual rates, not measured"
    return "measured now" if arguments.measure else "assumed; --measure measures them"


def _figures(machine: Machine, gpu: Gpu | None, *, measured: bool) -> MachineAnswer:
    return MachineAnswer(
        name=machine.name,
        title=None if gpu is None else gpu.title,
        measured=measured,
        tiers=machine.tiers,
        links=machine.links,
        memory_bytes_per_s=machine.memory_bytes_per_s,
        compute_capability=machine.compute_capability,
        multiprocessors=machine.multiprocessors,
        rates={rate.dtype: rate.flops_per_s for rate in machine.rates},
        outside_bytes=machine.outside_bytes,
        outside_range_bytes=machine.outside_range_bytes,
        allocator=machine.allocator,
        figures=None if gpu is None else dict(_each(gpu)),
    )


def _list(*, as_json: bool) -> int:
    database = gpus.database()
    if as_json:
        rows = [ListedGpu(name=gpu.name, title=gpu.title, figures=dict(_each(gpu))) for gpu in database.gpus.values()]
        output.write_answer(MachineListAnswer(gpus=tuple(rows), sources=dict(database.sources)), output.STDOUT)
        return 0
    from elbowroom.report.screen import Column, FittingTable

    # Units are in the headers, so that the table fits 80 columns.
    names = ("memory GiB", "capability", "float32 T/s", "bfloat16 T/s", "memory GiB/s", "host GiB/s")
    title = f"{len(database.gpus)} GPUs; `elbowroom machine NAME` says where each figure comes from"
    columns = [Column("name", left=True), *map(Column, names)]
    output.console().print(FittingTable(title, columns, [_listed(gpu) for gpu in database.gpus.values()]))
    return 0


def _listed(gpu: Gpu) -> tuple[str, ...]:
    """Return the row of a GPU in the list of all."""
    rates, link = dict(gpu.rates), gpu.link
    to_host = Figure(link.out_bytes_per_s, link.source) if link else None
    return (
        gpu.name,
        in_gib(gpu.total_bytes.value, digits=2),
        _capability(gpu.compute_capability.value),
        _in_tera(rates.get("float32")),
        "none" if gpu.compute_capability.value < BFLOAT16_SINCE else _in_tera(rates.get("bfloat16")),
        _in_gib(gpu.memory_bytes_per_s),
        "unified" if gpu.unified else _in_gib(to_host),
    )


def _in_tera(rate: Figure | None) -> str:
    return UNKNOWN if rate is None else f"{rate.value / 1e12:,.1f}"


def _in_gib(rate: Figure | None) -> str:
    return UNKNOWN if rate is None else in_gib(rate.value, digits=1)


def _each(gpu: Gpu) -> Iterator[tuple[str, Figure | None]]:
    """Yield every figure of a GPU by its field's name, and those of its host if it has one."""
    yield "total_bytes", gpu.total_bytes
    yield "compute_capability", gpu.compute_capability
    yield "multiprocessors", gpu.multiprocessors
    yield from ((f"rates.{dtype}", figure) for dtype, figure in gpu.rates)
    if not gpu.rates:
        yield "rates", None
    yield "memory_bytes_per_s", gpu.memory_bytes_per_s
    yield "board_watts", gpu.board_watts
    yield "idle_watts", gpu.idle_watts
    yield "context_bytes", gpu.context_bytes
    if not gpu.unified:
        yield "link.out_bytes_per_s", Figure(gpu.link.out_bytes_per_s, gpu.link.source) if gpu.link else None
        yield "link.back_bytes_per_s", Figure(gpu.link.back_bytes_per_s, gpu.link.source) if gpu.link else None
        yield "host_bytes", gpu.host_bytes
    yield "disk_bytes", gpu.disk_bytes


def _sourced(gpu: Gpu) -> Table:
    from rich.markup import escape

    from elbowroom.report.screen import plain_table

    table = plain_table(title=f"\n{escape(gpu.title)}")
    table.add_column("figure", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("source")
    for name, figure in _each(gpu):
        table.add_row(name, _shown(name, figure), "" if figure is None else escape(_source(figure.source)))
    return table


def _source(key: str) -> str:
    """Return title and address of a source; a user's own table is the source of its figures."""
    source = gpus.database().sources.get(key)
    if source is None or key in (GIVEN, ASSUMED):
        return "assumed, no figure of this GPU" if key == ASSUMED else f"the table given ({key})"
    return f"{source.title} {source.url}".strip()


def _shown(name: str, figure: Figure | None) -> str:
    if name == "compute_capability" and figure is not None:
        return _capability(figure.value)
    if name.startswith("rates"):
        return _tera(figure)
    if name.endswith("_per_s"):
        return _per_s(figure)
    if figure is None:
        return UNKNOWN
    if name.endswith("_watts"):
        return f"{figure.value} W"
    return format_bytes(figure.value) if name.endswith("_bytes") else str(figure.value)


def _capability(value: int) -> str:
    return f"{value // 10}.{value % 10}"


def _tera(rate: Figure | None) -> str:
    return UNKNOWN if rate is None else f"{_in_tera(rate)} T/s"


def _per_s(rate: Figure | None) -> str:
    return UNKNOWN if rate is None else f"{format_bytes(rate.value)}/s"


def _tiers(machine: Machine) -> Table:
    from elbowroom.report.screen import plain_table

    table = plain_table(title="Tiers")
    table.add_column("")
    table.add_column("capacity", justify="right")
    for tier in machine.tiers:
        table.add_row(tier.name, format_bytes(tier.capacity_bytes))
    return table


def _outside(machine: Machine) -> str:
    least, most = map(format_bytes, machine.outside_range_bytes)
    return f"\nOutside torch's allocator: {format_bytes(machine.outside_bytes)} (from {least} to {most})"


def _links(machine: Machine, *, how: str) -> Table:
    from elbowroom.report.screen import plain_table

    table = plain_table(title=f"\nLinks ({how})")
    for name in ("", "out", "back", "latency"):
        table.add_column(name, justify="right" if name else "left")
    for link in machine.links:
        rates = (f"{format_bytes(link.out_bytes_per_s)}/s", f"{format_bytes(link.back_bytes_per_s)}/s")
        table.add_row(f"{link.upper} to {link.lower}", *rates, format_ns(link.latency_ns))
    if machine.memory_bytes_per_s:
        table.add_row("within memory", "", f"{format_bytes(machine.memory_bytes_per_s)}/s", "")
    return table
