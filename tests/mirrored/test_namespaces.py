"""Every public name of the mirrored JAX modules has its counterpart, and a function gives what it gives in JAX."""

import importlib
import pkgutil
import pydoc
import subprocess
import sys

import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np
import pytest

import interop
import tape
from tape.mirrored import namespaces
from tests.agreement import first_that_fits, same, same_face, to_variables

SCIPY = [m.name for m in pkgutil.walk_packages(jax.scipy.__path__, "jax.scipy.")]
SOURCES = ["jax.numpy", "jax.numpy.linalg", "jax.numpy.fft", "jax.nn", "jax.nn.initializers", "jax.lax", "jax.lax.linalg", "jax.random"]
SOURCES += ["jax.scipy", *SCIPY]

X = jnp.array([[0.3, 0.7, 0.2], [0.9, 0.4, 0.6], [0.1, 0.8, 0.5]])
V = X[0]
I = jnp.array([[1, 2, 0], [3, 1, 2], [0, 1, 1]])  # noqa: E741
S = X @ X.T + jnp.eye(3)
KEY = jax.random.key(0)
B = X > 0.5

# Functions that need a mesh, an axis name or a special device; those that are called in a test of their own; and those whose
# results have no defined values.
NOT_CALLED = {
    "jax.lax": {
        "all_gather",
        "all_to_all",
        "axis_index",
        "axis_size",
        "pbroadcast",
        "pcast",
        "pmax",
        "pmean",
        "pmin",
        "ppermute",
        "precv",
        "psend",
        "pshuffle",
        "psum",
        "psum_scatter",
        "pswapaxes",
        "ragged_all_to_all",
        "with_sharding_constraint",
        "after_all",
        "create_token",
        "empty",
        "rng_uniform",
        "rng_bit_generator",
        "bitcast_convert_type",
        "stop_gradient",
        "PrecisionLike",
        "ConvGeneralDilatedDimensionNumbers",
        "DotDimensionNumbers",
        "scaled_dot",
        "conv_general_dilated_local",
        "dce_sink",
        "stage",
        "shape_as_value",
    },
    "jax.nn": {"get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"},
    "jax.random": {"key_impl", "key_dtype"},
}
IMAGE = X.reshape(1, 1, 3, 3)
GATHER = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
SCATTER = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))
GATHERED = (X, jnp.array([[0], [2]]))
SCATTERED = (*GATHERED, X[:2], SCATTER)
CONVOLVE = (IMAGE, IMAGE[:, :, :2, :2])
DIMENSIONS = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
SAMPLES = {
    "jax.lax": {
        "batch_matmul": (X[None], X[None]),
        "broadcast": (V, (2,)),
        "broadcast_in_dim": (V, (2, 3), (1,)),
        "broadcast_like": (V, X),
        "broadcast_shapes": ((2, 1), (3,)),
        "broadcast_to_rank": (V, 2),
        "broadcasted_iota": (jnp.int32, (2, 3), 1),
        "bessel_i0e": (X,),
        "clamp": (0.2, X, 0.6),
        "collapse": (X, 0, 2),
        "concatenate": ([X, X], 0),
        "conv": (*CONVOLVE, (1, 1), "VALID"),
        "conv_dimension_numbers": ((1, 1, 3, 3), (1, 1, 2, 2), None),
        "conv_general_dilated": (*CONVOLVE, (1, 1), "VALID"),
        "conv_general_dilated_patches": (IMAGE, (2, 2), (1, 1), "VALID"),
        "conv_general_permutations": (("NCHW", "OIHW", "NCHW"),),
        "conv_general_shape_tuple": ((1, 1, 3, 3), (1, 1, 2, 2), (1, 1), "VALID", ("NCHW", "OIHW", "NCHW")),
        "conv_shape_tuple": ((1, 1, 3, 3), (1, 1, 2, 2), (1, 1), ((0, 0), (0, 0))),
        "conv_transpose": (IMAGE, IMAGE, (1, 1), "VALID"),
        "conv_transpose_shape_tuple": ((1, 1, 3, 3), (1, 1, 2, 2), (1, 1), "VALID", ("NCHW", "OIHW", "NCHW")),
        "conv_with_general_padding": (*CONVOLVE, (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)),
        "convert_element_type": (X, jnp.float16),
        "cummax": (X, 1),
        "cummin": (X, 1),
        "cumprod": (X, 1),
        "cumsum": (X, 1),
        "cumlogsumexp": (X, 1),
        "approx_max_k": (V, 2),
        "approx_min_k": (V, 2),
        "argmax": (X, 1, jnp.int32),
        "argmin": (X, 1, jnp.int32),
        "betainc": (X, X, X),
        "complex": (X, X),
        "dot_general": (X, X, (((1,), (0,)), ((), ()))),
        "dtype": (X,),
        "dynamic_index_in_dim": (X, 1),
        "dynamic_slice": (X, (0, 1), (2, 2)),
        "dynamic_slice_in_dim": (X, 1, 2),
        "dynamic_update_index_in_dim": (X, V, 1, 0),
        "dynamic_update_slice": (X, V[None], (1, 0)),
        "dynamic_update_slice_in_dim": (X, V[None], 1, 0),
        "expand_dims": (X, (0,)),
        "fft": (X.astype(jnp.complex64), jax.lax.FftType.FFT, (3,)),
        "full": ((2,), 1.5),
        "full_like": (X, 1.5),
        "gather": (*GATHERED, GATHER, (1, 3)),
        "imag": (X + 1j,),
        "real": (X + 1j,),
        "index_in_dim": (X, 1),
        "index_take": (X, (jnp.array([0, 2]),), (0,)),
        "integer_pow": (X, 3),
        "iota": (jnp.int32, 3),
        "pad": (X, 0.0, ((1, 0, 0), (0, 0, 0))),
        "padtype_to_pads": ((3, 3), (2, 2), (1, 1), "SAME"),
        "polygamma": (1.0, X),
        "ragged_dot": (X, jnp.stack([X, S]), jnp.array([1, 2])),
        "ragged_dot_general": None,
        "reduce_and": (B, (0,)),
        "reduce_max": (X, (0,)),
        "reduce_min": (X, (0,)),
        "reduce_or": (B, (0,)),
        "reduce_precision": (X, 5, 3),
        "reduce_prod": (X, (0,)),
        "reduce_sum": (X, (0,)),
        "reduce_window_shape_tuple": ((3, 3), (2, 2), (1, 1), ((0, 0), (0, 0))),
        "reduce_xor": (I, (0,)),
        "reshape": (X, (9,)),
        "rev": (X, (0,)),
        "round": (X,),
        "scatter": SCATTERED,
        "scatter_add": SCATTERED,
        "scatter_max": SCATTERED,
        "scatter_min": SCATTERED,
        "scatter_mul": SCATTERED,
        "scatter_sub": SCATTERED,
        "select": (B, X, S),
        "select_n": (B, X, S),
        "slice": (X, (0, 0), (2, 2)),
        "slice_in_dim": (X, 0, 2),
        "sort_key_val": (V, V),
        "split": (X, (1, 2)),
        "squeeze": (X[None], (0,)),
        "stack": ([X, X],),
        "tile": (X, (2, 1)),
        "top_k": (X, 2),
        "transpose": (X, (1, 0)),
        "unstack": (X,),
        "zeta": (X + 2, X),
        "acosh": (X + 1,),
        "optimization_barrier": ((X, V),),
        "shift_left": (I, I),
        "mulhi": (I, I),
        "igamma": (X, X),
    },
    "jax.lax.linalg": {
        "cholesky_update": (jnp.linalg.cholesky(S), V),
        "householder_product": (X, V),
        "lu_pivots_to_permutation": (jnp.array([0, 2, 2]), 3),
        "ormqr": (X, V, X),
        "symmetric_product": (X, S),
        "triangular_solve": (jnp.tril(S), S),
        "tridiagonal_solve": (V.at[0].set(0), V + 2, V.at[2].set(0), X),
    },
    "jax.nn": {
        "dot_product_attention": (X.reshape(1, 3, 1, 3), X.reshape(1, 3, 1, 3), X.reshape(1, 3, 1, 3)),
        "one_hot": (I, 4),
        "glu": (jnp.ones((2, 4)),),
    },
    "jax.nn.initializers": {"delta_orthogonal": None, "ones": (KEY, (2, 3)), "zeros": (KEY, (2, 3)), "variance_scaling": None},
    "jax.random": {
        "PRNGKey": (3,),
        "key": (3,),
        "ball": (KEY, 2),
        "beta": (KEY, 1.5, 2.0, (2,)),
        "binomial": (KEY, 5.0, 0.3, (2,)),
        "categorical": (KEY, V),
        "chisquare": (KEY, 2.0, (2,)),
        "choice": (KEY, 5, (2,)),
        "dirichlet": (KEY, V + 1),
        "f": (KEY, 3.0, 4.0, (2,)),
        "fold_in": (KEY, 3),
        "gamma": (KEY, 2.0, (2,)),
        "generalized_normal": (KEY, 2.0, (2,)),
        "double_sided_maxwell": (KEY, 0.0, 1.0, (2,)),
        "geometric": (KEY, 0.5, (2,)),
        "loggamma": (KEY, 2.0, (2,)),
        "multinomial": (KEY, 5.0, V / V.sum()),
        "multivariate_normal": (KEY, V, S),
        "orthogonal": (KEY, 3),
        "pareto": (KEY, 2.0, (2,)),
        "permutation": (KEY, V),
        "poisson": (KEY, 2.0, (2,)),
        "randint": (KEY, (3,), 0, 9),
        "rayleigh": (KEY, 2.0, (2,)),
        "t": (KEY, 3.0, (2,)),
        "triangular": (KEY, 0.0, 0.5, 1.0, (2,)),
        "truncated_normal": (KEY, -1.0, 1.0, (2,)),
        "wald": (KEY, 2.0, (2,)),
        "weibull_min": (KEY, 2.0, 3.0, (2,)),
        "wrap_key_data": (jax.random.key_data(KEY),),
    },
    "jax.scipy.linalg": {
        "block_diag": (X, V),
        "cho_solve": ((jnp.linalg.cholesky(S), True), V),
        "convolution_matrix": (V, 4),
        "eigh_tridiagonal": (V, V[:2]),
        "leslie": (V, V[:2]),
        "lu_solve": (jax.scipy.linalg.lu_factor(S), V),
        "qr_multiply": (X, X),
        "solve_sylvester": (S, S, X),
        "expm_frechet": (X, X),
        "solve": (S, V),
        "cholesky": (S,),
        "dft": (3,),
        "hadamard": (4,),
        "helmert": (3,),
        "hilbert": (3,),
        "invhilbert": (3,),
        "invpascal": (3,),
        "pascal": (3,),
        "rsf2csf": jax.scipy.linalg.schur(X),
    },
    "jax.scipy.ndimage": {"map_coordinates": (X, [V, V], 1)},
    "jax.scipy.special": {
        "bernoulli": (5,),
        "bessel_jn": None,
        "betainc": (X, X, X),
        "expn": (2, X),
        "factorial": (3,),
        "hyp1f1": (X, X, X),
        "hyp2f1": (X, X, X, X),
        "multigammaln": (X + 3, 2),
        "polygamma": (1, X),
        "sph_harm_y": None,
        "zeta": (X + 2, X),
    },
    "jax.scipy.stats.dirichlet": {"logpdf": (V / V.sum(), V), "pdf": (V / V.sum(), V)},
    "jax.scipy.stats.multinomial": {"logpmf": (jnp.array([1, 2, 1]), 4, V / V.sum()), "pmf": (jnp.array([1, 2, 1]), 4, V / V.sum())},
    "jax.scipy.stats.multivariate_normal": {"logpdf": (V, V, S), "pdf": (V, V, S)},
    "jax.scipy.stats.poisson": {"entropy": (X + 1,)},
    "jax.scipy.signal": {"istft": None, "stft": None, "csd": None, "welch": None},
}
CANDIDATES = ((X,), (V,), (X, X), (I,), (I, I), (X, X, X), (KEY,), (KEY, (2,)), (V, V), (X, X, X, X), (I, X, X), (S, V))


