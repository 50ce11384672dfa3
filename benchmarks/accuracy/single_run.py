"""Runs single ops, under the rig or on the virtual device, and notes what each statement allocates and frees.

    RIG/fake_torch.sh benchmarks/accuracy/single_run.py ANSWER < CASES     the CUDA build of torch
    python -m benchmarks.accuracy.single_run ANSWER < CASES               the virtual device

CASES is JSON, case by name; a case is Python with the names of `names()`. ANSWER is written as JSON: events by name, or
what was raised. This file is also run by the rig's own torch: nothing else of the project is imported there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Event = tuple[str, int, int]
Answer = dict[str, Any]
AT_ONCE = 100
BYTE = torch.uint8
MARK_BYTES = 123_456_789
WARM = "x = T(64, 64); y = torch.mm(x, x); B(y); z = F.linear(x, x, x[0].detach()); B(z)"


def names() -> dict[str, Any]:
    """What a case may use: T makes a float tensor with a gradient, I indices, B runs backward."""

    def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
        return torch.empty(shape, device="cuda", dtype=dtype).requires_grad_(grad)

    def indices(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(shape, device="cuda", dtype=dtype)

    def backward(made: Any) -> None:
        made.backward(torch.empty_like(made))

    half, brain = torch.float16, torch.bfloat16
    given = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "half": half, "bf16": brain}
    return given | {"T": tensor, "I": indices, "B": backward, "aten": torch.ops.aten}


def run_case(name: str, code: str, mark: Callable[[], int]) -> tuple[int, int, str]:
    """Run a case: the number that `mark` gives before and after it, and what it raised.

    What its variables leave behind is cleared away after the second mark: in which order the leaves of a dead graph go
    is of no use to know.
    """
    Path(f"{sys.argv[1]}.now").write_text(name)
    given = names()
    before = mark()
    problem = ""
    try:
        exec(code, given)
    except Exception as raised:  # noqa: BLE001  whatever an op raises is the answer
        problem = f"{type(raised).__name__}: {str(raised)[:200]}"
        del raised
    after = mark()
    given.clear()
    return before, after, problem


def on_rig(cases: dict[str, str]) -> Answer:
    """What the CUDA build does."""
    memory: Any = torch.cuda.memory
    torch.cuda.init()
    memory._record_memory_history(  # noqa: SLF001  torch's documents describe both, under these names
        enabled="all", context=None, max_entries=10_000_000
    )

    run_case("warm", WARM, lambda: 0)
    problems: dict[str, str] = {}
    for name, code in cases.items():
        _, _, problems[name] = run_case(name, code, lambda: torch.empty(MARK_BYTES, device="cuda", dtype=BYTE).numel())
    shown = {"alloc": "a", "free_requested": "f"}
    trace = memory._snapshot()["device_traces"][0]  # noqa: SLF001
    told = [(shown[each["action"]], each["addr"], each["size"]) for each in trace if each["action"] in shown]
    marks = [index for index, (what, _, size) in enumerate(told) if (what, size) == ("f", MARK_BYTES)]
    return {
        name: {"events": _numbered(told[begin + 1 : end - 1]), "problem": problems[name]}
        for name, begin, end in zip(cases, marks[::2], marks[1::2], strict=True)
    }


def on_virtual(cases: dict[str, str], capability: int, multiprocessors: int) -> Answer:
    """What the virtual device does, and what ran on it."""
    from elbowroom.capture.virtual import CudnnModel, VirtualDevice
    from elbowroom.capture.virtual.scratch_memory.cudnn_workspaces import no_workspace
    from elbowroom.machine import Machine, Tier

    machine = Machine(
        name="rig",
        tiers=(Tier(name="device", capacity_bytes=80 << 30),),
        links=(),
        compute_capability=capability,
        multiprocessors=multiprocessors,
    )
    answer: Answer = {}
    with VirtualDevice(machine, None, cudnn=CudnnModel(workspace=no_workspace)) as device:
        ledger = device.ledger
        run_case("warm", WARM, lambda: 0)
        for name, code in cases.items():
            first = len(ledger.ops)
            before, after, problem = run_case(name, code, lambda: len(ledger.events))
            events = [("a" if size > 0 else "f", number, abs(size)) for _, number, size in ledger.events[before:after]]
            forms = sorted({line.form for line in ledger.ops[first:]} - {""})
            answer[name] = {"events": _numbered(events), "problem": problem, "compared": forms}
    return answer


def _numbered(events: list[Event]) -> list[Event]:
    """Storages numbered by first appearance; an address that is used again is another storage."""
    live: dict[int, int] = {}
    found: list[Event] = []
    for what, key, size in events:
        if what == "a":
            live[key] = sum(1 for each in found if each[0] == "a")
        found.append((what, live.get(key, -1), size))
    return found


def in_children(run: Callable[[dict[str, str]], Answer], cases: dict[str, str], path: Path) -> Answer:
    """Answers from processes of their own; a case that crashes its process is left out of the next try."""
    answers: Answer = {}
    names = list(cases)
    for first in range(0, len(names), AT_ONCE):
        part = {name: cases[name] for name in names[first : first + AT_ONCE]}
        while part:
            path.unlink(missing_ok=True)
            child = os.fork()
            if not child:
                path.write_text(json.dumps(run(part)))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if path.exists():
                answers |= json.loads(path.read_text())
                break
            if not os.WIFSIGNALED(status):
                raise RuntimeError(f"a child ended with status {status}; its message stands above")
            crashed = Path(f"{sys.argv[1]}.now").read_text()
            del part[crashed]
            answers[crashed] = {"events": [], "problem": "it crashed", "compared": []}
    return answers


def main() -> None:
    cases = json.load(sys.stdin)
    capability, multiprocessors = (int(os.environ[name]) for name in ("FAKECUDA_CC", "FAKECUDA_SMS"))
    answers = Path(sys.argv[1])
    real = torch.version.cuda is not None
    run = on_rig if real else lambda some: on_virtual(some, capability, multiprocessors)
    answers.write_text(json.dumps(in_children(run, cases, Path(f"{answers}.part"))))


if __name__ == "__main__":
    main()
