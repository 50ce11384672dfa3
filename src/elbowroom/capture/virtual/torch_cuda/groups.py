"""Groups of processes on the virtual device: this process is the only one, for any size of the group.

`init_process_group` makes a group whose other processes have the same tensors. A reduction leaves these unchanged, and
a gathering copies those of this process. So DistributedDataParallel, FSDP and tensors on a mesh run unchanged, as any
rank of any number of them. torch's own fake group was tried: its gathered tensors have no values, and the buckets of
DistributedDataParallel end with an error there.

What a process sends to one other is really sent if it is objects or a few whole numbers: code decides by these, as
stages of a pipeline do. The other process then runs too (capture/rank_mail.py). Other tensors that are received keep
what they have.

Each collective of tensors on the GPU is an op of the trace, named as in c10d. It reads and writes the storages of its
tensors. The trace has its group of ranks and its bytes, of which its time is made (step/exchange_times.py).
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import torch

from elbowroom.capture.job_rank import MOST_ON_A_NODE, JobRank
from elbowroom.capture.rank_mail import RankMail
from elbowroom.engine.storages import tensors_of
from elbowroom.errors import CaptureError
from elbowroom.hardware.interconnects import Communicator
from elbowroom.step.partners import WAITS
from elbowroom.torch_compat.device_modules import done_work

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import VirtualMode

Change = tuple[Any, str, Any]
NAME = "elbowroom"
OTHERS = "{} processes (estimated is one of them)"
Tensors = Sequence[torch.Tensor]
MOST_NUMBERS = 16
"""Most whole numbers of a tensor that are really sent: counts, sizes and flags, and no tokens."""
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@final
class Groups:
    """The groups that a script makes.

    Args:
        mode: notes each collective.
        job: the process that this one is; None if only the script says so.
        mail: what is really sent to other processes; None if they do not run.

    Attributes:
        ranks: processes of the default group, 0 before there is one.
        members: ranks of the group that is being made; empty for all of them.
    """

    current: Groups | None = None
    members: tuple[int, ...] = ()

    def __init__(self, mode: VirtualMode, job: JobRank | None = None, mail: RankMail | None = None) -> None:
        self.mode = mode
        self._mail = mail
        self._of_objects = self._waits = False
        self.ranks = 0
        self.backend = "nccl"
        self._job = job

    def changes(self) -> list[Change]:
        """Return the changes of torch.distributed, if it is built."""
        if not torch.distributed.is_available():
            return []
        from torch.distributed import device_mesh, distributed_c10d

        dist: Any = torch.distributed
        _register()
        Groups.current = self
        helper: Any = distributed_c10d._new_process_group_helper
        found = {
            "init_process_group": self._init(dist.init_process_group),
            "get_backend": lambda *_args, **_how: self.backend,
            "is_nccl_available": lambda: True,
            "broadcast_object_list": _nothing,
            "scatter_object_list": _scattered,
            "send_object_list": self._send(dist.send_object_list),
            "recv_object_list": self._receive(dist.recv_object_list),
        }
        # init_process_group sets a hook of its own and never removes it; this change restores the old one
        hook = (sys, "excepthook", sys.excepthook)
        places = (dist, distributed_c10d, device_mesh)
        patched = ((place, name, value) for name, value in found.items() for place in places if hasattr(place, name))
        return [hook, *patched, (distributed_c10d, "_new_process_group_helper", _of_ours(helper))]

    def noted(self, members: tuple[int, ...]) -> int:
        """Note a group of ranks in the ledger; return its number there."""
        ledger = self.mode.ledger
        rank, local = int(os.environ.get("RANK") or 0), int(os.environ.get("LOCAL_WORLD_SIZE") or 0)
        if self._job is not None:
            rank, local = self._job.rank, self._job.local_ranks
        local = local or min(self.ranks, MOST_ON_A_NODE)
        here = sum(each // local == rank // local for each in members)
        ledger.communicators.append(Communicator(len(members), max(1, here), max(local, here)))
        return len(ledger.communicators) - 1

    def step_ended(self) -> None:
        """Note that an optimizer has stepped: a process that runs only for what it sends may rest."""
        if self._mail is not None:
            self._mail.step_ended()

    def pass_numbers(self, name: str, tensors: Iterable[torch.Tensor], peer: int) -> None:
        """Send a few whole numbers to another process, or receive them.

        Args:
            name: "send" or "recv".
            tensors: the tensors that are sent or received; those of many numbers or of floats are left out.
            peer: rank of the other process in the job.
        """
        for tensor in tensors:
            if self.is_message(tensor):
                self._tell_of_waits()
            elif self._mail is None or self._of_objects:
                continue
            elif name == "send":
                self._mail.send(peer, json.dumps(tensor.detach().flatten().tolist()).encode())
            else:
                numbers = torch.tensor(json.loads(self._mail.receive(peer)), dtype=tensor.dtype, device="cpu")
                tensor.detach().copy_(numbers.view(tensor.shape))

    def is_message(self, tensor: torch.Tensor) -> bool:
        """Return whether what is sent to one process is a tensor of a training: no object and not a few numbers."""
        return not self._of_objects and (tensor.numel() > MOST_NUMBERS or tensor.dtype not in WHOLE)

    def _tell_of_waits(self) -> None:
        if not self._waits:
            self._waits = True
            self.mode.ledger.remark("unsupported", WAITS)

    def _send(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the function that sends objects, so that they are sent."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def send(*args: Any, **how: Any) -> None:
            given = signature.bind(*args, **how).arguments
            peer = _peer(given, "dst")
            if self._mail is not None and peer is not None:
                self._mail.send(peer, pickle.dumps(list(given["object_list"])))
            with self._without_mail():
                function(*args, **how)

        return send

    def _receive(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Replace the function that receives objects by one that gets them of the other process."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def receive(*args: Any, **how: Any) -> int:
            given = signature.bind(*args, **how).arguments
            peer = _peer(given, "src")
            if self._mail is None or peer is None:
                raise _not_there()
            content = self._mail.receive(peer)
            objects = pickle.loads(content)  # of the script itself, as another rank of the same capture
            with self._without_mail():
                device = given.get("device") or torch.device("cuda", torch.cuda.current_device())
                for tensor in (
                    torch.empty(len(objects), dtype=torch.long, device=device),
                    torch.empty(len(content), dtype=torch.uint8, device=device),
                ):
                    torch.distributed.recv(tensor, src=peer, group=given.get("group"))
            given["object_list"][:] = objects
            return peer

        return receive

    @contextmanager
    def _without_mail(self) -> Iterator[None]:
        """Send and receive the tensors with which torch sends objects as tensors without numbers."""
        self._of_objects = True
        try:
            yield
        finally:
            self._of_objects = False

    def _init(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def init(backend: str | None = None, init_method: str | None = None, *args: Any, **how: Any) -> None:
            given = dict(zip(("timeout", "world_size", "rank"), args, strict=False)) | how
            size, rank = (_number(given, name) for name in ("world_size", "rank"))
            self._check(size)
            self.backend = str(backend or "nccl").rpartition(":")[2]
            self.ranks = max(size, 1)
            if size > 1:
                self.mode.ledger.remark("unsupported", OTHERS.format(size))
            dist: Any = torch.distributed
            function(NAME, store=dist.HashStore(), world_size=max(size, 1), rank=max(rank, 0))

        return init

    def _check(self, size: int) -> None:
        """Refuse a group of another size than that of the job."""
        if self._job is not None and size != self._job.ranks:
            raise CaptureError(
                f"its process group has {size} processes, and --ranks is {self._job.ranks}; allowed is the same number "
                "in both; have the script read WORLD_SIZE, or give --ranks its own number"
            )


def _nothing(*_args: Any, **_how: Any) -> None:
    """Leave objects as they are: every process has the same ones."""


def _not_there() -> CaptureError:
    """Explain that objects come of a process that does not run."""
    return CaptureError(
        "it receives objects from another rank, which is not there; allowed are ranks of a job whose size is given, "
        "and receives that name their sender; estimate the script with --ranks"
    )


def _peer(given: dict[str, Any], name: str) -> int | None:
    """Return the rank in the job of the process that is named in the arguments of a call, by its rank or in a group."""
    number, group = given.get(f"group_{name}"), given.get("group")
    if number is None or group is None:
        return number if number is not None else given.get(name)
    return torch.distributed.get_global_rank(group, number)


def _scattered(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    *_args: Any,
    **_how: Any,
) -> None:
    """Take this rank's object, if it is this process that has them all."""
    if not scatter_object_input_list:
        raise _not_there()
    scatter_object_output_list[0] = scatter_object_input_list[torch.distributed.get_rank()]


