"""`python -m elbowroom`, the same as the command `elbowroom`."""

from __future__ import annotations

import sys

from elbowroom.cli import main

if __name__ == "__main__":
    sys.exit(main())
