"""Jaxpr reader: a jaxpr becomes a `FlatStep`. Calls are opened, views left out, long loops are one line.

A reshape, a name and a barrier make no bytes. A broadcast takes memory only where a line cannot compute it as it reads
(flat_step.py). A scan of few turns, as over layers, is read turn by turn, so that a plan can tell its layers apart.
Any other loop holds its stacked results, and the most that one turn of its body holds. A branch holds the most of its
branches. An array in the host's memory takes no memory of the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from elbowroom.frameworks.jax.array_shards import ShardedShape, exchanged_elements, result_pieces, whole
from elbowroom.frameworks.jax.flat_step import (
    FlatInput,
    FlatLine,
    FlatStep,
    FlatValue,
    LineKind,
    buffers_of,
    without_dead,
)
from elbowroom.frameworks.jax.primitive_kinds import (
    ELEMENTWISE,
    IN_CALLS,
    SPREADS,
    UPDATES,
    VIEWS,
    scratch_elements,
    work_of,
)
from elbowroom.trace import Phase

KEY_BYTES = 8
"""Bytes of a random key of JAX's default generator: two numbers of 32 bits."""


MOST_TURNS = 96
"""Turns of a scan that is read turn by turn: layers of a model are fewer, steps in time often more."""


@dataclass
class ProgramParts:
    """What was read so far, of the program and of the bodies of its loops.

    Attributes:
        values: arrays, by number.
        shards: shape and pieces of each.
        keys: what a policy of `jax.checkpoint` can tell of a value, by value.
        remarks: what was not known.
        stacks: slices of each array that a scan stacks, by the array.
        seeds: broadcasts that backward begins with, outside checkpoints.
        exchanged: bytes that devices gather or sum of an array, by the array.
        depth: how many checkpoints of backward are being read, one in the other.
    """

    values: list[FlatValue] = field(default_factory=list[FlatValue])
    shards: list[ShardedShape] = field(default_factory=list[ShardedShape])
    keys: dict[int, str] = field(default_factory=dict[int, str])
    remarks: Counter[str] = field(default_factory=Counter[str])
    stacks: dict[int, tuple[int | None, ...]] = field(default_factory=dict[int, tuple[int | None, ...]])
    seeds: set[int] = field(default_factory=set[int])
    exchanged: dict[int, int] = field(default_factory=dict[int, int])
    depth: int = 0

    def new(self, aval: Any, pieces: tuple[int, ...] | None = None, spread_of: tuple[int, ...] | None = None) -> int:
        """Add an array; returns its number."""
        shape = tuple(int(size) for size in getattr(aval, "shape", ()))
        sharded = whole(shape) if pieces is None else ShardedShape(shape, pieces)
        dtype = getattr(aval, "dtype", None)
        elsewhere = getattr(getattr(aval, "memory_space", None), "name", "") == "Host"
        size_bytes = 0 if elsewhere or str(dtype) == "float0" else sharded.elements * _item_bytes(dtype)
        self.values.append(FlatValue(size_bytes=size_bytes, dtype=str(dtype or ""), spread_of=spread_of))
        self.shards.append(sharded)
        return len(self.values) - 1


def policy_key(name: str, avals: Sequence[Any], params: dict[str, Any]) -> str:
    """Return what a policy of `jax.checkpoint` can tell of a value: its name, or what makes it of which shapes."""
    if name == "name":
        return f"name {params['name']}"
    shapes = " ".join(f"{getattr(each, 'dtype', '')}{list(getattr(each, 'shape', ()))}" for each in avals)
    return f"{name} of {shapes}"


