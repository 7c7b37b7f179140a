"""Transforms against those of JAX: the same functions of operators and methods, on arrays and on the tape."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.errors import SeedError, TapeTypeError, TapeValueError

A = jnp.array([1.0, -2.0, 0.5])
B = jnp.array([0.3, 1.5, -1.0])
TREE = {"a": A, "b": [B, jnp.float32(2.0)]}


def same(ours, theirs):
    """Equal trees of plain arrays of the same dtypes."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert not isinstance(a, tape.Variable)
        assert (jnp.shape(a), a.dtype) == (jnp.shape(b), b.dtype)
        if b.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def scalar(tree, w):
    return (tree["a"] * tree["b"][0] * w).sum() * tree["b"][1] + (tree["a"] ** 3).mean()


def vector(x, w):
    return {"y": x * x * w, "z": (x * w).sum()}


@pytest.mark.parametrize("argnums", [0, 1, -1, np.int64(1), (0,), (0, 1), (1, 0)])
def test_grad_of_pytrees(argnums):
    same(tape.grad(scalar, argnums)(TREE, B), jax.grad(scalar, argnums)(TREE, B))
    same(tape.value_and_grad(scalar, argnums=argnums)(TREE, B), jax.value_and_grad(scalar, argnums=argnums)(TREE, B))


def test_grad_with_aux_and_kwargs():
    def f(x, *, scale, mode):
        y = x * scale
        return (y * y).sum(), {"y": y, "mode": mode}

    ours = tape.value_and_grad(f, has_aux=True)(A, scale=B, mode="m")
    theirs = jax.value_and_grad(f, has_aux=True)(A, scale=B, mode="m")
    assert ours[0][1].pop("mode") == theirs[0][1].pop("mode") == "m"
    same(ours, theirs)
    g, aux = tape.grad(f, has_aux=True)(A, scale=3.0, mode=None)
    same(g, 18 * A)
    same(aux["y"], 3 * A)


@pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "jacobian", "hessian"])
@pytest.mark.parametrize("argnums", [0, (0, 1)])
def test_jacobians_of_pytrees(transform, argnums):
    theirs = getattr(jax, "jacrev" if transform == "jacobian" else transform)
    same(getattr(tape, transform)(vector, argnums)(A, B), theirs(vector, argnums)(A, B))


def test_hessian_and_hvp_of_a_tree():
    f = functools.partial(scalar, w=B)
    same(tape.hessian(f)(TREE), jax.hessian(f)(TREE))
    tangent = jax.tree.map(jnp.cos, TREE)
    same(tape.hvp(f, (TREE,), (tangent,)), jax.jvp(jax.grad(f), (TREE,), (tangent,))[1])


def test_vjp_jvp_linearize():
    cotangent = {"y": B, "z": jnp.float32(2.0)}
    ours, pull = tape.vjp(vector, A, B)
    theirs, their_pull = jax.vjp(vector, A, B)
    same(ours, theirs)
    for _ in range(2):
        same(pull(cotangent), their_pull(cotangent))
    same(tape.jvp(vector, (A, B), (B, A)), jax.jvp(vector, (A, B), (B, A)))
    ours, push = tape.linearize(vector, A, B)
    theirs, their_push = jax.linearize(vector, A, B)
    same(ours, theirs)
    for t in (A, B):
        same(push(t, B), their_push(t, B))
    _, _, aux = tape.vjp(lambda x: (x * x, x + 1), A, has_aux=True)
    same(aux, A + 1)


def test_holomorphic_and_complex():
    z = jnp.array(1.0 + 2.0j)
    same(tape.grad(lambda z: z * z * z, holomorphic=True)(z), jax.grad(lambda z: z * z * z, holomorphic=True)(z))
    same(tape.grad(lambda z: (z * z.conj()).real)(z), jax.grad(lambda z: (z * z.conj()).real)(z))
    same(tape.jacrev(lambda z: z * z, holomorphic=True)(z), jax.jacrev(lambda z: z * z, holomorphic=True)(z))
    same(tape.jacfwd(lambda z: z * z, holomorphic=True)(z), jax.jacfwd(lambda z: z * z, holomorphic=True)(z))
    for f, options in ((lambda z: z * z, {}), (lambda z: z.real, {"holomorphic": True})):
        with pytest.raises(TapeTypeError, match=r"holomorphic|complex"):
            tape.grad(f, **options)(z)


