"""What there is on CPUs only: tests that ask for it run there, and say elsewhere why they do not."""

import jax
import pytest

AT_HOME = jax.default_backend() == "cpu"  # arrays are in the host's memory

# NumPy runs small kernels on the host's arrays, C reads their numbers, and XLA's CPUs round each product as it stands in the program.
at_home = pytest.mark.skipif(not AT_HOME, reason="is about arrays in the host's memory")


def is_lowered(fun, *args):
    """Tell whether JAX has a function of such arguments on the device that there is; of CPUs it is not asked."""
    return AT_HOME or _succeeds(jax.jit(fun).lower, args)


def runs(fun, *args):
    """Tell whether it runs there as well: of some products, XLA's libraries for GPUs have none."""
    return AT_HOME or _succeeds(jax.jit(fun), args)


def _succeeds(call, args):
    try:
        jax.block_until_ready(call(*args))
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return False
    return True
