"""Flat step: what a training step of JAX computes, line by line, without calls and without JAX's own types.

Computes: the order of its allocations and frees, and the most bytes that are live.
Reference: XLA's buffer assignment (xla/service/buffer_assignment.h) for what shares a buffer: an output that may alias
a donated argument, and an elementwise op that writes over an operand nothing needs any more.
Ignores: fusion. XLA computes short chains again in place of keeping them, so a program of it holds less. Lines run in
the order of the program; those after the last backward line run output by output, as XLA's scheduler prefers.
Cost: linear in the lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal, NamedTuple

from elbowroom.trace import Phase

ALIGN_BYTES = 256
"""XLA places each buffer of a program at a multiple of it on a GPU; on the CPU at one of 64."""

LineKind = Literal["elementwise", "update", "reduction", "other"]
"""Elementwise lines may write over a read value of the same size. Updates (of a slice, or scattered ones) write over
the first. Elementwise lines and reductions take broadcasts without a buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatValue:
    """An array of the program.

    Attributes:
        size_bytes: its bytes on one device; 0 if it lies on the host.
        dtype: element type.
        spread_of: values that it repeats or stacks, if it is a broadcast or a stack; None for any other. It takes
            memory only where a line cannot read it as it is computed.
    """

    size_bytes: int
    dtype: str
    spread_of: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatLine:
    """One primitive with arrays.

    Attributes:
        name: name of the primitive.
        module: path of the module, from the names of scopes.
        phase: the part of the step.
        reads: values that it reads.
        makes: values that it makes.
        kind: what its buffers may share.
        scratch_bytes: bytes that it holds besides, such as the most of a loop's body.
        flops: floating point operations.
        moved_bytes: bytes that it reads and makes.
        source_line: line of the user's code; "" if it is not known.
        again: whether it is in the part of backward that belongs to a checkpoint.
    """

    name: str
    module: str
    phase: Phase
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    kind: LineKind = "other"
    scratch_bytes: int = 0
    flops: int = 0
    moved_bytes: int = 0
    source_line: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatInput:
    """An argument of the step.

    Attributes:
        value: the array.
        path: where it is in the arguments, such as "[0]['params']['kernel']".
        becomes: the output that takes its place in the next step, if there is one.
        written_over: whether it was donated, so that this output is written over it.
    """

    value: int
    path: str
    becomes: int | None = None
    written_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatStep:
    """A whole step.

    Attributes:
        values: arrays, by number.
        lines: what is computed, in order.
        inputs: arguments.
        outputs: values that the step returns.
        keys: what a policy of `jax.checkpoint` can tell of a value that a line makes, by value.
        remarks: what was not known, each with how often.
        stacks: values that XLA keeps in one array, which is there from the first to the last use of any.
        seeds: broadcasts that backward begins with, outside checkpoints.
        exchanged_bytes: what a device may hold besides, of arrays gathered from or summed over devices.
    """

    values: tuple[FlatValue, ...]
    lines: tuple[FlatLine, ...]
    inputs: tuple[FlatInput, ...]
    outputs: tuple[int, ...]
    keys: dict[int, str] = field(default_factory=dict[int, str])
    remarks: tuple[tuple[str, int], ...] = ()
    stacks: tuple[tuple[int, ...], ...] = ()
    seeds: frozenset[int] = frozenset()
    exchanged_bytes: int = 0


class Change(NamedTuple):
    """A buffer that is allocated (above 0) or freed (below 0) at a line; -1 is before the first."""

    line: int
    buffer: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Where values lie.

    Attributes:
        of: the buffer of each value that has one; a buffer has the number of the first value on it.
        sizes: bytes of each buffer.
        changes: allocations and frees in order. Scratch memory of a line has number -1 - line.
    """

    of: dict[int, int]
    sizes: dict[int, int]
    changes: tuple[Change, ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes that are live."""
        return highest(change.size_bytes for change in self.changes)


