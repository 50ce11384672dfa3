"""NVML: the NVIDIA GPU of this computer, as the driver's own library reports it, without torch or a CUDA context.

Functions return None if there is no such library or it answers with an error. The GPU is the first one that
CUDA_VISIBLE_DEVICES names, else the first in the order of the PCI bus. CUDA itself orders by speed unless
CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import NamedTuple, TypeVar

Answer = TypeVar("Answer")
_NAME_BYTES = 96
_MOST_PROCESSES = 64
_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


class NvmlDevice(NamedTuple):
    """A GPU as the driver reports it.

    Attributes:
        name: name, such as "NVIDIA GeForce RTX 4090".
        total_bytes: memory that processes can get, as torch reports it: without the driver's own.
        compute_capability: major * 10 + minor.
        pcie_generation: the highest generation that GPU and slot support; 0 if the driver does not report it.
        pcie_lanes: the most lanes that GPU and slot support; 0 if the driver does not report it.
    """

    name: str
    total_bytes: int
    compute_capability: int
    pcie_generation: int
    pcie_lanes: int


class Used(NamedTuple):
    """Device memory in use.

    Attributes:
        all_bytes: bytes of all processes together.
        own_bytes: bytes of this process; None if the driver does not report it, as for processes inside containers.
    """

    all_bytes: int
    own_bytes: int | None


def first_device() -> NvmlDevice | None:
    """Return the first visible GPU; None if there is none, or the driver does not answer."""
    return _asked(_device)


def used() -> Used | None:
    """Return the memory in use on the first visible GPU; None if there is none, or the driver does not answer."""
    return _asked(_used)


def total_millijoules(index: int = 0) -> int | None:
    """Return the energy that a visible GPU's board took since the driver was loaded; None if that is not counted."""
    return _asked(_energy, index)


def _asked(ask: Callable[[ctypes.CDLL, ctypes.c_void_p], Answer], index: int = 0) -> Answer | None:
    """Ask about the index-th of the visible GPUs."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = [str(index)] * (index + 1) if named is None else named.split(",")
    visible = words[index].strip() if index < len(words) else ""
    if not visible or visible.startswith("-"):
        return None
    try:
        library = ctypes.CDLL(_LIBRARY)
        _call(library.nvmlInit_v2)
        try:
            return ask(library, _handle(library, visible))
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError, _Refused):  # no library, an older one without a function, an error it answers
        return None


class _Refused(Exception):
    """NVML answered with an error code."""


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Memory2(ctypes.Structure):
    """nvmlMemory_v2_t, of drivers since 510; `reserved` is the driver's own memory."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t, of drivers since 450."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def _handle(library: ctypes.CDLL, visible: str) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    if visible.isdecimal():
        _call(library.nvmlDeviceGetHandleByIndex_v2, ctypes.c_uint(int(visible)), ctypes.byref(handle))
    else:
        _call(library.nvmlDeviceGetHandleByUUID, visible.encode(), ctypes.byref(handle))
    return handle


def _used(library: ctypes.CDLL, handle: ctypes.c_void_p) -> Used:
    memory = _Memory()
    _call(library.nvmlDeviceGetMemoryInfo, handle, ctypes.byref(memory))
    count, found = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
    try:
        _call(library.nvmlDeviceGetComputeRunningProcesses_v2, handle, ctypes.byref(count), found)
    except (AttributeError, _Refused):
        return Used(memory.used, None)
    own = [each.used for each in found[: count.value] if each.pid == os.getpid() and each.used < memory.total]
    return Used(memory.used, own[0] if own else None)


def _energy(library: ctypes.CDLL, handle: ctypes.c_void_p) -> int:
    total = ctypes.c_ulonglong()
    _call(library.nvmlDeviceGetTotalEnergyConsumption, handle, ctypes.byref(total))
    return total.value


def _device(library: ctypes.CDLL, handle: ctypes.c_void_p) -> NvmlDevice:
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call(library.nvmlDeviceGetName, handle, name, ctypes.c_uint(_NAME_BYTES))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(library.nvmlDeviceGetCudaComputeCapability, handle, ctypes.byref(major), ctypes.byref(minor))
    return NvmlDevice(
        name.value.decode("utf-8", "replace"),
        _total_bytes(library, handle),
        major.value * 10 + minor.value,
        _count(library, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        _count(library, "nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def _total_bytes(library: ctypes.CDLL, handle: ctypes.c_void_p) -> int:
    memory = _Memory2()
    memory.version = ctypes.sizeof(_Memory2) | 2 << 24  # as NVML_STRUCT_VERSION of nvml.h makes it
    try:
        _call(library.nvmlDeviceGetMemoryInfo_v2, handle, ctypes.byref(memory))
        return memory.total - memory.reserved
    except (AttributeError, _Refused):
        older = _Memory()
        _call(library.nvmlDeviceGetMemoryInfo, handle, ctypes.byref(older))
        return older.total


def _count(library: ctypes.CDLL, function: str, handle: ctypes.c_void_p) -> int:
    """Return a number; 0 if the driver does not report it."""
    value = ctypes.c_uint()
    try:
        _call(getattr(library, function), handle, ctypes.byref(value))
    except (AttributeError, _Refused):
        return 0
    return value.value


def _call(function: Callable[..., int], *arguments: object) -> None:
    code = function(*arguments)
    if code != 0:
        raise _Refused(code)
