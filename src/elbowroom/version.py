"""The installed versions of elbowroom and of other packages."""

from __future__ import annotations

from importlib import metadata


def installed_version(package: str = "elbowroom") -> str:
    """Return the version of a package as package managers know it; "(not installed)" if they do not know it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
