"""Every function of ``jax.numpy`` gives through ``tape.numpy`` what it gives in JAX, as Variables."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.namespaces import namespace as namespaces
from tape.variables import interception
from tests.agreement import same
from tests.mirrored import samples

X, V = samples.X, samples.V


def test_every_name_is_there():
    public = {n for n in dir(jnp) if not n.startswith("_")}
    assert public <= set(tnp.__all__) | namespaces.CALLABLES["jax.numpy"]
    assert dir(tnp) == tnp.__all__


def test_constants_and_types():
    assert (tnp.pi, tnp.newaxis, tnp.inf) == (jnp.pi, None, jnp.inf)
    assert tnp.float32 is jnp.float32
    assert tnp.ndarray is tape.Variable
    assert isinstance(tnp.add, tnp.ufunc)
    assert tnp.finfo(tnp.float32).eps == jnp.finfo(jnp.float32).eps


def test_array_api():
    assert tape.Variable(1.0).__array_namespace__() is tnp
    assert tnp.__array_api_version__ == jnp.__array_api_version__
    assert tnp.__array_namespace_info__().default_dtypes() == jnp.__array_namespace_info__().default_dtypes()
    with pytest.raises(tape.errors.TapeTypeError, match="not supported"):
        tape.Variable(1.0).__array_namespace__(api_version="9999.12")


@pytest.mark.parametrize("method", ["reduce", "accumulate"])
def test_ufunc_folds(method):
    v = tape.Variable(X)
    ours = getattr(tnp.multiply, method)(v, axis=1)
    same(ours, getattr(jnp.multiply, method)(X, axis=1))
    ours.sum().backward()
    same(v.grad, jax.grad(lambda x: getattr(jnp.multiply, method)(x, axis=1).sum())(X))


def test_ufunc_outer_at_and_reduceat():
    v = tape.Variable(V)
    same(tnp.subtract.outer(v, v), jnp.subtract.outer(V, V))
    same(tnp.add.at(v, jnp.array([0, 0]), 1.0, inplace=False), jnp.add.at(V, jnp.array([0, 0]), 1.0, inplace=False))
    same(tnp.add.reduceat(v, jnp.array([0, 1])), jnp.add.reduceat(V, jnp.array([0, 1])))
    assert (tnp.add.nin, tnp.add.nout, tnp.add.identity) == (2, 1, 0)


def test_index_tricks():
    v = tape.Variable(V)
    same(tnp.r_[v, 4.0, v], jnp.r_[V, 4.0, V])
    same(tnp.c_[v, v], jnp.c_[V, V])
    same(tnp.mgrid[0:2, 0:3], jnp.mgrid[0:2, 0:3])
    assert tnp.s_[1:2] == slice(1, 2)


def test_metadata_does_not_look():
    v = tape.Variable(X) * 2
    assert tnp.shape(v) == (3, 3)
    assert tnp.ndim(v) == 2
    assert tnp.size(v, 0) == 3
    assert tnp.result_type(v, 2) == jnp.float32
    assert tnp.iscomplexobj(v) is False
    assert tnp.issubdtype(v.dtype, tnp.floating) is True
    assert v._cell[0] is None


def test_array_keeps_the_gradient():
    v = tape.Variable(V)
    (tnp.array(v) * 2 + tnp.asarray(v) + tnp.stack([v, v]).sum(0)).sum().backward()
    same(v.grad, jnp.full(3, 5.0))
    w = tape.Variable(2.0)
    tnp.array([w, [w * w][0], 1.0]).sum().backward()
    assert float(w.grad) == 5.0


def test_numpy_inputs_are_copied():
    a = np.ones(2, np.float32)
    kept = [tnp.asarray(a), tnp.array(a), tnp.sin(a), tape.Variable([1.0, 1.0]) * a]
    a[:] = 9
    assert [float(k.sum()) for k in kept] == pytest.approx([2.0, 2.0, 2 * np.sin(1.0), 2.0])


def test_files(tmp_path):
    v = tape.Variable(V)
    tnp.save(tmp_path / "a.npy", v)
    same(tnp.load(tmp_path / "a.npy"), V)
    np.save(tmp_path / "a.npy", np.zeros(2, np.float32))
    same(tnp.load(tmp_path / "a.npy"), jnp.zeros(2))
    assert tnp.array_str(v) == jnp.array_str(V)
    with tnp.printoptions(precision=2):
        assert tnp.get_printoptions()["precision"] == 2
    same(tnp.from_dlpack(V), V)
    assert repr(tnp.einsum_path("ij,j->i", tape.Variable(X), v)) == repr(jnp.einsum_path("ij,j->i", X, V))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (tnp.unique, lambda x: jnp.unique(x, size=3)),
        (lambda x: tnp.unique(x, axis=0, return_index=True)[0], lambda x: jnp.unique(x, axis=0, size=3)),
        (lambda x: tnp.unique_all(x).values, lambda x: jnp.unique(x, size=3)),
        (lambda x: tnp.compress(np.array([True, False, True, True]), x), lambda x: x[jnp.array([0, 2, 3])]),
        (lambda x: tnp.extract(x > 1.5, x), lambda x: x[jnp.array([0, 2, 3])]),
        (lambda x: x[x > 1.5], lambda x: x[jnp.array([0, 2, 3])]),
        (lambda x: tnp.repeat(x, tnp.array([0, 2, 1, 0])), lambda x: x[jnp.array([1, 1, 2])]),
        (lambda x: tnp.repeat(x, 2), lambda x: jnp.repeat(x, 2)),
        (lambda x: tnp.delete(x, x > 2.5), lambda x: x[jnp.array([0, 1, 3])]),
        (lambda x: tnp.insert(x, np.array([1, 2]), x[:2]), lambda x: jnp.insert(x, jnp.array([1, 2]), x[:2])),
        (lambda x: tnp.union1d(x, tnp.array([7.0])), lambda x: jnp.concatenate([x[jnp.array([1, 0, 2])], jnp.array([7.0])])),
        (lambda x: tnp.setdiff1d(x, tnp.array([2.0])), lambda x: x[jnp.array([1, 2])]),
        (lambda x: tnp.intersect1d(x, tnp.array([2.0, 3.0])), lambda x: x[jnp.array([0, 2])]),
        (lambda x: tnp.trim_zeros(x * tnp.array([0.0, 1.0, 1.0, 0.0])), lambda x: x[1:3]),
        (lambda x: tnp.bincount(tnp.array([0, 2, 2, 1]), x), lambda x: jnp.bincount(jnp.array([0, 2, 2, 1]), x, length=3)),
    ],
)
def test_gradients_flow_through_what_values_select(ours, theirs):
    data = jnp.array([2.0, 1.0, 3.0, 2.0])
    v = tape.Variable(data)
    result = ours(v)
    expected = theirs(data)
    same(result, expected)
    weights = jnp.arange(1.0, result.size + 1).reshape(expected.shape)
    (result * weights).sum().backward()
    same(v.grad, jax.grad(lambda x: (theirs(x) * weights).sum())(data))


def test_integer_results_of_values():
    v = tape.Variable([0.0, 2.0, 3.0])
    same(tnp.nonzero(v), jnp.nonzero(v.value))
    same(tnp.where(v > 1), jnp.where(v.value > 1))
    same(tnp.argwhere(v), jnp.argwhere(v.value))
    same(tnp.flatnonzero(v, size=2), jnp.flatnonzero(v.value, size=2))


def test_what_would_lose_a_gradient_is_refused():
    v = tape.Variable([1.0, 2.0])
    with pytest.raises(tape.errors.LostGradientError, match="arange"):
        tnp.arange(v[0])
    assert tnp.arange(v[1].detach()).shape == (2,)


def test_creation_functions_are_constants():
    v = tape.Variable(X)
    for made in (tnp.zeros_like(v), tnp.ones_like(v), tnp.full_like(v, 2.0), tnp.empty_like(v), tnp.zeros(2), tnp.eye(2)):
        assert not made.requires_grad
    assert tnp.full_like(v, v[0, 0]).requires_grad


def test_errors_are_raised_at_the_call():
    v = tape.Variable(X)
    with pytest.raises(tape.errors.TapeTypeError, match="matmul"):
        tnp.matmul(v, tnp.ones((4, 4)))
    with pytest.raises(tape.errors.TapeValueError, match="concatenate"):
        tnp.concatenate([v, v], axis=7)
    with pytest.raises(tape.errors.TapeTypeError):
        tnp.sin(v, v, v)
    with pytest.raises(tape.errors.TapeTypeError):
        tnp.add(v, "a")
    with pytest.raises(tape.errors.TapeTypeError):
        tnp.asarray(object())


def test_inside_jit():
    @jax.jit
    def f(x):
        return tnp.sum(tnp.where(x > 0.5, tape.Variable(x) ** 2, 0.0), axis=0).value

    np.testing.assert_allclose(f(X), jnp.where(X > 0.5, X**2, 0).sum(0), rtol=1e-6)
    with pytest.raises(tape.errors.ConcretizationError):
        jax.jit(lambda x: tnp.unique(x).value)(X)


STATIC = {
    "split": lambda xp, x: xp.split(x, np.array([1, 3]), axis=1)[1],
    "pad": lambda xp, x: xp.pad(x, np.array([[2, 1], [0, 1]])),
    "roll": lambda xp, x: xp.roll(x, np.array([2, 1]), axis=np.array([0, 1])),
    "reshape": lambda xp, x: xp.reshape(x, np.array([2, 6])),
    "transpose": lambda xp, x: xp.transpose(x, np.array([1, 0])),
    "moveaxis": lambda xp, x: xp.moveaxis(x, np.array([0]), np.array([1])),
    "tile": lambda xp, x: xp.tile(x, np.array([2, 1])),
}


@pytest.mark.parametrize("name", STATIC)
def test_arrays_of_sizes_and_axes_are_taken_inside_of_traces_too(name):
    fun, x = STATIC[name], np.linspace(-1.0, 1.0, 12, dtype="float32").reshape(3, 4)
    slope = tape.grad(lambda v: tnp.sum(fun(tnp, v) ** 3))
    expected = jax.grad(lambda v: jnp.sum(fun(jnp, v) ** 3))(x)
    kept = tape.grad(tape.checkpoint(lambda v: tnp.sum(fun(tnp, v) ** 3)))
    for own in (slope(x), jax.jit(slope)(x), tape.vmap(slope)(x[None])[0], kept(x)):
        np.testing.assert_allclose(own, expected, rtol=1e-6)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tnp.nothing


def test_dlpack_has_the_signature_of_the_array_api():
    parameters = inspect.signature(tape.Variable.__dlpack__).parameters
    assert {name: (p.kind, p.default) for name, p in parameters.items() if name != "self"} == dict.fromkeys(
        ("stream", "max_version", "dl_device", "copy"), (inspect.Parameter.KEYWORD_ONLY, None)
    )
    constant = tape.constant(np.arange(3.0, dtype=np.float32))
    assert constant.__dlpack__(copy=True) is not None
    np.testing.assert_array_equal(np.from_dlpack(constant), np.arange(3.0))


def test_a_ufunc_called_again_takes_what_it_took(monkeypatch):
    v = tape.Variable(np.float32([1.0, 2.0, 3.0]))
    for _ in range(3):
        assert np.multiply(v, [2, 3, 4]).value.tolist() == [2.0, 6.0, 12.0]
        assert np.add(v, 1.0).value.tolist() == [2.0, 3.0, 4.0]
        assert np.add(v, np.float32(1), dtype=np.float16).dtype == np.float16
        assert np.add.reduce(v).value == 6.0
        with pytest.raises(tape.errors.TapeTypeError):
            np.add(v, 1.0, out=np.zeros(3, np.float32))


def test_the_name_of_a_ufunc_is_looked_up_as_one_object(monkeypatch):
    """NumPy makes it anew each time, and Python's cache of attributes would hold each of them."""
    seen = []

    class Empty:
        def __getattr__(self, name):
            seen.append(name)
            raise AttributeError(name)

    monkeypatch.setattr(interception, "namespace", lambda _: Empty())
    monkeypatch.setattr(interception, "_COUNTERPARTS", {})
    v = tape.Variable(1.0)
    for _ in range(3):
        with pytest.raises(tape.errors.TapeTypeError):
            np.sin(v, dtype="float32")  # with a keyword: without one, the recorder in C remembers what other tests called
    assert len({*map(id, seen)}) == 1


