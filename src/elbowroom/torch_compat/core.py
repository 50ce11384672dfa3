"""Private torch symbols of this package: their use, and the versions on which each was checked (default: 2.13.0).

Only torch_compat may name a private torch symbol. Those for recomputes are in op_calls.py, those of CUDA's caching
allocator in cuda_allocator.py, and those for recordings in profiler.py.
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
"""Number of in-place changes of the tensor, and of others that share its counter; it has no public reader."""


def no_dispatch() -> AbstractContextManager[None]:
    """Skip the user's dispatch modes: our own housekeeping is not part of the step."""
    return torch._C._DisableTorchDispatch()


def has_hooks(module: torch.nn.Module) -> bool:
    """Tell whether this module itself has forward hooks or forward pre-hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def parameters_of(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """Yield a module's parameters; classes of users have `parameters` return lists, or fewer of them."""
    return torch.nn.Module.parameters(module)


def buffers_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield a module's buffers, as `parameters_of` does its parameters."""
    return torch.nn.Module.buffers(module)


def schemas_of(name: str) -> list[Any]:
    """Return the declarations of all overloads of an operator, such as "aten::add", that the dispatcher has."""
    found = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    return [schema for schema in found if torch._C._dispatch_has_kernel(_full_name(schema))]


def has_kernel(schema: Any, key: str) -> bool:
    """Tell whether an overload has a kernel for a dispatch key, such as "CPU" or "CompositeImplicitAutograd"."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(_full_name(schema), key)


def _full_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def top_hooks() -> tuple[Any, Any] | None:
    """Return the pair of saved-tensor hooks that autograd of this thread calls now; no public query exists."""
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
    """Tell whether saved-tensor hooks may be installed now: `disable_saved_tensors_hooks` forbids it."""
    return torch._C._autograd._saved_tensors_hooks_is_enabled()  # pyright: ignore[reportAttributeAccessIssue]


def keywords_of_call() -> dict[str, Any] | None:
    """Return the keyword arguments of the module call whose global hook calls this; None if they are not found.

    torch passes no keyword arguments to global hooks. The function `inner` of `Module._call_impl`, which calls the
    hooks, has them as a variable. Checked on 2.11.0 and 2.13.0.
    """
    frame = sys._getframe(2)
    found = frame.f_locals.get("kwargs") if frame.f_code.co_name == "inner" else None
    return found if isinstance(found, dict) else None


def holders_of(storage: torch.UntypedStorage) -> int:
    """Return the number of references to a storage's bytes: one per tensor on it, and one of the given object."""
    return torch._C._storage_Use_Count(storage._cdata)


def in_compiled_backward() -> bool:
    """Tell whether a backward pass of compiled autograd is under way. Checked on 2.11.0 and 2.13.0."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(module.in_compiled_autograd_region)


def never_compiled(function: Function) -> Function:
    """Make torch.compile run a function, and all that it calls, as it is. Checked on 2.11.0 and 2.13.0.

    Autograd calls the hooks of saved tensors while a compiled region runs. The compiler would take them for code of the
    user. torch.compiler.disable would import the whole compiler, and wrap each call. The attribute, which it sets too,
    makes the compiler end a region before a call of the function.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    vars(function)["_torchdynamo_disable"] = True
    return function


