"""Throughput, latency, CPU time and memory of this server beside others that serve the same network.

Every server gets one JPEG of 500x375 a request, reduces and crops it with Pillow, and runs the same ONNX graph and
linear classifier. Each is written as its own documentation would (benchmarks/peers/services) and runs at the best of a
few settings. Then all take turns, so that a noisy machine disturbs them alike. The load comes from a process on the
same machine, so what it costs is part of the figures.

    python -m benchmarks.peers install    # an environment for each server, in .peers/
    python -m benchmarks.peers [models/photos-efficientnet-lite0] [--only fastapi triton] [--rounds 5] [--seconds 5]

Prints Markdown and writes it to benchmarks/results/peers-BUNDLE.md.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.peer import ENVIRONMENTS, PEERS, Peer
from benchmarks.peers.turns import measure
from benchmarks.publishing import ROOT, publish


def main() -> None:
    """Install the servers, or measure them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default=str(ROOT / "models/photos-efficientnet-lite0"))
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], help="these besides this server")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    arguments = parser.parse_args()
    peers = [peer for peer in PEERS if arguments.only is None or peer.name in arguments.only]
    if arguments.what == "install":
        for peer in peers:
            install(peer)
        return
    missing = [peer.name for peer in peers if not peer.python.exists()]
    if missing:
        sys.exit(f"no environment for {', '.join(missing)}: run python -m benchmarks.peers install")
    bundle = Path(arguments.what)
    with tempfile.TemporaryDirectory() as folder:
        text = measure(bundle, peers, Path(folder), arguments.clients, arguments.rounds, arguments.seconds)
    publish(f"peers-{bundle.name}", text)


def install(peer: Peer) -> None:
    """Make the environment of a server."""
    folder = ENVIRONMENTS / peer.name
    subprocess.run([peer.interpreter, "-m", "venv", "--clear", str(folder)], check=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *peer.requirements], check=True)


if __name__ == "__main__":
    main()
