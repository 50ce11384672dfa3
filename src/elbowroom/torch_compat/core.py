"""Every private torch symbol this package uses: what for, and on which versions it was checked (2.13.0 unless said).

Nothing else in the package may name a private torch symbol; what recomputing needs is in op_calls.py, what
the caching allocator of CUDA is asked in cuda_allocator.py, and what recordings need in profiler.py.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch.utils._device import DeviceContext as DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

Function = TypeVar("Function", bound=FunctionType)
Result = TypeVar("Result")


storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""Address of the StorageImpl: the identity of a storage while it lives. UntypedStorage has no public one."""

version_of: Callable[[torch.Tensor], int] = attrgetter("_version")
"""How often the tensor, or one that shares its counter, was changed in place; it has no public reader."""


def no_dispatch() -> AbstractContextManager[None]:
    """Skip the user's dispatch modes: our own housekeeping is not part of the step."""
    return torch._C._DisableTorchDispatch()


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether anything is called before or after the forward of this one module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def schemas_of(name: str) -> list[Any]:
    """Declarations of all overloads of an operator such as "aten::add" that the dispatcher has."""
    found = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    return [schema for schema in found if torch._C._dispatch_has_kernel(_full_name(schema))]


def has_kernel(schema: Any, key: str) -> bool:
    """Whether an overload has a kernel for a dispatch key, such as "CPU" or "CompositeImplicitAutograd"."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(_full_name(schema), key)


def _full_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def top_hooks() -> tuple[Any, Any] | None:
    """The pair of saved-tensor hooks that autograd of this thread calls now; no public query exists."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def without_top_hooks() -> Iterator[None]:
    """Take the topmost pair of saved-tensor hooks of this thread off, and put it back at the end."""
    functions: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    hooks = top_hooks()
    if hooks is not None:
        functions._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        if hooks is not None:
            functions._push_saved_tensors_default_hooks(*hooks)


def hooks_allowed() -> bool:
    """Whether saved-tensor hooks may be put in now: `disable_saved_tensors_hooks` forbids it."""
    return torch._C._autograd._saved_tensors_hooks_is_enabled()  # pyright: ignore[reportAttributeAccessIssue]


def keywords_of_call() -> dict[str, Any] | None:
    """Keyword arguments of the module call whose global hook calls who asks; None where they are not found.

    Global hooks get none. They are called by the function `inner` of `Module._call_impl`, which has them as a variable.
    Checked on 2.11.0 and 2.13.0.
    """
    frame = sys._getframe(2)
    found = frame.f_locals.get("kwargs") if frame.f_code.co_name == "inner" else None
    return found if isinstance(found, dict) else None


def holders_of(storage: torch.UntypedStorage) -> int:
    """References to a storage's bytes: one per tensor on it, and one of the Python object at hand."""
    return torch._C._storage_Use_Count(storage._cdata)


def in_compiled_backward() -> bool:
    """Whether a backward pass that compiled autograd has made code of is under way. Checked on 2.11.0 and 2.13.0."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(module.in_compiled_autograd_region)


def never_compiled(function: Function) -> Function:
    """Have torch.compile run a function, and all that it calls, as it is. Checked on 2.11.0 and 2.13.0.

    Autograd calls the hooks of saved tensors while a compiled region runs, and the compiler would take them for code of
    the user. torch.compiler.disable imports the whole compiler, and puts a call around each call; the attribute, which
    it sets too, ends a region before the call where the compiler comes across it.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    vars(function)["_torchdynamo_disable"] = True
    return function


def tell_of_compiling(begins: Callable[[], None], ends: Callable[[], None]) -> bool:
    """Have the compiler call these around each compilation, however often this is asked; False where it is not loaded.

    No public way exists; torch._dynamo.reset() forgets it. Checked on 2.11.0 and 2.13.0.
    """
    compiler = sys.modules.get("torch._dynamo.callback")
    if compiler is None:
        return False
    told = _told.setdefault((begins, ends), (lambda _: begins(), lambda _: ends()))
    if told[0] not in compiler.callback_handler.start_callbacks:
        compiler.callback_handler.register_start_callback(told[0])
        compiler.callback_handler.register_end_callback(told[1])
    return True


