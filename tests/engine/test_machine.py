"""The number of CPUs the process may use, from made-up control groups."""

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