def read_jaxpr(closed: Any, pieces: Sequence[tuple[int, ...] | None], inputs: Sequence[FlatInput]) -> FlatStep:
    """Return the flat step of a jaxpr.

    Args:
        closed: the jaxpr, with its constants.
        pieces: into how many pieces each dimension of an argument is cut; None if it is whole.
        inputs: one for each argument; `becomes` is the number of an output, which becomes its value.
    """
    parts = ProgramParts()
    numbers = [parts.new(var.aval, cut) for var, cut in zip(closed.jaxpr.invars, pieces, strict=True)]
    reader = JaxprReader(parts)
    consts = [parts.new(var.aval) for var in closed.jaxpr.constvars]
    outputs = reader.read(closed.jaxpr, numbers, consts, "")
    known = [FlatInput(value=number, path="constant") for number in consts]
    for number, each in zip(numbers, inputs, strict=True):
        becomes = None if each.becomes is None else outputs[each.becomes]
        over = each.written_over and becomes is not None and becomes != number
        known.append(FlatInput(value=number, path=each.path, becomes=becomes, written_over=over))
    results = tuple(dict.fromkeys(number for number in outputs if number is not None and number not in numbers))
    step = FlatStep(
        values=tuple(parts.values),
        lines=tuple(reader.lines),
        inputs=tuple(known),
        outputs=results,
        keys=parts.keys,
        remarks=tuple(parts.remarks.items()),
        stacks=tuple(tuple(n for n in slices if n is not None) for slices in parts.stacks.values()),
        seeds=frozenset(parts.seeds),
        exchanged_bytes=sum(parts.exchanged.values()),
    )
    return without_dead(step)