def highest(sizes_bytes: Iterable[int]) -> int:
    """Return the most bytes that are held at once, of allocations (above 0) and frees (below 0) in order."""
    return max(accumulate(sizes_bytes), default=0)


def without_dead(step: FlatStep) -> FlatStep:
    """Return the step without lines whose results nothing needs: XLA leaves them out."""
    needed, kept = set(bases(step, step.outputs)), list[FlatLine]()
    for line in reversed(step.lines):
        if not needed.isdisjoint(line.makes):
            kept.append(line)
            needed.update(bases(step, line.reads))
    return replace(step, lines=tuple(reversed(kept)))


def bases(step: FlatStep, values: Iterable[int]) -> list[int]:
    """Return values with each broadcast replaced by what it repeats, and the broadcasts themselves."""
    found: dict[int, None] = {}
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in found:
            found[value] = None
            pending.extend(step.values[value].spread_of or ())
    return list(found)


def output_by_output(step: FlatStep, first: int) -> FlatStep:
    """Return the step with the lines from `first` on in the order in which the outputs need them."""
    late = step.lines[first:]
    maker = {value: n for n, line in enumerate(late) for value in line.makes}
    order: dict[int, None] = {}
    for output in step.outputs:
        pending = [n for value in bases(step, [output]) if (n := maker.get(value)) is not None]
        while pending:
            n = pending[-1]
            before = [m for v in bases(step, late[n].reads) if (m := maker.get(v)) is not None and m not in order]
            if n in order or not before:
                order[pending.pop()] = None
            else:
                pending.extend(reversed(before))
    order.update(dict.fromkeys(range(len(late))))
    return replace(step, lines=(*step.lines[:first], *(late[n] for n in order)))


def recomputed_late(step: FlatStep) -> FlatStep:
    """Return the step with each line of a checkpoint that needs no gradient right before the first that needs it.

    These lines compute forward again, or bring it back from the host. In the program of a checkpoint they come first.
    """
    of_gradients = set(step.seeds)
    waiting: dict[int, FlatLine] = {}
    found: list[FlatLine] = []
    for line in step.lines:
        reads = bases(step, line.reads)
        if line.again and of_gradients.isdisjoint(reads):
            waiting.update(dict.fromkeys(line.makes, line))
            continue
        if line.phase == "backward":
            of_gradients.update(line.makes)
        found += _taken(step, reads, waiting)
        found.append(line)
    return replace(step, lines=(*found, *_taken(step, list(waiting), waiting)))


def _taken(step: FlatStep, reads: Iterable[int], waiting: dict[int, FlatLine]) -> list[FlatLine]:
    """Take the waiting lines that make some values, each after those whose results it reads."""
    found: list[FlatLine] = []
    pending = [line for value in reads if (line := waiting.get(value)) is not None]
    while pending:
        line = pending[-1]
        before = [waiting[value] for value in bases(step, line.reads) if value in waiting]
        if before:
            pending.extend(before)
            continue
        pending.pop()
        taken = [waiting.pop(value, None) for value in line.makes]
        if any(taken):
            found.append(line)
    return found


def last_uses(step: FlatStep) -> dict[int, int]:
    """Return the last line that reads or makes each value; outputs are used beyond the last line."""
    last: dict[int, int] = {}
    for number, line in enumerate(step.lines):
        last.update(dict.fromkeys((*bases(step, line.reads), *line.makes), number))
    last.update(dict.fromkeys(bases(step, step.outputs), len(step.lines)))
    return last


def buffers_of(step: FlatStep, saved: frozenset[int] = frozenset(), outer: bool = True) -> Buffers:
    """Return where values lie, and when.

    Args:
        step: the step.
        saved: values that nothing may write over.
        outer: whether it is a whole program: its inputs and outputs have a buffer from beginning to end. The body of a
            loop gets its inputs from outside, and makes its outputs as it goes.
    """
    placing = _Placing(step, saved)
    if outer:
        placing.begin()
    for number in range(len(step.lines)):
        placing.run(number)
    return Buffers(of=placing.of, sizes=placing.sizes, changes=tuple(placing.changes))


