"""Every public name of the mirrored JAX modules has its counterpart, and a function gives what it gives in JAX."""

import importlib
import pydoc
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
from tape.namespaces import namespace as namespaces
from tests.agreement import is_variable, same, same_face, to_variables
from tests.daily import share
from tests.mirrored import samples
from tests.mirrored.beside_jax import DIFFERENTIATED, inexact, steps

V, X, S, B, KEY = samples.V, samples.X, samples.S, samples.B, samples.KEY


def functions(source):
    module = importlib.import_module(source)
    ours = importlib.import_module(source.replace("jax", "tape", 1))
    absent = namespaces.CALLABLES.get(source, set()) | samples.NOT_CALLED.get(source, set())
    return [n for n in ours.__all__ if n not in absent and callable(f := getattr(module, n, None)) and not isinstance(f, type)]


CALLED = [s for s in samples.SOURCES if s != "jax.nn.initializers"]


@pytest.mark.parametrize("source", samples.SOURCES)
def test_every_name_is_known(source):
    module = importlib.import_module(source)
    ours = importlib.import_module(source.replace("jax", "tape", 1))
    namespace = namespaces.Namespace(ours.__name__, source)
    for name in [n for n in dir(module) if not n.startswith("_")]:
        category = namespace.category(name)
        if category == "callables":
            continue
        if category == "hidden":
            assert name not in ours.__all__
            with pytest.raises(AttributeError):
                getattr(ours, name)
        else:
            assert name in ours.__all__
            assert getattr(ours, name) is getattr(ours, name)
    assert dir(ours) == list(ours.__all__)


def test_tables_name_what_exists():
    for table in (namespaces.CALLABLES, namespaces.METADATA, namespaces.ON_VALUES, namespaces.PASSED):
        for source, names in table.items():
            assert not {n for n in names if not hasattr(importlib.import_module(source), n)}


FUNCTIONS = [(s, n) for s in CALLED for n in functions(s)]
# By day most of those whose values test_derivatives.py compares are compared without values, which have to be compiled.
TRACED = set(DIFFERENTIATED) - set(share(DIFFERENTIATED, 12))
# And of the others those that record what JAX computes.
PROGRAMS = set(FUNCTIONS) - set(DIFFERENTIATED)
PROGRAMS -= set(share(sorted(PROGRAMS), 12))


@pytest.mark.parametrize(("source", "name"), FUNCTIONS)
def test_function(source, name):
    theirs = getattr(importlib.import_module(source), name)
    ours = getattr(importlib.import_module(source.replace("jax", "tape", 1)), name)
    same_face(ours, theirs, name)
    if samples.SAMPLES.get(source, {}).get(name, ()) is None:
        return  # called in a test of its own
    if (source, name) in TRACED:
        traced_alike(ours, theirs, *samples.smooth(source, name, theirs))
        return
    if (source, name) in PROGRAMS and programs_alike(ours, theirs, source, name):
        return
    args, options, expected = samples.fitting(source, name, theirs)
    same(ours(*to_variables(args), **options), expected)
    same(ours(*args, **options), expected)


def traced_alike(ours, theirs, args, options):
    """Compare all but values, of Variables and of arrays, while JAX traces."""
    leaves, tree = jax.tree.flatten(args)

    def compare(arrays):
        given = jax.tree.unflatten(tree, [x if y is None else y for x, y in zip(leaves, arrays, strict=True)])
        expected = theirs(*given, **options)
        same(ours(*to_variables(given), **options), expected, values=False)
        same(ours(*given, **options), expected, values=False)

    jax.eval_shape(compare, [x if inexact(x) else None for x in leaves])


def programs_alike(ours, theirs, source, name):
    """Compare all but values, and tell whether of Variables and of arrays the same primitives are recorded, so that values are the same."""
    try:
        args, options = samples.smooth(source, name, theirs)
    except AssertionError:  # no arguments are for tracing: values decide what is computed
        return False
    leaves, tree = jax.tree.flatten(args)
    arrays = [x for x in leaves if isinstance(x, jax.Array)]
    results = []

    def program(fun):
        def outputs(arrays):
            it = iter(arrays)
            found = fun(*jax.tree.unflatten(tree, [next(it) if isinstance(x, jax.Array) else x for x in leaves]))
            results.append(found)
            return [x.value if is_variable(x) else x for x in jax.tree.leaves(found, is_leaf=is_variable)]

        return steps(jax.make_jaxpr(outputs)(arrays))

    try:
        expected = program(lambda *args: theirs(*args, **options))
    except (TypeError, ValueError, IndexError):  # as above
        return False
    try:
        found = [program(lambda *args: ours(*to_variables(args), **options)), program(lambda *args: ours(*args, **options))]
    except tape.errors.TapeError:
        return False
    for result in results[1:]:
        same(result, results[0], values=False)
    return found == [expected, expected]


