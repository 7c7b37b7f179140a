"""Causes: what cuts or kills a gradient, how that is told from an entry and its values, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from tape.insight.entries import Entry
from tape.jaxapi import words

COMPARISONS = words("greater greater_equal less less_equal equal not_equal logical_and logical_or logical_not isnan isfinite isinf isclose")
CHOICES = words("argmax argmin argsort searchsorted nonzero argpartition digitize categorical")
STEPS = words("round rint floor ceil trunc sign fix around heaviside floor_divide")
MASKS = words("where select relu relu6 clip maximum minimum max min leaky_relu hard_tanh hard_sigmoid abs")
SATURATING = words("tanh sigmoid expit softmax erf logistic log_softmax arctan softsign log_sigmoid gelu silu swish")
NAMED = words("std nanstd sqrt rsqrt cbrt power float_power norm log exp divide true_divide softmax log_softmax")


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that a gradient suffers from.

    Attributes:
        kind: what it is, in a word or two: ``"detach"``, ``"no_grad"``, ``"integer cast"``, ``"saturation"`` ...
        entry: the number of the entry on the tape where it happens; None where it is not one entry's.
        what: what happened there.
        repair: what to do.
        where: the line inside of the entry, where the entry consists of several primitives and it is known; None otherwise.

    """

    kind: str
    entry: int | None
    what: str
    repair: str
    where: tuple[str, int] | None = None

    def inside(self, name: str, where: tuple[str, int] | None) -> Cause:
        """Return it as one that is inside of an entry, at a line."""
        return replace(self, what=f"inside {name}: {self.what}", where=where)


