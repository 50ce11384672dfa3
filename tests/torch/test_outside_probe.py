"""What the child of `elbowroom machine --measure` does, on a virtual GPU and with a driver made up here."""

from __future__ import annotations

import json

import pytest

from elbowroom.capture import outside_probe
from elbowroom.capture.virtual import VirtualDevice
from elbowroom.hardware import nvml
from elbowroom.machine import Machine

MIB = 2**20


def test_the_probe_takes_torchs_own_bytes_off_what_the_driver_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a driver that says 300 MiB after the context and 500 after the step, of which torch has reserved 2 and 60
    told = iter([nvml.Used(900 * MIB, None), nvml.Used(1200 * MIB, 300 * MIB), nvml.Used(1400 * MIB, 500 * MIB)])
    monkeypatch.setattr(nvml, "used", lambda: next(told))
    reserved = iter([2 * MIB, 60 * MIB])

    with VirtualDevice(Machine.of("rtx4090"), None):
        monkeypatch.setattr("torch.cuda.memory_reserved", lambda: next(reserved))
        outside_probe.main()

    assert json.loads(capsys.readouterr().out) == [298 * MIB, 440 * MIB]


def test_where_the_driver_does_not_tell_of_a_process_the_growth_of_all_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "used", lambda: nvml.Used(1200 * MIB, None))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda: 20 * MIB)

    assert outside_probe._held(nvml.Used(900 * MIB, None)) == 280 * MIB  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("driver", "said"), [(None, "the driver"), (nvml.Used(1, None), "torch sees no CUDA device")])
def test_the_probe_says_what_is_missing(driver: nvml.Used | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "used", lambda: driver)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match=said):
        outside_probe.main()
