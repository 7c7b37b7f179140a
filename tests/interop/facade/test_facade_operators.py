"""The operators of the facade: values and gradients as NumPy's, nested at will, in 64 bits, with the rules of users."""

import importlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy  # noqa: ICN001 - np is the facade's
import pytest
import scipy.special

import interop.autograd.numpy as np
import tape.extend
from interop.autograd import (
    builtins,
    checkpoint,
    deriv,
    elementwise_grad,
    grad,
    grad_and_aux,
    grad_named,
    hessian,
    hessian_tensor_product,
    holomorphic_grad,
    jacobian,
    make_ggnvp,
    make_hvp,
    make_jvp,
    make_vjp,
    multigrad_dict,
    tensor_jacobian_product,
    value_and_grad,
)
from interop.autograd.extend import defjvp, defvjp, primitive, vspace
from interop.autograd.misc import flatten
from interop.autograd.test_util import check_grads
from interop.autograd.tracer import getval

X = numpy.array([0.3, -1.2, 2.0])


def test_gradients_are_numpys_in_64_bits_whatever_the_setting_and_may_be_written_to():
    assert not jax.config.jax_enable_x64
    value, g = value_and_grad(lambda x: np.sum(np.sin(x)))(X)
    assert (type(value), type(g), g.dtype) == (numpy.float64, numpy.ndarray, numpy.float64)
    numpy.testing.assert_allclose(g, numpy.cos(X), rtol=1e-15)
    g *= 2
    assert isinstance(grad(np.sin)(1.0), float)
    assert jnp.ones(3).dtype == jnp.float32


@pytest.mark.parametrize("dtype", [numpy.float16, numpy.float32, numpy.float64, numpy.longdouble])
def test_a_gradient_has_the_dtype_of_its_argument(dtype):
    assert grad(lambda x: np.sum(x**2))(X.astype(dtype)).dtype == dtype


def test_containers_and_several_arguments():
    g = grad(lambda p, s: s * np.sum(p["w"][0] * p["b"]))({"w": [X, 1.0], "b": (2.0)}, 3.0)
    numpy.testing.assert_allclose(g["w"][0], [6, 6, 6])
    assert (g["w"][1], g["b"]) == (0.0, pytest.approx(3 * X.sum()))
    assert grad(lambda a, b, c: a * b * c, (2, 0))(2.0, 3.0, 5.0) == (6.0, 15.0)
    assert grad_named(lambda a, b: a * b, "b")(2.0, 3.0) == 2.0
    assert multigrad_dict(lambda a, b=4.0: a * b)(3.0) == {"a": 4.0, "b": 3.0}


def test_operators_close_over_outer_values_without_confusion():
    assert grad(lambda x: x * grad(lambda y: x + y)(2.0))(1.0) == 1.0
    assert grad(lambda x: x * grad(lambda y: x * y * y)(2.0))(3.0) == 24.0
    inner = []
    grad(lambda x: (inner.append(grad(np.sin)(2.0)), x)[1])(1.0)
    assert type(inner[0]) is numpy.float64  # it depends on nothing outside


def test_derivatives_of_tanh_to_the_sixth_order_are_those_of_jax():
    ours, theirs = np.tanh, jnp.tanh
    points = numpy.linspace(-2, 2, 5)
    with jax.enable_x64(True):
        for _ in range(6):
            ours = elementwise_grad(ours)
            theirs = jax.grad(theirs)
            numpy.testing.assert_allclose(ours(points), jax.vmap(theirs)(points), rtol=1e-9, atol=1e-9)