@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("holomorphic", [False, True])
@pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "hessian"])
def test_jacobians_of_complex_functions_are_those_of_jax_or_refused(transform, holomorphic, shape):
    z, a = jnp.full(shape, 1.0 + 2.0j), jnp.full(shape, 2.0)
    for of in (
        lambda xp, z: xp.abs(z),
        lambda xp, z: (xp.abs(z) ** 2).sum(),
        lambda xp, z: (xp.real(z), xp.imag(z)),
        lambda xp, z: z * z,
        lambda xp, z: xp.ones(2),
    ):
        for x in (z, a):
            try:
                expected = getattr(jax, transform)(lambda z, of=of: of(jnp, z), holomorphic=holomorphic)(x)
            except TypeError:
                with pytest.raises(TapeTypeError, match=r"jac.*complex"):
                    getattr(tape, transform)(lambda z, of=of: of(tnp, z), holomorphic=holomorphic)(x)
            else:
                same(getattr(tape, transform)(lambda z, of=of: of(tnp, z), holomorphic=holomorphic)(x), expected)


def test_integer_arguments():
    def f(x, i):
        return x[i] * 2.0 + x.sum() * i

    same(tape.grad(f)(A, 1), jax.grad(f)(A, 1))
    with pytest.raises(TapeTypeError, match="int32"):
        tape.grad(lambda i: i * 2.0)(3)


def test_allow_int_gives_float0():
    same(tape.grad(lambda i: i * 2.0, allow_int=True)(3), jax.grad(lambda i: i * 2.0, allow_int=True)(3))
    f = lambda x, i: (x * i).sum()  # noqa: E731
    ours = tape.grad(f, argnums=(0, 1), allow_int=True)(A, 3)
    same(ours, jax.grad(f, argnums=(0, 1), allow_int=True)(A, 3))


def test_products_are_differentiated_by_their_directions():
    t = tape.Variable([1.0, 2.0, 3.0])
    _, pushed = tape.jvp(lambda x: x * x, (A,), (t,))
    _, push = tape.linearize(lambda x: x * x, A)
    _, pull = tape.vjp(lambda x: x * x, A)
    for product in (pushed, push(t), pull(t)[0]):
        same(tape.gradients(product.sum(), t).value, 2 * A)


def test_integers_have_empty_tangents():
    empty, three = np.zeros((), jax.dtypes.float0), jnp.int32(3)
    f = lambda x, i: {"y": x * i, "i": i + 1}  # noqa: E731
    same(tape.jvp(f, (A, three), (B, empty)), jax.jvp(f, (A, three), (B, empty)))
    ours, push = tape.linearize(f, A, three)
    theirs, pushed = jax.linearize(f, A, three)
    same((ours, push(B, empty)), (theirs, pushed(B, empty)))
    key = jax.random.key(0)
    same(tape.jvp(lambda x, k: x * tape.random.bits(k), (2.0, key), (1.0, empty))[1], jax.random.bits(key).astype("float32"))
    for wrong in (0, 1.0, np.zeros(2, jax.dtypes.float0)):
        with pytest.raises(TapeTypeError, match="dtype int32 has to be empty"):
            tape.jvp(f, (A, 3), (B, wrong))
    result = tape.jvp(lambda x: (x * 2, x.argmax()), (tape.Variable(A),), (B,))[1]
    assert result[1].dtype == jax.dtypes.float0


@pytest.mark.parametrize("tangent", [3.0 + 1j, jnp.asarray(1j), tape.constant(1j)])
def test_no_imaginary_part_of_a_tangent_is_dropped(tangent):
    for push in (tape.linearize(tnp.sin, 1.0)[1], lambda t: tape.jvp(tnp.sin, (1.0,), (t,)), lambda t: tape.hvp(tnp.sin, (1.0,), (t,))):
        with pytest.raises(TapeTypeError, match="complex64, but its primal has dtype float32; take its real part"):
            push(tangent)


def test_linearize_with_aux():
    f = lambda x: (x * x, {"sum": x.sum()})  # noqa: E731
    (y, push, aux), (theirs, pushed, others) = tape.linearize(f, A, has_aux=True), jax.linearize(f, A, has_aux=True)
    same((y, push(B), aux), (theirs, pushed(B), others))