def functions(source):
    module = importlib.import_module(source)
    ours = importlib.import_module(source.replace("jax", "tape", 1))
    absent = namespaces.CALLABLES.get(source, set()) | NOT_CALLED.get(source, set())
    return [n for n in ours.__all__ if n not in absent and callable(f := getattr(module, n, None)) and not isinstance(f, type)]


CALLED = [s for s in SOURCES if s not in {"jax.numpy", "jax.numpy.linalg", "jax.numpy.fft", "jax.nn.initializers"}]


@pytest.mark.parametrize("source", SOURCES)
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


@pytest.mark.parametrize(("source", "name"), [(s, n) for s in CALLED for n in functions(s)])
def test_function(source, name):
    theirs = getattr(importlib.import_module(source), name)
    ours = getattr(importlib.import_module(source.replace("jax", "tape", 1)), name)
    same_face(ours, theirs, name)
    sample = SAMPLES.get(source, {}).get(name, 0)
    if sample is None:
        return  # called in a test of its own
    args, expected = first_that_fits(theirs, CANDIDATES if sample == 0 else [sample])
    same(ours(*to_variables(args)), expected)


def test_functions_with_keywords():
    v = tape.Variable(X)
    same(tape.scipy.special.bessel_jn(tape.Variable(V), v=2), jax.scipy.special.bessel_jn(V, v=2))
    k = jnp.array([1, 2])
    same(
        tape.scipy.special.sph_harm_y(k, k, tape.Variable(V[:2]), V[:2], n_max=3),
        jax.scipy.special.sph_harm_y(k, k, V[:2], V[:2], n_max=3),
    )
    signal = jnp.sin(jnp.arange(32.0))
    ours, theirs = tape.scipy.signal, jax.scipy.signal
    same(ours.welch(tape.Variable(signal), nperseg=8), theirs.welch(signal, nperseg=8))
    same(ours.csd(tape.Variable(signal), signal, nperseg=8), theirs.csd(signal, signal, nperseg=8))
    parts = theirs.stft(signal, nperseg=8)
    same(ours.stft(tape.Variable(signal), nperseg=8), parts)
    same(ours.istft(tape.Variable(parts[2]), nperseg=8), theirs.istft(parts[2], nperseg=8))
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
