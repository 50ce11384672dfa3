"""A file system small enough to be filled, and nobody else's."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk_in(made: pytest.TempPathFactory, size: str) -> Iterator[Path]:
    """Mount a tmpfs of this size; skips the test, with the reason, where the process may not."""
    directory = made.mktemp("small")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "elbowroom-test", str(directory)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"this process may not mount a file system of its own: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        gc.collect()
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