# -- captured Variables ------------------------------------------------------------------------------------------------------


def test_gradients_of_captured_variables_are_not_lost():
    x = tape.Variable(3.0)
    g = tape.grad(lambda y: x * y * y)(2.0)  # 2 x y
    assert isinstance(g, tape.Variable)
    g.backward()
    assert float(x.grad) == 4.0
    value, g = tape.value_and_grad(lambda y: x * x * y)(2.0)
    (value + g).backward()
    assert float(x.grad) == 4.0 + 12.0 + 6.0
    for transform in (tape.jacrev, tape.jacfwd):
        j = transform(lambda y: x * y * y)(A)
        (gx,) = tape.gradients(j.sum(), [x])
        np.testing.assert_allclose(gx.value, 2 * A.sum(), rtol=1e-6)
    _, dy = tape.jvp(lambda y: x * y * y, (2.0,), (1.0,))
    assert float(tape.gradients(dy, x)) == 4.0
    h = tape.hessian(lambda y: x * y * y * y)(2.0)
    assert float(tape.gradients(h, x)) == 12.0


def test_nested_grad_with_plain_inner_arguments():
    same(tape.grad(lambda x: x * tape.grad(lambda y: x * y)(1.0))(3.0), jax.grad(lambda x: x * jax.grad(lambda y: x * y)(1.0))(3.0))
    f = lambda g: g(lambda x: x * g(lambda y: x * x * y * y)(2.0))(3.0)  # noqa: E731
    same(f(tape.grad), f(jax.grad))


def test_variables_in_variables_out():
    x = tape.Variable(A)
    g = tape.grad(lambda x: (x**3).sum())(x)
    assert isinstance(g, tape.Variable)
    np.testing.assert_allclose(tape.gradients(g.sum(), x).value, 6 * A, rtol=1e-6)
    g = tape.grad(lambda x: (x**3).sum())(tape.constant(A))
    assert isinstance(g, tape.Variable)
    assert not g.requires_grad
    assert x.grad is None


# -- composition -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_nested_grads(order):
    ours, theirs = (lambda x: x**5 + x.sum(),) * 2
    for _ in range(order):
        ours, theirs = tape.grad(ours), jax.grad(theirs)
    same(ours(jnp.float32(1.5)), theirs(jnp.float32(1.5)))


@pytest.mark.parametrize(("outer", "inner"), [(a, b) for a in ("jacrev", "jacfwd") for b in ("jacrev", "jacfwd", "grad")])
def test_jacobians_of_jacobians(outer, inner):
    f = (lambda x: (x**3).sum() * x[0]) if inner == "grad" else (lambda x: x**3 * x[0])
    same(getattr(tape, outer)(getattr(tape, inner)(f))(A), getattr(jax, outer)(getattr(jax, inner)(f))(A))


@pytest.mark.parametrize("transform", ["grad", "value_and_grad", "hessian"])
def test_under_transformations_of_jax(transform):
    f = lambda x: (x**3).sum() * x[0]  # noqa: E731
    ours, theirs = getattr(tape, transform)(f), getattr(jax, transform)(f)
    batch = jnp.stack([A, B])
    with jax.checking_leaks():
        same(jax.jit(ours)(A), theirs(A))
    same(jax.vmap(ours)(batch), jax.vmap(theirs)(batch))
    same(jax.jit(jax.vmap(ours))(batch), jax.vmap(theirs)(batch))
    if transform == "grad":
        same(jax.grad(lambda x: (ours(x) ** 2).sum())(A), jax.grad(lambda x: (theirs(x) ** 2).sum())(A))
        same(jax.jacfwd(ours)(A), jax.hessian(f)(A))


# -- dtypes, sizes, independence ----------------------------------------------------------------------------------------------


def test_float64_under_enable_x64():
    with jax.enable_x64(True):
        x = jnp.array([1.0, 2.0])
        assert x.dtype == jnp.float64
        for name in ("grad", "value_and_grad", "hessian"):
            f = lambda x: (x**3).sum() / 3.0  # noqa: E731
            same(getattr(tape, name)(f)(x), getattr(jax, name)(f)(x))
        g = tape.grad(lambda x: tnp.sin(x))(1.0)
        assert g.dtype == jnp.float64
        assert abs(float(g) - np.cos(1.0)) < 1e-15
    same(tape.grad(lambda x: (x * x).sum())(A), 2 * A)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_stays(dtype):
    x = A.astype(dtype)
    same(tape.grad(lambda x: (x * x * 0.5).sum())(x), jax.grad(lambda x: (x * x * 0.5).sum())(x))
    same(tape.jvp(lambda x: x * x, (x,), (x,)), jax.jvp(lambda x: x * x, (x,), (x,)))