def readable(value: object) -> np.ndarray:
    """Return an array of a dtype that NumPy knows as one of numbers: bfloat16 and the like are none for it."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def finite(x: np.ndarray) -> bool:
    """Tell whether all of an array is finite; integers are."""
    return x.dtype.kind not in "fc" or bool(np.all(np.isfinite(x)))


def norm(array: object) -> float:
    """Return the Euclidean norm, at the precision of double."""
    wide = np.abs(np.asarray(array)).astype(np.float64)
    return float(np.sqrt(np.sum(wide * wide)))


def meets_zero(operands: Sequence[np.ndarray]) -> bool:
    """Tell whether one of several operands has infinities and another one zeros."""
    numbers = [x for x in operands if x.dtype.kind in "fcb"]
    return any(np.any(np.isinf(x)) for x in numbers if x.dtype.kind != "b") and any(np.any(x == 0) for x in numbers)


def masked(born: str, number: int, op: str) -> Cause:
    """Say that what is infinite is multiplied by 0 further on."""
    what = f"{born}, and {op} by a mask of zeros does not take it away: 0 * inf is NaN"
    repair = "select instead of multiplying, around the input: safe = tnp.where(mask, x, 1.0), then tnp.where(mask, f(safe), 0.0)"
    return Cause("infinity times zero", number, what, repair)


def step_at(entry: Entry) -> Cause:
    """Say that an entry rounds."""
    repair = "round after the loss, or pass the gradient through: x + (tnp.round(x) - x).detach()"
    return Cause("rounding", entry.number, f"{entry.op} is constant between its steps, so its derivative is 0", repair)


def backward_at(entry: Entry, gave: str) -> Cause:
    """Say that the backward of a ``tape.Function`` does it."""
    what = f"the backward of {entry.op} gave {gave}"
    return Cause("backward", entry.number, what, f"look at {entry.op}.backward: tape.testing.check_gradients compares it with differences")


def raised_at(entry: Entry, error: Exception) -> Cause:
    """Say that the backward of a ``tape.Function`` raises."""
    said = str(error).split("\n", maxsplit=1)[0]
    repair = f"tape.gradients raises that, too: mend {entry.op}.backward; tape.testing.check_gradients runs it on its own"
    return Cause("backward", entry.number, f"the backward of {entry.op} raises {type(error).__name__}: {said}", repair)


def not_a_number_in(name: str, entry: Entry) -> Cause:
    """Say that a value was not finite before anything was computed of it."""
    what = f"{name} holds NaN before anything is computed of it"
    return Cause("NaN input", entry.number, what, "look at where the data or the initial values come from: tnp.isnan(x).any()")


def cut_at(entry: Entry, unrecorded: bool) -> Cause:
    """Say why no gradient flows through an entry that depends on what requires grad."""
    number = entry.number
    if entry.op in COMPARISONS:
        what = f"{entry.op} gives booleans, which have no derivative"
        repair = "use a smooth measure, such as tape.nn.sigmoid(k * (a - b))"
        return Cause("comparison", number, what, repair)
    if entry.op in CHOICES:
        what = f"{entry.op} gives positions, which have no derivative"
        repair = "use the values (x.max()), or weights: (tape.nn.softmax(x) * positions).sum()"
        return Cause("integer index", number, what, repair)
    kind = getattr(entry.dtype, "kind", "f")
    if kind in "iub":
        what = f"{entry.op} gives {entry.dtype}, through which no gradient flows"
        repair = "stay in a floating dtype until after the loss"
        return Cause("integer cast", number, what, repair)
    if entry.op in ("detach", "stop_gradient"):
        what = "the value was taken off the tape by detach() or stop_gradient"
        repair = "leave detach() out where the gradient is wanted"
        return Cause("detach", number, what, repair)
    if entry.no_grad:
        what = f"{entry.op} was recorded under no_grad()"
        return Cause("no_grad", number, what, "compute it outside the block, or in tape.enable_grad()")
    if entry.sweep is not None or unrecorded:
        what = "it is a gradient that was taken without recording, so that its own derivative is lost"
        repair = "pass create_graph=True where the first gradient is taken"
        return Cause("create_graph", number, what, repair)
    what = f"the result of {entry.op} was cut from its past"
    return Cause("cut", number, what, "leave unchain() out, or ask for the gradient at the cut")


def not_finite_at(entry: Entry, operands: Sequence[Any], incoming: object) -> Cause:
    """Say why the derivative of an entry is not finite though what arrives is."""
    op, number = entry.op, entry.number
    zero = any(np.any(x == 0) for x in operands if x.dtype.kind in "fc")
    dead = incoming is not None and bool(np.any(np.asarray(incoming) == 0))
    if op == "sqrt" or (op in ("power", "float_power", "pow", "integer_pow", "rsqrt", "cbrt") and zero):
        what = f"the derivative of {op} at 0 is infinite"
        if dead:
            what = f"{what}, and the gradient that arrives there is 0 (a mask after it): 0 * inf is NaN"
            repair = "mask the input as well: safe = tnp.where(mask, x, 1.0), then tnp.where(mask, tnp.sqrt(safe), 0.0)"
            return Cause("infinity times zero", number, what, repair)
        return Cause("infinite slope", number, what, "keep its input away from 0: x + 1e-12, or tnp.maximum(x, eps)")
    if op in ("norm", "vector_norm", "hypot"):
        repair = "use the square (x * x).sum(), or tnp.sqrt((x * x).sum() + eps)"
        return Cause("norm at 0", number, "the derivative of a norm at 0 is 0 / 0", repair)
    if op.startswith("log") and zero:
        what = f"{op} at 0 has the derivative 1 / 0"
        return Cause("log(0)", number, what, "keep its input positive before it: tnp.log(tnp.maximum(x, 1e-12)); masks go around the input")
    if op in ("softmax", "log_softmax", "logsumexp") and any(np.any(np.all(np.isneginf(x), axis=-1)) for x in operands if x.ndim):
        what = f"{op} of nothing but -inf is 0 / 0: everything is masked there"
        return Cause("all masked", number, what, "leave one value along the axis, or select before: tnp.where(mask.any(-1), ..., 0.0)")
    infinite = any(not np.all(np.isfinite(x)) for x in operands if x.dtype.kind in "fc")
    if infinite:
        what = f"{op} was given values that are not finite" + (", and multiplies them by 0 (a mask)" if dead else "")
        repair = "find out where they come from, and select with tnp.where(mask, x, 0.0) before the infinity arises, not by multiplying"
        return Cause("infinity times zero" if dead else "infinity", number, what, repair)
    if op in ("std", "nanstd"):
        what = f"{op} of equal values: the derivative of the root of a variance of 0 is infinite"
        return Cause("infinite slope", number, what, "use the variance, or tnp.sqrt(tnp.var(x) + eps)")
    if op in _SPECTRAL:
        what = f"the derivative of {op} is infinite where two of its values are equal"
        return Cause("equal eigenvalues", number, what, "use what does not depend on the choice of vectors, or keep the values apart")
    if _biggest((*operands, np.asarray(incoming))) > _large(entry):
        return Cause("overflow", number, f"the derivative of {op} overflows {entry.dtype}", _WIDER)
    what = f"the derivative of {op} is not finite at what it was given"
    return Cause("infinite slope", number, what, "keep its input away from there: tnp.clip(x, low, high), or tnp.maximum(x, eps)")


_SPECTRAL = frozenset(["eigh", "eig", "eigvals", "eigvalsh", "svd", "svdvals"])
_SOLVERS = frozenset(["inv", "solve", "pinv", "cholesky", "slogdet", "lu", "triangular_solve", "tensorinv", "tensorsolve"])
_WIDER = "scale the values down, or compute in a wider dtype"


def _large(entry: Entry) -> float:
    """Return what is large for the dtype of an entry: the products of some such values overflow."""
    dtype = entry.dtype
    return 1e9 if dtype is None or dtype.kind not in "fc" or dtype.itemsize > 2 else 200.0


def born_at(entry: Entry, operands: Sequence[Any], result: np.ndarray) -> Cause:
    """Say why an entry's value is not finite though its operands are."""
    op, number = entry.op, entry.number
    if op.startswith("vjp_"):  # what a sweep wrote, of which this is a derivative
        return not_finite_at(replace(entry, op=op.removeprefix("vjp_")), operands, None)
    biggest = _biggest(operands)
    negative = any(bool(np.any(x < 0)) for x in operands if x.dtype.kind == "f")
    if op in ("power", "float_power") and negative and np.any(np.isnan(result)):
        what = f"{op} of a negative number by what is no integer is NaN"
        return Cause("domain", number, what, "keep its base at 0 or above: tnp.maximum(x, 0.0), or tnp.abs(x)")
    if op.startswith("log") and any(np.any(x <= 0 if x.dtype.kind == "f" else x == 0) for x in operands if x.dtype.kind in "fc"):
        what = f"{op} of 0 (or less) is not finite"
        repair = "keep its input positive: tnp.log(tnp.maximum(x, 1e-12)), or use a log-space form"
        return Cause("log(0)", number, what, repair)
    if op in ("exp", "exp2", "expm1", "cosh", "sinh", "power", "square"):
        repair = "subtract the maximum first, as tape.nn.softmax, tape.nn.log_softmax and tape.nn.logsumexp do"
        what = f"{op} of {biggest:.4g} is above what {entry.dtype} holds"
        return Cause("softmax overflow" if op.startswith("exp") else "overflow", number, what, repair)
    if op in ("divide", "true_divide", "reciprocal"):
        return Cause("division by 0", number, f"{op} by 0", "keep the divisor away from 0: tnp.maximum(d, eps)")
    if np.any(np.isnan(result)) and op == "sqrt":
        return Cause("domain", number, "sqrt of a negative number is NaN", "keep its input at 0 or above: tnp.maximum(x, 0.0)")
    if op in _SOLVERS:
        return Cause("singular matrix", number, f"{op} of a matrix that is singular", "add a small multiple of the identity to it")
    if biggest > _large(entry):
        what = f"{op} gives values that are not finite of operands up to {biggest:.4g}"
        return Cause("overflow", number, what, "scale the values down, or use a wider dtype")
    what = f"{op} is not finite at what it was given (up to {biggest:.4g})"
    return Cause("domain", number, what, "keep its input where it is defined: tnp.clip(x, low, high)")