class _Placing:
    """Places values, line by line."""

    def __init__(self, step: FlatStep, saved: frozenset[int]) -> None:
        self._step, self._saved = step, saved
        self._last = last_uses(step)
        self._fixed: set[int] = set()
        self._busy: dict[int, int] = {}
        self._kept: set[int] = set()
        self.of: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.changes: list[Change] = []

    def begin(self) -> None:
        """Place inputs and outputs, which stay until the end."""
        made = {value: number for number, line in enumerate(self._step.lines) for value in line.makes}
        for each in self._step.inputs:
            self._new(each.value, -1)
            self._fixed.add(each.value)
            if each.written_over and each.becomes in made and each.becomes not in self.of:
                line = self._step.lines[made[each.becomes]]
                last = self._last.get(each.value, -1)
                if last < made[each.becomes] or (last == made[each.becomes] and line.kind != "other"):
                    self._lay(each.becomes, each.value)
                    self._fixed.add(each.becomes)
        over = {each.becomes for each in self._step.inputs if each.written_over}
        for value in self._step.outputs:
            if value in made and value not in self.of and value not in over:
                self._new(value, -1)
                self._fixed.add(value)

    def run(self, number: int) -> None:
        """Place what a line makes, and free what nothing needs after it."""
        line = self._step.lines[number]
        read = bases(self._step, line.reads)
        dying = [v for v in dict.fromkeys(self.of[v] for v in read if v in self.of) if self._is_free_after(v, number)]
        for value in line.makes:
            if value in self.of or not self._size(value):
                continue
            if taken := self._written_over(line, value, dying):
                dying.remove(taken[0])
                self._lay(value, taken[0])
            else:
                self._new(value, number)
        if scratch := line.scratch_bytes + self._spread_bytes(line):
            self.sizes[-1 - number] = scratch
            self.changes += [Change(number, -1 - number, scratch), Change(number, -1 - number, -scratch)]
        made = (self.of[v] for v in line.makes if v in self.of)
        for buffer in dict.fromkeys((*dying, *made)):
            if self._is_free_after(buffer, number):
                self.changes.append(Change(number, buffer, -self.sizes[buffer]))

    def _new(self, value: int, line: int) -> None:
        if value not in self.of and (size_bytes := self._size(value)):
            self.sizes[value] = size_bytes
            self._lay(value, value)
            self.changes.append(Change(line, value, size_bytes))

    def _lay(self, value: int, buffer: int) -> None:
        self.of[value] = buffer
        self._busy[buffer] = max(self._last.get(value, -1), self._busy.get(buffer, -1))
        if value in self._saved:
            self._kept.add(buffer)

    def _size(self, value: int) -> int:
        each = self._step.values[value]
        if each.spread_of is not None and value not in self._step.outputs:
            return 0
        return -(-each.size_bytes // ALIGN_BYTES) * ALIGN_BYTES

    def _spread_bytes(self, line: FlatLine) -> int:
        """Return the bytes of broadcasts that a line needs in memory."""
        if line.kind in ("elementwise", "reduction"):
            return 0
        values = (self._step.values[value] for value in line.reads)
        return sum(value.size_bytes for value in values if value.spread_of is not None)

    def _written_over(self, line: FlatLine, value: int, dying: Sequence[int]) -> list[int]:
        """Return the buffers that a line may write a value over."""
        if line.kind not in ("elementwise", "update"):
            return []
        wanted = self._size(value)
        first = [self.of.get(read) for read in line.reads[:1]] if line.kind == "update" else dying
        usable = (b for b in dying if b in first and b not in self._fixed and b not in self._kept)
        return [b for b in usable if self.sizes[b] == wanted]

    def _is_free_after(self, buffer: int, number: int) -> bool:
        """Tell whether a buffer has no value that a later line uses."""
        return buffer not in self._fixed and self._busy[buffer] <= number
