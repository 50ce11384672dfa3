"""What this computer has: limits found in made-up /proc and /sys trees, rates measured on a small file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elbowroom.errors import TierFailed, TierFull
from elbowroom.hardware import disk_probe as machine_probe
from elbowroom.hardware import nvml, ram
from elbowroom.machine import ASSUMED_DISK, Machine

KB = 1024
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nHugePages_Total:       0\n"
STATUS = "Name:\tpython\nVmSize:\t    300 kB\nVmData:\t    200 kB\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in {"proc/meminfo": MEMINFO, "proc/self/status": STATUS, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture(autouse=True)
def no_resource_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram.resource, "getrlimit", lambda _: (ram.resource.RLIM_INFINITY, ram.resource.RLIM_INFINITY))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "first_device", lambda: None)


def test_physical_memory_is_the_bound_where_there_is_no_other(tmp_path: Path) -> None:
    assert ram.bounds(tree(tmp_path, {})) == (("physical memory", 1000 * KB, 600 * KB),)


def test_a_cgroup_of_version_2_and_those_above_it_bound_the_memory(tmp_path: Path) -> None:
    # given a limit of 4096 bytes on the process's own cgroup and one of 8192 two levels up, none between
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/app/job\n",
            "proc/self/mountinfo": "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/user/app/job/memory.max": "4096\n",
            "sys/fs/cgroup/user/app/job/memory.current": "3000\n",
            "sys/fs/cgroup/user/app/job/memory.stat": "anon 2000\ninactive_file 500\nactive_file 100\n",
            "sys/fs/cgroup/user/app/memory.max": "max\n",
            "sys/fs/cgroup/user/memory.max": "8192\n",
            "sys/fs/cgroup/user/memory.current": "8200\n",
        },
    )

    # then what is free is the limit less what is held, page cache that is given up first apart:
    # 4096 - (3000 - 500) = 1596; 8192 - 8200 = -8
    assert ram.bounds(root)[1:] == (
        ("memory cgroup /user/app/job", 4096, 1596),
        ("memory cgroup /user", 8192, -8),
    )


def test_a_cgroup_of_version_1_bounds_the_memory(tmp_path: Path) -> None:
    mounts = (
        "34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    )
    own = "sys/fs/cgroup/memory/job"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/elsewhere\n4:memory:/job\n0::/\n",
            "proc/self/mountinfo": mounts,
            f"{own}/memory.limit_in_bytes": "4096\n",
            f"{own}/memory.usage_in_bytes": "1000\n",
            f"{own}/memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",  # no limit
        },
    )

    # 4096 - (1000 - 50) = 3146
    assert ram.bounds(root)[1:] == (("memory cgroup /job", 4096, 3146),)


def test_limits_below_the_physical_memory_are_hard_ones_and_a_cgroup_kills(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job\n",
            "proc/self/mountinfo": "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/user/job/memory.max": "4096\n",
            "sys/fs/cgroup/user/job/memory.current": "1000\n",
            "sys/fs/cgroup/user/memory.max": f"{2000 * KB}\n",  # more than the computer has
        },
    )

    (limit,) = ram.hard_limits(root)

    assert (limit.name, limit.limit_bytes, limit.kills) == ("memory cgroup /user/job", 4096, True)
    assert limit.left_bytes() == 3096  # 4096 - 1000
    (root / "sys/fs/cgroup/user/job/memory.current").write_text("3000\n")
    (root / "sys/fs/cgroup/user/job/memory.stat").write_text("inactive_file 500\n")
    assert limit.left_bytes() == 1596  # 4096 - (3000 - 500)
    (root / "sys/fs/cgroup/user/job/memory.max").write_text("2048\n")  # lowered meanwhile
    assert limit.left_bytes() == -452


def test_a_resource_limit_is_a_hard_one_that_does_not_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {ram.resource.RLIMIT_DATA: 500 * KB, ram.resource.RLIMIT_AS: ram.resource.RLIM_INFINITY}
    monkeypatch.setattr(ram.resource, "getrlimit", lambda which: (limits[which], limits[which]))

    (limit,) = ram.hard_limits(tree(tmp_path, {"proc/self/status": "VmData:\t200 kB\n"}))

    assert (limit.name, limit.limit_bytes, limit.kills) == ("RLIMIT_DATA", 500 * KB, False)
    assert limit.left_bytes() == 300 * KB


def test_a_container_that_sees_only_its_own_cgroup_is_bounded_by_it(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/docker/abc\n",
            "proc/self/mountinfo": "41 31 0:38 /other /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/memory.max": "4096\n",
        },
    )

    assert ram.bounds(root)[1:] == (("memory cgroup /", 4096, 4096),)


def test_resource_limits_bound_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {ram.resource.RLIMIT_DATA: 500 * KB, ram.resource.RLIMIT_AS: 800 * KB}
    monkeypatch.setattr(ram.resource, "getrlimit", lambda which: (limits[which], limits[which]))

    # 500 - 200 held as data; 800 - 300 of address space
    assert ram.bounds(tree(tmp_path, {}))[1:] == (
        ("RLIMIT_DATA", 500 * KB, 300 * KB),
        ("RLIMIT_AS", 800 * KB, 500 * KB),
    )


def test_garbage_in_proc_is_not_an_error(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "x\n::\n", "proc/self/mountinfo": "- \ncgroup2\n\n1 2 - cgroup2\n"})
    assert len(ram.bounds(root)) == 1


def test_a_resource_limit_lowers_the_capacity_of_this_process_for_real() -> None:
    # given a child under a limit of 2 GiB of data
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2**31, 2**31)); "
        "from elbowroom.machine import Machine, free_bytes; "
        "print(Machine.here(device='cpu').tiers[0].capacity_bytes, 2**31 - 2**28 < free_bytes() < 2**31)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=child_environment()
    )

    # then that is what it may hold, and less than 256 MiB are held already
    assert done.stdout.split() == [str(2**31), "True"]


def child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(ram.__file__).parents[1])}


def test_here_is_ram_above_the_disk_with_assumed_rates(tmp_path: Path) -> None:
    here = Machine.here(spill_dir=tmp_path)

    assert [tier.name for tier in here.tiers] == ["device", "disk"]
    assert all(tier.capacity_bytes > 0 for tier in here.tiers)
    (link,) = here.links
    assert (link.out_bytes_per_s, link.latency_ns) == (ASSUMED_DISK.out_bytes_per_s, ASSUMED_DISK.latency_ns)
    assert Machine.of("here").name == "here"


def test_the_directory_of_the_disk_tier_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(
        TierFailed, match=r"^disk tier: .*/gone cannot be used: No such file or directory; name another"
    ):
        Machine.here(spill_dir=tmp_path / "gone")


def test_measured_rates_are_positive_and_the_file_is_gone(tmp_path: Path) -> None:
    rates = machine_probe.measure_disk(str(tmp_path), probe_bytes=16 * 2**20)

    assert min(rates.out_bytes_per_s, rates.back_bytes_per_s, rates.latency_ns) > 0
    assert list(tmp_path.iterdir()) == []


def test_here_takes_the_measured_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elbowroom.machine.measure_disk", lambda _: machine_probe.DiskRates(3, 4, 5, True))
    monkeypatch.setattr("elbowroom.machine.measure_memory", lambda: 6)

    here = Machine.here(measure=True, spill_dir=tmp_path)

    assert (here.links[0].out_bytes_per_s, here.links[0].back_bytes_per_s, here.links[0].latency_ns) == (3, 4, 5)
    assert here.memory_bytes_per_s == 6


def test_the_memory_is_measured() -> None:
    assert machine_probe.measure_memory() > 2**27  # an eighth of a GiB per second is less than any machine of today


def test_a_file_system_without_o_direct_is_measured_with_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a file system that refuses the flag
    really_open = os.open

    def refuse_direct(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return really_open(path, flags, *rest, **named)

    monkeypatch.setattr(machine_probe.os, "open", refuse_direct)

    # then it is measured all the same, and says so
    assert machine_probe.measure_disk(str(tmp_path), probe_bytes=8 * 2**20).direct is False
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, TierFull), (errno.EIO, TierFailed)])
def test_a_disk_that_refuses_writes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[TierFull | TierFailed]
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(machine_probe.os, "pwrite", refuse)
    with pytest.raises(
        kind, match=rf"^disk tier: .* cannot be measured: {os.strerror(code)}; 8388608 bytes of room"
    ) as problem:
        machine_probe.measure_disk(str(tmp_path), probe_bytes=8 * 2**20)
    assert problem.value.tier == "disk"
