"""What JAX and Keras read as they are imported: eight devices on the CPU, without its kernel library."""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("jax") is not None:  # else all tests here are skipped, and others are collected in the same process
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_cpu_experimental_ynn_fusion_type="
    )
    os.environ.setdefault("KERAS_BACKEND", "jax")
