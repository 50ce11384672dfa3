"""CUDA build: the C++ functions that torch.cuda and torch.accelerator call, answered for the virtual device.

torch's Python above them (memory summaries, contexts of streams and devices, random states) is unchanged.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, final

import torch

from elbowroom.allocator.settings import set_in
from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.tensor import CUDA
from elbowroom.capture.virtual.torch_cuda.cuda_streams import CUDA_TYPE, Stream
from elbowroom.capture.virtual.torch_cuda.library_settings import ModelledDevice
from elbowroom.capture.virtual.torch_cuda.live_memory import LiveMemory
from elbowroom.torch_compat.device_modules import (
    accelerator_changes,
    build_changes,
    cuda_changes,
    library_changes,
    range_changes,
)

Change = tuple[Any, str, Any]
CUDA_VERSION = "13.0" if torch.__version__ >= "2.11" else "12.8"
"""CUDA version of PyPI's build: torchvision cannot be imported with another major version than its own."""
NCCL_VERSION = 2 << 32 | 28 << 16 | 9
"""NCCL version of the same build: three parts of 16 bits."""


LATE = "settings of the allocator that came after its first use: {}"


def say(value: Any) -> Callable[..., Any]:
    """Make a function that returns a value for any arguments."""
    return lambda *_args, **_kwargs: value


@final
class Properties:
    """Result of `torch.cuda.get_device_properties`; it notes reads of figures in which GPUs of a kind differ.

    Figures that do not affect the allocator are those of an H100.
    """

    warp_size = 32
    max_threads_per_block = 1024
    max_threads_per_multi_processor = 2048
    regs_per_multiprocessor = 65536
    is_integrated = 0
    is_multi_gpu_board = 0
    gcnArchName = ""
    L2_cache_size = 50 * 2**20
    shared_memory_per_block = 48 * 1024
    shared_memory_per_block_optin = 227 * 1024
    shared_memory_per_multiprocessor = 228 * 1024
    clock_rate = 1_410_000
    memory_clock_rate = 1_593_000
    memory_bus_width = 5120
    pci_bus_id = 1
    pci_device_id = 0
    pci_domain_id = 0
    uuid = "00000000-0000-0000-0000-000000000000"

    def __init__(self, settings: ModelledDevice, ledger: Ledger) -> None:
        self.major, self.minor = divmod(settings.facts.compute_capability, 10)
        self.multi_processor_count = settings.facts.multiprocessors
        self._settings, self._ledger = settings, ledger

    @property
    def name(self) -> str:
        self._ledger.asked.add("name")
        return self._settings.name

    @property
    def total_memory(self) -> int:
        self._ledger.asked.add("memory")
        return self._settings.total_bytes

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id=1, pci_device_id=0, pci_domain_id=0, L2_cache_size=50MB)"
        )