def test_functions_with_keywords():
    v = tape.Variable(X)
    same(tape.scipy.special.bessel_jn(tape.Variable(V), v=2), jax.scipy.special.bessel_jn(V, v=2))
    k = jnp.array([1, 2])
    same(
        tape.scipy.special.sph_harm_y(k, k, tape.Variable(V[:2]), V[:2], n_max=3),
        jax.jit(lambda x: jax.scipy.special.sph_harm_y(k, k, x, x, n_max=3))(V[:2]),
    )
    signal = jnp.sin(jnp.arange(32.0))
    ours, theirs = tape.scipy.signal, jax.scipy.signal
    same(ours.welch(tape.Variable(signal), nperseg=8), jax.jit(lambda x: theirs.welch(x, nperseg=8))(signal))
    same(ours.csd(tape.Variable(signal), signal, nperseg=8), jax.jit(lambda x: theirs.csd(x, x, nperseg=8))(signal))
    parts = jax.jit(lambda x: theirs.stft(x, nperseg=8))(signal)
    same(ours.stft(tape.Variable(signal), nperseg=8), parts)
    same(ours.istft(tape.Variable(parts[2]), nperseg=8), jax.jit(lambda x: theirs.istft(x, nperseg=8))(parts[2]))
    same(tape.nn.softmax(v, axis=0, where=B), jax.nn.softmax(X, axis=0, where=B))
    same(tape.nn.gelu(v, approximate=False), jax.nn.gelu(X, approximate=False))
    same(
        tape.lax.ragged_dot_general(v, tape.Variable(jnp.stack([X, S])), jnp.array([1, 2]), RAGGED),
        jax.lax.ragged_dot_general(X, jnp.stack([X, S]), jnp.array([1, 2]), RAGGED),
    )


RAGGED = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])


@pytest.mark.parametrize("name", [n for n in functions("jax.nn.initializers") if n not in {"ones", "zeros", "Initializer"}])
def test_initializers(name):
    theirs, ours = getattr(jax.nn.initializers, name), getattr(tape.nn.initializers, name)
    same_face(ours, theirs, name)
    args = {"constant": (1.5,), "variance_scaling": (1.0, "fan_in", "normal")}.get(name, ())
    shape = (3, 2, 2) if name == "delta_orthogonal" else (3, 2)
    same(ours(*args)(tape.random.key(0), shape), theirs(*args)(jax.random.key(0), shape))
    assert ours(*args) is ours(*args)
    assert not ours(*args)(tape.random.key(0), shape).requires_grad


@pytest.mark.parametrize("name", ["constant", "uniform", "normal", "orthogonal"])
def test_gradients_flow_to_the_arguments_of_an_initializer(name):
    theirs, ours = getattr(jax.nn.initializers, name), getattr(tape.nn.initializers, name)
    key, v = jax.random.key(3), tape.Variable(1.5)
    for _ in range(2):
        made = (ours(v)(key, (3, 2), dtype=jnp.float32) ** 2).sum()
        expected = jax.grad(lambda x: (theirs(x)(key, (3, 2), dtype=jnp.float32) ** 2).sum())(1.5)
        np.testing.assert_allclose(tape.gradients(made, v).numpy(), expected, rtol=1e-6)


def test_initializers_of_equal_numbers_are_not_taken_for_each_other():
    made = [tape.nn.initializers.constant(x)(jax.random.key(0), (1,)).numpy() for x in (0.0, -0.0)]
    assert [bool(np.signbit(x[0])) for x in made] == [False, True]


def test_keys():
    key = tape.random.key(0)
    assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    assert not key.requires_grad
    a, b = tape.random.split(key)
    keys = tape.random.split(KEY, 3)
    same(tape.random.normal(a, (2,)), jax.random.normal(jax.random.split(KEY)[0], (2,)))
    same(tape.random.normal(keys[1], (2,)), jax.random.normal(jax.random.split(KEY, 3)[1], (2,)))
    assert tape.random.key_impl(b) == jax.random.key_impl(KEY)
    same(tape.random.uniform(tape.random.PRNGKey(1), (2,)), jax.random.uniform(jax.random.PRNGKey(1), (2,)))
    assert len({repr(tape.random.fold_in(key, i)) for i in range(3)}) == 3


def test_samples_have_gradients():
    mean = tape.Variable(V)
    tape.random.multivariate_normal(tape.random.key(0), mean, S).sum().backward()
    same(mean.grad, jnp.ones(3))