@pytest.mark.parametrize("tangent", [2, 2.0, jnp.asarray(2.0)], ids=["int", "float", "weak"])
def test_tangents_that_are_numbers_have_the_dtypes_of_their_primals(tangent):
    for fun in (lambda x: x, lambda x: x * 3):
        for push in (tape.jvp(fun, (np.float16(1),), (tangent,))[1], tape.linearize(fun, np.float16(1))[1](tangent)):
            same(push, jax.jvp(fun, (np.float16(1),), (np.float16(2),))[1])


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_size_zero(shape):
    x = jnp.zeros(shape)
    for name in ("grad", "hessian"):
        same(getattr(tape, name)(lambda x: (x * x).sum())(x), getattr(jax, name)(lambda x: (x * x).sum())(x))
    for name in ("jacrev", "jacfwd"):
        same(getattr(tape, name)(lambda x: x * x)(x), getattr(jax, name)(lambda x: x * x)(x))


def test_outputs_that_do_not_depend_on_inputs():
    constant = lambda x: {"c": jnp.ones(2) * 3.0, "x": x * 2}  # noqa: E731
    for name in ("jacrev", "jacfwd"):
        same(getattr(tape, name)(constant)(A), getattr(jax, name)(constant)(A))
    same(tape.grad(lambda x, y: (y * y).sum())(A, B), jnp.zeros(3))
    same(tape.grad(lambda x: 1.0)(A), jnp.zeros(3))
    same(tape.jvp(lambda x: jnp.ones(2), (A,), (B,)), (jnp.ones(2), jnp.zeros(2)))
    same(tape.vjp(lambda x: jnp.ones(2), A)[1](jnp.ones(2)), (jnp.zeros(3),))


def test_arrays_in_place_of_an_output_are_refused():
    for lost in (lambda x: (x * x).sum().value, lambda x: x.numpy().sum(), lambda x: np.asarray(x.detach()).sum()):
        for argument in (A, tape.Variable(A)):
            for transform in (tape.grad, tape.value_and_grad):
                with pytest.raises(tape.errors.LostGradientError, match=r"grad: the function returned an array .*shape \(\), dtype float"):
                    transform(lost)(argument)
    same(tape.grad(lambda x: tape.constant(x.numpy().sum()))(A), jnp.zeros(3))
    same(tape.grad(lambda x: (x.sum(), x.numpy()), has_aux=True)(A)[0], jnp.ones(3))


@pytest.mark.parametrize("take", [float, complex, lambda v: v.item(), lambda v: v[None].tolist()[0], lambda v: 2 * math.exp(float(v))])
def test_numbers_in_place_of_an_output_are_refused(take):
    def lost(x):
        return take((x * x).sum())

    def nested(x):
        tape.grad(lambda y: (y * y).sum())(x)  # looks at nothing
        return take(x.sum()) * 2.0

    for argument in (A, tape.Variable(A)):
        for fun in (lost, nested):
            for _ in range(3):
                with pytest.raises(tape.errors.LostGradientError, match=r"grad: the function returned a number of Python's \("):
                    tape.grad(fun)(argument)
    same(tape.grad(lambda x: tape.constant(take(x.sum()).real))(A), jnp.zeros(3))
    same(tape.grad(lambda x: (x.sum(), take(x.sum())), has_aux=True)(A)[0], jnp.ones(3))


