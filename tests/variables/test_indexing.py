"""Indexing reads and assigns as NumPy does, and gradients go where the elements came from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.variables import indexing, updates
from tests.agreement import same

X = jnp.arange(24.0).reshape(2, 3, 4)
N = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
MASK = N % 3 == 0
INDICES = {
    "int": 1,
    "negative": -1,
    "ints": (1, 2, 3),
    "numpy int": np.int64(1),
    "all": slice(None),
    "tail": slice(1, None),
    "window": slice(0, 1),
    "window inside": (0, slice(1, 3)),
    "empty": (slice(None), slice(2, 2)),
    "empty backwards": slice(-3, None, -1),
    "step": (slice(None), slice(None, None, 2)),
    "reversed": (slice(None, None, -1), slice(None), slice(None, None, -2)),
    "backwards": (0, 0, slice(3, 0, -1)),
    "none": None,
    "new axes": (None, 0, Ellipsis, None),
    "ellipsis": (Ellipsis, 1),
    "ellipsis last": (1, Ellipsis),
    "empty tuple": (),
    "window and new": (0, None, slice(1, 2), 3),
    "list": [1, 0, 1],
    "lists": ([0, 1], [1, 2]),
    "array": np.array([[1, 0], [0, 0]]),
    "arrays": (np.array([0, 1]), slice(None), np.array([3, 0])),
    "array and int": (1, np.array([0, 2]), 3),
    "array and slices": (slice(None), np.array([2, 0]), slice(1, 3)),
    "array and window": (slice(0, 1), np.array([2, 0])),
    "arrays parted by no axes": (slice(None), np.array([0, 2]), Ellipsis, np.array([3, 0])),
    "negative array": (np.array([-1, 0]), -1),
    "mask": MASK,
    "mask of rows": np.array([False, True]),
    "mask in the middle": (slice(None), np.array([True, False, True])),
    "mask last": (Ellipsis, np.array([True, False, True, True])),
    "mask of two axes": (slice(None), MASK[0]),
    "mask and array": (np.array([True, True]), np.array([0, 2])),
    "list mask": [True, False],
    "empty list": [],
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_getitem(index):
    v = tape.Variable(X)
    read = v[index]
    same(read, jnp.asarray(N[index]))
    weights = np.arange(1.0, read.size + 1, dtype=np.float32).reshape(read.shape)
    (read * weights).sum().backward()
    expected = np.zeros_like(N)
    np.add.at(expected, index, weights)
    same(v.grad, jnp.asarray(expected))


def test_an_index_like_another_one_reads_its_own_places():
    """The recorder in C knows an index by the objects in it and by what it is taken from: of so many, several have one place."""
    numbers = np.arange(600, dtype=np.float32).reshape(300, 2)
    v = tape.Variable(numbers)
    for n in range(0, 300, 2):
        for _ in range(3):
            assert v[:n].shape == (n, 2)
            assert v[n:, None].shape == (300 - n, 1, 2)
            assert v[::-1, : n % 3].shape == (300, min(n % 3, 2))
            assert float(v[n, 1]) == numbers[n, 1]
    for n in range(300, 330):
        v = tape.Variable(numbers.ravel()[:n])
        assert [v[-1:].sum().item() for _ in range(3)] == [n - 1] * 3


def test_an_index_that_is_known_still_refuses_what_is_not():
    v = tape.Variable(X)
    for _ in range(3):
        same(v[0, 1:], jnp.asarray(N[0, 1:]))
        with pytest.raises(IndexError):
            v[2, 1:]
        with pytest.raises(TypeError):
            v[0, 1.0:]


NOWHERE = np.array([], np.int32)
NOTHING = {
    "getitem": lambda x: x[x > 9],
    "at": lambda x: x.at[NOWHERE].get(),
    "take": lambda x: tnp.take(x, NOWHERE),
    "extract": lambda x: tnp.extract(x > 9, x),
    "delete": lambda x: tnp.delete(x, [0, 1]),
    "segments": lambda x: tape.ops.segment_sum(x[2:], NOWHERE, 3),
}


@pytest.mark.parametrize("chosen", NOTHING.values(), ids=NOTHING)
def test_what_selects_nothing_has_a_gradient_of_zeros(chosen):
    x = tape.Variable([1.0, 2.0])
    (chosen(x) ** 2).sum().backward()
    same(x.grad, jnp.zeros(2))


def test_a_jacobian_of_what_selects_nothing_has_its_shape():
    same(tape.hessian(lambda x: (x[NOWHERE] ** 2).sum())(tape.Variable([1.0, 2.0])), jnp.zeros((2, 2)))


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_setitem(index):
    v = tape.Variable(X) * 1.0
    before = v * 2
    y = tape.Variable(jnp.full(N[index].shape, -1.0))
    expected = N.copy()
    expected[index] = -1.0
    v[index] = y
    same(v, jnp.asarray(expected))
    same(before, 2 * X)
    assert v.requires_grad
    v.sum().backward()
    if y.size == np.unique(np.arange(24).reshape(N.shape)[index]).size:
        same(y.grad, jnp.ones(N[index].shape))


@pytest.mark.parametrize("make", [jnp.asarray, tape.constant], ids=["jax", "variable"])
def test_indices_of_other_kinds(make):
    v = tape.Variable(X)
    same(v[make(np.array([1, 0]))], X[np.array([1, 0])])
    same(v[make(MASK)], jnp.asarray(N[MASK]))
    same(v[0, make(np.int32(2))], X[0, 2])
    same(v[[0, make(np.int32(1))]], X[np.array([0, 1])])
    same(v[0, make(np.int32(1)) :], X[0, 1:])
    w = tape.constant(X)
    w[make(MASK)] = tape.Variable(1.0)
    same(w, jnp.where(MASK, 1.0, X))
    assert w.requires_grad


def test_values_broadcast_as_in_numpy():
    for index, value in (
        (0, np.ones((1, 3, 1))),
        (slice(0, 2), 5),
        ((slice(None), 1), [1.0, 2.0, 3.0, 4.0]),
        (Ellipsis, np.ones((1, 1, 2, 3, 4))),
    ):
        v, expected = tape.constant(X), N.copy()
        v[index] = value
        expected[index] = value
        same(v, jnp.asarray(expected))
    v = tape.constant(X)
    v[..., 0] = tnp.ones((2, 1))
    same(v[..., 0], jnp.ones((2, 3)))
    with pytest.raises(tape.errors.TapeValueError):
        v[0] = np.ones(5)


def test_assigned_values_take_the_dtype():
    v = tape.constant(np.arange(3))
    v[0] = 7.9
    same(v, jnp.array([7, 1, 2]))
    v[v > 1] = 4.9
    same(v, jnp.array([4, 1, 4]))
    with pytest.raises(tape.errors.LostGradientError, match="requires grad"):
        v[0] = tape.Variable(1.0)
    w = tape.constant([1.0, 2.0])
    with pytest.raises(tape.errors.TapeTypeError, match="does not fit"):
        w[0] = 1j


def test_a_leaf_that_requires_grad_is_not_assigned_to():
    v = tape.Variable([1.0, 2.0])
    with pytest.raises(tape.errors.TapeValueError, match=r"x\.at\[i\]\.set\(y\)"):
        v[0] = 3.0
    same(v, jnp.array([1.0, 2.0]))


def test_hooks_and_gradients_stay_with_the_old_value():
    seen = []
    x = tape.Variable([1.0, 2.0])
    y = x * 2
    y.name = "y"
    y.register_hook(seen.append)
    y.retain_grad()
    z = y.sum()
    y[0] = 5.0
    assert y.grad is None
    assert y.name == "y"
    (y.sum() + z).backward()
    assert y.grad is None
    same(seen, [jnp.ones(2) + jnp.array([0.0, 1.0])])
    same(x.grad, jnp.array([2.0, 4.0]))


def test_a_scalar_under_a_mask_does_not_look():
    v = tape.Variable(X) * 2
    v[v > 3] = 0.0
    assert v._cell[0] is None
    same(v, jnp.where(X * 2 > 3, 0.0, X * 2))


@pytest.mark.parametrize(
    "index",
    [2, -3, (0, 3), (0, 0, 0, 0), (Ellipsis, Ellipsis), np.ones((3, 3), bool), (slice(None), np.ones(2, bool))],
)
def test_out_of_range(index):
    v = tape.Variable(X)
    with pytest.raises(tape.errors.TapeIndexError):
        v[index]
    with pytest.raises(tape.errors.TapeIndexError):
        tape.constant(X)[index] = 0.0
    with pytest.raises(IndexError):
        tape.Variable(1.0)[0]


@pytest.mark.parametrize("index", [1.5, "a", {}])
def test_what_is_no_index(index):
    with pytest.raises(tape.errors.TapeError):
        tape.Variable(X)[index]


def test_positions_are_inputs():
    tape.stats().reset()
    v = tape.Variable(X)
    for i in range(2):
        (v[i] * v[i, 1:3].sum()).sum().value.block_until_ready()
    first = tape.stats().programs
    v[1][0].value.block_until_ready()
    v[0][1].value.block_until_ready()
    assert first <= 2
    assert tape.stats().programs - first <= 2


@pytest.mark.parametrize("method", ["set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max"])
@pytest.mark.parametrize("index", [0, -1, (slice(None), 1), np.array([0, 0]), MASK, 9], ids=str)
def test_at(method, index):
    v = tape.Variable(X)
    same(getattr(v.at[index], method)(2.0), getattr(X.at[index], method)(2.0))


def test_at_options_get_and_apply():
    v = tape.Variable(X)
    same(v.at[5].get(mode="fill", fill_value=-1.0), X.at[5].get(mode="fill", fill_value=-1.0))
    same(v.at[0].set(1.0, mode="drop", unique_indices=True), X.at[0].set(1.0))
    same(v.at[0].apply(tnp.sin), X.at[0].apply(jnp.sin))
    y = tape.Variable(2.0)
    v.at[0].multiply(y).sum().backward()
    same(y.grad, X[0].sum())
    same(v.grad, jax.grad(lambda x: x.at[0].multiply(2.0).sum())(X))
    assert "At" in repr(v.at)
    assert "At" in repr(v.at[0])


PARTED = (np.array([0, 1, 0]), slice(None), Ellipsis, np.array([2, 3, 2]))


@pytest.mark.parametrize("index", [np.array([0, 1, 0, 0]), np.array([1, 9, 1]), (slice(None), [2, -1, 2]), MASK, PARTED], ids=str)
def test_what_an_index_names_twice_is_changed_twice(index):
    v = tape.Variable(X)
    y = v.at[index].apply(lambda x: x * x + 1)
    same(y, X.at[index].apply(lambda x: x * x + 1))
    same(tape.jit(lambda v: v.at[index].apply(lambda x: x * x + 1))(v), y.value)
    times = jnp.zeros(X.shape).at[index].add(1)  # what is outside is left out
    x, slope = X, jnp.ones(X.shape)
    for turn in range(3):
        x, slope = jnp.where(times > turn, x * x + 1, x), jnp.where(times > turn, 2 * x * slope, slope)
    same(tape.gradients(y.sum(), v), slope)


def test_inside_jit():
    @jax.jit
    def f(x, i):
        v = tape.Variable(x)
        return (v[i] + v[0] + v[:, 1:, 0].sum()).value

    same([tape.constant(f(X, 1))], [X[1] + X[0] + X[:, 1:, 0].sum()])
    with pytest.raises(tape.errors.ConcretizationError, match=r"where\(mask"):
        jax.jit(lambda x: tape.Variable(x)[tape.Variable(x) > 0].value)(X)


def test_single_truth_values_and_shapes_of_variables():
    v = tape.Variable(X)
    same([v[True], v[np.True_], v[False]], [X[True], X[True], X[False]])
    same(v.reshape(tape.constant(6), -1), X.reshape(6, -1))


def test_keys_are_indexed_and_assigned():
    keys = tape.random.split(tape.random.key(0), 3)
    expected = jax.random.split(jax.random.key(0), 3)
    keys[0] = keys[1]
    same(keys[::2], expected[jnp.array([1, 2])])


@pytest.mark.parametrize("given", [tape.constant, jnp.asarray, np.asarray])
@pytest.mark.parametrize(
    "index",
    [
        lambda i: (i,),
        lambda i: (i, i),
        lambda i: (slice(None), i),
        lambda i: (i, None, slice(0, 2)),
        lambda i: (..., i),
        lambda i: (i, int(i[0])),
    ],
)
def test_an_index_with_arrays_that_was_met_is_not_taken_apart_again(index, given, monkeypatch):
    x, taken = tape.Variable(np.arange(16.0, dtype=np.float32).reshape(4, 4)), []
    apart = indexing.expand
    monkeypatch.setattr(indexing, "expand", lambda *args, **options: taken.append(args) or apart(*args, **options))
    for numbers in ([0, 2, 3], [1, 1, 0], [-1, 2, 2]):
        plain = index(np.array(numbers, np.int32))
        items = tuple(given(i) if isinstance(i, np.ndarray) else i for i in plain)
        y = x[items if len(items) > 1 else items[0]]
        np.testing.assert_array_equal(y.value, x.value[plain])
        gradient = tape.gradients((y * y).sum(), x)
        np.testing.assert_array_equal(gradient.value, jax.grad(lambda a, plain=plain: (a[plain] ** 2).sum())(x.value))
    assert len(taken) <= 1
    mask = x[given(np.array([True, False, True, False]))]
    np.testing.assert_array_equal(mask.value, x.value[np.array([0, 2])])
    with pytest.raises((IndexError, TypeError)):
        x[given(np.array([0.0, 1.0], np.float32))]


UPDATES = {
    "set": lambda x, at, y: x.at[at].set(y),
    "add": lambda x, at, y: x.at[at].add(y),
    "max": lambda x, at, y: x.at[at].max(y),
}


@pytest.mark.parametrize("given", [tape.constant, jnp.asarray, np.asarray, float], ids=["Variable", "JAX", "NumPy", "number"])
@pytest.mark.parametrize("index", [lambda i: i, lambda i: (i, i), lambda i: (slice(1, None), i), lambda i: (int(i[0]), i)])
@pytest.mark.parametrize("update", UPDATES)
def test_an_update_that_was_met_is_not_taken_apart_again(update, index, given, monkeypatch):
    x, taken = tape.Variable(np.arange(16.0, dtype=np.float32).reshape(4, 4)), []
    apart, change = updates.expand, UPDATES[update]
    monkeypatch.setattr(updates, "expand", lambda *args, **options: taken.append(args) or apart(*args, **options))
    for turn, numbers in enumerate(([0, 2, 3], [1, 3, 0], [-1, 2, 0])):
        at, value = index(np.array(numbers, np.int32)), np.float32(turn + 4.5)
        y = change(x, at, given(value))
        same(y, change(x.value, at, value))
        gradient = tape.gradients((y * y).sum(), x)
        same(gradient, jax.grad(lambda a, at=at, value=value: (change(a, at, value) ** 2).sum())(x.value))
    assert len(taken) <= 1


def test_an_assignment_that_was_met_is_not_taken_apart_again(monkeypatch):
    taken, apart = [], updates.expand
    monkeypatch.setattr(updates, "expand", lambda *args, **options: taken.append(args) or apart(*args, **options))
    y = tape.Variable(2.0)
    for numbers in ([0, 1, 1], [1, 0, 0], [-1, -1, 1]):
        at = np.array(numbers)
        v = tape.Variable(N) * 1.0
        v[at, 1:, 2] = y
        expected = N.copy()
        expected[at, 1:, 2] = 2.0
        same(v, expected)
        assert float(tape.gradients(v.sum(), y)) == 2 * len(set(at % 2))
    assert len(taken) <= 1


def test_updates_with_what_is_not_known_beforehand():
    v = tape.Variable(X)
    for _ in range(2):
        same(v.at[np.array([1, 7])].set(1.0), X.at[np.array([1, 7])].set(1.0))
        same(v.at[5, np.array([1])].add(1.0), X.at[5, np.array([1])].add(1.0))
        same(v.at[..., 0, np.array([1])].add(np.ma.masked_array([1.0])), X.at[..., 0, np.array([1])].add(1.0))
        same(v.at[MASK].set(0), X.at[MASK].set(0))
        with pytest.raises(OverflowError):
            v.at[np.array([1])].set(2**70)