_told: dict[Any, tuple[Callable[[Any], None], Callable[[Any], None]]] = {}


# The virtual device (capture/virtual/). Checked on 2.11.0 (its CUDA build, on the rig) and 2.13.0.


class DispatchMode(TorchDispatchMode):
    """torch's documents name this class, and its module is private. This one does without torch._dynamo."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def as_subclass(cls: type, meta: torch.Tensor, device: torch.device) -> Any:
    """A tensor of a class on the storage of a meta tensor, with the autograd and autocast keys of `device`.

    C++ goes on to see a meta tensor (`dispatch_device` is off): so the autograd engine uses the queue of the calling
    thread, where a cuda device would abort a CPU-only build. No public constructor sets the keys.
    """
    return torch.Tensor._make_subclass(cls, meta, False, dispatch_device=False, device_for_backend_keys=device)


_KEYS: dict[str, int] = {
    name: torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    for name in ("CUDA", "AutogradCUDA", "CPU", "AutogradCPU", "AutocastCUDA")
}
_CUDA = _KEYS["CUDA"] & _KEYS["AutogradCUDA"] | _KEYS["AutocastCUDA"]
_CPU = _KEYS["CPU"] & _KEYS["AutogradCPU"]


def push_mode(mode: TorchDispatchMode) -> None:
    """Put a mode on the stack of this thread; entering it twice would change what it notes for its end."""
    torch._C._push_on_torch_dispatch_stack(mode)


def fakes_tensors() -> bool:
    """Whether torch works with tensors that are only shapes: its FakeTensorMode comes after all other modes."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def pop_mode() -> None:
    """Take the last mode off the stack of this thread."""
    torch._C._pop_torch_dispatch_stack(None)


def backend_of(tensor: torch.Tensor) -> str:
    """The name of the backend whose dispatch keys a tensor has, CUDA or CPU; "" where it has other ones."""
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return "CUDA" if keys & _CUDA else "CPU" if keys & _CPU else ""


KEYS_OF_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
"""Marks a wrapper of tensors on cuda, which has no storage, for `backend_of`."""


MAKE_WRAPPER = "_make_wrapper_subclass"
"""The method of `Tensor` that makes one without bytes for a class with `__torch_dispatch__`; no public one does."""


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """What the wrappers of torch.func are around."""
    functions = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while functions.is_functorch_wrapped_tensor(tensor):
        tensor = functions.get_unwrapped(tensor)
    return tensor


def without_torch_function() -> AbstractContextManager[None]:
    """Skip `__torch_function__` of tensor subclasses."""
    return torch._C.DisableTorchFunctionSubclass()


class MetaKernels:
    """Context in which ops called on tensors of any device run their meta kernel, without modes and subclasses."""

    __slots__ = ("_dispatch", "_functions", "_keys")

    def __enter__(self) -> None:
        self._functions = torch._C.DisableTorchFunctionSubclass()
        self._dispatch = torch._C._DisableTorchDispatch()
        self._keys = torch._C._PreserveDispatchKeyGuard()
        self._functions.__enter__()
        self._dispatch.__enter__()
        self._keys.__enter__()
        torch._C._set_meta_in_tls_dispatch_include(True)

    def __exit__(self, *problem: object) -> None:
        contexts: list[Any] = [self._keys, self._dispatch, self._functions]
        for context in contexts:
            context.__exit__(*problem)


def in_backward() -> bool:
    """Whether the autograd engine is running on this thread; no public query exists."""
    return torch._C._current_graph_task_id() != -1


def node_number() -> int:
    """Sequence number of the autograd node that runs now, -1 where there is none."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else node._sequence_nr()


def next_node_number() -> int:
    """Sequence number that the next autograd node of this thread will get."""
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]


def backward_code() -> Any:
    """Code object of the Python function that enters the autograd engine: in whose frame an op came from C++ alone."""
    return torch.autograd.graph._engine_run_backward.__code__


def around_backward(
    before: Callable[[Any, Any], None], after: Callable[[], None]
) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Attributes, each with its new value, so that these are called around each run of the autograd engine.

    `before` gets the outputs, and the inputs where only their gradients are asked for. No public place sees
    `backward` and `grad` of all kinds.
    """
    engine = torch.autograd.graph._engine_run_backward

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        before(outputs, args[3] if len(args) > 3 else kwargs.get("inputs", ()))
        try:
            return engine(outputs, *args, **kwargs)
        finally:
            after()

    return [(module, "_engine_run_backward", run) for module in (torch.autograd, torch.autograd.graph)]