@pytest.mark.parametrize(
    "take", [lambda v: v.value, lambda v: v.numpy() * 2, lambda v: np.asarray(v.tolist()), lambda v: jnp.array([v.item()])]
)
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: tape.jacrev(f)(A),
        lambda f: tape.jacfwd(f)(A),
        lambda f: tape.hessian(lambda x: f(x)[0])(A),
        lambda f: tape.vjp(f, A),
        lambda f: tape.jvp(f, (A,), (A,)),
        lambda f: tape.linearize(f, A),
        lambda f: tape.jacrev(lambda x: {"kept": x * x, "lost": f(x)})(A),
    ],
)
def test_arrays_that_other_transforms_would_take_for_constants_are_refused(transform, take):
    for _ in range(2):
        with pytest.raises(tape.errors.LostGradientError, match=r"the function returned an array \(.*having looked at the value"):
            transform(lambda x: take((x * x).sum()[None]))
    constant = lambda x: (x * float(x.detach().sum()), jnp.ones(2), np.ones(2, np.float32) * len(x.numpy().shape))  # noqa: E731
    with pytest.raises(tape.errors.LostGradientError, match=r"ArrayImpl, shape \(2,\)"):  # it may have come of what was looked at
        tape.jacrev(constant)(A)
    same(tape.jacrev(lambda x: (constant(x)[0], tape.constant(constant(x)[2])))(A)[1], jnp.zeros((2, 3)))


def test_numbers_that_lose_no_gradient():
    x = tape.Variable(A)
    assert float(x.sum()) < 0  # before the call
    same(tape.grad(lambda x: 1.0 if x.sum() > 0 and float(x.detach().sum()) > 0 else 2.0)(A), jnp.zeros(3))
    same(tape.grad(lambda x: x.sum() * float(x.sum()))(A), jnp.full(3, A.sum()))
    for number in (-3.0, 2.0):
        same(tape.grad(lambda x: x * x if float(x) > 0 else 0.5)(number), jnp.asarray(max(2 * number, 0.0)))
    inner = tape.grad(lambda y: y.sum() * float(y.sum()))
    with pytest.raises(tape.errors.LostGradientError, match="a number of Python's"):
        tape.grad(lambda x: (inner(x), 1.0 * len(x))[1])(A)  # the number that was looked at there may be this one


def test_under_no_grad():
    with tape.no_grad():
        same(tape.grad(lambda x: (x * x).sum())(A), 2 * A)


@pytest.mark.parametrize("captures", [False, True])
def test_results_under_no_grad_require_none(captures):
    x, w = tape.Variable(A), tape.Variable(A + 1)
    given = A if captures else x

    def vector(x):
        return tnp.sin(x * w)

    def scalar(x):
        return vector(x).sum(), vector(x)

    def results():
        y, pull = tape.vjp(vector, given)
        z, push = tape.linearize(vector, given)
        return [
            tape.grad(scalar, has_aux=True)(given),
            tape.value_and_grad(scalar, has_aux=True)(given),
            tape.jvp(vector, (given,), (given,)),
            tape.jacrev(vector)(given),
            tape.hvp(lambda x: vector(x).sum(), (given,), (given,)),
            (y, pull(A), pull(x), z, push(A), push(x)),
        ]

    recorded = jax.tree.leaves(results(), is_leaf=lambda v: isinstance(v, tape.Variable))
    with tape.no_grad():
        constants = jax.tree.leaves(results(), is_leaf=lambda v: isinstance(v, tape.Variable))
    assert all(v.requires_grad for v in recorded)
    assert not any(v.requires_grad for v in constants)
    for constant, v in zip(constants, recorded, strict=True):
        same(constant.value, v.value)


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, x: tape.grad(lambda x: f(x).sum())(x),
        lambda f, x: tape.vjp(f, x)[1](A)[0],
        lambda f, x: tape.jvp(f, (x,), (A,))[1],
        lambda f, x: tape.linearize(f, x)[1](A),
        lambda f, x: tape.hvp(lambda x: f(x).sum(), (x,), (A,)),
        lambda f, x: tape.jacrev(f)(x).sum(0),
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_is_computed_under_no_grad_is_a_constant_elsewhere(derivative, requires_grad):
    """Contract 23: no later sweep takes it for a gradient whose own derivative is lost."""
    x, w = tape.Variable(A, requires_grad=requires_grad), tape.Variable(A)
    with tape.no_grad():
        slope = derivative(tnp.sin, x)
    same(tape.gradients((w * slope).sum(), w), slope)


def test_under_no_grad_jax_sees_constants():
    def scalar(x):
        return tnp.sin(x * x).sum()

    def run(a):
        with tape.no_grad():
            slope = tape.grad(scalar)(tape.Variable(a))
        return (slope * a).value.sum()

    np.testing.assert_allclose(jax.grad(run)(A), tape.grad(scalar)(A), rtol=1e-6)