def sums_to_one(result: np.ndarray, cotangent: np.ndarray) -> bool:
    """Tell whether what follows a softmax sums it over the axis over which it is normalised, so that nothing depends on its input."""
    return any(
        bool(np.all(np.ptp(cotangent, axis=axis) == 0)) and np.allclose(result.sum(axis), 1, rtol=1e-2)
        for axis, length in enumerate(result.shape)
        if length > 1
    )


def cancels_at(entry: Entry) -> Cause:
    """Say that what comes from several ways adds up to 0."""
    what = f"what {entry.op} passes on and what other ways do add up to 0 (as in x - x)"
    repair = "look at whether the output depends on the input at all: it is both added and taken away"
    return Cause("cancellation", entry.number, what, repair)


def zero_at(entry: Entry, operands: Sequence[Any], result: np.ndarray, arriving: np.ndarray) -> Cause:
    """Say why an entry passes nothing on of a gradient that is not 0."""
    op, number = entry.op, entry.number
    if op in STEPS:
        return step_at(entry)
    if op in ("softmax", "log_softmax"):
        if result.size and np.all(result == (1 if op == "softmax" else 0)):
            what = f"{op} over an axis of length 1 is {1 if op == 'softmax' else 0}, whatever the input"
            return Cause("wrong axis", number, what, "give the axis over which there are several values: check axis= and the shape")
        if np.all((result == 0) | (result == 1)):
            repair = "scale its input down, or use tape.nn.log_softmax with the loss"
            return Cause("saturation", number, f"{op} is 0 or 1 everywhere", repair)
        what = f"what follows sums {op} over the axis over which it is normalised: that is 1, whatever the input"
        repair = "give the other axis to one of the two: check axis="
        return Cause("wrong axis", number, what, repair)
    if op in MASKS:
        what = f"{op} selects other values everywhere, so nothing flows to this one"
        repair = "look at the mask or the limits: do they take all of the input away? (relu: leaky_relu, smaller steps)"
        return Cause("zero mask", number, what, repair)
    if op in SATURATING:
        what = f"{op} is flat where its input is (up to {_biggest(operands):.4g})"
        repair = "scale the input down: initialise smaller, normalise, or use another activation"
        return Cause("saturation", number, what, repair)
    if op in ("multiply", "matmul", "dot", "einsum", "tensordot", "vdot", "inner", "outer") and any(not np.any(x) for x in operands):
        return Cause("zero mask", number, f"{op} by 0 everywhere", "look at the other factor: a mask or an initial value of zeros")
    if op in _WRITES:
        what = f"{op} puts other values in the place of all that a gradient would flow to"
        return Cause("zero mask", number, what, "look at what is assigned to which index, or compute with the old values before that")
    if len(entry.inputs) == 2 and entry.inputs[0] is entry.inputs[1] and op in ("subtract", "divide", "true_divide"):
        return cancels_at(entry)
    if not _too_small(entry, operands, result, arriving):
        what = f"the derivative of {op} is 0 at what it was given (up to {_biggest(operands):.4g})"
        return Cause("zero slope", number, what, "begin elsewhere: with random values in the place of zeros, or away from an extremum")
    what = f"what {op} passes on is too small for {entry.dtype} and becomes 0"
    repair = "scale the loss up (loss.backward(scale)), or use a wider dtype"
    return Cause("underflow", number, what, repair)


_WRITES = frozenset(["setitem", "at_set", "copyto", "put", "put_along_axis", "fill_diagonal", "place"])
_EXPONENTIALS = frozenset(["exp", "exp2", "expit", "softplus", "erfc", "logaddexp", "logsumexp"])


def _too_small(entry: Entry, operands: Sequence[Any], result: np.ndarray, arriving: np.ndarray) -> bool:
    """Tell whether what an entry passes on is 0 because it is too small, and not because its derivative is 0."""
    if entry.op in _EXPONENTIALS:
        return True
    dtype = entry.dtype
    least = 0.0 if dtype is None or dtype.kind not in "fcV" else float(jnp.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]
    sizes = [float(np.max(np.abs(np.asarray(x, np.complex128)))) for x in (*operands, result) if x.size and x.dtype.kind in "fc"]
    return float(np.max(np.abs(np.asarray(arriving, np.complex128)), initial=0.0)) * min([x for x in sizes if x], default=1.0) < least


def _biggest(operands: Sequence[Any]) -> float:
    return max((float(np.max(np.abs(x))) for x in operands if x.dtype.kind in "fc" and x.size), default=0.0)