def leaves_below(outputs: Any) -> list[torch.Tensor]:
    """The leaves that a backward from these tensors, or edges of the graph, gives gradients to."""
    waiting = [node for each in outputs if (node := getattr(each, "grad_fn", None) or getattr(each, "node", None))]
    found: list[torch.Tensor] = []
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        new = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= new
        waiting.extend(new)
    return found


def tensor_uses(tensor: torch.Tensor) -> int:
    """References that C++ holds on a tensor, those of the call in progress included."""
    return tensor._use_count()  # pyright: ignore[reportAttributeAccessIssue]


def without_autocast() -> AbstractContextManager[None]:
    """Skip autocast for tensors on cuda, as autocast's own kernels do before they call the op."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA))


def autocast_asked_of_all() -> AbstractContextManager[None]:
    """Ask the kernels of autocast("cuda") about tensors of every kind; their keys do not say where a DTensor is."""
    return torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutocastCUDA)


def lift_on_cpu(wanted: bool) -> bool:
    """Whether torch.tensor(.., device=..) makes its result on the CPU and moves it by an op; returns what it was."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(wanted)
    return before


def allow_cuda_device() -> None:
    """Let C++ switch to cuda devices in a build that has none, which is then a no-op."""
    torch._C._ensureCUDADeviceGuardSet()


def has_kernel_for(op: Any, key: str) -> bool:
    """Whether an op overload has a kernel for a dispatch key; no public query exists."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def dense_chunks(tensors: Any, size_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Tensors of one dtype together, up to so many bytes, as DataParallel sends them."""
    from torch._utils import _take_tensors

    return _take_tensors(tensors, size_bytes)


