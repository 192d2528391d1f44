"""The CPUs and the memory that the process may use, from made-up control groups, and how many workers suit them."""

from pathlib import Path

import pytest

from comln_serve import machine


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "granted"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "nonsense\n"}, None),
        ({}, None),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], granted: float | None) -> None:
    assert machine._cgroup_quota(write(tmp_path, files)) == granted


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (2.6, 3), (0.2, 1), (64.0, 4)])
def test_affinity_and_quota(monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(machine, "_cgroup_quota", lambda _: quota)
    assert machine.usable_cpus() == expected


@pytest.mark.parametrize(
    ("cpus", "gigabytes", "workers"),
    [
        (1, 64, 1),
        (16, 64, 8),
        (16, 2, 4),  # half of it, without what the first takes
        (16, 0.5, 1),
    ],
)
def test_suitable_workers(monkeypatch: pytest.MonkeyPatch, cpus: int, gigabytes: float, workers: int) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(machine, "usable_memory", lambda: int(gigabytes * 2**30))
    assert machine.suitable_workers(embedder=False) == workers
    assert machine.suitable_workers(embedder=True) <= workers


def test_vnni_is_what_linux_says() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        pytest.skip("Linux says it in /proc/cpuinfo")
    flags = cpuinfo.read_text().split()
    assert machine.has_vnni() == ("avx512_vnni" in flags or "avx_vnni" in flags)


def test_the_limit_of_the_container_is_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    all_of_it = machine.usable_memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.usable_memory() == all_of_it
    (tmp_path / "memory.max").write_text(f"{2**20}\n")
    assert machine.usable_memory() == 2**20