class JaxprReader:
    """Reads the lines of one program, or of one body."""

    def __init__(self, parts: ProgramParts) -> None:
        self._parts = parts
        self.lines: list[FlatLine] = []

    def read(self, jaxpr: Any, inputs: Sequence[int | None], consts: Sequence[int], scope: str) -> list[int | None]:
        """Read a jaxpr; returns the number of each output, None for a scalar that is written into the program."""
        known: dict[Any, int | None] = dict(zip(jaxpr.invars, inputs, strict=True))
        known.update(zip(jaxpr.constvars, consts, strict=True))
        for eqn in jaxpr.eqns:
            given = [None if _is_literal(var) else known[var] for var in eqn.invars]
            known.update(zip(eqn.outvars, self._equation(eqn, given, scope), strict=True))
        return [None if _is_literal(var) else known[var] for var in jaxpr.outvars]

    def _equation(self, eqn: Any, given: list[int | None], scope: str) -> list[int | None]:
        name = eqn.primitive.name
        scope = f"{scope}/{eqn.source_info.name_stack}"
        if name in IN_CALLS and (inner := _body(eqn)) is not None and len(inner.jaxpr.invars) == len(given):
            return self._call(inner, given, scope, bool(eqn.params.get("differentiated")))
        if name in VIEWS and all(number is not None for number in given):
            return self._view(eqn, given)
        if name == "broadcast_in_dim" and eqn.invars and _elements(eqn.invars[0]) == _elements(eqn.outvars[0]):
            return self._view(eqn, given)
        if name == "scan" and eqn.params["length"] <= MOST_TURNS:
            return self._turns(eqn, given, scope)
        if name in ("scan", "while", "cond"):
            return self._loop(eqn, given, scope)
        return self._line(eqn, given, scope)

    def _call(self, inner: Any, given: list[int | None], scope: str, again: bool) -> list[int | None]:
        """Read the lines of a call; `again` is whether it is a checkpoint in backward."""
        consts = [self._parts.new(var.aval) for var in inner.jaxpr.constvars]
        self._parts.depth += again
        found = self.read(inner.jaxpr, given, consts, scope)
        self._parts.depth -= again
        return found

    def _view(self, eqn: Any, given: list[int | None]) -> list[int | None]:
        """A view has the bytes of its operand; a name gives it a key."""
        if eqn.primitive.name == "name" and given[0] is not None:
            self._parts.keys[given[0]] = policy_key("name", (), eqn.params)
        if len(given) == 1 and given[0] is not None:
            at, shape = self._parts.shards[given[0]], tuple(eqn.outvars[0].aval.shape)
            if at.shape != shape and max(at.pieces, default=1) > 1:
                # the same bytes in another shape, whose dimensions are cut otherwise
                pieces = result_pieces(eqn.primitive.name, [at], shape, eqn.params)
                view = self._parts.new(eqn.outvars[0].aval, pieces, spread_of=(given[0],))
                return [view] if self._parts.values[view].size_bytes else [given[0]]
        return list(given[: len(eqn.outvars)])

    def _line(
        self, eqn: Any, given: list[int | None], scope: str, scratch_bytes: int = 0, work: tuple[int, int] | None = None
    ) -> list[int | None]:
        """Add a line for a primitive; returns what it makes."""
        name, reads = eqn.primitive.name, [number for number in given if number is not None]
        kind = _kind(name)
        operands = self._operands(eqn, given, kind)
        spread = self._spread(name, eqn, reads)
        made: list[int] = []
        for var in eqn.outvars:
            pieces = result_pieces(name, operands, tuple(getattr(var.aval, "shape", ())), eqn.params)
            made.append(self._parts.new(var.aval, pieces, spread))
            self._parts.keys[made[-1]] = policy_key(name, [v.aval for v in eqn.invars], eqn.params)
        if spread is not None:
            if phase_of(scope) == "backward" and not self._parts.depth:
                self._parts.seeds.update(made)
            return list(made)
        item_bytes = _item_bytes(eqn.outvars[0].aval.dtype) if eqn.outvars else 1
        self._exchanges(eqn, given, made, operands)
        own = sum(self._parts.values[number].size_bytes for number in (*reads, *made))
        devices = max(1, max((prod(each.pieces) for each in operands), default=1))
        flops, moved_bytes = work or (work_of(eqn) // devices, own)
        self.lines.append(
            FlatLine(
                name=name,
                module=module_of(scope),
                phase=phase_of(scope),
                reads=tuple(reads),
                makes=tuple(made),
                kind=kind,
                scratch_bytes=scratch_bytes + scratch_elements(eqn) * item_bytes,
                flops=flops,
                moved_bytes=moved_bytes,
                source_line=source_line(eqn),
                again=self._parts.depth > 0,
            )
        )
        return list(made)

    def _exchanges(self, eqn: Any, given: list[int | None], made: list[int], operands: list[ShardedShape]) -> None:
        """Note what devices gather of operands, and sum of results: XLA may hold it from the first to the last use."""
        if eqn.primitive.name == "dot_general" and made:
            item_bytes = _item_bytes(eqn.outvars[0].aval.dtype)
            found = exchanged_elements("dot_general", operands, self._parts.shards[made[0]], eqn.params)
            for number, elements in zip((*given, made[0]), found, strict=True):
                if elements and number is not None:
                    most = max(elements * item_bytes, self._parts.exchanged.get(number, 0))
                    self._parts.exchanged[number] = most

    def _operands(self, eqn: Any, given: list[int | None], kind: LineKind) -> list[ShardedShape]:
        """Return how operands are cut. An elementwise line cuts broadcasts as the others."""
        both = list(zip(eqn.invars, given, strict=True))
        real = [(v, n) for v, n in both if n is not None and self._parts.values[n].spread_of is None]
        return [self._shards_of(var, number) for var, number in (real if kind == "elementwise" and real else both)]

    def _shards_of(self, var: Any, number: int | None) -> ShardedShape:
        """Return how an operand is cut; a view of an array that is not cut has another shape than the array."""
        shape = tuple(getattr(var.aval, "shape", ()))
        known = None if number is None else self._parts.shards[number]
        return known if known is not None and known.shape == shape else whole(shape)

    def _spread(self, name: str, eqn: Any, reads: list[int]) -> tuple[int, ...] | None:
        """Return what a broadcast repeats; elementwise lines of broadcasts alone are one too."""
        if name in SPREADS:
            return tuple(reads)
        spread = [number for number in reads if self._parts.values[number].spread_of is not None]
        others = [number for number in reads if number not in spread and self._parts.shards[number].shape]
        if name in ELEMENTWISE and spread and not others and len(eqn.outvars) == 1:
            return tuple(reads)
        return None

    def _turns(self, eqn: Any, given: list[int | None], scope: str) -> list[int | None]:
        """Read a scan turn by turn. Stacked results are views of what the turns make."""
        params, body = eqn.params, eqn.params["jaxpr"]
        held, length = params["num_consts"], params["length"]
        consts, carried = given[:held], given[held : held + params["num_carry"]]
        own = [self._parts.new(var.aval) for var in body.jaxpr.constvars]
        stacked = range(held + params["num_carry"], len(given))
        stacks = [[None] * length for _ in eqn.outvars[params["num_carry"] :]]
        stacks = [list[int | None](stack) for stack in stacks]
        for turn in reversed(range(length)) if params["reverse"] else range(length):
            slices = [self._slice(eqn.invars[n], given[n], body.jaxpr.invars[n], turn, scope) for n in stacked]
            inputs = [*consts, *carried, *slices]
            outputs = self.read(body.jaxpr, inputs, own, f"{scope}/{eqn.source_info.name_stack}")
            carried = outputs[: params["num_carry"]]
            for stack, var, value in zip(
                stacks, body.jaxpr.outvars[len(carried) :], outputs[len(carried) :], strict=True
            ):
                # what a turn was given is copied to the stack
                stack[turn] = self._copy(var, value, scope) if value in inputs or value in stack else value
        return [*carried, *map(self._stack, eqn.outvars[params["num_carry"] :], stacks)]

    def _slice(self, whole_var: Any, number: int | None, var: Any, turn: int, scope: str) -> int | None:
        """Return one turn's slice of an array: one that a scan made, or a copy."""
        if number is None:
            return None
        known = self._parts.stacks.get(number)
        if known is not None and self._parts.shards[number].shape == tuple(whole_var.aval.shape):
            return known[turn]
        pieces = self._parts.shards[number].pieces[1:]
        cut = pieces if len(pieces) == len(var.aval.shape) else (1,) * len(var.aval.shape)
        return self._copied("dynamic_slice", var, number, cut, scope)

    def _copy(self, var: Any, value: int | None, scope: str) -> int | None:
        return None if value is None else self._copied("copy", var, value, self._parts.shards[value].pieces, scope)

    def _copied(self, name: str, var: Any, number: int, pieces: tuple[int, ...], scope: str) -> int:
        fitting = pieces if len(pieces) == len(var.aval.shape) else (1,) * len(var.aval.shape)
        made = self._parts.new(var.aval, fitting)
        moved_bytes = 2 * self._parts.values[made].size_bytes
        self.lines.append(
            FlatLine(
                name=name,
                module=module_of(scope),
                phase=phase_of(scope),
                reads=(number,),
                makes=(made,),
                moved_bytes=moved_bytes,
                again=self._parts.depth > 0,
            )
        )
        return made

    def _stack(self, var: Any, slices: list[int | None]) -> int | None:
        """Return the view that stacks what the turns made."""
        made = tuple(number for number in slices if number is not None)
        cuts = {self._parts.shards[number].pieces for number in made}
        shape = tuple(var.aval.shape)
        pieces = (1, *cuts.pop()) if len(cuts) == 1 else (1,) * len(shape)
        found = self._parts.new(var.aval, pieces if len(pieces) == len(shape) else None, spread_of=made)
        self._parts.stacks[found] = tuple(slices)
        return found

    def _loop(self, eqn: Any, given: list[int | None], scope: str) -> list[int | None]:
        """Add one line for a loop or branches."""
        params, name = eqn.params, eqn.primitive.name
        turns, most, flops, moved_bytes = params.get("length", 1), 0, 0, 0
        if name == "while":
            self._parts.remarks["the number of turns of a while loop"] += 1
        for body in _bodies(eqn):
            step, outputs = self._body_step(body, given, name, params, scope)
            most = max(most, buffers_of(step, outer=False).peak_bytes + _slices_bytes(step, self._parts))
            flops = max(flops, turns * sum(line.flops for line in step.lines))
            moved_bytes = max(moved_bytes, turns * sum(line.moved_bytes for line in step.lines))
        made = self._line(eqn, given, scope, most, (flops, moved_bytes))
        if name == "scan":
            self._keys_of_stacks(made[params["num_carry"] :], outputs[params["num_carry"] :])
        return made

    def _body_step(
        self, body: Any, given: list[int | None], name: str, params: dict[str, Any], scope: str
    ) -> tuple[FlatStep, list[int | None]]:
        """Return the flat step of a body, whose inputs are slices of stacked arguments, and its outputs."""
        reader = JaxprReader(self._parts)
        held = params["num_consts"] + params["num_carry"] if name == "scan" else len(body.jaxpr.invars)
        numbers: list[int] = []
        for n, var in enumerate(body.jaxpr.invars):
            numbers.append(self._parts.new(var.aval, self._slice_pieces(var, given, n, sliced=n >= held, name=name)))
        consts = [self._parts.new(var.aval) for var in body.jaxpr.constvars]
        outputs = reader.read(body.jaxpr, numbers, consts, scope)
        results = tuple(dict.fromkeys(number for number in outputs if number is not None and number not in numbers))
        inputs = tuple(FlatInput(value=number, path="slice") for number in numbers[held:])
        step = FlatStep(values=tuple(self._parts.values), lines=tuple(reader.lines), inputs=inputs, outputs=results)
        return without_dead(step), outputs

    def _slice_pieces(self, var: Any, given: list[int | None], n: int, sliced: bool, name: str) -> tuple[int, ...]:
        """Return the pieces of a body's input: those of what is given, without the stacked dimension of a slice."""
        shape = tuple(getattr(var.aval, "shape", ()))
        number = given[n] if name == "scan" else None
        known = () if number is None else self._parts.shards[number].pieces[1 if sliced else 0 :]
        return known if len(known) == len(shape) else (1,) * len(shape)

    def _keys_of_stacks(self, made: Sequence[int | None], inner: Sequence[int | None]) -> None:
        """Give stacked results the keys of the values that are stacked: a policy sees these."""
        for stack, value in zip(made, inner, strict=True):
            if stack is not None:
                self._parts.keys.pop(stack, None)
                if value is not None and value in self._parts.keys:
                    self._parts.keys[stack] = self._parts.keys[value]


def _slices_bytes(step: FlatStep, parts: ProgramParts) -> int:
    return sum(parts.values[each.value].size_bytes for each in step.inputs)


def _kind(name: str) -> LineKind:
    if name in ELEMENTWISE:
        return "elementwise"
    if name in UPDATES:
        return "update"
    return "reduction" if name.startswith(("reduce_", "arg")) and name != "reduce_precision" else "other"


def _item_bytes(dtype: Any) -> int:
    if dtype is None:
        return 0
    if str(dtype).startswith("key<"):
        return KEY_BYTES
    return int(dtype.itemsize)


def _elements(var: Any) -> int:
    return prod(getattr(var.aval, "shape", ()))


def _is_literal(var: Any) -> bool:
    return type(var).__name__ == "Literal"


def _body(eqn: Any) -> Any:
    """Return the jaxpr of a call, closed; None if it has none."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if (found := eqn.params.get(name)) is not None:
            return found if hasattr(found, "jaxpr") else _Closed(found)
    return None


@dataclass(frozen=True)
class _Closed:
    """A jaxpr without constants, in the form of a closed one."""

    jaxpr: Any


def _bodies(eqn: Any) -> list[Any]:
    if eqn.primitive.name == "cond":
        return list(eqn.params["branches"])
    return [eqn.params["body_jaxpr" if eqn.primitive.name == "while" else "jaxpr"]]


def phase_of(scope: str) -> Phase:
    """Return the phase that the names of scopes tell; those of no gradient are "other"."""
    if "transpose(" in scope:
        return "backward"
    return "forward" if "jvp(" in scope else "other"


def module_of(scope: str) -> str:
    """Return the path of a module from the names of scopes: "transpose(jvp(GPT))/Block_0" is GPT.Block_0."""
    found = list[str]()
    for part in scope.replace("(", "/").replace(")", "/").split("/"):
        if part and part not in ("jvp", "transpose", "vmap", "checkpoint", "rematted_computation", "pjit", "jit"):
            found.append(part.replace(".", "_"))
    return ".".join(found)


def source_line(eqn: Any) -> str:
    """Return the user's line of an equation, such as "train.py:41 in loss"; "" if only libraries have a part in it."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return ""
    for frame in traceback.frames:
        if "site-packages" not in frame.file_name and not frame.file_name.startswith("<"):
            function = frame.function_name.rsplit(".", 1)[-1]
            return f"{Path(frame.file_name).name}:{frame.line_num} in {function}"
    return ""
