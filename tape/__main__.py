"""``python -m tape``: check the gradient of a function, or the rules of this library."""

import sys

from tape.command import main

sys.exit(main())
