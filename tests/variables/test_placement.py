"""Where a value lies: a Variable answers as its array does; a part that other processes have is told of in words."""

import array as arrays
import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape

X = jnp.arange(6.0).reshape(2, 3)
NAMES = ("committed", "is_fully_addressable", "is_fully_replicated")


@pytest.mark.parametrize("array", [X, jax.device_put(X, jax.devices()[0]), jnp.float32(2)], ids=["as it comes", "put", "a number"])
def test_a_variable_answers_as_its_array_does(array):
    v = tape.Variable(array)
    assert [getattr(v, n) for n in NAMES] == [getattr(array, n) for n in NAMES]
    for n in ("addressable_shards", "global_shards"):
        (ours,), (theirs,) = getattr(v, n), getattr(array, n)
        assert (ours.device, ours.index, ours.replica_id) == (theirs.device, theirs.index, theirs.replica_id)
        np.testing.assert_array_equal(ours.data, array)
    assert isinstance(v.addressable_data(0), jax.Array)
    np.testing.assert_array_equal(v.addressable_data(0), array)


def test_what_is_pending_runs_and_the_gradient_stays():
    x = tape.Variable(X)
    y = x * x
    assert y.copy_to_host_async() is None
    np.testing.assert_array_equal(y.addressable_data(0), X * X)
    assert y.requires_grad
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.value, 2 * X)


@pytest.mark.parametrize("name", [*NAMES, "addressable_shards", "global_shards", "addressable_data", "copy_to_host_async"])
def test_inside_a_transformation_nobody_knows(name):
    def f(x):
        found = getattr(tape.Variable(x), name)
        return found(0) if name == "addressable_data" else found() if callable(found) else found

    with pytest.raises(tape.errors.ConcretizationError, match=f"{name}: where the value"):
        jax.jit(f)(X)


def test_the_piece_of_a_variable_is_no_argument_of_a_lifted_function():
    """Contract 29: what a lifted function reads of a captured Variable has no gradient, so it is refused."""
    v = tape.Variable(X)
    with pytest.raises(tape.errors.LostGradientError):
        interop.lift(lambda x: x * v.addressable_data(0))(tape.Variable(X))


PROCESS = """
import sys, jax, numpy as np, pytest, tape, tape.numpy as tnp
jax.config.update("jax_platforms", "cpu")
jax.distributed.initialize(f"localhost:{sys.argv[2]}", 2, int(sys.argv[1]))
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
whole = np.arange(4, dtype=np.float32)
v = tape.Variable(jax.make_array_from_callback((4,), sharding, lambda index: whole[index]))
mine = whole[2 * jax.process_index():][:2]
assert (v.committed, v.is_fully_addressable, v.is_fully_replicated) == (True, False, False)
w = v * 2
np.testing.assert_array_equal(w.addressable_data(0), 2 * mine)
assert len(w.addressable_shards) == 1 and [s.data is None for s in w.global_shards].count(True) == 1
for look in (v.numpy, v.tolist, lambda: v.item(1), lambda: np.asarray(v.detach()), v.tobytes, lambda: np.array(v.detach())):
    with pytest.raises(tape.errors.TapeRuntimeError, match="this one has 1 of its 2 pieces; look at v.addressable_shards"):
        look()
with pytest.raises(tape.errors.TapeIndexError, match="no piece 1 of a Variable .shape .4,., dtype float32.; this process has 1 of its 2"):
    v.addressable_data(1)
with pytest.raises(tape.errors.TapeTypeError, match="is an int"):
    v.addressable_data("first")
assert "shape=(4,)" in repr(v)
print("right")
"""


def test_what_other_processes_have_is_told_of():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = str(s.getsockname()[1])
    env = {**os.environ, "PYTHONPATH": ":".join(p for p in sys.path if p) or ".", "XLA_FLAGS": ""}
    running = [
        subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", PROCESS, str(i), port], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    try:
        said = [p.communicate(timeout=120) for p in running]
    finally:
        for p in running:
            p.kill()
    assert [out for out, _ in said] == ["right\n"] * 2, said[0][1] + said[1][1]


@pytest.mark.parametrize("dtype", [float, int, complex, np.float32, np.int8])
def test_an_element_of_numpys_array_does_not_swallow_a_gradient(dtype):
    """Contract 30: ``array[i] = v`` is ``float(v)`` for NumPy, and would be a constant without a word."""
    v, array = tape.Variable(2.0), np.zeros((2, 2), dtype)
    with pytest.raises((tape.errors.LostGradientError, ValueError)) as caught:
        array[0, 1] = v * v
    error = (
        caught.value if isinstance(caught.value, tape.errors.LostGradientError) else caught.value.__cause__
    )  # NumPy puts its own before it
    assert "array[i] = " in str(error)
    assert not array.any()
    plain = arrays.array("d", [0.0])
    with pytest.raises(tape.errors.LostGradientError):
        plain[0] = v


def test_numbers_that_are_asked_for_are_given():
    v, array, named = tape.Variable(2.5), np.zeros(3), {}
    array[0] = float(v)
    array[1] = v.detach()
    with tape.no_grad():
        array[2] = v
    named[float(v)] = int(v)
    assert (array.tolist(), named) == ([2.5] * 3, {2.5: 2})
    assert f"{v:.1f} {complex(v)}" == "2.5 (2.5+0j)"
