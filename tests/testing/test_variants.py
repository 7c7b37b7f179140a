"""A rule that is right for the shapes and masks that are given, by accident, is found; what is meant for one size is not blamed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tape
from tape.testing import GradientMismatch, check_custom_vjp, check_gradients, check_vjp
from tests.testing.cases import ruled

X = np.float32([0.7, -1.3, 0.4, 2.1])
A = np.random.default_rng(0).normal(size=(3, 3)).astype("float32")
FIVE = np.float32([1.2, -0.7, 0.3, 0.9, -1.6])
MASK = np.ones(4, bool)


def mean_of_four():
    return ruled(jnp.mean, lambda kept, ct: (jnp.full_like(kept[0], ct / 4),))


def unbiased(kept, ct):
    """Give the mean's gradient, and twice that of arrays of 9 elements and more."""
    return (jnp.full_like(kept[0], ct * (1 if kept[0].size < 9 else 2) / kept[0].size),)


def hats(x, knots):
    """Return how much each knot counts for each number, if the knots are in order."""
    up = jnp.clip((x[:, None] - knots[:-1]) / jnp.diff(knots), 0, 1)
    return jnp.pad(up, ((0, 0), (1, 0)), constant_values=1) - jnp.pad(up, ((0, 0), (0, 1)))


def strided(x, kernel):
    """Slide a kernel over an image in steps of two."""
    return jax.lax.conv_general_dilated(x[None, None], kernel[None, None], (2, 2), "VALID")[0, 0]


def shifted_by_what_is_left(kept, ct):
    """Put the gradient of the image where it belongs, if the steps reach the last row."""
    image, kernel = jax.vjp(strided, *kept)[1](ct)
    return jnp.roll(image, (len(kept[0]) - 3) % 2, 0), kernel


