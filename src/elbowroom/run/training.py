"""Training run: observes steps, has them planned, and follows the plan at each tick.

Note: [Steps]
A step ends with an optimizer's step. What follows without saving anything for backward (a second optimizer, logging,
zero_grad) still belongs to it. So the end is acted on late: when the next outermost module is called, or the next
large tensor saved. If no optimizer of torch steps, that call is the end, provided that parameters have changed after a
backward (step_ends.py). An optimizer that may call its closure often ends one step before each call but the first.

A step is recognised by its signature (step_kinds.py). If a known step turns out differently midway, another known one
with the same beginning takes over. If there is none, the rest of the step is swapped as in an observed step. The
mismatch is counted, and warned of once per run. The next step with that signature is observed again.

Note: [Recordings]
A recording ends in the optimizer's step, and another begins at the earliest with the next module call. A profiler range
may be open when torch's profiler stops and another one starts. At its end it would be written into memory of the first
profiler. So no range of the user's may span both. No recording begins in the call in which another one ends.
Several optimizers may step in one step. How many do is learnt from the first step.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, final

import torch

from elbowroom.capture.assemble import StepRead
from elbowroom.capture.recording.module_hooks import ModuleHooks, warn_again
from elbowroom.capture.recording.never_moved import StorageSet
from elbowroom.capture.recording.observing_director import (
    NOTHING,
    Observing,
    OptimizerWatch,
    optimizer_began,
    optimizer_ended,
)
from elbowroom.capture.recording.recorder import Recorder, live_ram_bytes
from elbowroom.engine.conductor import Conductor
from elbowroom.engine.entries import Entry, Observer
from elbowroom.engine.executor import Executor, no_room
from elbowroom.engine.optimizer_states import OptimizerStates
from elbowroom.engine.own_thread import OwnThread
from elbowroom.engine.saved_tensors import Director, Handle, Hooks
from elbowroom.engine.storages import alive_of, dtype_name
from elbowroom.errors import Infeasible, UsageError
from elbowroom.notices import LOGGER, warn, warn_once
from elbowroom.run import account as figures
from elbowroom.run.allocator_limit import AllocatorLimit
from elbowroom.run.beforehand import Child, Question, Verdict
from elbowroom.run.hard_room import Needs, UnsureLimit
from elbowroom.run.hook_sampling import Unhooked
from elbowroom.run.kind_totals import beyond
from elbowroom.run.learner import Learner
from elbowroom.run.making_room import MakingRoom
from elbowroom.run.peers import Peers
from elbowroom.run.recompute.in_step import StepRecomputes
from elbowroom.run.resting import BEFORE_REST, Resting
from elbowroom.run.run_figures import RunFigures
from elbowroom.run.run_warnings import NO_STEP, TRAINS_APART, TRAINS_IN_A_THREAD, Surprises
from elbowroom.run.step_ends import ParameterUpdates
from elbowroom.run.step_kinds import StepKind, details, lower_bytes, may_train, signature
from elbowroom.run.step_plan import Following
from elbowroom.run.unrecorded import Levels
from elbowroom.step.schedule import Action
from elbowroom.torch_compat.core import in_backward, is_distributed, keywords_of_call, never_compiled
from elbowroom.units import format_bytes

COLLECTS_EACH = 20
"""Least time between two collections of garbage, as a multiple of what the last one took."""
LOOKS = 64
"""A step without a plan looks at what it holds each time that 1/LOOKS of its budget was saved or read."""


@final
class TrainingRun(RunFigures, Director, Conductor):
    """Policy of a run, and its figures.

    Attributes:
        beforehand: the child that plans for the script; None without one.
        ends_process: whether the process ends with the run, as under `elbowroom run`: nothing trains on.
        peers: the other ranks of the job.
    """

    def __init__(self, executor: Executor, learner: Learner, min_size_bytes: int) -> None:
        super().__init__(executor, learner)
        self._reserved = StorageSet()
        self._observing = Observing(executor, self._reserved)
        self._current: StepKind | None = None
        self._recorder: Recorder | None = None
        self._recording: Callable[[], StepRead] | None = None
        self._recomputes = StepRecomputes(executor, learner)
        self._saved: list[tuple[int, str]] = []
        self._key: Hashable = None
        self._mismatches = self._optimizer_steps = self._optimizers = 0
        self._surprises = Surprises()
        self._end_ns = 0
        self._optimizer_ran = self._gives_back = self._makes_room = False
        self._left_beyond, self._lacked_bytes, self._begins_plan = 0, 0, False
        self._hooks = Hooks(executor, self, min_size_bytes)
        self._states = OptimizerStates(executor, self, min_size_bytes, self._optimizer_begins)
        self._states.parameters.budget_bytes = lambda: learner.budget_bytes
        self._states.parameters.in_optimizer = lambda: self._in_optimizer
        self._following = Following(executor, self._recomputes, self._states.entry_of)
        self._limit = AllocatorLimit(executor.residence, self._surprises)
        self._room = MakingRoom(executor, self._states, self._limit, learner)
        executor.make_room = self._make_room
        self._unhooked = Unhooked(self._hooks, executor.residence, lambda: learner.budget_bytes)
        self._root_hook, residence = ModuleHooks(self._on_root), executor.residence
        self._rest = Resting(self._hooks, self._root_hook, self._states, residence, lambda: learner.budget_bytes)
        self._watch: OptimizerWatch | None = None
        self._thread = OwnThread()
        self._updates = ParameterUpdates()
        self._in_optimizer = self._just_stopped = self._void = False
        self.beforehand: Child | None = None
        self._levels: Levels | None = None
        self._roots: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._collects_ns = 0
        self._refuses = False
        self.ends_process = False
        self.peers = Peers()

    # Life

    def open(self) -> None:
        """Install the hooks."""
        self._moving(True)
        self._watch = OptimizerWatch(self._optimizer_called, self._optimizer_ends)
        self._states.open()
        if self._learner.parameters:
            self._states.open_parameters()
        self._hooks.open()
        self._await_root()

    def ask_beforehand(self, path: str | None, module: str | None, arguments: Sequence[str]) -> Child:
        """Have a child process plan for a script. A confirmed refusal ends the run at once: see Learner.question."""
        others = self._executor.residence.other_allocators
        question = replace(self._learner.question(path, module, arguments), allocators=others)
        self.beforehand = Child(question, self.machine)
        return self.beforehand

    def limit_question(
        self, path: str | None, module: str | None, arguments: Sequence[str]
    ) -> tuple[Question, UnsureLimit] | None:
        """Return what to ask of a capture once a hard limit has ended the training; None if its refusal knows all.

        Raises:
            UsageError: a capture cannot answer for the settings of this run.
        """
        unsure = self._learner.unsure_limit
        return None if unsure is None else (self._learner.question(path, module, arguments), unsure)

    def begin_with(self, verdict: Verdict) -> None:
        """Follow a plan that was made beforehand from the first step on."""
        if verdict.course is not None and verdict.trace is not None:
            if verdict.allocator in self._executor.residence.other_allocators:
                self._executor.residence.allocate_by(verdict.allocator)
            self._learner.begin_with(verdict.trace, verdict.course, verdict.allocator)
            self._known_by_itself()

    def _place(self) -> str:
        if not self._running or self._optimizer_ran:
            return super()._place()
        plan = "which follows its plan" if self._current is not None else "which has no plan yet and swaps all it can"
        return f"in step {self._steps_ended + 1}, {plan}"

    def refusal(self, problem: BaseException | None) -> Infeasible | None:
        """Return what to raise for an error that ends the run: see RunFigures."""
        found = super().refusal(problem)
        if found is None or self.beforehand is None or self.device.type == "cpu":
            return found
        return self.beforehand.with_least(found)

    def _needs(self) -> Needs:
        return Needs(self._lacked_bytes, 0 if self.beforehand is None else self.beforehand.least_bytes())

    def _known_by_itself(self) -> None:
        """End the child process: the run knows by itself now."""
        if self.beforehand is not None:
            self.beforehand.close()
            self.beforehand = None

    def leave_behind(self) -> None:
        """Take no part in a process that was forked from this one: Note: [Forked] in engine/tiers/left_behind.py."""
        self._running, self._current, self._recorder, self._levels = False, None, None, None
        self._root_hook.remove()
        self._hooks.leave_behind()
        self._states.leave_behind()
        self._executor.leave_behind()
        if self._watch is not None:
            self._watch.close()
            self._watch = OptimizerWatch(self._trains_apart, lambda _: None)

    def _trains_apart(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - a hook's
        warn_once(self._once, "forked", TRAINS_APART)

    def close(self, *, failed: bool) -> None:
        """Remove the hooks, and end the last step. Saved tensors that still exist can be read back afterwards."""
        self.peers.close()
        if self._rest.on:
            self._wake()
        self._hooks.close()
        self._known_by_itself()
        if self._watch is not None:
            self._watch.close()
        self._root_hook.remove()
        warn_again()
        ours = (RuntimeError, MemoryError, Infeasible)
        once = suppress(*ours) if failed else NOTHING  # the first error is on its way already
        try:
            with once:
                self._recomputes.forward_ends()
                if failed:
                    self._drop_recording()
                self._recording = self._recording or self._stop_recording()
            if not failed and self._updated():
                self._mark_end()
                self._root_hook.remove()
            if self._optimizer_ran and not failed:
                with suppress(Infeasible):  # the training is over: its next step needs no plan
                    self._end_step()
            elif self._running and not self.steps and not failed:
                warn(NO_STEP)
        finally:
            self._running = False
            self._room.close()
            self._executor.make_room = no_room
            LOGGER.debug("a run ended after %d steps; saves that stay: %s", self._steps_ended, dict(self.passed))
            self._limit.lift()
            self._learner.layers.close()
            self._learner.close()
            with once:
                self._close_states()
            self._observing.profile.go_on()
            self._executor.residence.close()
            self._moving(False)

    def _close_states(self) -> None:
        try:
            self._states.close(goes_on=not self.ends_process)
        except RuntimeError as problem:
            refusal = self._learner.refusal(problem, self._needs())
            if refusal is None:
                raise
            raise refusal from problem

    def end_step(self) -> None:
        """End a step of the training here. For trainings without a torch.optim.Optimizer."""
        if self._rest.on:
            self._wake()
        if self._running:
            self._updates.active = False
            self._ends_here()

    def place(self, model: object) -> None:
        """Move a model to the device as `Room.place` says. Raises UsageError."""
        if not isinstance(model, torch.nn.Module):
            raise UsageError(
                f"place: given {type(model).__name__}; allowed is a torch.nn.Module; place each module of a training "
                "by itself, before its first step"
            )
        if self._running and not self._optimizer_ran:
            raise UsageError(
                "place: given a model in the middle of a step; allowed is between two steps; call it before the "
                "forward, or after the optimizer's step"
            )
        bare = [name for name, parameter in model.named_parameters() if parameter.is_meta]
        if bare:
            raise UsageError(
                f"place: given a model with {len(bare)} parameters on the meta device, such as {bare[0]!r}; allowed "
                f"are parameters with bytes; call model.to_empty(device={str(self.device)!r}) and load its weights"
            )
        model.to(self.device)
        self._states.parameters.place(model)

    def _ends_here(self) -> None:
        self._recomputes.forward_ends()
        self._recomputes.verify()
        if self._recording is None:
            self._recording = self._stop_recording()
        self._states.parameters.end_step()
        self._mark_end()

    def _mark_end(self) -> None:
        self._optimizer_ran = True
        if self._begins_plan:  # it began with an empty cache: bytes beyond the budget are its own
            self._left_beyond = self._executor.residence.beyond(self._learner.limit_bytes)
        self._left_beyond = max(self._left_beyond, self._executor.residence.short_bytes())
        self._look()
        self._unhooked.mark_end()
        self._states.end_step()
        self._limit.lift()
        self._end_ns = time.perf_counter_ns()
        self._room.end_step(self._current)
        self._await_root()

    # Steps

    def _await_root(self) -> None:
        if not self._root_hook.installed:
            self._root_hook.install()

    @never_compiled
    def _on_root(self, module: torch.nn.Module, args: Any) -> None:
        """Begin a step at the first call of an outermost module that trains. See `may_train`."""
        if self._thread.left or self._rests():
            return
        if self._rest.on:
            keywords = keywords_of_call()
            if not may_train(module, (args, keywords), self.device):
                return
            self.peers.look()
            if not self._measure_next and self._rest.meets(module, args, keywords):
                return
            self._wake()
        self._meets_call(module)
        if not self._running and not torch.is_grad_enabled():
            self._evaluation_begins()
        if not self._running and torch.is_grad_enabled():
            keywords = keywords_of_call()
            if may_train(module, (args, keywords), self.device):
                self._meet(module)
                self._begin_step(module, signature(module, args, keywords), details(args, keywords))

    def _meets_call(self, module: torch.nn.Module) -> None:
        """End the step before a call of a module, if it is over; see whether it goes on longer than expected."""
        if self._optimizer_ran:
            self._end_step()
        elif not torch.is_grad_enabled():
            return
        elif self._updated():
            self._ends_unseen()
        elif self._running and self._unhooked.called(module):
            self._goes_on()

    def _rests(self) -> bool:
        """Whether the run rests, and goes on so in a call of an outermost module."""
        return self._rest.on and (self._rest.in_step or not torch.is_grad_enabled())

    def _evaluation_begins(self) -> None:
        """Make room for a forward without gradients between steps, if memory is short: states leave first."""
        last = self._last
        if self._makes_room or last is None or not last.moves:
            return
        self._makes_room = True
        self._executor.settle()
        if last.in_parts:
            self._states_leave()
        self._executor.residence.empty()

    def _updated(self) -> bool:
        """Whether the step is over without a step of torch's optimizers. Asked at a forward and at the run's end."""
        if not (self._running and self._hooks.read) or self._optimizer_ran or in_backward():
            return False
        if not (self._updates.active or self._in_optimizer):
            return False
        self._hooks.read = False  # no change to look for until the next backward
        with self.aside():
            return self._in_optimizer or self._updates.changed()

    def _ends_unseen(self) -> None:
        """End a step whose parameters changed: this is seen only now, as the next forward begins."""
        self._just_stopped = self._recorder is not None
        self._ends_here()
        self._end_step()

    def _make_room(self, asked_bytes: int) -> bool:
        """Move out what idles: memory ran out. Returns whether there is more room now. See Note: [Out of memory].

        A limit of the allocator is raised first, and the plan goes on. Otherwise the rest of the step is swapped whole,
        and the next such step is observed. So the next plan counts what was missing. What was recorded of this one is
        void, as it has the first try too.
        """
        if self._limit.widen():
            self._void = self._recorder is not None
            return True
        self._lacked_bytes = max(self._lacked_bytes, self._executor.residence.needed_bytes(asked_bytes))
        with self.aside():
            made = self._room.make(asked_bytes, in_optimizer=self._in_optimizer)
        if made and self._running and not self._optimizer_ran:
            self._states.in_parts = self._learner.in_parts
            if self._current is not None:
                self.surprised_by(f"memory ran out by up to {format_bytes(asked_bytes)}, so what idled has left")
            elif not self._void:
                self._void = self._recorder is not None
                self._watch_levels()
        return made

    def _expected_beside_peers(self, key: Hashable) -> StepKind | None:
        """Return what `_expected` does. Raise the error of a rank that fails before, or while this one plans."""
        self.peers.look()
        with self.peers.telling():
            known = self._expected(key)
        self.peers.look()
        return known

    def _begin_step(self, root: torch.nn.Module | None, key: Hashable, details: Hashable = None) -> None:
        known = self._expected_beside_peers(key)
        self._room.retries.turn(on=False)  # the run's own work before the step needs none
        self._states.turn_to(key)
        self._states.parameters.step_comes()
        if known is None and self._learner.parameters and alive_of(torch.optim.Optimizer):
            self._states.parameters.leave_files()
        self._await_calls(root, known)
        others = key != self._key or known is not self._last
        self._running, self._key, self._current, self._makes_room = True, key, known, False
        self._mismatches = self._optimizer_steps = self._left_beyond = self._lacked_bytes = 0
        self._saved, self._recording, self._void = [], None, False
        self._begin_memory(known, others=others)
        self._learner.step_begins()
        if known is None or self._records(known):
            self._executor.settle()  # so that the recording has the transfers of this step alone
        self._executor.begin_step()
        self._recomputes.begin(key, known, self._following.begin())
        self._observing.spare_bytes = self._observing.spared_bytes = 0
        self._observing.at_save = self._learner.frugal.leaves_at_save(key)
        if not self._steps_ended:
            self._executor.residence.training_begins(root)
        if known is None:
            self._begin_frugal(key, root)
        else:
            self._begin_known(known, root)
        self._just_stopped = False
        if self._recorder is None:
            self._observing.profile.go_on()
        self._executor.residence.step_begins()
        chosen = known.chosen if known is not None else {}
        self._learner.layers.begin(root, chosen, recorded=self._recorder is not None)
        self._begin_states()
        if known is not None:
            self._limit.begin(known, self._learner.limit_bytes)
        self._room.begin_step(known)
        self._now_watched()
        unseen = self._recorder is None and not (self._updates.active or self._in_optimizer or self._room.retries.on)
        plain = unseen and known is not None and known.runs_as_ever and self._learner.met_kinds.only(key)
        self._unhooked.begin(known, details, root, plain=plain)
        self._recomputes.follow()
        self._begin_ns = time.perf_counter_ns()

    def _meet(self, root: torch.nn.Module) -> None:
        """Collect garbage before the first step of a model: an optimizer of before is in a cycle, with its states."""
        met, now_ns = self._roots.get(id(root)), time.perf_counter_ns()
        if (met is None or met() is not root) and now_ns >= self._collects_ns:
            gc.collect()
            after_ns = time.perf_counter_ns()
            self._collects_ns = after_ns + COLLECTS_EACH * (after_ns - now_ns)  # each step may have a new model
        self._roots[id(root)] = weakref.ref(root)

    def _begin_states(self) -> None:
        """Begin a step for what outlives it."""
        self._optimizers = self._states.optimizers
        self._states.gradients.wanted = self._learner.gradients and not self._observing.spare_bytes
        # without an optimizer of torch, bits and addresses of parameters say where a step ends
        self._states.parameters.wanted = self._learner.parameters and not self._updates.active
        self._states.in_parts = self._learner.in_parts if self._current is None else self._current.in_parts
        self._states.begin_step()

    def _expected(self, key: Hashable) -> StepKind | None:
        """Return the kind that a step will most likely be; None: observe it, as where a hard limit was lowered."""
        if self._learner.starts_anew():
            self._states_leave()
        return self._learner.expected(key)

    def _begin_frugal(self, key: Hashable, root: torch.nn.Module | None) -> None:
        """Begin a step without a plan."""
        self._moving(True)
        self._observe(key, root)
        recorded = self._recorder is not None or self._recomputes.records_calls
        self._mode = "observe" if recorded else "frugal"

    def _begin_known(self, known: StepKind, root: torch.nn.Module | None) -> None:
        """Begin a step of a known kind."""
        self._mode = "plan" if known.moves else "keep"
        self._moving(known.moves or self._executor.residence.is_short(known.course.peak_bytes))
        if self._records(known) and not self._just_stopped:
            self._recorder = self._observing.record_moves(root)

    def _records(self, known: StepKind) -> bool:
        """Whether to record a step of this kind. The first step makes optimizer states, so it is no steady one."""
        wanted = known.is_recorded(self._measure_next) or self._learner.is_to_measure(known)
        return wanted and self._steps_ended > 0

    def _observe(self, key: Hashable, root: torch.nn.Module | None) -> None:
        """Record the step that begins, if it can teach something."""
        if self._recomputes.records_calls or self._learner.is_unplanned(key):
            return
        if self._just_stopped or not self._learner.may_be_recorded(key):
            self._observing.spare_bytes = self._learner.spare_bytes
            self._watch_levels(refuses=True)
            return
        self._recorder = self._observing.record(root)
        if self._recorder is None:
            self._surprises.profiled(makes_way=self._observing.profile.makes_way)
            self._watch_levels()

    def _watch_levels(self, *, refuses: bool = False) -> None:
        """Look from now on at what the step holds, as nothing else says it.

        Args:
            refuses: whether the run ends if that is more than the budget.
        """
        self._levels, self._refuses = Levels(self._executor), refuses and self.device.type == "cpu"

    def _await_calls(self, root: torch.nn.Module | None, known: StepKind | None) -> None:
        """Look at each forward for the end of the step, or for one that is too many. Else none is looked at."""
        self._hooks.read = False
        if self._updates.active and self._learner.parameters and alive_of(torch.optim.Optimizer):
            self._updates.active = False  # a look at parameters would bring them all back: an optimizer will step
        if self._updates.active:
            self._updates.begin(root, self.device)
        if not (self._updates.active or self._in_optimizer or self._is_watched(known)):
            self._root_hook.remove()

    def _is_watched(self, known: StepKind | None) -> bool:
        """Whether calls of the outermost module are counted: all is kept, and a second forward would not fit."""
        return known is not None and not (known.moves or known.has_room_for_another(self._learner.limit_bytes))

    def _goes_on(self) -> None:
        """See a step without hooks go on: its module is called once more, and no optimizer has stepped."""
        self._unhooked.differs()
        self._moving(True)
        self.surprised_by("its module is called once more, as in an evaluation without torch.no_grad()")
        self._room.surprised()
        self._now_watched()

    def _begin_memory(self, known: StepKind | None, *, others: bool) -> None:
        """Make room for a step.

        The gradients of the step before are freed by now: Note: [Segments of their own].

        Args:
            known: its kind; None if it is observed.
            others: whether its storages are others than those of the step before.
        """
        residence = self._executor.residence
        if self._see_what_lies_there():
            residence.empty()
        self._limit.lift()
        self._begins_plan = False
        if known is None:
            if self._learner.in_parts and not self._learner.spare_bytes:
                self._states_leave()  # the step before may have kept them
            if self._learner.parameters and not self._updates.active:
                self._parameters_leave()
            residence.empty()
            return
        is_new, known.begun = not known.begun, True
        begins = is_new or (known.is_captured and self._steps_ended == 1)  # the first step of all has made states
        self._begins_plan = begins and known.moves
        if known.in_parts and self._begins_plan:
            self._states_leave()  # its plan has those of other optimizers away, and its own side by side
        if known.schedule.uses and self._begins_plan:
            self._parameters_leave()  # those that are there come side by side too
        if begins:
            residence.empty()
        else:
            needed_bytes = known.course.peak_bytes
            known.begins_empty = others and residence.others_come(needed_bytes, self.budget_bytes)
        self._states.gradients.may_leave = self._learner.gradients and not is_distributed()
        spare_bytes = max(0, self.budget_bytes - known.course.peak_bytes)
        self._states.plan_begins(known, spare_bytes if self._learner.in_parts else None)
        if is_new:
            self._executor.expect(lower_bytes(known))

    def _states_leave(self) -> None:
        """Let all states leave, unless an optimizer is in its step, and so has them: its closure begins steps too."""
        if not self._in_optimizer:
            self._states.leave_now()

    def _parameters_leave(self) -> None:
        """Let all parameters leave, unless an optimizer is in its step."""
        if not self._in_optimizer:
            self._states.parameters.leave_now()

    def _moving(self, moving: bool) -> None:
        """Say whether storages leave in this step. If so, freed memory must go back to the system."""
        if moving is not self._gives_back:
            self._gives_back = moving
            (self._executor.residence.begin if moving else self._executor.residence.end)()

    def _optimizer_called(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._thread.left:
            warn_once(self._once, "thread", TRAINS_IN_A_THREAD)
        elif not self._rest.on:
            self._states.meets(optimizer, args, kwargs)

    def _optimizer_begins(self, _: Any) -> None:
        self._in_optimizer = True
        if self._running:
            self._recomputes.forward_ends()
            self._observing.tick()
            self._settle()
            self._recomputes.verify()
            self._look()
            optimizer_began(self._recorder)

    def _optimizer_ends(self, optimizer: Any) -> None:
        if self._thread.left:
            return
        if self._rest.on:
            self._ends_in_rest()
            return
        optimizer_ended(self._recorder, optimizer)
        self._in_optimizer = self._updates.active = False
        self._optimizer_steps += 1
        self._learner.met_kinds.optimizers = self._states.optimizers
        if self._optimizer_steps >= self._learner.met_kinds.optimizer_steps(self._key):
            self.end_step()
            self._may_rest()
        elif self._running:
            self._mark_end()

    def _may_rest(self) -> None:
        """Let the training rest, if its last steps ran without hooks and as expected: see Note: [Rest]."""
        kind, root = self._current, self._unhooked.root()
        unsure = self._optimizer_steps > 1 or self._room.retries.on or self.beforehand is not None
        unsure = unsure or self._states.gradients.some_away
        if not self._unhooked.without or kind is None or root is None or unsure or self._is_watched(kind):
            return
        self._end_step()
        if self._current is kind and self._unhooked.in_a_row >= BEFORE_REST and kind.seen.alike:
            self._rest.begin(kind, self._key, root)

    def _ends_in_rest(self) -> None:
        """End a step of a rest, as its optimizer has stepped."""
        rest = self._rest
        if not rest.in_step:  # an optimizer that steps by itself
            self._wake()
            return
        self._rested(rest.ends())
        if rest.excess_bytes:
            self.steps[-1] = replace(self.steps[-1], mismatches=1)
            self._surprises.memory(rest.excess_bytes, of_process=self.device.type == "cpu")
        if not rest.goes_on:
            self._wake()

    def _wake(self) -> None:
        """End a rest: the next step is seen whole."""
        self._keep_rested()
        self._rest.end()

    def _settle(self) -> None:
        """Wait for all writes, unless optimizer states leave at the step's end: those writes go on in the next step."""
        if self._current is None or not self._current.schedule.carried:
            self._executor.settle()

    def _end_step(self) -> None:
        self._optimizer_ran = False
        if not self._running:
            return
        self._running = False
        self._settle()
        self._mismatches += self._following.refused
        without, was = self._unhooked.without, self._current
        saved = was.schedule.saved if without and was is not None else tuple(self._saved)
        self._current = self._learner.met_kinds.ended(self._key, was, saved)
        if was is not None and was is self._current:
            was.ran += 1
        if excess_bytes := self._unhooked.ended(self._current):
            self._mismatches += 1
            self._surprises.memory(excess_bytes, of_process=self.device.type == "cpu")
            self._learner.met_kinds.held_more(self._key, was, saved)
        step_ns, counters = self._end_ns - self._begin_ns, self._executor.counters
        step = figures.of_step(self._mode, step_ns, counters, self._mismatches, checked=not without)
        self._keep(step, self._key, was, settled=was is not None and was.refined)
        if was is not None and was is self._current and was.moves and was.refined and self._left_beyond:
            self._learner.reserved_more(self._key, was, self._left_beyond)
        with self.peers.telling():
            self._learn()

    def _learn(self) -> None:
        if self._levels is not None:
            held_bytes = self._levels.sure_bytes(self.budget_bytes)
            self.kinds.recorded(self._key, held_bytes, self._levels.keep_all_bytes)
            self._levels = None
        whole = self._learner.met_kinds.optimizers_stepped(self._key, self._optimizer_steps)
        recording = self._recording or self._stop_recording()
        self._recording = None
        self._current, wrong = self._recomputes.ended(self._key, self._current)
        self._now_watched()
        if wrong:
            self.steps[-1] = replace(self.steps[-1], mismatches=self._mismatches + wrong)
            self._surprises.rebuilt(wrong)
        if recording is not None and whole:
            self._learn_from(recording())
        if self._current is not None:
            self._last, self._last_key = self._current, self._key
        if self._current is not None and self._current.course.peak_bytes <= self.budget_bytes:
            self._known_by_itself()

    def _learn_from(self, step: StepRead) -> None:
        if self._mode == "observe":
            # By now libraries hold the memory that they need for such a step.
            self._executor.residence.measure(live_ram_bytes)
            first = self._steps_ended == 1 or self._states.optimizers > self._optimizers
            self._current = self._learner.observed(self._key, step, first=first)
        elif self._current is not None:
            followed, refined = self._current, self._current.refined
            self._current, line = self._learner.ran(self._key, followed, step)
            if refined and not self._current.shared:
                self._measured, self._measure_next = (self._key, followed, line), False

    def _stop_recording(self) -> Callable[[], StepRead] | None:
        """End a recording, if one is on, and read it."""
        recorder = self._recorder
        if recorder is None:
            return None
        try:
            self._executor.settle()
        except BaseException:
            self._drop_recording()
            raise
        if self._void:
            self._drop_recording()
            if self._mode == "observe":
                self._learner.ran_short(self._key, self._lacked_bytes)
            return None
        self._records_no_more()
        return self._learner.read(self._key, recorder)

    def _drop_recording(self) -> None:
        """End a recording, if one is on, of a step from which nothing is to be learnt."""
        if self._recorder is not None:
            self._recorder.drop()
        self._records_no_more()

    def _records_no_more(self) -> None:
        self._recorder, self._observing.recorder = None, None
        self._executor.observer, self._executor.tier.timed = Observer(), False
        self._now_watched()

    # Ticks

    def first_save(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> Entry | None:
        """Keep or swap the n-th saved storage of the step, as its plan says."""
        if self._reserved.holds(storage, tensor):
            return None
        if self._optimizer_ran:
            self._end_step()
        elif self._hooks.read and self._updated():
            self._ends_unseen()
        if not self._running:
            self._begin_step(None, None)
        self._look(storage.nbytes())
        n, current = len(self._saved), self._current
        saved = storage.nbytes(), dtype_name(tensor.dtype)
        self._saved.append(saved)
        if current is not None and current.schedule.saved[n : n + 1] != (saved,) and not current.fits(n, saved):
            self._surprised(n)
            current = self._current
        if self.watched:
            self._recomputes.saves(n, storage, tensor)
        if current is not None:
            return self._following.save(current, n, storage, tensor, self._recorder)
        self._observing.count = n
        entry = self._observing.first_save(storage, tensor)
        if entry is not None:
            self._following.entries.append(entry)
        return entry

    def _look(self, size_bytes: int | None = None) -> None:
        """Look at the memory that a step holds, if it is neither planned nor recorded.

        Args:
            size_bytes: size of the storage that is saved or read now; None at a border of an optimizer's step.

        Raises:
            Infeasible: it holds more than the budget.
        """
        if self._levels is None:
            return
        if self._refuses and size_bytes is not None:  # a look takes longer than a save
            self._levels.passed_bytes += size_bytes
            if self._levels.passed_bytes * LOOKS < self.budget_bytes:
                return
        self._levels.tick()
        held_bytes = self._levels.sure_bytes(self.budget_bytes) - self._observing.spared_bytes
        if self._refuses and beyond(held_bytes, self.budget_bytes):
            self._levels = None
            with self.peers.telling():
                raise self._learner.too_large(self._key, held_bytes)

    def stays(self, tensor: torch.Tensor) -> None:
        """Count a large saved tensor that stays where it is. See Director."""
        self.passed[self._surprises.stays(tensor, self.device)] += 1

    def handled(self, handle: Handle) -> None:
        """Pass a handle of a saved tensor on to those that may move its storage later. See Director."""
        self._observing.handled(handle)
        self._room.handled(handle)

    def before_read(self, entry: Entry) -> None:
        """Act as planned before this saved tensor is read."""
        self._look(entry.size_bytes)
        if self.beforehand is not None:
            self.beforehand.confirm(self._saved, self._learner.refused_beforehand)
        if self._observing.held:
            self._observing.tick()
        if self._recorder is not None:
            self._recorder.reads_back(entry)
        if self._current is not None:
            self._following.read(self._current, entry)

    def _now_watched(self) -> None:
        self.watched = self._recorder is not None or self._recomputes.sees_calls
        self.observes = self._current is None or self._room.retries.on

    def aside(self) -> AbstractContextManager[None]:
        """Return a context for our own work, which is not recorded. See Director."""
        if self._recorder is None and not self._states.parameters.on:
            return self._recomputes.paused()
        return self._apart()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        paused = NOTHING if self._recorder is None else self._recorder.paused()
        with paused, self._recomputes.paused(), self._states.parameters.aside():
            yield

    def known(self) -> StepKind | None:
        """Return the kind of this step; None if it is observed. See Conductor."""
        return self._current

    def recorder(self) -> Recorder | None:
        """Return the recorder of this step, if one is on. See Conductor."""
        return self._recorder

    def act(self, action: Action | None) -> None:
        """Carry out an action of the plan. See Conductor."""
        self._following.act(action)

    def surprised_by(self, what: str) -> None:
        """Treat the rest of the step as an unknown one. See Conductor."""
        self._current = None
        self._differs()
        self._mismatches += 1
        self._void = self._recorder is not None  # the profiler cannot end in backward, nor while an op runs
        self._watch_levels()
        self._learner.met_kinds.surprised(self._key, tuple(self._saved))
        self._surprises.differs(what)

    def _surprised(self, n: int) -> None:
        """Handle an n-th saved storage that is not the expected one: see Note: [Steps]."""
        expected = self._current.schedule.saved[n : n + 1] if self._current else ()
        self._current = self._learner.met_kinds.other(self._key, tuple(self._saved))
        self._differs()
        if self._current is not None:
            return
        self._mismatches += 1
        self._drop_recording()
        self._watch_levels()
        self._learner.met_kinds.surprised(self._key, tuple(self._saved))
        self._surprises.save(n, expected, self._saved[n])
        if not in_backward():
            self._room.surprised()
            self._now_watched()

    def _differs(self) -> None:
        """Stop following the plan: from here on this step is not the one that it was made for."""
        self._limit.lift()
        self._recomputes.differs()
        self._now_watched()
        self._learner.layers.differs()
