"""The installed version of elbowroom."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str:
    """The version as package managers know it; "(not installed)" where the sources run without an installation."""
    try:
        return metadata.version("elbowroom")
    except metadata.PackageNotFoundError:
        return "(not installed)"