def test_products_and_matrices():
    a, v = numpy.arange(6.0).reshape(2, 3) / 5, numpy.array([1.0, 2.0, -1.0])

    def f(x):
        return np.tanh(np.dot(a, x))

    def loss(x):
        return np.sum(f(x) ** 2)

    j = jacobian(f)(X)
    numpy.testing.assert_allclose(make_jvp(f)(X)(v)[1], j @ v)
    numpy.testing.assert_allclose(make_vjp(f)(X)[0](numpy.ones(2)), j.sum(0))
    numpy.testing.assert_allclose(tensor_jacobian_product(f)(X, numpy.ones(2)), j.sum(0))
    h = hessian(loss)(X)
    numpy.testing.assert_allclose(make_hvp(loss)(X)[0](v), h @ v)
    numpy.testing.assert_allclose(hessian_tensor_product(loss)(X, v), h @ v)
    numpy.testing.assert_allclose(make_ggnvp(f)(X)(v), j.T @ j @ v)
    numpy.testing.assert_allclose(make_ggnvp(lambda a, x: a * f(x), f_argnum=1)(2.0, X)(v), 4 * j.T @ j @ v)
    numpy.testing.assert_allclose(grad_and_aux(lambda x: (loss(x), f(x)))(X)[0], grad(loss)(X))
    numpy.testing.assert_allclose(jacobian(lambda x: np.sum(jacobian(f)(x)))(X), grad(lambda x: np.sum(jacobian(f)(x)))(X))
    assert holomorphic_grad(lambda z: z**2)(1.0 + 2.0j) == 2.0 + 4.0j
    assert deriv(lambda x: x**3)(2.0) == 12.0


def test_what_depends_on_nothing_is_zero_and_said():
    for operator in (grad, elementwise_grad, jacobian, deriv):
        with pytest.warns(UserWarning, match="Output seems independent of input"):
            assert operator(lambda x: 1.0)(2.0) == 0.0


def test_what_cannot_be_differentiated_is_refused():
    for bad in (1, "a", None, [1, 2], {"a": 3}):
        if bad is not None:
            with pytest.raises(TypeError, match="no derivative by"):
                grad(lambda x: 1.0)(bad)
    for fun in (lambda x: x * 1j, lambda x: np.array([x, x]), lambda x: np.allclose(x, x)):
        with pytest.raises(TypeError):
            grad(fun)(1.0)
    with pytest.raises(TypeError, match="argnum"):
        grad(lambda x: x, 3)(1.0)


def test_a_primitive_runs_scipy_and_its_rule_is_differentiated_by_running_again():
    seen = []

    @primitive
    def j0(x):
        seen.append(type(x))
        return scipy.special.j0(x)

    j1 = primitive(scipy.special.j1)
    defvjp(j0, lambda ans, x: lambda g: -g * j1(x))
    defvjp(j1, lambda ans, x: lambda g: g * (j0(x) - ans / x))
    assert grad(j0)(1.5) == pytest.approx(-scipy.special.j1(1.5))
    assert grad(grad(j0))(1.5) == pytest.approx(-scipy.special.j0(1.5) + scipy.special.j1(1.5) / 1.5)
    assert set(seen) == {numpy.float64}
    check_grads(lambda x: np.sum(j0(x)))(X)
    numpy.testing.assert_allclose(jacobian(j0)(X), numpy.diag(-scipy.special.j1(X)))


def test_a_primitive_of_containers_and_with_several_results():
    @primitive
    def both(p, n):
        return p["a"] * n, p["b"] + n

    defvjp(both, lambda ans, p, n: lambda g: {"a": g[0] * n, "b": g[1]}, None)
    g = grad(lambda p: sum(both(p, 3.0)))({"a": 2.0, "b": 5.0})
    assert g == {"a": 3.0, "b": 1.0}