def test_stop_gradient():
    v = tape.Variable(X)
    stopped = tape.lax.stop_gradient({"a": v * 2, "b": [X, 1.0]})
    assert isinstance(stopped["a"], tape.Variable)
    assert not stopped["a"].requires_grad
    assert isinstance(stopped["b"][0], tape.Variable)


def test_results_keep_their_containers():
    v = tape.Variable(S)
    assert type(tape.numpy.linalg.qr(v)) is type(jnp.linalg.qr(S))
    assert tape.numpy.linalg.slogdet(v).logabsdet.requires_grad
    factor, lower = tape.scipy.linalg.cho_factor(v)
    assert lower is False
    assert factor.requires_grad
    same(tape.scipy.linalg.cho_solve((factor, lower), V), jnp.linalg.solve(S, V))


def test_types_pass():
    assert tape.lax.Precision is jax.lax.Precision
    assert tape.lax.GatherDimensionNumbers is jax.lax.GatherDimensionNumbers
    assert not hasattr(tape.lax, "add_p")


def test_documentation_and_completion():
    for module in (tape.numpy, tape.nn, tape.lax, tape.random, tape.scipy.special):
        assert module.__doc__
        assert pydoc.plain(pydoc.render_doc(module.__name__))
    assert "Sum of the elements" in pydoc.plain(pydoc.render_doc(tape.numpy.sum))
    assert tape.numpy.sum.__module__ == "tape.numpy"
    assert tape.scipy.stats.norm.pdf.__module__ == "tape.scipy.stats.norm"


@pytest.mark.parametrize(
    "code",
    [
        "import tape.numpy as tnp; tnp.sin(1.0)",
        "from tape import numpy, nn, lax, scipy, random; numpy.linalg.norm, scipy.stats.norm.pdf",
        "import tape.scipy.stats.norm as norm; norm.pdf(0.0)",
        "import tape; tape.scipy.special.erf(1.0), 'numpy' in dir(tape)",
        "import sys, tape; assert 'jax.scipy.stats' not in sys.modules and 'tape.numpy' not in sys.modules",
        "import sys, tape; assert 'tape.insight' not in sys.modules; tape.Tape; assert {'Tape', 'jit', 'op_hooks'} < set(dir(tape)); from tape import *; jit",
        "import pickle, tape.numpy as t; assert pickle.loads(pickle.dumps(t.add)) is t.add and pickle.loads(pickle.dumps(t.sin)) is t.sin",
    ],
)
def test_imports(code):
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)  # noqa: S603 - this file's own text


def test_values_are_numbers_of_numpy_too():
    same(tape.nn.relu(np.array([-1.0, 2.0])), jax.nn.relu(np.array([-1.0, 2.0])))
    same(tape.lax.add(1.0, np.float32(2.0)), jax.lax.add(1.0, np.float32(2.0)))
    with pytest.raises(tape.errors.TapeTypeError, match="add"):
        tape.lax.add(tape.Variable(1.0), 1)


def test_rotations():
    ours, theirs = tape.scipy.spatial.transform.Rotation, jax.scipy.spatial.transform.Rotation
    v = tape.Variable(V)
    r, s = ours.from_rotvec(v), theirs.from_rotvec(V)
    assert isinstance(r, ours)
    same((r * r.inv()).apply(V), (s * s.inv()).apply(V))
    same([r.as_matrix(), r.as_quat()], [s.as_matrix(), s.as_quat()])
    assert r.single is True
    r.apply(X).sum().backward()
    same(v.grad, jax.grad(lambda x: theirs.from_rotvec(x).apply(X).sum())(V))
    many = ours.from_rotvec(X)
    assert len(many) == 3
    same(many[1].as_quat(), theirs.from_rotvec(X)[1].as_quat())
    slerp = tape.scipy.spatial.transform.Slerp.init(V[jnp.array([2, 0, 1])], many)
    same(slerp(0.4).as_quat(), jax.scipy.spatial.transform.Slerp.init(V[jnp.array([2, 0, 1])], theirs.from_rotvec(X))(0.4).as_quat())


def test_density_estimates():
    v = tape.Variable(V)
    ours, theirs = tape.scipy.stats.gaussian_kde(v, bw_method=0.5), jax.scipy.stats.gaussian_kde(V, bw_method=0.5)
    same(
        [ours(X[1]), ours.integrate_box_1d(0.0, 1.0)],
        [theirs(X[1]), theirs.integrate_box_1d(0.0, 1.0)],
    )
    same(
        [ours.covariance, ours.resample(KEY, (2,)), ours.integrate_kde(ours)],
        [theirs.covariance, theirs.resample(KEY, (2,)), theirs.integrate_kde(theirs)],
    )
    assert (ours.d, ours.n) == (1, 3)
    ours(X[1]).sum().backward()
    same(v.grad, jax.grad(lambda x: jax.scipy.stats.gaussian_kde(x, bw_method=0.5)(X[1]).sum())(V))


