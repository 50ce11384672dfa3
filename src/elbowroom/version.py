"""The installed version of elbowroom."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str:
    """Return the version as package managers know it; "(not installed)" if the sources run without installation."""
    try:
        return metadata.version("elbowroom")
    except metadata.PackageNotFoundError:
        return "(not installed)"