@pytest.mark.parametrize("wrapped", [tape.Variable, np.asarray, jnp.asarray])
def test_keywords_may_come_in_any_order(wrapped):
    """Also once the call is known, with arrays in several of them."""
    x, low, high = (wrapped(np.float32(a)) for a in ([0.0, 1.0, 2.0], [0.5] * 3, [1.5] * 3))
    where = wrapped(np.array([True, False, True]))
    for _ in range(3):
        assert tnp.clip(x, min=low, max=high).tolist() == tnp.clip(x, max=high, min=low).tolist() == [0.5, 1.0, 1.5]
        assert float(tnp.sum(x, where=where, initial=1.5)) == float(tnp.sum(x, initial=1.5, where=where)) == 3.5


def test_numpy_s_own_names_of_arguments():
    x = tape.Variable([1.0, 2.0, 3.0])
    for y in (np.clip(x, a_min=1.5, a_max=None), np.clip(x, 1.5, a_max=9.0), np.clip(x, min=1.5)):
        assert (y.tolist(), tape.gradients(y.sum(), x).tolist()) == ([1.5, 2.0, 3.0], [0.0, 1.0, 1.0])


def test_a_list_of_functions_is_no_array():
    x = tape.Variable([1.0, 2.0, 3.0])
    y = np.piecewise(x, [x < 2.0, np.array([False, True, True])], [lambda v: v * v, lambda v: 5.0 * v])
    assert (y.tolist(), tape.gradients(y.sum(), x).tolist()) == ([1.0, 10.0, 15.0], [2.0, 5.0, 5.0])
    assert np.piecewise(x, [x < 2.0], [np.sin, 7.0]).tolist()[1:] == [7.0, 7.0]