# -- errors ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacrev", "jacfwd", "vjp", "jvp", "linearize"])
def test_what_is_no_function(name):
    args = {"vjp": (3, A), "jvp": (3, (A,), (A,)), "linearize": (3, A)}.get(name, (3,))
    with pytest.raises(TapeTypeError, match=f"^{name}: expected a function, got int"):
        getattr(tape, name)(*args)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tape.grad(lambda x: x * 2)(A), TapeTypeError, r"one number .*got \(3,\).*jacrev"),
        (lambda: tape.grad(lambda x: (x.sum(), x.sum()))(A), TapeTypeError, "one number"),
        (lambda: tape.grad(lambda x: x.sum().astype("int32"))(A), TapeTypeError, "int32"),
        (lambda: tape.grad(lambda x: x.sum(), argnums=False)(A), TapeTypeError, "argnums must be an int or a sequence of ints, got bool"),
        (lambda: tape.grad(lambda x: x.sum(), argnums=2)(A), TapeValueError, "names argument 2.*1 positional"),
        (lambda: tape.grad(lambda x: x.sum(), argnums=(0.5,))(A), TapeTypeError, "argnums must be"),
        (lambda: tape.grad(lambda x: x)("text"), TapeTypeError, "str"),
        (lambda: tape.grad(lambda x: x.sum(), has_aux=True)(A), TapeTypeError, "has_aux"),
        (lambda: tape.jvp(lambda x: x, (A,), (A, A)), TapeTypeError, "one structure"),
        (lambda: tape.jvp(lambda x: x, A, A), TapeTypeError, "tuples or lists"),
        (lambda: tape.jvp(lambda x: x, (A,), (A[:2],)), TapeValueError, r"\(2,\).*\(3,\)"),
        (lambda: tape.jvp(lambda x: x, (A,), (A.astype(jnp.float16),)), TapeTypeError, "float16.*float32"),
        (lambda: tape.vjp(lambda x: (x, x), A)[1](A), TapeTypeError, "structure"),
        (lambda: tape.vjp(lambda x: x, A)[1](A[:2]), SeedError, r"\(2,\)"),
        (lambda: tape.linearize(lambda x: x, A)[1](A, A), TapeTypeError, "structure"),
        (lambda: tape.jacrev(lambda x: x * 1j)(A), TapeTypeError, "holomorphic"),
        (lambda: tape.jacfwd(lambda x: x.astype("int32"))(A), TapeTypeError, "int32"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("fun", [tnp.sum, lambda x: x.sum() * 0 + 1.0, lambda x: tnp.ones(())], ids=["linear", "constant", "unused"])
def test_tangents_and_cotangents_are_checked_whether_they_are_read_or_not(fun):
    with pytest.raises(TapeValueError, match=r"a tangent has shape \(3,\), but its primal has shape \(2,\)"):
        tape.hvp(fun, (jnp.ones(2),), (jnp.ones(3),))
    with pytest.raises(TapeValueError, match=r"a tangent has shape \(3,\), but its primal has shape \(2,\)"):
        tape.linearize(fun, jnp.ones(2))[1](jnp.ones(3))
    with pytest.raises(TapeTypeError, match="a tangent has dtype int32"):
        tape.jvp(fun, (jnp.ones(2),), (jnp.ones(2, int),))
    with pytest.raises(SeedError, match=r"the seed of root 0 has shape \(3,\), but the root has shape \(\)"):
        tape.vjp(fun, jnp.ones(2))[1](jnp.ones(3))
    assert tape.vjp(fun, jnp.ones(2))[1](1.0)[0].shape == (2,)


@pytest.mark.parametrize(
    "slope", [tape.grad(lambda v: v**3), lambda v: tape.vjp(lambda v: v**3, v)[1](1.0)[0], tape.jacrev(lambda v: v**3)]
)
def test_jax_differentiates_on_what_is_constant_to_the_tape(slope):
    assert jax.grad(lambda x: slope(tape.constant(x)).value)(2.0) == 12
    with tape.no_grad():
        assert jax.grad(lambda x: slope(tape.constant(x)).value)(2.0) == 0
    assert tape.grad(lambda v: v**3)(tape.constant(2.0)).requires_grad is False