def is_distributed() -> bool:
    """Tell whether torch.distributed has begun in this process."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def tell_of_compiling(begins: Callable[[], None], ends: Callable[[], None]) -> bool:
    """Make the compiler call these around each compilation. Returns False if the compiler is not loaded.

    Repeated calls register them once. No public way exists; torch._dynamo.reset() forgets them. Checked on 2.11.0 and
    2.13.0.
    """
    compiler = sys.modules.get("torch._dynamo.callback")
    if compiler is None:
        return False
    callbacks = _compile_callbacks.setdefault((begins, ends), (lambda _: begins(), lambda _: ends()))
    if callbacks[0] not in compiler.callback_handler.start_callbacks:
        compiler.callback_handler.register_start_callback(callbacks[0])
        compiler.callback_handler.register_end_callback(callbacks[1])
    return True


_compile_callbacks: dict[Any, tuple[Callable[[Any], None], Callable[[Any], None]]] = {}


# The virtual device (capture/virtual/). Checked on 2.11.0 (its CUDA build, on the rig) and 2.13.0.


class DispatchMode(TorchDispatchMode):
    """TorchDispatchMode without torch._dynamo. torch's documents name the class, and its module is private."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def as_subclass(cls: type, meta: torch.Tensor, device: torch.device) -> Any:
    """Return a tensor of a class on the storage of a meta tensor, with the autograd and autocast keys of `device`.

    C++ still sees a meta tensor (`dispatch_device` is off). So the autograd engine uses the queue of the calling
    thread; a cuda device would abort a CPU-only build there. No public constructor sets the keys.
    """
    return torch.Tensor._make_subclass(cls, meta, False, dispatch_device=False, device_for_backend_keys=device)


_KEYS: dict[str, int] = {
    name: torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    for name in ("CUDA", "AutogradCUDA", "CPU", "AutogradCPU", "AutocastCUDA")
}
_CUDA = _KEYS["CUDA"] & _KEYS["AutogradCUDA"] | _KEYS["AutocastCUDA"]
_CPU = _KEYS["CPU"] & _KEYS["AutogradCPU"]


def push_mode(mode: TorchDispatchMode) -> None:
    """Push a mode on the stack of this thread. Entering it twice would overwrite what it restores at its end."""
    torch._C._push_on_torch_dispatch_stack(mode)


def fakes_tensors() -> bool:
    """Tell whether torch's FakeTensorMode is on, in which tensors are only shapes; it comes after all other modes."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def pop_mode() -> None:
    """Pop the last mode from the stack of this thread."""
    torch._C._pop_torch_dispatch_stack(None)


def backend_of(tensor: torch.Tensor) -> str:
    """Return the backend whose dispatch keys a tensor has, "CUDA" or "CPU"; "" if it has other keys."""
    keys = torch._C._dispatch_keys(tensor).raw_repr()
    return "CUDA" if keys & _CUDA else "CPU" if keys & _CPU else ""


KEYS_OF_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
"""Dispatch keys that mark a wrapper of cuda tensors, which has no storage, for `backend_of`."""


MAKE_WRAPPER = "_make_wrapper_subclass"
"""Method of `Tensor` that makes a tensor without bytes for a class with `__torch_dispatch__`; no public one does."""


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside the wrappers of torch.func."""
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
    """Tell whether the autograd engine is running on this thread; no public query exists."""
    return torch._C._current_graph_task_id() != -1


def node_number() -> int:
    """Return the sequence number of the autograd node that runs now; -1 if there is none."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else node._sequence_nr()


def next_node_number() -> int:
    """Return the sequence number that the next autograd node of this thread will get."""
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]


def backward_code() -> Any:
    """Return the code object of the Python function that enters the autograd engine. Ops in its frame come from C++."""
    return torch.autograd.graph._engine_run_backward.__code__


def around_backward(
    before: Callable[[Any, Any], None], after: Callable[[], None]
) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return attributes with new values that call these functions around each run of the autograd engine.

    `before` gets the outputs, and the inputs if only their gradients are requested. No public place sees all kinds of
    `backward` and `grad`.
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
    """Return the leaves that get gradients in a backward from these tensors, or edges of the graph."""
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


def leaf_of(given: Any) -> torch.Tensor | None:
    """Return the tensor whose gradient is asked for: itself, or the leaf at an edge of the graph; None elsewhere."""
    found = given if isinstance(given, torch.Tensor) else getattr(getattr(given, "node", None), "variable", None)
    return found if isinstance(found, torch.Tensor) else None


def tensor_uses(tensor: torch.Tensor) -> int:
    """Return the number of references that C++ holds on a tensor, those of the call in progress included."""
    return tensor._use_count()  # pyright: ignore[reportAttributeAccessIssue]


def without_autocast(device: str) -> AbstractContextManager[None]:
    """Skip autocast for tensors on "cuda" or the "cpu", as autocast's own kernels do before they call the op."""
    key = torch._C.DispatchKey.AutocastCPU if device == "cpu" else torch._C.DispatchKey.AutocastCUDA
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))


