"""Compare what the tape returns with what it should: values, and what a mirrored function returns with what JAX's returns."""

import inspect

import jax
import numpy as np

import tape


def is_variable(x):
    return isinstance(x, tape.Variable)


def close(ours, theirs, tolerance=None, *, rtol=1e-5, atol=1e-6):
    """Assert nearly equal values of a Variable or an array, or of trees of them; ``tolerance`` stands for both of the others."""
    if tolerance is not None:
        rtol = atol = tolerance
    pairs = [(ours, theirs)]
    if isinstance(ours, (tuple, list, dict)):
        pairs = zip(*[jax.tree.leaves(tree, is_leaf=is_variable) for tree in (ours, theirs)], strict=True)
    for a, b in pairs:
        values = [np.asarray(x.value if is_variable(x) else x) for x in (a, b)]
        np.testing.assert_allclose(*values, rtol=rtol, atol=atol)


def same(ours, theirs, *, values=True):
    """Assert equal trees: a Variable for each array, and every other leaf equal; without ``values`` arrays of equal kinds are equal."""
    assert type(ours) is type(theirs) or is_variable(ours), (type(ours), type(theirs))
    our_leaves, our_tree = jax.tree.flatten(ours, is_leaf=is_variable)
    their_leaves, their_tree = jax.tree.flatten(theirs)
    assert our_tree == their_tree
    for a, b in zip(our_leaves, their_leaves, strict=True):
        if not isinstance(b, (jax.Array, np.ndarray)):
            assert type(a) is type(b)
            assert a == b
            continue
        assert is_variable(a), type(a)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if not values:
            continue
        if jax.dtypes.issubdtype(b.dtype, jax.dtypes.prng_key):
            ours, theirs = tape.random.key_data(a).value, jax.random.key_data(b)
        else:
            ours, theirs = a.value, b
        np.testing.assert_allclose(np.asarray(ours).astype(complex), np.asarray(theirs).astype(complex), rtol=2e-4, atol=2e-5)


def same_face(ours, theirs, name):
    """Assert equal name, signature and docstring."""
    assert ours.__name__ == name
    assert ours.__doc__ == theirs.__doc__
    try:
        expected = inspect.signature(theirs)
    except ValueError:
        return
    assert inspect.signature(ours) == expected


def to_variables(tree):
    """Make Variables of all JAX arrays in a tree."""
    return jax.tree.map(lambda x: tape.Variable(x) if isinstance(x, jax.Array) else x, tree)


def first_that_fits(fun, candidates):
    """Return the first arguments that JAX's function accepts, with its result."""
    errors = []
    for args in candidates:
        try:
            return args, fun(*args)
        except Exception as e:  # noqa: BLE001 - any refusal means the next candidate
            errors.append(e)
    msg = f"no sample arguments for {fun}: {errors}"
    raise AssertionError(msg)