def flattened(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One tensor of all, as DataParallel makes it."""
    from torch._utils import _flatten_dense_tensors

    return _flatten_dense_tensors(tensors)


def unflattened(flat: torch.Tensor, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Its parts, with the shapes of these."""
    from torch._utils import _unflatten_dense_tensors

    return _unflatten_dense_tensors(flat, tensors)


def with_kernel_of_all(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an op's kernel for all devices, so that a mode that is on sees the ops that it calls."""
    return op._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def in_place_list_ops() -> frozenset[Any]:
    """Overloads of `_foreach_` and `_fused_` ops that change their arguments and return nothing."""
    found: set[Any] = set()
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(("aten::_foreach_", "aten::_fused_")) and not schema.returns:
            packet = getattr(torch.ops.aten, schema.name.partition("::")[2])
            found.add(getattr(packet, schema.overload_name or "default"))
    return frozenset(found)


def storage_holders(tensor: torch.Tensor) -> int:
    """How many tensors are on a tensor's storage."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1


class OpOverrides:
    """Kernels put in the place of torch's for a dispatch key, until `close`."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")

    def put(self, op: Any, key: str, kernel: Any) -> None:
        """Let `kernel` run for an op where the dispatcher comes to `key`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Overriding a previously registered kernel": that is what it is for
            self._library.impl(op, kernel, key)

    def close(self) -> None:
        """Put the kernels of torch back; a library has no public end."""
        self._library._destroy()


def views() -> frozenset[Any]:
    """Overloads of aten ops whose result shares a storage with an argument: views and in-place ops."""
    found: set[Any] = set()
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and any(argument.alias_info is not None for argument in schema.arguments):
            packet = getattr(torch.ops.aten, schema.name.partition("::")[2], None)
            overload = schema.overload_name or "default"
            if packet is not None and overload in packet.overloads():
                found.add(getattr(packet, overload))
    return frozenset(found)


def schema_of(op: Any) -> Any:
    """Declaration of an op overload: which arguments it changes and which results share a storage with one."""
    return op._schema


def node_name() -> str:
    """Name of the autograd node that runs now, such as "MaxBackward0"; "" where there is none."""
    node = torch._C._current_autograd_node()
    return "" if node is None else node.name()


def below_autograd() -> AbstractContextManager[None]:
    """Skip autograd, as its own kernels do before they call the op."""
    return torch._C._AutoDispatchBelowAutograd()


def import_dynamo() -> None:
    """Import torch._dynamo, which meta kernels written in Python do at their first use, before anything is patched."""
    import torch._dynamo  # noqa: F401


def decomposition_of(op: Any) -> Any:
    """How torch takes an op apart into others; None where there is none."""
    from torch._decomp import decomposition_table

    return decomposition_table.get(op)


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd knows a tensor as a view of another."""
    return tensor._is_view()


def grouping_changes(grouped: Any) -> list[tuple[Any, str, Any]]:
    """The attribute, with its new value, by which optimizers group tensors by device and dtype."""
    return [(torch._C, "_group_tensors_by_device_and_dtype", grouped)]


def set_storage(
    tensor: torch.Tensor, storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Put a tensor on another storage; `set_` is public, and its declared types are not those it takes."""
    changed: Any = tensor
    changed.set_(storage, offset, shape, strides)


REDUCE_TENSOR = "_reduce_ex_internal"
"""The method of `Tensor` that says what pickle keeps of it: below what `Parameter` and subclasses add."""

reduce_tensor: Callable[[torch.Tensor, int], Any] = torch.Tensor._reduce_ex_internal
"""Its own way."""


# A CUDA device under `within`. Checked on 2.11.0 (its CUDA build, on the rig).


def stream_ids(device_index: int) -> tuple[int, int, int]:
    """Identity of the current stream of a device; `current_stream` makes an object of it, in ten times the time."""
    return torch._C._cuda_getCurrentStream(device_index)


def on_stream(stream: torch.cuda.Stream, work: Callable[[], Result]) -> Result:
    """Do some work with a stream as the current one. `torch.cuda.stream` does the same in ten times the time."""
    index = stream.device_index
    if torch._C._cuda_getDevice() != index:
        with torch.cuda.stream(stream):
            return work()
    stream_id, device_index, device_type = torch._C._cuda_getCurrentStream(index)
    torch._C._cuda_setStream(stream_id=stream.stream_id, device_index=index, device_type=stream.device_type)
    try:
        return work()
    finally:
        torch._C._cuda_setStream(stream_id=stream_id, device_index=device_index, device_type=device_type)


# Steps of optimizers in parts (engine/optimizer_hooks.py). Checked on 2.11.0 (its CUDA build, on the rig) and 2.13.0.


def step_cell(optimizer: torch.optim.Optimizer) -> Any:
    """The cell with the function that an optimizer's `step` runs between its hooks; None where it is not built so.

    `Optimizer.profile_hook_step` closes over it. Nothing public stands between the hooks and the function, and learning
    rate schedulers keep a reference to the wrapper, so that putting another one in its place would not reach all calls.
    """
    wrapper: Any = type(optimizer).step
    names = getattr(getattr(wrapper, "__code__", None), "co_freevars", ())
    if not getattr(wrapper, "hooked", False) or "func" not in names:
        return None
    return wrapper.__closure__[names.index("func")]


# Devices that Python asks for (capture/virtual/torch_cuda/factories.py). Checked on 2.13.0.


def device_constructors() -> set[Callable[..., Any]]:
    """Functions of torch that `torch.set_default_device` gives a device."""
    return torch.utils._device._device_constructors()  # pyright: ignore[reportAttributeAccessIssue]


def parse_to() -> tuple[Any, str]:
    """Where the function lies that parses the arguments of `Module.to`."""
    return torch._C._nn, "_parse_to"  # pyright: ignore[reportAttributeAccessIssue]


def uninitialized_changes(functions: list[Any]) -> list[tuple[Any, str, Any]]:
    """The attribute, with its new value, that names what may be done with a parameter that has no shape yet."""
    kinds: tuple[Any, ...] = (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)
    return [(kind, "_allowed_methods", [*kind._allowed_methods, *functions]) for kind in kinds]


def variable_functions() -> Any:
    """Where torch.nn looks up recurrent networks, whose names in torch are those of other functions."""
    return torch._VF
