"""The command ``python -m tape``: a report and a self-check; ``demo``; ``check`` for a function, ``verify`` for all rules; ``error``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import tape
from tape import layout
from tape.command import check, demo, pages, report, verify
from tape.errors import TapeError

if TYPE_CHECKING:
    from collections.abc import Sequence

PASS, FAIL, USAGE = 0, 1, 2
_RECORDER = f"recorder: {layout.RUNS}".replace("%", "%%")  # which argparse would fill in
_VERSION = f"tape {tape.__version__}, {_RECORDER}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the command's words; those of the process by default.

    Returns:
        The exit status: 0 if nothing is wrong, 1 if a gradient is, 2 if the call cannot be understood or the function not be called.

    Example:
        >>> from tape.command import main
        >>> main(["check", "jax.numpy:tanh", "--shape", "3", "--quiet"])
        0

    """
    parser = argparse.ArgumentParser(
        prog="python -m tape", description=__doc__, epilog=f"Exit status: 0 right, 1 wrong, 2 not understood. {_RECORDER}"
    )
    parser.add_argument("--version", action="version", version=_VERSION, help="say which version it is, and which recorder runs")
    report.add(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", help="without one: versions, devices, caches, extras, a self-check")
    for module in (demo, check, verify, pages):
        module.add(commands)
    try:
        options = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else USAGE
    try:
        return FAIL if options.run(options) else PASS
    except TapeError as error:
        print(f"{parser.prog} {options.command or ''}: {error}", file=sys.stderr)
        return USAGE
