"""Who runs what is not compiled whole: a test of the last bits wants one of them from the first run on."""

import contextlib
from unittest import mock

from tape.ops.running import Runner
from tape.programs import execution


@contextlib.contextmanager
def by_xla():
    """No kernel runs in NumPy, not even one that has before; also a decorator."""
    executable = Runner.executable.fget

    def compiled(self):
        known = executable(self)
        self._first = None
        return executable(self) if known is not self._executable else known

    with (
        mock.patch.object(execution, "at_home", return_value=False),
        mock.patch.object(Runner, "hosting", return_value=False),
        mock.patch.object(Runner, "executable", property(compiled)),
    ):
        yield