def test_jax_has_the_derivative_of_a_primitive_from_its_rules():
    steep = primitive(lambda x, t, n=2: x**n * t["scale"])  # a body that JAX could differentiate
    defvjp(steep, lambda ans, x, t, n=2: lambda g: 5 * g * x, lambda ans, x, t, n=2: lambda g: {"scale": 7 * g})
    passed = primitive(lambda x: numpy.sign(1.5) * x * 0)
    defjvp(passed, lambda g, ans, x: g)

    def of(x, scale=3.0, **options):
        return steep(x, {"scale": scale}, **options)

    x = jnp.array(2.0)
    assert jax.grad(of)(x) == grad(of)(2.0) == 10
    assert jax.grad(lambda x: of(x, n=3))(x) == 10
    assert jax.jit(jax.grad(lambda x: of(x, x)))(x) == 17
    numpy.testing.assert_array_equal(jax.vmap(jax.grad(of))(jnp.arange(3.0)), [0, 5, 10])
    assert jax.jit(of)(x) == of(2.0) == 12
    for scale in (tape.Variable(3.0), tape.constant(3.0)):
        assert jax.grad(lambda x, scale=scale: of(x, scale).value)(x) == 10
    assert jax.jvp(passed, (x,), (x,))[1] == 2
    for step in (jax.jit, tape.jit):
        assert float(step(tape.grad(lambda x: of(x) ** 2))(x)) == 240
    with pytest.raises(tape.errors.GradientMismatch) as caught:
        tape.testing.check_gradients(lambda x, y: steep(x, {"scale": y}), X, X, order=1)
    assert "called at test_facade_operators.py" in " ".join(str(caught.value).split())


def test_jax_traces_arguments_by_name_and_is_refused_their_derivative():
    steep = primitive(lambda x, *, t=None, k=1.0: x * k + (0.0 if t is None else t["b"] * t["a"]))
    defvjp(steep, lambda ans, x, t=None, k=1.0: lambda g: 10 * g * k + (0.0 if t is None else t["a"] - t["b"]))
    pushed = primitive(lambda x, *, k=1.0: x * k)
    defjvp(pushed, lambda g, ans, x, k=1.0: 10 * g * k)

    def of(x, a, b, k):
        return steep(x, t={"b": b, "a": a}, k=k)

    given = (2.0, 3.0, 5.0, 7.0)
    for step in (jax.jit, tape.jit, lambda f: f):  # JAX traces all, and differentiates by the first
        assert float(step(of)(*given)) == 29
    for slope in (jax.grad(jax.jit(of)), jax.jit(jax.grad(of)), jax.jit(lambda *given: jax.grad(of)(*given)), jax.grad(of)):
        assert slope(*given) == 68
    assert float(tape.jit(tape.grad(of))(*given)) == 68
    numpy.testing.assert_array_equal(jax.vmap(jax.grad(jax.jit(of)))(*[jnp.array([x, x + 1]) for x in given]), [68, 78])
    assert jax.jvp(lambda x: jax.jit(lambda x, k: pushed(x, k=k))(x, 3.0), (2.0,), (1.0,))[1] == 30
    refused = [
        jax.grad(lambda x: of(x, 3.0, 5.0, x)),
        jax.grad(jax.jit(lambda x: of(x, x, 5.0, 7.0))),
        jax.jit(jax.grad(lambda x: of(x, 1.0, 1.0, x))),
    ]
    refused += [lambda x: jax.jvp(lambda x: pushed(x, k=x), (x,), (x,))]
    for f in refused:
        with pytest.raises(TypeError, match=r"(t|k) is differentiated, and a rule is for positional arguments"):
            f(2.0)


def test_a_missing_rule_is_refused_and_a_jvp_alone_serves_forward_mode():
    unknown = primitive(lambda x: 2.0 * x)
    with pytest.raises(NotImplementedError, match="there is no rule"):
        grad(unknown)(1.0)
    defjvp(unknown, lambda g, ans, x: 2.0 * g)
    assert deriv(unknown)(1.0) == 2.0
    with pytest.raises(NotImplementedError, match="there is no rule"):
        grad(unknown)(1.0)


@pytest.mark.parametrize("seed", [9, 252, 346])  # of which NumPy draws small numbers
def test_a_wrong_rule_is_found(seed):
    wrong = primitive(lambda x: x * 2.0)
    defvjp(wrong, lambda ans, x: lambda g: g * 2.001)
    numpy.random.seed(seed)  # noqa: NPY002 - what check_grads draws from
    with pytest.raises(AssertionError, match="its VJP gives"):
        check_grads(wrong, modes=["rev"])(1.0)