@final
class _Build:
    """The state behind the functions.

    Args:
        settings: the device.
        ledger: its ledger.
    """

    def __init__(self, settings: ModelledDevice, ledger: Ledger) -> None:
        self.settings, self.ledger = settings, ledger
        self.memory = LiveMemory(ledger, settings.allocator)
        self._found = set_in(os.environ)
        self._asked: list[str] = []
        ledger.begins = self._begins
        self.share = 1.0
        self._raw: dict[int, int] = {}
        self._addresses = itertools.count(2**40, 2**30)

    def _begins(self) -> None:
        """Read the settings at the allocator's first use, as torch does: those that the script has set by then hold."""
        settings = ",".join(filter(None, (set_in(os.environ), *self._asked)))
        if settings != self._found:
            self.memory.use(settings)
            self.ledger.remark("allocator_settings", settings)

    def set_allocator(self, text: str, *_: Any) -> None:
        """Add settings that the script makes itself to those of the environment."""
        if self.ledger.begins is None:
            self.ledger.remark("unsupported", LATE.format(text))
        else:
            self._asked.append(text)

    def select(self, index: int = 0, *_: Any) -> int:
        """Select the one device; return the device selected before."""
        if index > 0 and index != CUDA.index:
            self.ledger.remark("unsupported", f"cuda:{index} (counted with {CUDA}, as one GPU)")
        return CUDA.index

    def free_and_total(self, *_: Any) -> tuple[int, int]:
        self.ledger.asked.add("memory")
        return max(self.settings.total_bytes - self.memory.reserved_bytes(), 0), self.settings.total_bytes

    def take(self, size_bytes: int, _stream: Any = 0) -> int:
        """Allocate memory without a tensor on it."""
        address = next(self._addresses)
        self._raw[address] = self.ledger.scratch(size_bytes, "temporary")
        return address

    def give_back(self, address: int) -> None:
        self.ledger.release(self._raw.pop(address))

    def snapshot(self, *_: Any) -> dict[str, Any]:
        return {
            "segments": self.memory.segments(),
            "device_traces": [[]],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def set_share(self, share: float, *_: Any) -> None:
        self.share = share


def _stream_data(number: int) -> tuple[int, int, int]:
    return number, CUDA.index, CUDA_TYPE


def _set_stream(stream_id: int, **_: Any) -> None:
    Stream.select(stream_id)


def _of_cuda(build: _Build) -> dict[str, Any]:
    """Return the functions by torch's names."""
    return {
        **dict.fromkeys(("init", "synchronize", "ipc_collect", "sleep", "lock_mutex", "unlock_mutex"), say(None)),
        **dict.fromkeys(("set_sync_debug_mode", "clearCublasWorkspaces", "setMemoryMetadata"), say(None)),
        **dict.fromkeys(("record_memory_history", "record_memory_history_legacy", "tunableop_enable"), say(None)),
        **dict.fromkeys(("attach_out_of_memory_observer", "cudaCachingAllocator_enable"), say(None)),
        **dict.fromkeys(("beginAllocateToPool", "endAllocateToPool", "releasePool"), say(None)),
        **dict.fromkeys(("beginAllocateCurrentThreadToPool", "resetPeakHostMemoryStats"), say(None)),
        **dict.fromkeys(("resetAccumulatedHostMemoryStats", "jiterator_compile_and_launch_kernel"), say(None)),
        **dict.fromkeys(("setDevice", "exchangeDevice", "maybeExchangeDevice"), build.select),
        **dict.fromkeys(("getCurrentRawStream", "get_sync_debug_mode"), say(0)),
        "getDevice": say(CUDA.index),
        **dict.fromkeys(("isInBadFork", "isCurrentStreamCapturing", "tunableop_is_enabled"), say(False)),
        **_tuning(),
        "hasPrimaryContext": say(True),
        "get_cudnn_benchmark_limit": say(10),
        "set_cudnn_benchmark_limit": say(None),
        **dict.fromkeys(("canDeviceAccessPeer", "isHistoryEnabled"), say(False)),
        **dict.fromkeys(("getCurrentBlasHandle", "getCurrentSolverHandle"), say(1)),
        "getDeviceCount": say(build.settings.gpus),
        "cudaCachingAllocator_is_enabled": say(True),
        "getArchFlags": say(f"sm_{build.settings.facts.compute_capability}"),
        "getCurrentStream": lambda *_: _stream_data(Stream.current),
        "getDefaultStream": lambda *_: _stream_data(0),
        "getStreamFromExternal": lambda pointer, *_: _stream_data(pointer // 16),
        "setStream": _set_stream,
        **_of_memory(build),
    }


def _of_memory(build: _Build) -> dict[str, Any]:
    """Return the functions that ask the allocator or change it."""
    memory, ledger = build.memory, build.ledger
    return {
        "getAllocatorBackend": say("native"),
        "memoryStats": lambda *_: memory.stats(),
        "hostMemoryStats": say({}),
        "resetPeakMemoryStats": lambda *_: memory.reset_peaks(),
        "resetAccumulatedMemoryStats": lambda *_: memory.reset_sums(),
        "emptyCache": lambda *_: ledger.empty_cache(),
        "memorySnapshot": build.snapshot,
        "setMemoryFraction": build.set_share,
        "getMemoryFraction": lambda *_: build.share,
        "getMemoryMetadata": say(""),
        "allocationTraceback": say(None),
        "cudaCachingAllocator_raw_alloc": build.take,
        "cudaCachingAllocator_raw_delete": build.give_back,
    }


def _tuning() -> dict[str, Any]:
    """Return the functions of torch.cuda.tunable: no product is tuned, and settings have torch's defaults."""
    asked = ("tuning_enable", "set_filename", "set_max_tuning_duration", "set_max_tuning_iterations", "read_file")
    asked += ("set_rotating_buffer_size", "set_numerical_check_tolerances")
    fixed = {"get_filename": "", "get_max_tuning_duration": 30, "get_max_tuning_iterations": 100, "get_results": ()}
    fixed |= {"get_validators": (), "get_rotating_buffer_size": 0, "tuning_is_enabled": True}
    untuned = {"record_untuned_enable": say(None), "record_untuned_is_enabled": say(False)}
    return {f"tunableop_{name}": say(value) for name, value in (dict.fromkeys(asked) | fixed).items()} | untuned


def _of_accelerator(build: _Build) -> dict[str, Any]:
    memory, device = build.memory, torch.device("cuda")
    return {
        **dict.fromkeys(("setDeviceIndex", "exchangeDevice", "maybeExchangeDevice"), build.select),
        **dict.fromkeys(("hooks_set_current_device", "hooks_exchange_device"), build.select),
        "hooks_maybe_exchange_device": build.select,
        **dict.fromkeys(("synchronizeDevice", "emptyHostCache"), say(None)),
        "setAllocatorSettings": build.set_allocator,
        **dict.fromkeys(("getDeviceIndex", "hooks_get_current_device"), say(CUDA.index)),
        "hooks_device_count": say(build.settings.gpus),
        "getAccelerator": say(device),
        "isAllocatorInitialized": say(True),
        "getStream": lambda *_: Stream(stream_id=Stream.current),
        "setStream": lambda stream: _set_stream(stream.stream_id),
        "emptyCache": lambda *_: build.ledger.empty_cache(),
        "getDeviceStats": lambda *_: memory.stats(),
        "resetPeakStats": lambda *_: memory.reset_peaks(),
        "resetAccumulatedStats": lambda *_: memory.reset_sums(),
        "getMemoryInfo": build.free_and_total,
    }


def _runtime(build: _Build) -> Any:
    """Return the result of `torch.cuda.cudart()`."""

    class Error(int):
        success = 0

    done = ("ProfilerStart", "ProfilerStop", "HostRegister", "HostUnregister", "StreamCreate", "StreamDestroy")
    return SimpleNamespace(
        cudaError=Error,
        cudaGetErrorString=lambda error: "no error" if not error else f"error {int(error)}",
        cudaMemGetInfo=build.free_and_total,
        **{f"cuda{name}": say(0) for name in done},
    )


def _queries(build: _Build) -> dict[str, Any]:
    """Return functions for which torch.cuda asks the driver or caches answers, and those that take device numbers."""
    properties = Properties(build.settings, build.ledger)
    return {
        "is_available": say(True),
        "is_initialized": say(True),
        "device_count": say(build.settings.gpus),
        "init": say(None),
        "_lazy_init": say(None),
        "get_device_properties": say(properties),
        "get_arch_list": say([f"sm_{build.settings.facts.compute_capability}"]),
        "device_memory_used": lambda *_: build.settings.total_bytes - build.free_and_total()[0],
        "utilization": say(100),
        "temperature": say(40),
        "power_draw": say(200_000),
        "clock_rate": say(1410),
        "list_gpu_processes": say("GPU:0\nno processes are running"),
    }


def changes(settings: ModelledDevice, ledger: Ledger) -> list[Change]:
    """Return all changes that make torch a build with CUDA and one GPU."""
    build = _Build(settings, ledger)
    queries = _queries(build)
    marks = dict.fromkeys(("rangePushA", "rangePop", "markA", "rangeStartA", "rangeEnd"), say(0))
    marks |= dict.fromkeys(("deviceRangeStart", "deviceRangeEnd"), say(0))
    return [
        *cuda_changes(_of_cuda(build)),
        *accelerator_changes(_of_accelerator(build), torch.device("cuda")),
        *build_changes(_runtime(build), say(queries["get_device_properties"]()), build.select, CUDA_VERSION),
        *library_changes(NCCL_VERSION),
        *range_changes(SimpleNamespace(**marks)),
        *((torch.cuda, name, value) for name, value in queries.items()),
        (torch.cuda.memory, "list_gpu_processes", queries["list_gpu_processes"]),
        (torch.autograd.profiler.emit_nvtx, "__enter__", lambda self: self),
        (torch.autograd.profiler.emit_nvtx, "__exit__", say(None)),
    ]
