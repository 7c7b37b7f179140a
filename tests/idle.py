"""Waiting until the background has nothing left to compile: what it makes meanwhile is counted with what a test makes."""

import threading

from tape.programs import background
from tape.testing import executables


def settle():
    """Return when all that was submitted before has been done."""
    done = threading.Event()
    background.submit(done.set)
    done.wait()
    executables._BACKGROUND.submit(int).result()
