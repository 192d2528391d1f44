"""`comln-train report`: write a run's report."""

import argparse
from pathlib import Path


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.add_argument("run_folder", type=Path, metavar="RUN", help="folder given to fit as --out")


def run(args: argparse.Namespace) -> None:
    """Write the report."""
    from training.runs.report import write_report  # noqa: PLC0415 - needs torch, which the options do not

    print(f"wrote {write_report(args.run_folder)}")