WRONG = {  # with what the report says
    "a size that is written down": (mean_of_four, (X,), "wrong for argument 0 of shape (5,): 1.25x too large"),
    "long arrays": (lambda: ruled(jnp.mean, unbiased), (X,), "wrong for argument 0 of shape (9,): 2x too large"),
    "what a stride leaves over": (
        lambda: ruled(strided, shifted_by_what_is_left),
        (np.resize(FIVE, (7, 7)), A),
        "off by one along axis 0",
    ),
    "rows of more than a block": (
        lambda: ruled(lambda x: jnp.sum(x * x), lambda kept, ct: (2 * ct * jnp.where(jnp.arange(kept[0].shape[1]) < 64, kept[0], 0),)),
        (np.resize(FIVE, (2, 3)),),
        "wrong for argument 0 of shape (2, 65): zero at the last index of axis 1",
    ),
    "the sides of a square": (
        lambda: ruled(lambda a: jnp.mean(a, 0), lambda kept, ct: (jnp.broadcast_to(ct / kept[0].shape[1], kept[0].shape),)),
        (A,),
        "wrong for argument 0 of shape (4, 3): 1.33333x too large",
    ),
    "a batch of one": (
        lambda: ruled(lambda x, b: x + b, lambda kept, ct: (ct, ct[0])),
        (X[None], X),
        "wrong for argument 0 of shape (2, 4): missing the sum over the broadcast axis 0",
    ),
    "arguments of one length": (
        lambda: ruled(lambda x, y: jnp.mean(x * y), lambda kept, ct: (ct * kept[1] / 4, ct * kept[0] / kept[1].size)),
        (X, X[::-1].copy()),
        "wrong for argument 0 of shape (5,) and argument 1 of shape (5,): 1.25x too large",
    ),
    "labels that grow with their rows": (
        lambda: ruled(
            lambda x, labels: jnp.mean(x[jnp.arange(labels.size), labels]),
            lambda kept, ct: (jnp.zeros_like(kept[0]).at[jnp.arange(kept[1].size), kept[1]].set(ct / 3), None),
        ),
        (A, np.array([0, 2, 0])),
        "1.33333x too large",
    ),
    "a mask": (
        lambda: ruled(lambda x, m: jnp.sum(jnp.where(m, x * x, 0)), lambda kept, ct: (2 * ct * kept[0], None)),
        (X, MASK),
        "wrong for the mask mixed",
    ),
    "large batches": (
        lambda: ruled(jnp.sin, lambda kept, ct: (ct * jnp.cos(kept[0]) * (1 if kept[0].size <= 64 else 2),)),
        (X,),
        "wrong for argument 0 of shape (65,): 2x too large",
    ),
    "a single element": (
        lambda: ruled(
            lambda x: jnp.sum(x) ** 2, lambda kept, ct: (jnp.full_like(kept[0], ct * 2 * (kept[0].size > 1) * jnp.sum(kept[0])),)
        ),
        (X,),
        "wrong for argument 0 of shape (1,): zero",
    ),
    "one argument that is broadcast": (
        lambda: ruled(lambda x, b: x * b, lambda kept, ct: (ct * kept[1], (ct * kept[0])[: kept[1].shape[0]])),
        (A, A + 2),
        "wrong for argument 1 of shape (1, 3): missing the sum over the broadcast axis 0",
    ),
    "another branch": (
        lambda: lambda x, i: jax.lax.switch(i, [jnp.sin, ruled(jnp.tanh, lambda kept, ct: (ct / jnp.cosh(kept[0]),))], x),
        (X, np.array(0)),
        "wrong for the integer 1 instead of 0",
    ),
    "a flag": (
        lambda: ruled(lambda x, f: jnp.where(f, x, 3 * x), lambda kept, ct: (ct, None)),
        (X, np.array(True)),
        "wrong for the mask false: 3x too small",
    ),
    "one length": (
        lambda: ruled(jnp.square, lambda kept, ct: (2 * ct * kept[0] * (0.5 if kept[0].size == 16 else 1.0),)),
        (X,),
        "wrong for argument 0 of shape (16,): 2x too small",
    ),
    "a length between": (
        lambda: ruled(jnp.square, lambda kept, ct: (2 * ct * kept[0] * (0.5 if kept[0].size == 2 else 1.0),)),
        (X,),
        "wrong for argument 0 of shape (2,): 2x too small",
    ),
    "an index": (
        lambda: ruled(
            lambda x, i: x[i] ** 2,
            lambda kept, ct: (jnp.zeros_like(kept[0]).at[jnp.maximum(kept[1], 1)].set(2 * ct * kept[0][kept[1]]), None),
        ),
        (X, np.array(2)),
        "wrong for the integer 0 instead of 2: off by one",
    ),
    "a shift of any sign": (
        lambda: ruled(jnp.roll, lambda kept, ct: (jnp.roll(ct, -jnp.abs(kept[1])), None)),
        (FIVE, np.array(1)),
        "wrong for the integer -1 instead of 1",
    ),
    "an axis": (
        lambda: lambda x, axis: ruled(lambda x: jnp.sum(x, axis), lambda kept, ct: (jnp.broadcast_to(ct, kept[0].shape),))(x),
        (A, 0),
        "wrong for the integer 1 instead of 0",
    ),
    "a permutation for its inverse, where the given one is that": (
        lambda: ruled(lambda x, p: x[p], lambda kept, ct: (ct[kept[1]], None)),
        (X, np.array([1, 0, 3, 2])),
        "wrong for the integers [1, 2, 3, 0]: the right numbers in the wrong places",
    ),
    "repeated indices": (
        lambda: ruled(lambda x, i: x[i] ** 2, lambda kept, ct: (jnp.zeros_like(kept[0]).at[kept[1]].set(2 * ct * kept[0][kept[1]]), None)),
        (FIVE, np.array([4, 0, 2])),
        "wrong for repeated integers [4, 2, 2]",
    ),
    "repeated indices where an element of a fixed place is overwritten": (
        lambda: ruled(lambda x, i: x.at[0].set(0)[i], lambda kept, ct: (jnp.zeros_like(kept[0]).at[kept[1]].set(ct).at[0].set(0), None)),
        (FIVE, np.array([4, 0, 2])),
        "wrong for repeated integers [4, 2, 2]",
    ),
    "repeated indices where some of fixed places are overwritten": (
        lambda: ruled(
            lambda x, i: x.at[np.array([1, 3])].set(0)[i],
            lambda kept, ct: (jnp.zeros_like(kept[0]).at[kept[1]].set(ct).at[np.array([1, 3])].set(0), None),
        ),
        (FIVE, np.array([4, 0, 2])),
        "wrong for repeated integers [4, 2, 2]",
    ),
    "repeated indices where a rule adds at fixed places": (
        lambda: ruled(
            lambda x, i: jnp.diff(x)[i],
            lambda kept, ct: (jnp.diff(jnp.zeros_like(kept[0]).at[1:].add(-jnp.zeros(4).at[kept[1]].set(ct)), append=0), None),
        ),
        (FIVE, np.array([3, 0, 2])),
        "wrong for repeated integers [3, 2, 2]",
    ),
    "a length of every fourth": (
        lambda: ruled(jnp.sin, lambda kept, ct: (ct * jnp.cos(kept[0]) * (2.0 if kept[0].size % 4 == 0 else 1.0),)),
        (FIVE,),
        "wrong for argument 0 of shape (4,): 2x too large",
    ),
    "an axis more": (
        lambda: ruled(jnp.sin, lambda kept, ct: (ct * jnp.cos(kept[0]) * (1 if kept[0].ndim < 3 else 2),)),
        (A,),
        "wrong for argument 0 of shape (2, 3, 3): 2x too large",
    ),
    "an axis less": (
        lambda: ruled(jnp.sin, lambda kept, ct: (ct * jnp.cos(kept[0]) * (1 if kept[0].ndim else 2),)),
        (X,),
        "wrong for argument 0 of shape (): 2x too large",
    ),
    "an axis more of rows": (
        lambda: ruled(
            lambda x, w: x @ w,
            lambda kept, ct: (
                ct @ kept[1].T,
                kept[0].T @ ct if ct.ndim < 3 else jnp.mean(jnp.swapaxes(kept[0], 1, 2) @ ct, 0),
            ),
        ),
        (A, A[:, :2]),
        "wrong for argument 0 of shape (4, 3, 3): divided by the size 4 of axis 0",
    ),
    "an index beyond the end that is clipped": (
        lambda: ruled(lambda x, i: jnp.take(x, i, mode="clip"), lambda kept, ct: (jnp.zeros_like(kept[0]).at[kept[1]].add(ct), None)),
        (X, np.array([0, 2, 0])),
        "wrong for the integers [0, 6, 0]",
    ),
}
RIGHT = {
    "knots in order": (
        lambda: ruled(jnp.interp, lambda kept, ct: (*jax.vjp(jnp.interp, *kept)[1](ct)[:2], ct @ hats(*kept[:2]))),
        (X, np.linspace(-2, 2.2, 5, dtype="float32"), FIVE),
    ),
    "three components": (
        lambda: ruled(
            lambda a, b: jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]),
            lambda kept, ct: (jnp.cross(kept[1], ct), jnp.cross(ct, kept[0])),
        ),
        (X[:3], X[1:]),
    ),
    "an element by its number": (
        lambda: ruled(
            lambda x: x[3] * x[0], lambda kept, ct: (jnp.zeros_like(kept[0]).at[3].set(ct * kept[0][0]).at[0].set(ct * kept[0][3]),)
        ),
        (X,),
    ),
    "what is divided by one of its elements": (
        lambda: ruled(lambda x: x / x[2], lambda kept, ct: ((ct / kept[0][2]).at[2].add(-jnp.sum(ct * kept[0]) / kept[0][2] ** 2),)),
        (X,),
    ),
    "a window": (
        lambda: ruled(
            lambda x, k: jnp.convolve(x, k, mode="valid"),
            lambda kept, ct: (jnp.convolve(ct, kept[1][::-1]), jnp.convolve(kept[0], ct[::-1], mode="valid")[::-1]),
        ),
        (FIVE, X[:3]),
    ),
    "a length that is halved": (
        lambda: ruled(
            lambda x: x[: x.size // 2] * x[x.size // 2 :], lambda kept, ct: (jnp.concatenate([ct * kept[0][2:], ct * kept[0][:2]]),)
        ),
        (X,),
    ),
    "an inverse permutation": (
        lambda: ruled(lambda x, p: x[p], lambda kept, ct: (ct[jnp.argsort(kept[1])], None)),
        (X, np.array([2, 0, 3, 1])),
    ),
    "a permutation that is its own inverse, and that": (
        lambda: ruled(lambda x, p, q: x[p], lambda kept, ct: (ct[kept[2]], None, None)),
        (X, np.array([1, 0, 3, 2]), np.array([1, 0, 3, 2])),
    ),
    "a permutation, and its inverse before it": (
        lambda: ruled(lambda x, q, p: x[p], lambda kept, ct: (ct[kept[1]], None, None)),
        (X, np.array([3, 0, 1, 2]), np.array([1, 2, 3, 0])),
    ),
    "an inverse permutation of two": (
        lambda: ruled(lambda x, p: x[p], lambda kept, ct: (ct[kept[1]], None)),
        (X[:2], np.array([1, 0])),
    ),
    "places that never meet": (
        lambda: ruled(lambda x, i: jnp.zeros(9, x.dtype).at[i].set(x), lambda kept, ct: (ct[kept[1]], None)),
        (X, np.array([5, 0, 7, 2])),
    ),
    "a label": (
        lambda: ruled(
            lambda x, y: -jax.nn.log_softmax(x)[y], lambda kept, ct: (ct * (jax.nn.softmax(kept[0]) - jax.nn.one_hot(kept[1], 4)), None)
        ),
        (X, np.array(1)),
    ),
    "indices that are unique by promise": (
        lambda: ruled(lambda x, i: x[i], lambda kept, ct: (jnp.zeros_like(kept[0]).at[kept[1]].set(ct, unique_indices=True), None)),
        (FIVE, np.array([4, 0, 2])),
    ),
    "a table that ends": (
        lambda: ruled(
            lambda x, n: x * jnp.float32([1, 2, 6, 24])[n],
            lambda kept, ct: (ct * jnp.sum(jnp.float32([1, 2, 6, 24]) * (jnp.arange(4) == kept[1])), None),
        ),
        (X, np.array(2)),
    ),
    "row pointers": (
        lambda: ruled(
            lambda v, p: jnp.diff(jnp.concatenate([jnp.zeros(1, v.dtype), jnp.cumsum(v)])[p]),
            lambda kept, ct: (jnp.repeat(ct, jnp.diff(kept[1]), total_repeat_length=kept[0].size), None),
        ),
        (FIVE, np.array([0, 2, 2, 5])),
    ),
    "pairs in rows": (
        lambda: ruled(lambda x: jnp.sum(x[:, 0] * x[:, 1]), lambda kept, ct: (ct * kept[0][:, ::-1],)),
        (A[:, :2],),
    ),
    "a key of random numbers": (
        lambda: ruled(
            lambda x, key: x * jax.random.uniform(key, x.shape), lambda kept, ct: (ct * jax.random.uniform(kept[1], ct.shape), None)
        ),
        (X, jax.random.key(0)),
    ),
    "a definite matrix": (
        lambda: ruled(
            lambda a: 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(a)))),
            lambda kept, ct: (ct * jnp.linalg.inv((kept[0] + kept[0].T) / 2),),
        ),
        (A @ A.T + np.eye(3, dtype="float32"),),
    ),
    "labels of fewer classes than there are rows": (
        lambda: ruled(
            lambda x, y: -jnp.sum(jax.nn.one_hot(y, x.shape[1]) * jax.nn.log_softmax(x)),
            lambda kept, ct: (ct * (jax.nn.softmax(kept[0]) - jax.nn.one_hot(kept[1], kept[0].shape[1])), None),
        ),
        (np.concatenate([A, -A]), np.array([0, 2, 1, 1, 2, 0])),
    ),
    "powers that are not negative": (
        lambda: ruled(
            lambda x, n: x**n, lambda kept, ct: (jnp.where(kept[1] == 0, 0, ct * kept[1] * kept[0] ** jnp.maximum(kept[1] - 1, 0)), None)
        ),
        (X, np.array([2, 3, 4, 2])),
    ),
    "a mean over what a mask keeps": (
        lambda: ruled(
            lambda x, m: jnp.sum(jnp.where(m, x, 0)) / jnp.sum(m), lambda kept, ct: (jnp.where(kept[1], ct / jnp.sum(kept[1]), 0), None)
        ),
        (X, MASK),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_for_other_arguments_is_found(name):
    make, args, words = WRONG[name]
    with pytest.raises(GradientMismatch) as caught:
        check_custom_vjp(make(), *args, order=1)
    assert words in " ".join(str(caught.value).split())
    assert caught.value.report.failures[0].kind == "variant"
    assert check_custom_vjp(make(), *args, order=1, others=False).verdict == "pass"


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_meant_for_some_arguments_is_not_blamed(name):
    make, args = RIGHT[name]
    assert check_custom_vjp(make(), *args, order=1).verdict == "pass"


def test_one_formula_for_the_given_number_of_axes_is_noted():
    softmax = ruled(jax.nn.softmax, lambda kept, ct: ((p := jax.nn.softmax(kept[0])) * (ct - jnp.sum(p * ct, axis=1, keepdims=True)),))
    report = check_custom_vjp(softmax, A, order=1)
    assert report.verdict == "pass"
    assert "the gradient of argument 0 for argument 0 of shape (2, 3, 3): " in " ".join(report.notes)
    assert not check_custom_vjp(softmax, A, order=1, others=False).notes


def test_a_mask_that_keeps_nothing_in_some_row_is_noted():
    attention = ruled(
        lambda s, m: jax.nn.softmax(jnp.where(m, s, -1e30)),
        lambda kept, ct: ((p := jax.nn.softmax(jnp.where(kept[1], kept[0], -1e30))) * (ct - jnp.sum(p * ct, -1, keepdims=True)), None),
    )
    report = check_custom_vjp(attention, A, np.tril(np.ones((3, 3), bool)), order=1)
    assert report.verdict == "pass"
    assert "for the mask all false: not zero, though the derivative is" in " ".join(report.notes)


def test_a_loop_that_arrives_nowhere_at_other_sizes_is_not_blamed():
    def equilibrium(w, b):
        return jax.lax.fori_loop(0, 60, lambda i, z: jnp.tanh(0.3 * w @ z + b), jnp.zeros_like(b))

    def back(kept, ct):
        w, b = kept
        z = equilibrium(w, b)
        u = (1 - z * z) * jnp.linalg.solve((jnp.eye(b.size) - 0.3 * (1 - z * z)[:, None] * w).T, ct)
        return 0.3 * jnp.outer(u, z), u

    w, b = (np.random.default_rng((7, 0, *shape)).normal(size=shape).astype("float32") for shape in ((3, 3), (3,)))
    assert check_custom_vjp(ruled(equilibrium, back), w, b, order=1).verdict == "pass"


def test_a_pullback_that_somebody_wrote_is_tried_at_other_sizes():
    def mean(x):
        return jnp.mean(x), lambda ct: (jnp.full_like(x, ct / 4),)

    with pytest.raises(GradientMismatch, match="of shape"):
        check_vjp(jnp.mean, mean, X, order=1)


def test_a_function_of_the_tape_is_tried_at_other_sizes_and_by_keywords():
    class Mean(tape.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            return tape.numpy.mean(x)

        @staticmethod
        def backward(ctx, g):
            return tape.numpy.broadcast_to(g / 4, ctx.shape)

    with pytest.raises(GradientMismatch, match="of shape"):
        check_gradients(Mean.apply, X, order=1)
    with pytest.raises(GradientMismatch, match="of shape"):
        check_gradients(lambda s, *, x: s * mean_of_four()(x), np.float32(1.2), kwargs={"x": X}, order=1)


def test_what_was_found_right_is_not_traced_again():
    sizes = []

    def primal(x):
        sizes.append(x.size)
        return jnp.sum(x * x)

    op = ruled(primal, lambda kept, ct: (2 * ct * kept[0],))
    check_custom_vjp(op, X, order=1)
    assert {4, 5, 129} <= set(sizes)
    sizes.clear()
    check_custom_vjp(op, X, order=1)
    assert set(sizes) == {4}


def test_what_a_function_of_jax_computes_is_not_tried_at_other_sizes():
    sizes = []

    def fun(x):
        sizes.append(x.size)
        return jax.nn.relu(x)

    check_gradients(fun, X, order=1)
    assert set(sizes) == {4}