def test_python_looks_at_values():
    def f(x):
        assert builtins.isinstance(x, float)
        assert builtins.type(x * X) is numpy.ndarray
        assert getval(x) == 2.0
        return x**2 if x > 1 else -x

    assert (grad(f)(2.0), grad(checkpoint(f))(2.0)) == (4.0, 4.0)


def test_a_variable_of_the_users_keeps_its_gradient():
    w = tape.Variable(numpy.float32(3.0))
    g = grad(lambda x: x * x * w)(2.0)
    assert float(g) == 12.0
    g.backward()
    assert float(w.grad) == 4.0


def test_importing_interop_does_not_import_the_facade():
    script = "import sys, interop; assert not any('interop.autograd' in m for m in sys.modules); assert 'autograd' in dir(interop)"
    script += "; assert float(interop.autograd.grad(lambda x: x * x)(3.0)) == 6.0"
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 - its own interpreter


@pytest.mark.parametrize("mode", ["rev", "fwd"])
def test_a_check_that_fails_says_of_what(mode):
    wrong = primitive(lambda x: x * 2.0)
    wrong.__name__ = "doubled"
    defvjp(wrong, lambda _ans, _x: lambda g: g * 2.001)
    defjvp(wrong, lambda g, _ans, _x: g * 2.001)
    with pytest.raises(AssertionError, match=rf"\({'VJP' if mode == 'rev' else 'JVP'}\) check of doubled failed"):
        check_grads(wrong, modes=[mode])(1.0)


def test_dicts_keep_their_order_in_the_function_in_its_gradient_and_in_primitives():
    params = {"w": X, "b": 2.0, "a": {"z": 3.0, "c": 5.0}}

    def f(p):
        w, b, (z, c) = *list(p.values())[:2], p["a"].values()
        return np.sum(w) * b**2 * z * c**3

    g = grad(f)(params)
    assert [list(g), list(g["a"])] == [["w", "b", "a"], ["z", "c"]]
    assert g["a"]["c"] == pytest.approx(3 * float(f(params)) / 5)
    assert make_jvp(f)(params)({"a": {"c": 1.0, "z": 0.0}, "b": 0.0, "w": 0 * X})[1] == pytest.approx(g["a"]["c"])
    vector, unflatten = flatten(params)
    assert (vector[0], list(unflatten(vector))) == (5.0, ["w", "b", "a"])
    pull, y = make_vjp(lambda x: {"z": 2 * x, "b": x**2})(3.0)
    assert (list(y), pull({"b": 10.0, "z": 1.0})) == (["z", "b"], 62.0)
    product = primitive(lambda p: next(iter(p.values())) * p["b"] ** 2)
    defvjp(product, lambda ans, p: lambda g: {"b": g * 2 * p["z"] * p["b"], "z": g * p["b"] ** 2})
    assert grad(product)({"z": 2.0, "b": 3.0}) == {"z": 9.0, "b": 12.0}
    assert grad(lambda p: p["b"] * p[1])({"b": 2.0, 1: 3.0}) == {"b": 3.0, 1: 2.0}  # keys without an order
    with pytest.raises(TypeError, match="structure"):
        pull([1.0, 2.0])


def test_a_function_that_is_differentiated_sees_boxes_with_values():
    assert grad(lambda x: x * x._value if isinstance(x, np.numpy_boxes.ArrayBox) else 0.0)(3.0) == 3.0


