"""The comparison with other servers: which setting is chosen, and that only one server runs at a time."""

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.peer import PEERS, Setting
from benchmarks.peers.running import Running
from benchmarks.peers.turns import _choice, _in_turns
from benchmarks.processes import family
from tests.support.waiting import wait_until

# A parent and a child.
FAMILY = "import os, time\nos.fork()\ntime.sleep(100)"


def states(server: Running) -> set[str]:
    return {
        Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] for pid in family(server.process.pid)
    }


def test_a_setting_of_fewer_processes_is_chosen_unless_it_is_slower() -> None:
    one, two, batches = Setting(1, 2), Setting(2, 1), Setting(2, 1, 32)
    assert _choice({one: 98.0, two: 100.0, batches: 99.0}) == one
    assert _choice({one: 90.0, two: 100.0, batches: 101.0}) == two
    assert _choice({one: 90.0, two: 90.0, batches: 101.0}) == batches


def test_servers_take_turns_while_the_others_are_stopped(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", FAMILY]) for _ in range(3)]
    servers = [Running(PEERS[0], process, "http://127.0.0.1:9", tmp_path) for process in processes]
    try:
        for server in servers:
            wait_until(lambda server=server: len(family(server.process.pid)) == 2)  # type: ignore[misc]
        seen = []
        for server in _in_turns(servers):
            seen.append(server)
            for other in servers:
                expected = {"S"} if other is server else {"T"}
                wait_until(lambda other=other, expected=expected: states(other) == expected)  # type: ignore[misc]
        assert seen == servers
        for server in servers:
            wait_until(lambda server=server: states(server) == {"S"})  # type: ignore[misc]
    finally:
        for server in servers:
            for pid in family(server.process.pid):
                subprocess.run(["kill", "-9", str(pid)], check=False)
        for process in processes:
            process.wait()
