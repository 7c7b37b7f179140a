"""``python -m tape``: check the gradient of a function, or the rules of this library."""

import sys

from tape.command import main

if __name__ == "__main__":
    sys.exit(main())
