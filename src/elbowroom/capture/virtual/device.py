"""The virtual device: a context in which torch looks like a CUDA build with one GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Self, final

import torch

from elbowroom.capture.arrivals import changed_once_there
from elbowroom.capture.in_parts import PartsWatch
from elbowroom.capture.job_rank import JobRank
from elbowroom.capture.rank_mail import RankMail
from elbowroom.capture.recording.modules import ModulePaths
from elbowroom.capture.recording.observing_director import OptimizerWatch
from elbowroom.capture.steady import with_inputs, without_gaps
from elbowroom.capture.virtual.accumulations import Accumulations
from elbowroom.capture.virtual.compilers.built_kernels import BuiltKernels
from elbowroom.capture.virtual.compilers.compiled import Compiled
from elbowroom.capture.virtual.compilers.triton_kernels import Kernels
from elbowroom.capture.virtual.host_values.repeats import Repeats
from elbowroom.capture.virtual.host_values.values import SPECIALS, give_up_bytes
from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.ledger_trace import assemble
from elbowroom.capture.virtual.mode import VirtualMode
from elbowroom.capture.virtual.ops import routing
from elbowroom.capture.virtual.saves import Saves
from elbowroom.capture.virtual.tensor import gradient_of
from elbowroom.capture.virtual.torch_cuda import threads
from elbowroom.capture.virtual.torch_cuda.groups import Groups
from elbowroom.capture.virtual.torch_cuda.library_settings import CudnnModel, ModelledDevice
from elbowroom.capture.virtual.torch_cuda.paged import Paged
from elbowroom.capture.virtual.torch_cuda.patches import changes, patched
from elbowroom.capture.virtual.torch_cuda.processes import Started
from elbowroom.capture.virtual.updates import BackwardUpdates
from elbowroom.engine.optimizer_parts import Portion
from elbowroom.errors import CaptureError
from elbowroom.machine import Machine
from elbowroom.torch_compat.core import (
    allow_cuda_device,
    autocast_asked_of_all,
    buffers_of,
    import_dynamo,
    lift_on_cpu,
    parameters_of,
    pop_mode,
    push_mode,
)
from elbowroom.trace import Trace

EVALUATIONS = 4
"""Most forwards without gradients that still run once the wanted steps are done."""


WARMED = 16
"""Steps on another stream than the default one until the script is left: a step to be captured is warmed up there."""

REPLAYS = 20
"""Replays of CUDA graphs that still run before the script is left, once the wanted steps are done."""

OWNED_UPDATES = 40
"""Steps by hand, per wanted step, after which no step of an optimizer is waited for any more."""

HOST_STEPS = 10
"""Steps on the CPU, per wanted step, after which no op on the device is waited for any more."""


BUCKETS = ("aten.empty", "aten.copy_", "aten._to_copy", "c10d.")
"""Beginnings of the names of ops with which buckets of gradients are made and exchanged."""


class Enough(BaseException):
    """The wanted steps are recorded. It leaves a training script, and no `except Exception` in it catches it."""


@final
class VirtualDevice:
    """Context in which "cuda:0" is a device without bytes, on which ops leave only their allocations.

    >>> with VirtualDevice(Machine.of("a100-80gb")) as device:
    ...     train()
    >>> trace = device.trace()

    Args:
        machine: the machine whose GPU it is.
        steps: training steps to record, at least 2; the script is left when they are done. None records all.
        cudnn: model of the memory of cuDNN's closed kernels.
        fake_host: whether parameters and large float tensors made on the CPU have no bytes either.
        cublas_handles: number of handles that have a workspace.
        min_size_bytes: steps of optimizers are carried out in parts, which name the states of at least this size; None
            carries them out whole.
        job: the process of a job that it is the GPU of; None if only the script says so.
        mail: what it really sends to other processes of the job, and receives.

    Attributes:
        steps_seen: number of complete steps.
        evaluating: forwards without gradients since the last one with them.
        host_steps: calls of `step` of optimizers before anything was on the device.
        host_tensors: parameters of these optimizers.
        ledger: the record of what happens.
        repeats: forwards without gradients that were noted again and not run.
        started: processes that the script starts by itself.
        groups: groups of processes that the script makes.
        compiled: the code that the script compiles; on request it reports what that saves for backward.
    """

    def __init__(
        self,
        machine: Machine,
        steps: int | None = 3,
        *,
        cudnn: CudnnModel | None = None,
        fake_host: bool = True,
        cublas_handles: int = 2,
        min_size_bytes: int | None = None,
        job: JobRank | None = None,
        mail: RankMail | None = None,
    ) -> None:
        self._steps = steps
        self._machine = machine
        self.settings = ModelledDevice.of(machine, cudnn or CudnnModel(), fake_host, cublas_handles)
        self.settings = replace(self.settings, gpus=1 if job is None else job.local_ranks)
        self.ledger = Ledger()
        self.ledger.replayed = self._replayed
        self.compiled = Compiled(self.ledger)
        self._counts: dict[int, int] = {}
        self._ends: list[tuple[int, int]] = []
        self._forwards: list[int] = []
        self._updates = BackwardUpdates(self.ledger)
        self._evaluations = 0
        self.evaluating = 0
        self.host_steps = 0
        self.host_tensors = 0
        self._stack = ExitStack()
        self._mode = VirtualMode(self.ledger, self.settings, SPECIALS, routing.ROUTES)
        self._roots: dict[int, weakref.ref[torch.nn.Module]] = {}
        self.repeats = Repeats(self._mode, self._root)
        self.started = Started(self.ledger, lambda: not self.steps_seen and not self.host_steps, self._mode.forked)
        self.groups = Groups(self._mode, job, mail)
        self._parts = PartsWatch(self._optimizer_starts, min_size_bytes, self._part_begins, self._part_ends)
        self._min_size_bytes = min_size_bytes or 0
        self._ran_out = False
        self._accumulations = None if min_size_bytes is None else Accumulations(self.ledger, min_size_bytes)

    @property
    def steps_seen(self) -> int:
        return min(self._counts.values()) if self._counts else len(self._updates)

    def __enter__(self) -> Self:
        import_dynamo()
        stack, ram = self._stack, self.settings.ram
        if not ram:
            allow_cuda_device()
            stack.enter_context(autocast_asked_of_all())
        stack.callback(lift_on_cpu, lift_on_cpu(True))
        stack.enter_context(patched([*changes(self.settings, self.ledger), *routing.changes(self.settings)]))
        stack.enter_context(routing.installed(self._mode))
        self._paths = paths = ModulePaths(self._root, self._moved)
        paths.start()
        stack.callback(paths.stop)
        watch = OptimizerWatch(self._optimizer_begins, self._optimizer_ends)
        stack.callback(watch.close)
        stack.callback(self._parts.close)
        if self._accumulations is not None:
            stack.callback(self._accumulations.close)
        stack.enter_context(self._mode.values.used())
        stack.enter_context(self._mode)
        routing.calibrate(self._mode)
        stack.enter_context(patched(self._updates.changes(self._backward_begins)))
        self._mode.updates = self._updates
        self._mode.saves = saves = Saves(self.ledger, ram=ram)
        stack.enter_context(patched([*saves.changes(), *self.repeats.changes()]))
        stack.enter_context(patched([*self.compiled.changes(), *self.started.changes(), *self.groups.changes()]))
        stack.enter_context(saves.hooks())
        libraries = () if ram else (Kernels(self._mode), BuiltKernels(self._mode), Paged(self.ledger))
        changed_once_there({name: by for each in libraries for name, by in each.changes().items()}, stack, patched)
        stack.enter_context(patched(threads.changes(self._other_thread, Enough)))
        return self

    def _other_thread(self) -> Callable[[], AbstractContextManager[None]]:
        """Return the context for a thread that is started now."""
        inherit = self._paths.inherited()

        @contextmanager
        def on_device() -> Iterator[None]:
            if self._mode.off or self._mode.saves is None:
                yield
                return
            inherit()
            push_mode(self._mode)
            try:
                with self._mode.saves.hooks(), nullcontext() if self.settings.ram else autocast_asked_of_all():
                    yield
            finally:
                pop_mode()

        return on_device

    def __exit__(self, kind: type[BaseException] | None, problem: object, trace: object) -> bool:
        self._classify_modules()
        self._roots.clear()
        self._updates.close()
        self.compiled.hold()
        self._mode.off = True
        self.ledger.close()
        self._stack.close()
        self._ran_out = kind is None or not issubclass(kind, Enough)
        return kind is not None and issubclass(kind, Enough)

    def trace(self) -> Trace:
        """Return the trace of the recorded steps.

        Raises:
            CaptureError: no complete training step was recorded.
        """
        if not self._ends and not self._updates:
            raise CaptureError(
                "virtual device: given a run without a training step on cuda; allowed is a training loop; move the "
                "model to cuda and let an optimizer step, or change its parameters after a backward"
            )
        ends = self.step_ends()
        if self._ran_out:
            self.ledger.forget_end(*([0, *ends][-2:]))
        trace = with_inputs(assemble(self.ledger, ends, self._machine))
        return without_gaps(trace, self._forwards) if self.settings.ram else trace

    def step_ends(self) -> list[int]:
        """Return the number of ops up to the end of each step: its last optimizer, or its last change by hand."""
        if not self._ends:
            return list(self._updates.ends)
        ends: list[int] = []
        seen: set[int] = set()
        for position, optimizer in self._ends:
            if optimizer in seen:
                seen.clear()
            if seen or not ends:
                ends[-1:] = [position]
            else:
                ends.append(position)
            seen.add(optimizer)
        return ends

    # What happens on it

    def _root(self, module: torch.nn.Module) -> None:
        self._classify(module)
        self._updates.settle()
        if torch.is_grad_enabled():
            self._forwards.append(len(self.ledger.ops))
        self.evaluating = 0 if torch.is_grad_enabled() else self.evaluating + 1
        if not self._is_over():
            return
        self._evaluations += not torch.is_grad_enabled()
        if torch.is_grad_enabled() or self._evaluations > EVALUATIONS:
            raise Enough

    def _backward_begins(self) -> None:
        self.compiled.backward_begins()
        if self._is_over():
            raise Enough

    def _is_over(self) -> bool:
        """Return whether all wanted steps are done."""
        if self._steps is None or self._captures():
            return False
        waits = not self._counts and self._updates.owned
        if waits and self.groups.ranks:
            return False  # FSDP writes its parameters in each micro-batch
        return self.steps_seen >= self._steps * (OWNED_UPDATES if waits else 1)

    def _captures(self) -> bool:
        """Return whether a graph is being captured, or may be soon: its code is warmed up on another stream before."""
        streams = self.ledger.streams
        return streams.captured is not None or (streams.current() != 0 and self.steps_seen < WARMED)

    def _replayed(self) -> None:
        """Note a replay: a script may run only graphs from here on, and may still capture another one."""
        if self._is_over() and self.ledger.streams.replays > REPLAYS:
            raise Enough

    def _moved(self, path: str) -> None:
        self._mode.path = path

    def _classify(self, module: torch.nn.Module) -> None:
        number = id(module)
        if number not in self._roots:
            self._roots[number] = weakref.ref(module, lambda _: self._roots.pop(number, None))
            if self.settings.ram:
                self._without_bytes(module)
                self.ledger.met([*parameters_of(module), *buffers_of(module)])
            self.ledger.classify("parameter", parameters_of(module))
            self.ledger.classify("buffer", buffers_of(module))
            if self._accumulations is not None:
                self._accumulations.watch(parameters_of(module))

    def _without_bytes(self, module: torch.nn.Module) -> None:
        """Take the bytes from parameters that got them by `parameter.data = ...`: those made on the CPU have none."""
        for parameter in parameters_of(module) if self.settings.fake_host else ():
            give_up_bytes(parameter)

    def _classify_modules(self) -> None:
        for known in tuple(self._roots.values()):
            module = known()
            if module is not None:
                self.ledger.classify("parameter", parameters_of(module))
                self.ledger.classify("buffer", buffers_of(module))

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._steps is not None and self._counts.get(id(optimizer), 0) >= 8 * self._steps:
            raise Enough
        self._parts.meets(optimizer, args, kwargs)

    def _optimizer_starts(self, _: torch.optim.Optimizer) -> None:
        self._mode.optimizing = True

    def _part_begins(self, _: torch.optim.Optimizer, portion: Portion) -> None:
        self.ledger.part_begins()
        if self._accumulations is not None:
            self._accumulations.used(portion.parameters())

    def _part_ends(self, optimizer: torch.optim.Optimizer, portion: Portion) -> None:
        values = (optimizer.state.get(parameter, {}).values() for parameter in portion.parameters())
        states = [each for found in values for each in found if isinstance(each, torch.Tensor)]
        gradients = () if self._accumulations is None else self._accumulations.part_ends(portion.parameters())
        self.ledger.part_ends(states, self._min_size_bytes, gradients=gradients)

    def _host_step_ends(self, optimizer: Any) -> None:
        """Count a step on the CPU, which is no step of the device; a script with only such steps is left after some."""
        self.host_steps += 1
        self.host_tensors = max(self.host_tensors, sum(len(group["params"]) for group in optimizer.param_groups))
        if self._steps is not None and self.host_steps >= HOST_STEPS * self._steps:
            raise Enough

    def _optimizer_ends(self, optimizer: Any) -> None:
        self._mode.optimizing = False
        # C++ cannot distinguish tensors of the host without bytes from meta tensors. So training on the CPU puts some
        # on the device: backward makes constants, DistributedDataParallel makes buckets.
        buckets = BUCKETS if self.groups.ranks else ()
        if not self.settings.ram and not any(
            op.phase == "forward" and (op.reads or op.writes) and not op.name.startswith(buckets)
            for op in self.ledger.ops
        ):
            self._host_step_ends(optimizer)
            return
        if self._updates.optimizer_stepped():
            self._classify_modules()
        self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        self._ends.append((len(self.ledger.ops), id(optimizer)))
        self._mode.forget_nodes()
        if self._mode.saves is not None:
            self._mode.saves.step_ends()
        if self._accumulations is not None:
            self._accumulations.step_ends()
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self.ledger.classify("parameter", parameters)
        # `each.grad` would tell that Python reads it
        gradients = (gradient for each in parameters if (gradient := gradient_of(each)) is not None)
        self.ledger.classify("gradient", gradients)
        state = (value for values in optimizer.state.values() for value in values.values())
        self.ledger.classify("optimizer_state", (value for value in state if isinstance(value, torch.Tensor)))
        self.groups.step_ended()