def autocast_ops_of_cpu() -> list[Any]:
    """Return the ops that autocast("cpu") changes; no public query exists."""
    found: list[Any] = []
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            found.append(op)
    return found


def autocast_asked_of_all() -> AbstractContextManager[None]:
    """Call the kernels of autocast("cuda") for tensors of every kind: the keys of a DTensor do not say its device."""
    return torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutocastCUDA)


def lift_on_cpu(wanted: bool) -> bool:
    """Set whether torch.tensor(.., device=..) makes its result on the CPU and moves it. Returns the earlier setting."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(wanted)
    return before


def allow_cuda_device() -> None:
    """Let C++ switch to cuda devices in a build without them; the switch does nothing."""
    torch._C._ensureCUDADeviceGuardSet()


def has_kernel_for(op: Any, key: str) -> bool:
    """Tell whether an op overload has a kernel for a dispatch key; no public query exists."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def dense_chunks(tensors: Any, size_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Return tensors grouped by dtype, up to `size_bytes` a group, as DataParallel sends them."""
    from torch._utils import _take_tensors

    return _take_tensors(tensors, size_bytes)


def flattened(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return one flat tensor of all, as DataParallel makes it."""
    from torch._utils import _flatten_dense_tensors

    return _flatten_dense_tensors(tensors)


def unflattened(flat: torch.Tensor, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the parts of a flat tensor, with the shapes of `tensors`."""
    from torch._utils import _unflatten_dense_tensors

    return _unflatten_dense_tensors(flat, tensors)


def with_kernel_of_all(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an op's kernel for all devices, so that an active mode sees the ops that it calls."""
    return op._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def overload_of(schema: Any) -> Any:
    """Return the op overload that a schema declares, such as torch.ops.aten.add.Tensor."""
    space, _, name = schema.name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), name), schema.overload_name or "default")


def in_place_list_ops() -> frozenset[Any]:
    """Return overloads of `_foreach_` and `_fused_` ops that change their arguments and return nothing."""
    found: set[Any] = set()
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(("aten::_foreach_", "aten::_fused_")) and not schema.returns:
            found.add(overload_of(schema))
    return frozenset(found)


def storage_holders(tensor: torch.Tensor) -> int:
    """Return how many tensors are on a tensor's storage."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1


class OpOverrides:
    """Kernels that replace torch's for a dispatch key, until `close`."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")

    def put(self, op: Any, key: str, kernel: Any) -> None:
        """Let `kernel` run for an op when the dispatcher reaches `key`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Overriding a previously registered kernel": intended here
            self._library.impl(op, kernel, key)

    def close(self) -> None:
        """Restore the kernels of torch; a library has no public end."""
        self._library._destroy()


def views() -> frozenset[Any]:
    """Return overloads of aten ops whose result shares a storage with an argument: views and in-place ops."""
    found: set[Any] = set()
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and any(argument.alias_info is not None for argument in schema.arguments):
            packet = getattr(torch.ops.aten, schema.name.partition("::")[2], None)
            overload = schema.overload_name or "default"
            if packet is not None and overload in packet.overloads():
                found.add(getattr(packet, overload))
    return frozenset(found)


def schema_of(op: Any) -> Any:
    """Return the declaration of an op overload: the arguments that it changes, and results that share their storage."""
    return op._schema


def node_name() -> str:
    """Return the name of the autograd node that runs now, such as "MaxBackward0"; "" if there is none."""
    node = torch._C._current_autograd_node()
    return "" if node is None else node.name()


def below_autograd() -> AbstractContextManager[None]:
    """Skip autograd, as its own kernels do before they call the op."""
    return torch._C._AutoDispatchBelowAutograd()


def import_dynamo() -> None:
    """Import torch._dynamo before anything is patched. Meta kernels written in Python import it at their first use."""
    import torch._dynamo  # noqa: F401


def decomposition_of(op: Any) -> Any:
    """Return torch's decomposition of an op into others; None if there is none."""
    from torch._decomp import decomposition_table

    return decomposition_table.get(op)