NAMES = {
    "": "grad value_and_grad elementwise_grad jacobian hessian hessian_vector_product hessian_tensor_product make_vjp make_jvp make_hvp "
    "make_ggnvp tensor_jacobian_product vector_jacobian_product grad_named multigrad_dict checkpoint holomorphic_grad deriv",
    ".extend": "primitive defvjp defjvp",
    ".test_util": "check_grads",
    ".misc": "flatten",
    ".misc.optimizers": "sgd rmsprop adam",
    ".builtins": "tuple list dict isinstance",
    ".numpy": "array linalg fft random",
    ".numpy.linalg": "det inv norm",
    ".numpy.fft": "fft ifft",
    ".numpy.random": "randn RandomState",
    ".scipy": "special stats linalg integrate signal",
    ".scipy.integrate": "odeint",
    ".scipy.signal": "convolve",
}


@pytest.mark.parametrize("module", NAMES)
def test_what_programs_import_of_hips_autograd_is_there(module):
    found = importlib.import_module(f"interop.autograd{module}")
    assert [name for name in NAMES[module].split() if not hasattr(found, name)] == []


def test_forward_mode_shows_values_to_rules_that_take_nothing_else():
    log_gamma = primitive(scipy.special.gammaln)
    seen = []
    defvjp(log_gamma, lambda ans, x: lambda g: (seen.append(tape.extend.is_variable(x)), g * scipy.special.digamma(float(x)))[1])
    for slope in (deriv(log_gamma)(2.5), grad(log_gamma)(2.5)):
        numpy.testing.assert_allclose(slope, scipy.special.digamma(2.5))
    assert not any(seen)


def test_spaces_of_complex_numbers_are_those_of_their_two_parts():
    value = {"a": 1.0 + 2.0j, "b": [numpy.array([3.0, -1.0])]}
    space = vspace(value)
    assert (space.size, space.iscomplex, vspace(value["b"]).iscomplex) == (4, True, False)
    basis = list(space.standard_basis())
    assert [b["a"] for b in basis] == [1, 1j, 0, 0]
    assert [list(b["b"][0]) for b in basis] == [[0, 0], [0, 0], [1, 0], [0, 1]]
    assert (space.ones()["a"], list(space.ones()["b"][0]), space.zeros()["a"]) == (1 + 1j, [1, 1], 0)
    rebuilt = space.zeros()
    for b in basis:
        rebuilt = space.add(rebuilt, space.scalar_mul(b, space.inner_prod(b, value)))
    assert (rebuilt["a"], list(rebuilt["b"][0])) == (value["a"], [3, -1])
    assert space.inner_prod(value, value) == 1 + 4 + 9 + 1
    assert space.covector(value)["a"] == 1 - 2j
    assert (space.mut_add(None, value)["a"], space.mut_add(value, value)["a"]) == (1 + 2j, 2 + 4j)
    assert vspace(1.0).dtype == vspace(numpy.ones(2)).dtype == "float64"
    with pytest.raises(TypeError, match="only floats"):
        vspace([1.0, 2])


def test_products_by_another_argument_of_matrices_and_with_keywords():
    v = numpy.array([1.0, 2.0, -1.0])

    def fun(a, x, *, power):
        return np.sum(a * x**power)

    numpy.testing.assert_allclose(hessian_tensor_product(fun, argnum=1)(2.0, X, v, power=3), 12 * X * v)
    matrix = numpy.arange(9.0).reshape(3, 3)
    numpy.testing.assert_allclose(tensor_jacobian_product(lambda x: np.outer(x, x))(X, matrix), (matrix + matrix.T) @ X)
    assert jacobian(lambda x: x[:0])(X).shape == (0, 3)
    slope, aux = grad_and_aux(lambda x: (x**2, {"seen": 3 * x}))(2.0)
    assert (float(slope), aux["seen"], tape.extend.is_variable(aux["seen"])) == (4, 6, False)


def test_a_primitive_that_depends_on_nothing_has_tangents_of_zeros():
    flat = primitive(lambda x: numpy.floor(x))
    defjvp(flat, None)
    value, tangent = make_jvp(flat)(X)(numpy.ones(3))
    numpy.testing.assert_array_equal([value, tangent], [numpy.floor(X), numpy.zeros(3)])
