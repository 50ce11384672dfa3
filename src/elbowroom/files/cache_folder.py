"""Cache folder: where elbowroom keeps what it may measure or plan again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "ELBOWROOM_CACHE_DIR"
"""Environment variable that names the folder."""
SWITCH = "ELBOWROOM_KEEPS_PLANS"
"""Environment variable: "0" keeps no plans and captures, and looks for none."""


def is_used() -> bool:
    """Return whether runs keep plans and captures for their next start."""
    return os.environ.get(SWITCH) != "0"


def cache_folder() -> Path:
    """Return ELBOWROOM_CACHE_DIR, or else "elbowroom" in XDG_CACHE_HOME, LOCALAPPDATA or ~/.cache.

    Raises:
        FileNotFoundError: these are not set, and this user has no home.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "elbowroom"
    except RuntimeError:
        raise FileNotFoundError(f"no cache folder, as this user has no home; set {VARIABLE} to a folder") from None