def is_view(tensor: torch.Tensor) -> bool:
    """Tell whether autograd knows a tensor as a view of another."""
    return tensor._is_view()


def grouping_changes(grouped: Any) -> list[tuple[Any, str, Any]]:
    """Return the attribute, with its new value, by which optimizers group tensors by device and dtype."""
    return [(torch._C, "_group_tensors_by_device_and_dtype", grouped)]


def set_storage(
    tensor: torch.Tensor, storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Move a tensor to another storage. `set_` is public, but takes other types than it declares."""
    changed: Any = tensor
    changed.set_(storage, offset, shape, strides)


REDUCE_TENSOR = "_reduce_ex_internal"
"""Method of `Tensor` that says what pickle keeps of it; `Parameter` and subclasses add to that."""

reduce_tensor: Callable[[torch.Tensor, int], Any] = torch.Tensor._reduce_ex_internal
"""The original of that method."""


# A CUDA device under `within`. Checked on 2.11.0 (its CUDA build, on the rig).


def stream_ids(device_index: int) -> tuple[int, int, int]:
    """Return the identity of a device's current stream. `current_stream` makes an object, in ten times the time."""
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
    """Return the cell with the function that an optimizer's `step` runs between its hooks; None if there is no cell.

    `Optimizer.profile_hook_step` closes over it. Nothing public stands between the hooks and the function. Learning
    rate schedulers keep a reference to the wrapper, so replacing the wrapper would not reach all calls.
    """
    wrapper: Any = type(optimizer).step
    names = getattr(getattr(wrapper, "__code__", None), "co_freevars", ())
    if not getattr(wrapper, "hooked", False) or "func" not in names:
        return None
    return wrapper.__closure__[names.index("func")]


# Devices that Python asks for (capture/virtual/torch_cuda/factories.py). Checked on 2.13.0.


def device_constructors() -> set[Callable[..., Any]]:
    """Return the functions of torch that `torch.set_default_device` gives a device."""
    return torch.utils._device._device_constructors()  # pyright: ignore[reportAttributeAccessIssue]


def parse_to() -> tuple[Any, str]:
    """Return the module and the name of the function that parses the arguments of `Module.to`."""
    return torch._C._nn, "_parse_to"  # pyright: ignore[reportAttributeAccessIssue]


def uninitialized_changes(functions: list[Any]) -> list[tuple[Any, str, Any]]:
    """Return the attributes, with new values, that name the functions allowed on a parameter without a shape."""
    kinds: tuple[Any, ...] = (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)
    return [(kind, "_allowed_methods", [*kind._allowed_methods, *functions]) for kind in kinds]


def variable_functions() -> Any:
    """Return the module in which torch.nn looks up recurrent networks; torch has other functions of these names."""
    return torch._VF


def conv_backend(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any) -> str:
    """Name the kernels that torch takes for a convolution of real tensors, such as "_ConvBackend.Mkldnn".

    Args:
        x: its input.
        weight: its weight.
        bias: its bias, if any.
        settings: stride, padding, dilation, transposed, output padding and groups.
    """
    lists = [list(each) if isinstance(each, list | tuple) else each for each in settings]
    return str(torch._C._select_conv_backend(x, weight, bias, *lists))
