"""One command, run to its end or a time limit: exit code, output, seconds and the most memory of its process."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

WATCH = Path(__file__).resolve().parent / "watch"
CACHES = ("HF_HOME", "MPLCONFIGDIR", "KERAS_HOME", "TORCH_HOME", "XDG_CACHE_HOME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended."""

    exit_code: int | None
    """None where the time limit was reached."""
    output: str
    errors: str
    seconds: float
    peak_rss_bytes: int

    def row(self) -> dict[str, object]:
        return {
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 1),
            "peak_rss_bytes": self.peak_rss_bytes,
            **({} if self.exit_code == 0 else {"said": said(self.errors or self.output)}),
        }


def said(text: str, count: int = 6) -> list[str]:
    """What elbowroom itself said, and the last lines that are not empty; each cut where it is long."""
    lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
    own = [line for line in lines[:-count] if line.startswith("elbowroom:")]
    return [line[:600] for line in own + lines[-count:]]


def environment_of(source: Path, home: Path, temporary: Path, extra: dict[str, str]) -> dict[str, str]:
    """No network, no screen, a home of its own, one thread less to wait for; PYTHONPATH of extra comes last."""
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")}
    own = {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join((str(WATCH), str(source))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "MPLBACKEND": "Agg",
        "NO_ALBUMENTATIONS_UPDATE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "KINETO_LOG_LEVEL": "5",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "COLUMNS": "160",
        "OMP_NUM_THREADS": "1",
    }
    path = os.pathsep.join(filter(None, (own["PYTHONPATH"], extra.get("PYTHONPATH"))))
    return {**kept, **own, **extra, "PYTHONPATH": path}


def run_command(command: list[str], folder: Path, environment: dict[str, str], limit_s: float) -> Done:
    """Runs a command in a process group of its own, which is ended at the time limit."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        late = threading.Event()
        timer = threading.Timer(limit_s, _end, (process.pid, late))
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        _end(process.pid, threading.Event())  # what it left running
        seconds = time.monotonic() - start
        texts: list[str] = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Done(
        exit_code=None if late.is_set() else process.returncode,
        output=texts[0],
        errors=texts[1],
        seconds=seconds,
        peak_rss_bytes=used.ru_maxrss * 1024,
    )


def _end(group: int, late: threading.Event) -> None:
    late.set()
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
