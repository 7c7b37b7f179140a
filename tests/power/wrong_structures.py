"""Rules that are right where the point has a structure, at most calls, or under one ``vmap`` only; and right ones that look like them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.power.case import BOTH, Case, complexes, conditioned, custom, enter, normal, right, right_rule, rule, uniform

SYMMETRIC = conditioned(3, 5.0, symmetric=True) + np.eye(3)
DIAGONAL = np.diag([1.0, 2.0, 0.5])
VECTOR = normal(3)
REAL = normal(4) + 0j
leaning = functools.partial(rule, "symmetry of the given point", shows="bent")

# rules that lean on a symmetric matrix ----------------------------------------------------------------------------------


def t(a):
    """The transpose of a matrix."""
    return jnp.swapaxes(a, -1, -2)


def quadratic(a, x):
    return x @ a @ x


def solved(a, b):
    return jnp.linalg.solve(a, b)


leaning(
    "quadratic_form_of_a_symmetric_matrix",
    "2 A x",
    quadratic,
    lambda ct, _, a, x: (ct * jnp.outer(x, x), 2 * ct * a @ x),
    SYMMETRIC,
    VECTOR,
)
for _name, _at in (("symmetric", SYMMETRIC), ("diagonal", DIAGONAL)):
    leaning(
        f"inverse_of_a_{_name}_matrix_without_transposes",
        "-inv(A) ct inv(A)",
        jnp.linalg.inv,
        lambda ct, out, _: (-out @ ct @ out,),
        _at,
    )
    leaning(
        f"solve_of_a_{_name}_matrix_without_the_transpose",
        "A instead of its transpose",
        solved,
        lambda ct, out, a, b: (-jnp.outer(solved(a, ct), out), solved(a, ct)),
        _at,
        VECTOR,
    )
    leaning(
        f"log_determinant_of_a_{_name}_matrix",
        "inv(A) instead of its transpose",
        lambda a: jnp.linalg.slogdet(a)[1],
        lambda ct, _, a: (ct * jnp.linalg.inv(a),),
        _at,
    )
    leaning(
        f"cube_of_a_{_name}_matrix",
        "the powers are not transposed",
        lambda a: jnp.linalg.matrix_power(a, 3),
        lambda ct, _, a: (ct @ a @ a + a @ ct @ a + a @ a @ ct,),
        _at,
    )
leaning(
    "determinant_of_the_identity",
    "det(A) inv(A) instead of its transpose",
    jnp.linalg.det,
    lambda ct, out, a: (ct * out * jnp.linalg.inv(a),),
    np.eye(3),
)
leaning(
    "pseudoinverse_of_a_symmetric_matrix",
    "not transposed",
    jnp.linalg.pinv,
    lambda ct, out, _: (-out @ ct @ out,),
    SYMMETRIC,
)
leaning(
    "trace_of_a_square",
    "2 A instead of its transpose",
    lambda a: jnp.trace(a @ a),
    lambda ct, _, a: (2 * ct * a,),
    SYMMETRIC,
)
leaning(
    "kronecker_product_of_symmetric_matrices",
    "the other factor is transposed",
    jnp.kron,
    lambda ct, _, a, b: (
        jnp.einsum("ikjl,lk->ij", ct.reshape(3, 3, 3, 3), b),
        jnp.einsum("ikjl,ij->kl", ct.reshape(3, 3, 3, 3), a),
    ),
    SYMMETRIC,
    DIAGONAL,
)
leaning(
    "gram_matrix_of_a_symmetric_matrix",
    "the transpose of A",
    lambda a: a @ t(a),
    lambda ct, _, a: ((ct + t(ct)) @ t(a),),
    SYMMETRIC,
)

# what is right of them --------------------------------------------------------------------------------------------------

right_rule(
    "matrix",
    "quadratic_form_of_any_matrix",
    "(A + A') x",
    quadratic,
    lambda ct, _, a, x: (ct * jnp.outer(x, x), ct * (a + t(a)) @ x),
    SYMMETRIC,
    VECTOR,
)
right_rule("matrix", "inverse_of_a_diagonal_matrix", "transposed", jnp.linalg.inv, lambda ct, out, _: (-t(out) @ ct @ t(out),), DIAGONAL)
right("matrix", "cholesky_of_a_diagonal_matrix", "one triangle is read", jnp.linalg.cholesky, DIAGONAL)


def _lower(a):
    return jax.lax.linalg.cholesky(a, symmetrize_input=False)


def _lower_rule(ct, out, _):
    """Murray, Differentiation of the Cholesky decomposition (2016)."""
    phi = jnp.tril(t(out) @ ct)
    phi = phi - 0.5 * jnp.diag(jnp.diag(phi))
    inverse = jnp.linalg.inv(out)
    return (t(inverse) @ phi @ inverse,)


right_rule("matrix", "cholesky_of_one_triangle", "the rule is that of symmetric matrices", _lower, _lower_rule, SYMMETRIC)

# conjugates that a real value hides -------------------------------------------------------------------------------------

unturned = functools.partial(rule, "conjugate", shows="bent")
unturned("square_at_real_values", "conjugated, for real values", lambda z: z * z, lambda ct, _, z: (2 * ct * z.conj(),), REAL)
unturned("exponential_at_real_values", "conjugated", jnp.exp, lambda ct, out, _: (ct * out.conj(),), REAL)
unturned(
    "squared_size_at_real_values",
    "2 z instead of its conjugate",
    lambda z: jnp.real(z * z.conj()),
    lambda ct, _, z: (2 * ct * z,),
    REAL,
)
unturned(
    "product_with_real_values",
    "one factor is conjugated",
    lambda z, w: z * w,
    lambda ct, _, z, w: (ct * w.conj(), ct * z),
    complexes(4),
    REAL,
)
unturned(
    "square_at_imaginary_values",
    "the size is right, the sign is the conjugate's",
    lambda z: z * z,
    lambda ct, _, z: (-2 * ct * z.conj(),),
    1j * REAL,
)

# under vmap in vmap -----------------------------------------------------------------------------------------------------


def _mapped(fun, of_batch):
    """An elementwise function with a batching rule of its own."""
    op = jax.custom_batching.custom_vmap(fun)
    op.def_vmap(lambda size, batched, x: (of_batch(x), True))
    return op


def _nested(build):
    """A rule whose slope is wrong for batches of batches."""
    inner = _mapped(lambda x: jnp.cos(x), lambda x: build(x))
    return _mapped(lambda x: jnp.cos(x), lambda x: inner(x))


for _name, _build in (("scaled", lambda x: 1.01 * jnp.cos(x)), ("sign", lambda x: -jnp.cos(x)), ("zero", jnp.zeros_like)):
    enter(
        Case(
            f"{_name}_under_two_vmaps",
            "under vmap in vmap",
            "a batching rule that calls an op with a wrong one",
            True,
            lambda dtype, build=_build: (custom(jnp.sin, lambda ct, _, x: (ct * _nested(build)(x),)), (normal(4).astype(dtype),)),
            lambda _: jnp.sin,
            BOTH,
            "nested",
        )
    )

# now and then -----------------------------------------------------------------------------------------------------------


def _now_and_then(every, where):
    """A sine whose rule is wrong at each so manieth call, forwards or backwards."""
    calls = [0]

    def now():
        calls[0] += 1
        return calls[0] % every == 0

    def fwd(x):
        slope = jnp.cos(x)
        return jnp.sin(x), (1.1 * slope if where == "forward" and now() else slope)

    def bwd(slope, ct):
        return (ct * (1.1 * slope if where == "backward" and now() else slope),)

    op = jax.custom_vjp(jnp.sin)
    op.defvjp(fwd, bwd)
    return op


for _every in (3, 5, 7, 10):
    for _where in ("forward", "backward"):
        enter(
            Case(
                f"every_{_every}th_call_{_where}",
                "now and then",
                "a counter decides",
                True,
                lambda dtype, every=_every, where=_where: (_now_and_then(every, where), (uniform(0.4, 1.4, 4).astype(dtype),)),
                lambda _: jnp.sin,
                BOTH,
                "calls",
            )
        )
