"""``python -m tape``: what there is, a short guided run, and checks of gradients."""

import sys

from tape.command import main

if __name__ == "__main__":
    sys.exit(main())