def test_interpolators():
    v = tape.Variable(X)
    grid = (jnp.arange(3.0), jnp.arange(3.0))
    ours, theirs = tape.scipy.interpolate.RegularGridInterpolator(grid, v), jax.scipy.interpolate.RegularGridInterpolator(grid, X)
    points = jnp.array([[0.5, 1.25], [2.0, 0.75]])
    same(ours(points), theirs(points))
    ours(points).sum().backward()
    same(v.grad, jax.grad(lambda x: jax.scipy.interpolate.RegularGridInterpolator(grid, x)(points).sum())(X))


def test_calls_that_differ_inside_sequences_are_told_apart():
    x = jnp.arange(6.0).reshape(2, 3)
    v = tape.constant(x)
    for _ in range(2):
        for width in (((0, 1), (1, 0)), ((1, 0), (0, 1)), [(0, 1), [1, 0]], (0, 1), ((1, 1),)):
            np.testing.assert_array_equal(tape.numpy.pad(v, width).value, jnp.pad(x, width))
        for items in ([[1, 2], [3, 4]], [[1, 2], [3, 5]], [(1, True), (3, 4)], [[1, v[0, 1]], [v[1, 2], 2]]):
            plain = [[float(i) for i in row] for row in items]
            np.testing.assert_array_equal(tape.numpy.array(items).value, plain)
    kernel = jnp.ones((1, 2, 3, 3))
    image = jnp.arange(32.0).reshape(1, 4, 4, 2)
    for numbers in (("NHWC", "OIHW", "NHWC"), ("NHWC", "OIHW", "NCHW"), ("NWHC", "OIHW", "NCHW")):
        made = tape.lax.conv_general_dilated(tape.constant(image), kernel, (1, 2), "SAME", dimension_numbers=numbers)
        expected = jax.lax.conv_general_dilated(image, kernel, (1, 2), "SAME", dimension_numbers=numbers)
        np.testing.assert_array_equal(made.value, expected)


@pytest.mark.parametrize("n", [2, 2.0, np.int32(2), jnp.array([2, 2, 2]), np.array([2.0, 2.0, 2.0], np.float32), tape.constant(2)])
def test_a_derivative_that_needs_the_value_of_another_argument(n):
    """JAX's derivative of ``expn`` is closed over its order, so that the order is no input of the op."""
    expected = jax.grad(lambda x: jax.scipy.special.expn(2, x).sum())(V)
    for _ in range(2):
        v = tape.Variable(V)
        same(tape.gradients(tape.scipy.special.expn(n, v).sum(), v), expected)
        g = tape.gradients(tape.scipy.special.expn(n, v).sum(), v, create_graph=True)
        same(g, expected)
        try:  # JAX itself has no second derivative before 0.12
            second = tape.gradients(g.sum(), v)
        except tape.errors.LeakedTracerError as e:
            assert "nondiff_argnums" in str(e)  # noqa: PT017 - as below
        else:
            same(second, jnp.exp(-V) / V)
        same(tape.constant(jax.grad(lambda x: tape.scipy.special.expn(n, tape.Variable(x)).value.sum())(V)), expected)


def test_values_come_without_that_derivative():
    np.testing.assert_allclose(jax.jit(lambda n, x: tape.scipy.special.expn(n, x).value)(2, V), jax.scipy.special.expn(2, V), rtol=1e-5)


@pytest.mark.parametrize("rtol", [0.1, jnp.float32(0.1), np.array(0.1, np.float32)])
def test_a_tolerance_is_no_input(rtol):
    v = tape.Variable(S)
    g = tape.gradients(tape.numpy.linalg.pinv(v, rtol=rtol).sum(), v)
    same(g, jax.grad(lambda x: jnp.linalg.pinv(x, rtol=0.1).sum())(S))


def test_such_a_derivative_is_refused_where_it_cannot_be_written():
    """Newer JAX releases can; then it is the right one."""
    v = tape.Variable(V)
    y = interop.lift(lambda n, x: jax.scipy.special.expn(n, x))(2, v).sum()
    try:
        g = tape.gradients(y, v)
    except tape.errors.LeakedTracerError as e:
        assert "nondiff_argnums" in str(e)  # noqa: PT017 - it need not be raised
    else:
        same(g, jax.grad(lambda x: jax.scipy.special.expn(2, x).sum())(V))
