"""Parameters on lower tiers: each leaves after an op that uses it, and is back before the next one.

Note: [Parameters away]
A parameter that is away keeps its tensors and its storage, which has no bytes until they are back. So nothing may reach
it unnoticed. While parameters may be away, this thread sees each operator before it runs, and so do the backward passes
that it starts (`watcher_of_uses` in op_calls.py). An operator whose arguments lie on such a storage has it brought back
first: in a step, between two steps, for a state dict, for another model. This also counts the uses in a step, so that a
plan can say after which of them a parameter leaves. Code that passes operators by is seen elsewhere or keeps parameters
on the device:

- Python that takes an address or a storage (raw_reads.py). One whose address was handed out stays: Note: [Addresses].
- Compiled code, graphs of CUDA, torch.distributed, steps without an optimizer of torch: no parameter leaves. Those of
  scripted modules stay.
- Another tensor on the storage when it is first met, or a reference to the storage when it would leave: it stays. So
  does a frozen one in RAM that more refers to than modules and optimizers: that may be an array of NumPy.
- Uses on another stream than the first ones: it stays from then on.

The tier keeps the bytes of a parameter that has come back. It leaves without a copy until an operator writes to its
storage, or its version counts a change. A trained one leaves so after ops of a step before its optimizer alone, and of
torch's own: what an optimizer uses is held to be changed, whatever its operators say. So is what any operator between
steps uses. Kernels of extensions that are called past torch's operators change a parameter unseen.

Bits cannot change: what comes back is what left.

Note: [Loading]
A model may be larger than the device. So each parameter that a module moves there, or is given there, leaves at once
(loading.py), and comes back for the operators that use it. In RAM that is each one that a module is given. Between
steps, and in steps without a plan, all others leave first. When the run ends, those stay on the tier below that the
device has no room for: on the host, or mapped from the spill file. An operator over all parameters has them all on the
device. `torch.save` has one: Note: [Saving].

A loader may still have the tensor of which it made a parameter (`from_pretrained`). Then that leaves when a later one
comes. An array of NumPy may lie on a frozen parameter that was there before the room. So such a one waits in RAM until
a step begins, when references to it are counted.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, final

import torch
from torch import nn

from elbowroom.engine.asked_parameters import AskedParameters
from elbowroom.engine.away_parts import AwayParts, Left
from elbowroom.engine.conductor import Conductor, StepPlan
from elbowroom.engine.entries import StateEntry
from elbowroom.engine.executor import Executor
from elbowroom.engine.file_weights import with_own_storages
from elbowroom.engine.gradients import Gradients
from elbowroom.engine.handed_addresses import Refs
from elbowroom.engine.list_parts import Call, joined, parted, takes_lists
from elbowroom.engine.loading import Loading
from elbowroom.engine.movable_parameters import MovableParameters
from elbowroom.engine.optimizer_parts import Found, is_resizable
from elbowroom.engine.raw_reads import RawReads
from elbowroom.engine.saving import Saving
from elbowroom.engine.storages import RAW_STORAGE, alive_of
from elbowroom.engine.touched import (
    Touched,
    by_key,
    carried_windows,
    is_torchs_own,
    moves_gradients,
    put_on_host,
    storages_of,
    writes,
)
from elbowroom.errors import TierError, TierFull
from elbowroom.notices import Once, warn_once
from elbowroom.step.schedule import Action
from elbowroom.torch_compat.core import (
    holders_of,
    in_backward,
    is_distributed,
    parameters_of,
    storage_key,
    tell_of_compiling,
)
from elbowroom.torch_compat.op_calls import has_compiled, watcher_of_uses
from elbowroom.units import NONE, format_bytes

NOTHING = nullcontext()
LAST_SHARE = 7 / 8
"""Share of the budget that blocks may hold once a run has ended. The allocator reserves more than its blocks hold."""


@final
class Parameters:
    """Parameters of all models, on the device and away.

    Args:
        executor: moves their bytes.
        conductor: knows the plan of the step.
        min_size_bytes: smaller parameters stay on the device.
        gradients: their gradients, which code gets without their bytes while operators are seen.

    Attributes:
        wanted: whether uses are counted in steps that are recorded, so that plans may move parameters.
        budget_bytes: returns the bytes that the device may hold.
        in_optimizer: returns whether an optimizer steps, and so may change what it uses.
        on: whether operators are seen.
    """

    def __init__(self, executor: Executor, conductor: Conductor, min_size_bytes: int, gradients: Gradients) -> None:
        self.wanted = False
        self.budget_bytes: Callable[[], int] = _no_limit
        self.in_optimizer: Callable[[], bool] = _always
        self._executor = executor
        self._conductor = conductor
        self._away = AwayParts(executor)
        self._gradients, self._handed = gradients, gradients.handed
        self._movable = MovableParameters(executor.device, min_size_bytes, self._tell, self._away.changed)
        self._in_step: list[list[weakref.ref[torch.UntypedStorage]]] = []
        self._last: list[list[weakref.ref[torch.UntypedStorage]]] = []
        self._counts = self.on = self._stopped = False
        self._here: Refs = {}
        self._inside = False
        self._due: Action | None = None
        self._past_operators = AskedParameters(
            executor, conductor, self._movable, self._away, gradients, self._arrive, self._is_between, self._is_saving
        )
        self._raw: RawReads | None = None
        self._saving: Saving | None = None
        self._loading: Loading | None = None
        self._late: dict[int, weakref.ref[nn.Parameter]] = {}
        self._waiting: dict[int, weakref.ref[nn.Parameter]] = {}
        self._once = Once()
        _LIVE.add(self)

    # Steps

    def plan_begins(self, known: StepPlan) -> None:
        """Place the parameters for the plan of a step that is about to begin, as it expects them.

        This comes before the writes of the step are counted, as its plan does not count these moves.
        """
        carried = carried_windows(known)
        if self._loading is not None:
            self._others_leave(self._used())
        if self._may_move() and not all(n in self._away.of_window for n in carried):
            with self._conductor.aside():
                self._place(known, carried)

    def _place(self, known: StepPlan, carried: dict[tuple[int, int], int]) -> None:
        self._away.of_window.clear()
        keep = dict.fromkeys(self._away.entries)
        for (use, place), n in carried.items():
            refs = self._last[use] if use < len(self._last) else []
            one: Touched = by_key(refs[place : place + 1])
            size_bytes = known.schedule.uses[use][place].size_bytes
            for key in one:
                entry = self._away.entries.get(key)
                if entry is not None and entry.size_bytes == size_bytes:
                    entry.n, self._away.of_window[n] = n, entry
                    keep.pop(key, None)
                elif entry is None and one[key][0].nbytes() == size_bytes and not self._is_held(one, key):
                    self._leave(one[key][0], n, known)
        used = self._used()
        come = [key for key in used if key in keep]  # in the order of their use, so that each start lays them out alike
        others = [] if self._loading is not None else [key for key in keep if key not in used]
        for key in (*come, *others):
            self._arrive(key)
        self._executor.settle()

    def _used(self) -> Touched:
        """Return what the last step used. All else stays away: the average of a model, another model."""
        return by_key(ref for use in self._last for ref in use)

    def begin_step(self) -> None:
        """Begin a step of the training."""
        known = self._conductor.known()
        self._keep_last()
        moves = known is not None and bool(known.schedule.uses) and self._may_move()
        learns = self.wanted and (known is None or self._conductor.recorder() is not None) and self._may_move()
        if learns:
            self._find()
        waits = (
            self.wanted
            and self._may_move()
            and (moves_gradients(known) or (self._loading is not None and self.are_away))
        )
        self._counts, self._inside = moves or learns, moves or learns or waits
        self._due, self._here = None, {}
        if known is None and learns:
            self._here = dict(self._movable.refs)
        elif not (moves or waits):
            self.bring_back()
        self._turn(on=self._inside)

    def end_step(self) -> None:
        """End a step of the training: uses from here on are counted in no step."""
        self._act_due()
        self._keep_last()
        self._counts = self._inside = False

    def _keep_last(self) -> None:
        if self._in_step:
            self._last, self._in_step = self._in_step, []

    def _may_move(self) -> bool:
        """Whether parameters may leave: see Note: [Parameters away]."""
        tell_of_compiling(_compiling, _nothing)
        if not self._stopped and (has_compiled() or is_distributed()):
            self.stop()
        return not self._stopped

    def stop(self) -> None:
        """Bring all parameters back, and let none leave any more."""
        if self._movable.refs:
            self._tell(0, "compiled code or a graph of CUDA uses them unseen, or torch.distributed does")
        self._stopped, self._counts, self._inside = True, False, False
        self.rest()
        self._close_raw()

    def open(self) -> None:
        """See raw reads from now on, and let parameters leave as they come: see Note: [Loading]."""
        if self._raw is None:
            self._raw = RawReads(self._past_operators.asked)
            self._gradients.hands_out = self._sees
            self._saving = Saving(self._away, self._executor, self._conductor, self._is_between, self._all_others_leave)
        if self._loading is None and self._may_move():
            self._waiting = {id(each): weakref.ref(each) for each in self._movable.frozen_in_ram()}
            self._loading = Loading(self._moved, self._made)
            self._turn(on=True)

    def rest(self) -> None:
        """Bring all parameters back, and see no operators until the next step that wants it."""
        self.bring_back()
        self._turn(on=False)

    def _turn(self, *, on: bool) -> None:
        if on or self.on:
            if not on:
                self._handed.bring_back()
                for key in [each for each in self._away.copies if not self._movable.is_frozen(each)]:
                    self._away.changed(key)  # nobody would see what changes it
            watcher = watcher_of_uses()
            watcher.seen = self._called if on else watcher.plainly
            watcher.turn(on=on)
            self.on = on

    def aside(self) -> AbstractContextManager[None]:
        """Return a context for the engine's own work, whose operators are no uses."""
        return watcher_of_uses().unwatched() if self.on else NOTHING

    # Which may move

    def _find(self) -> None:
        """Look for parameters that may move; none may once there is a graph of CUDA."""
        if self._executor.device.type == "cuda" and alive_of(torch.cuda.CUDAGraph):
            self.stop()
        else:
            self._movable.find()

    def leave_files(self) -> None:
        """Let parameters that are trained leave the files that they lie on: see Note: [Weights of a file]."""
        if self._executor.device.type != "cpu" or not self._may_move():
            return
        found = self._movable.on_files()
        with self._conductor.aside():
            for sharing in with_own_storages(found, self._movable.min_size_bytes):
                if isinstance(sharing, int):
                    self._tell(sharing, "it lies on a file that other code may use too")
                else:
                    self._all_leave([self._movable.taken(sharing)])

    # Loading

    @property
    def are_away(self) -> bool:
        """Whether any parameter is away."""
        return bool(self._away.entries)

    @property
    def limit_bytes(self) -> int | None:
        """The bytes in blocks that the device may hold once the run has ended; None for no limit."""
        return None if self._loading is None else int(LAST_SHARE * self.budget_bytes())

    def _moved(self, parameters: Iterable[nn.Parameter]) -> None:
        """Let parameters leave that have just been moved to the device."""
        found = [key for each in parameters if (key := self._taken_on(each)) is not None]
        self._all_leave(found)

    def place(self, model: nn.Module) -> None:
        """Let the parameters of a model leave that was there before the run, as far as they may."""
        if self._loading is None or self._inside or not self._may_move():
            return
        self.leave_files()
        self._find()
        found = {storage_key(each) for each in storages_of(parameters_of(model))}
        self._all_leave([key for key in found if key in self._movable.refs])

    def leave_now(self) -> None:
        """Let all parameters leave that may, before a step without a plan."""
        if self._may_move():
            self._find()
            self._all_leave(self._movable.refs)

    def _made(self, parameter: nn.Parameter) -> None:
        """Let all others leave: a parameter that was made on the device is filled next."""
        late, self._late = self._late, {}
        keys = [self._taken_on(each) for ref in late.values() if (each := ref()) is not None]
        self._here |= {key: self._movable.refs[key] for key in keys if key is not None}
        key = self._taken_on(parameter)
        if key is not None or any(keys):
            self._others_leave({} if key is None else by_key([self._movable.refs[key]]))

    def _taken_on(self, parameter: nn.Parameter) -> int | None:
        """Let a parameter be one that may move, if it is not one yet. Returns its key if it is new."""
        if self._inside or not self.on or type(parameter) is not nn.Parameter:
            return None
        waits = self._waiting.get(id(parameter))
        if waits is not None and waits() is parameter:
            return None
        storage = self._movable.own_storage(parameter)
        if storage is None or storage in self._movable or self._movable.addresses.stays(storage):
            return None
        if holders_of(storage) != 2:  # a tensor of the code that moves it lies there too, maybe for a moment
            self._late[id(parameter)] = weakref.ref(parameter)
            return None
        return self._movable.taken([parameter])

    def _all_leave(self, keys: Iterable[int]) -> None:
        lone = by_key(self._movable.refs[key] for key in keys)
        with self._conductor.aside(), suppress(TierFull):  # then it stays
            for key in lone:
                if not self._is_held(lone, key):
                    self._leave(lone[key][0], NONE, None)
            self._executor.settle()

    # Uses

    def _called(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator once what it uses is there."""
        with watcher_of_uses().unwatched():
            if self._due is not None:
                self._act_due()
            if self._gradients.lent:
                self._gradients.lent.note_stream()
            calls = self._parted(args, kwargs) if takes_lists(op) else None
            if calls is None:
                return self._one_called(op, args, kwargs)
            return joined([self._one_called(op, *call) for call in calls])

    def _one_called(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handed = self._handed.there((*args, *kwargs.values()), changes=writes(op)) if self._handed else NOTHING
        with handed:
            return self._called_with_parameters(op, args, kwargs)

    def _called_with_parameters(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        touched: Touched = {}
        self._movable.touched(args, touched)
        if kwargs:
            self._movable.touched(kwargs.values(), touched)
        if not touched:
            return op(*args, **kwargs)
        number = self._begins(touched, op)
        try:
            result = op(*args, **kwargs)
        except BaseException:  # it may run again, and is one use
            if number is not None:
                del self._in_step[number:]
            raise
        if number is not None:
            self._ends(number, touched)
        return result

    def _parted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Call] | None:
        """Return the parts of an operator over lists: of gradients, or of parameters that leave one another room."""
        if self._inside:
            touched: Touched = {}
            self._movable.touched((*args, *kwargs.values()), touched)
            whole = bool(touched) or not self._handed  # uses of parameters are as planned
        else:
            whole = self._loading is None
        return None if whole else parted(args, kwargs)

    def _begins(self, touched: Touched, op: Any) -> int | None:
        """Bring back what an operator uses. Returns the number of the use in the step; None if it is not counted."""
        self._note_streams(touched)
        number = len(self._in_step) if self._counts else None
        if number is not None:
            known = self._conductor.known()
            if known is not None and known.schedule.uses:
                with self._conductor.aside():
                    self._conductor.act(known.schedule.on_use.get((number, False)))
            self._in_step.append([weakref.ref(storage) for storage, _ in touched.values()])
        unplanned = self.wanted and self._conductor.known() is None if self._inside else self._loading is not None
        if unplanned:
            self._others_leave(touched)
        changes, only_reads = writes(op), self._inside and is_torchs_own(op) and not self.in_optimizer()
        with self._conductor.aside():
            for key in touched:
                self._arrive(key)  # what it replaces has left by now
                if changes or not (only_reads or self._movable.is_frozen(key)):
                    self._movable.changed(key)
        recorder = self._conductor.recorder() if number is not None else None
        if recorder is not None:
            recorder.used(touched.values())
        return number

    def _ends(self, number: int, touched: Touched) -> None:
        """Let the parameters of a use leave whose plan says so."""
        known = self._conductor.known()
        if known is None or not known.schedule.uses or not self._counts:
            return
        uses = known.schedule.uses
        slots = uses[number] if number < len(uses) else ()
        if [storage.nbytes() for storage, _ in touched.values()] != [slot.size_bytes for slot in slots]:
            self._counts = False
            self._conductor.surprised_by(f"an op uses other parameters, as number {number} of the step, than planned")
            return
        with self._conductor.aside():
            for key, slot in zip(touched, slots, strict=True):
                if slot.n is not None and self._is_held(touched, key):
                    self._tell(slot.size_bytes, "code has its storage")
                elif slot.n is not None:
                    self._leave(touched[key][0], slot.n, known)
        self._due = known.schedule.on_use.get((number, True))

    def _act_due(self) -> None:
        """Act as planned at the end of the last use: the caller of its op has freed the arguments by now."""
        due, self._due = self._due, None
        if due is not None and self._counts:
            with self._conductor.aside():
                self._conductor.act(due)

    def _is_held(self, touched: Touched, key: int) -> bool:
        """Whether other code has the storage itself, and not only tensors on it."""
        more = _references(touched, key) - _LONE
        return more > 0 and more > self._executor.writing_from(touched[key][0])

    def _note_streams(self, touched: Touched) -> None:
        stream, streams = self._executor.stream(), self._executor.tier.streams
        if stream is None or streams is None:
            return
        captures = streams.capturing(stream)
        for key, (storage, _) in touched.items():
            if not self._movable.is_first_stream(key, stream) or captures:
                self._movable.addresses.keep(storage)
            if captures and key in self._away.entries:
                self._executor.tier.home()  # which refuses a graph of copies

    def _others_leave(self, touched: Touched) -> None:
        """Let all leave that ops before have used, but for what this one uses. For steps without a plan."""
        gone = {key: self._here.pop(key) for key in list(self._here) if key not in touched}
        others = by_key(ref for key, ref in gone.items() if self._movable.refs.get(key) is ref)
        with self._conductor.aside():
            with suppress(TierFull):  # a plan may not need to move them at all
                for key in others:
                    if not self._is_held(others, key):
                        self._leave(others[key][0], NONE, None)
            self._executor.settle()
        self._here |= {key: self._movable.refs[key] for key in touched if key in self._movable.refs}

    def _sees(self) -> bool:
        """Whether the operators of this thread are seen, and it is not in backward."""
        return self.on and watcher_of_uses().on and not in_backward()

    def _is_between(self) -> bool:
        """Whether this thread trains, and is between two steps."""
        return not self._inside and self._sees()

    def _all_others_leave(self) -> None:
        if self._loading is not None:
            self._others_leave({})

    def _leave(self, storage: torch.UntypedStorage, n: int, known: StepPlan | None) -> None:
        """Start to move a parameter out, unless other code could use it unnoticed."""
        key, stream = storage_key(storage), self._executor.stream()
        if key in self._away.entries:
            return
        moved_by_others = self._movable.addresses.stays(storage) or self._movable.has_other_stream(key, stream)
        if moved_by_others or not is_resizable(storage):
            if (
                n == NONE
                and self._movable.addresses.stays(storage)
                and not self._movable.addresses.stays_for_good(storage)
            ):
                return
            self._tell(storage.nbytes(), "code has its address, or uses it on several streams")
            return
        versions = self._movable.versions(key)
        if key in self._away.copies and versions != self._movable.version_of.get(key):
            self._away.changed(key)
        self._movable.version_of[key] = versions
        self._away.leave(key, Found(storage, torch.uint8, storage.nbytes(), held=False), n, known)

    def _arrive(self, key: Hashable) -> None:
        self._away.arrive(key, keeps=bool(self._movable.version_of.get(key)))

    def _is_saving(self) -> bool:
        """Whether `torch.save` asks, which has its own way."""
        return self._saving is not None and self._saving.in_tensor

    def step_comes(self) -> None:
        """Let parameters move again whose addresses code does not have any more, before a step begins."""
        for parameters in self._movable.addresses.step_comes():
            if not RAW_STORAGE(parameters[0]).resizable():
                with self._conductor.aside():
                    self._renew(parameters)

    def _renew(self, parameters: list[nn.Parameter]) -> None:
        """Give parameters another storage in RAM, as theirs cannot be emptied any more."""
        storage = RAW_STORAGE(parameters[0])
        put_on_host(parameters, torch.UntypedStorage(storage.nbytes()).copy_(storage))
        if storage in self._movable:
            self._movable.forget(storage_key(storage))
            renewed = self._movable.refs[self._movable.taken(parameters)]
            self._last = [[renewed if ref() is storage else ref for ref in use] for use in self._last]

    # Life

    def entry_of(self, n: int) -> StateEntry | None:
        """Return the parameter that is away in a window, if it is."""
        return self._away.of_window.get(n)

    def bring_back(self) -> None:
        """Bring all parameters back to the device."""
        if self._away.entries:
            with self._conductor.aside():
                self._away.bring_back()

    def close(self) -> Exception | None:
        """Bring every parameter back, and remove the hooks. Returns the first error if some bytes are lost."""
        self._counts = False
        left: Left = {}
        self._handed.forget()  # they end with all other gradients
        with self.aside():
            problem = self._away.close(left, self.limit_bytes)
            lost = self._movable.stay_below(left)
        self._turn(on=False)
        self._close_raw()
        return problem if lost or isinstance(problem, TierError) else None

    def _close_raw(self) -> None:
        if self._loading is not None:
            self._loading.close()
            self._loading = None
        if self._raw is not None:
            self._raw.close()
            self._raw = self._gradients.hands_out = None
        if self._saving is not None:
            self._saving.close()
            self._saving = None

    def _tell(self, size_bytes: int, why: str) -> None:
        warn_once(
            self._once,
            "parameter",
            f"elbowroom: {f'a parameter of {format_bytes(size_bytes)} stays' if size_bytes else 'all parameters stay'} "
            f"on the device, as {why}: the step may need "
            "more than its budget. If that happens in every step, leave 'parameter' out",
        )


def _references(touched: Touched, key: int) -> int:
    return sys.getrefcount(touched[key][0])


def _lone() -> int:
    """Return the references to the storage of a parameter that nobody else refers to."""
    parameter = nn.Parameter(torch.empty(1))
    return _references({0: (RAW_STORAGE(parameter), parameter.dtype)}, 0)


_LONE = _lone()
_LIVE: weakref.WeakSet[Parameters] = weakref.WeakSet()


def _compiling() -> None:
    for each in list(_LIVE):
        each.stop()


def _nothing() -> None: ...


def _always() -> bool:
    return True


def _no_limit() -> int:
    return 1 << 62
