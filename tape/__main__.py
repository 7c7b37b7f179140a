"""``python -m tape``: what there is, a short guided run, and checks of gradients."""

import os
import sys

from tape.command import main

if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # ``| head`` has read enough; nor is Python to say so when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
