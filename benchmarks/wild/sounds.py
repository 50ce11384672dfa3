"""Small recordings of noise in the folders that scripts read, with the lists beside them."""

from __future__ import annotations

import json
import wave
from pathlib import Path

from .pictures import random

RATE = 8000
"""Samples of a second."""


def speech(root: Path) -> None:
    """tr and cv: mixtures of two speakers of 4 to 6 seconds, each of the three in a file, and mix, s1 and s2.json."""
    rng = random()
    for part, count in (("tr", 24), ("cv", 4)):
        (root / part).mkdir()
        lists: dict[str, list[tuple[str, int]]] = {kind: [] for kind in ("mix", "s1", "s2")}
        for number in range(count):
            samples = int(rng.integers(4 * RATE, 6 * RATE))
            for kind, found in lists.items():
                path = root / part / f"{kind}_{number}.wav"
                with wave.open(str(path), "wb") as file:
                    file.setnchannels(1)
                    file.setsampwidth(2)
                    file.setframerate(RATE)
                    file.writeframes(rng.integers(-3000, 3000, samples, dtype="int16").tobytes())
                found.append((f"{root.name}/{part}/{path.name}", samples))
        for kind, found in lists.items():
            (root / part / f"{kind}.json").write_text(json.dumps(found))