def _of_ours(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what makes each group, so that groups of every backend are those of the virtual device."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def made(*args: Any, **how: Any) -> Any:
        given = signature.bind(*args, **how).arguments
        given["backend"] = NAME
        Groups.members = tuple(given.get("global_ranks_in_group") or ())
        for name in ("backend_options", "pg_options", "device_id"):
            if name in given:
                given[name] = None
        return function(**given)

    return made


def _number(given: dict[str, Any], name: str) -> int:
    value = given.get(name, -1)
    return int(os.environ.get(name.upper()) or -1) if value < 0 else int(value)


def _register() -> None:
    """Register the backend with torch."""
    if NAME not in torch.distributed.Backend.backend_list:
        make: Any = _made
        torch.distributed.Backend.register_backend(NAME, make, devices=["cpu", "cuda"])


def _made(_store: Any, rank: int, size: int, _timeout: Any) -> Any:
    """Make a group; its class is made here, as not every build of torch has its base."""
    ranks = Groups.members or tuple(range(size))

    class Group(torch.distributed.ProcessGroup):
        """A group of processes, of which only this one exists."""

        number: int | None = None
        members = ranks

        def communicator(self) -> int | None:
            """Return the number of the group in the ledger, where it is noted at its first collective."""
            if self.number is None and Groups.current is not None:
                self.number = Groups.current.noted(ranks)
            return self.number

        def size(self) -> int:
            return size

        def rank(self) -> int:
            return rank

        def getBackendName(self) -> str:  # noqa: N802  torch's name
            return NAME

        def _set_group_name(self, name: str) -> None:
            self.known_as = name

        @property
        def group_name(self) -> str:
            """Name by which device meshes and functional collectives find it."""
            return self.known_as

    for function, names in COLLECTIVES.items():
        for name in names:
            setattr(Group, name, _noting(name, function))
    made: Any = Group
    return made(rank, size)


def _noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a collective, so that it is noted."""

    @functools.wraps(function)
    def done(group: Any, *args: Any, **how: Any) -> Any:
        targets = list(tensors_of(args[:1]))
        sources = list(tensors_of(args[1:2])) if name not in IN_PLACE else targets
        assert Groups.current is not None
        peer = group.members[args[1]] if name in ("send", "recv") else None
        other = peer if any(map(Groups.current.is_message, targets)) else None
        with Groups.current.mode.collective(f"c10d.{name}", sources, targets, group.communicator(), other):
            if peer is not None:
                Groups.current.pass_numbers(name, targets, peer)
            return function(group, *args, **how)

    return done


def _stay(_: Any, tensors: Any = None, *_rest: Any, **_how: Any) -> Any:
    """Leave tensors as they are: every process has the same ones, and their reduction counts as these."""
    return done_work(tensors if tensors is not None else [torch.zeros(1, device="cpu")])


def _barrier(_: Any, *_rest: Any, **_how: Any) -> Any:
    return _stay(None)


def _gather_lists(_: Any, outputs: Sequence[Tensors], inputs: Tensors, *_rest: Any, **_how: Any) -> Any:
    for targets, source in zip(outputs, inputs, strict=False):
        for target in targets:
            target.copy_(source)
    return done_work(outputs)


def _gather(_: Any, output: torch.Tensor, source: torch.Tensor, *_rest: Any, **_how: Any) -> Any:
    if source.numel():
        output.view(-1, source.numel()).copy_(source.reshape(1, -1))
    return done_work([output])


def _scatter_lists(group: Any, outputs: Tensors, inputs: Sequence[Tensors], *_rest: Any, **_how: Any) -> Any:
    for target, sources in zip(outputs, inputs, strict=False):
        target.copy_(sources[group.rank()])
    return done_work(outputs)


def _scatter(group: Any, output: torch.Tensor, source: torch.Tensor, *_rest: Any, **_how: Any) -> Any:
    if output.numel():
        output.view(-1).copy_(source.reshape(-1, output.numel())[group.rank()])
    return done_work([output])


def _exchange(_: Any, output: Any, source: Any, *_rest: Any, **_how: Any) -> Any:
    one = isinstance(output, torch.Tensor)
    for target, given in [(output, source)] if one else zip(output, source, strict=True):
        if target.shape == given.shape:
            target.copy_(given)
    return done_work([output] if one else output)


IN_PLACE = ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "send", "recv", "recv_anysource", "barrier")
"""Operations whose first argument is all that they read and change."""

COLLECTIVES: dict[Callable[..., Any], tuple[str, ...]] = {
    _stay: ("allreduce", "allreduce_coalesced", "broadcast", "reduce", "send", "recv", "recv_anysource"),
    _barrier: ("barrier", "monitored_barrier"),
    _gather_lists: ("allgather", "gather"),
    _gather: ("_allgather_base", "all_gather_into_tensor", "all_gather_single"),
    _scatter_lists: ("reduce_scatter", "scatter"),
    _scatter: ("_reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_single"),
    _exchange: ("alltoall", "alltoall_base", "all_to_all_single"),
}
"""Operations of a group, by the names of all versions of torch."""
