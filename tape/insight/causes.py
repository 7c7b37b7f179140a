"""Causes: what cuts or kills a gradient, how that is told from an entry and its values, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape.insight.entries import Entry

COMPARISONS = frozenset(
    [
        "greater",
        "greater_equal",
        "less",
        "less_equal",
        "equal",
        "not_equal",
        "logical_and",
        "logical_or",
        "logical_not",
        "isnan",
        "isfinite",
        "isinf",
        "isclose",
    ]
)
CHOICES = frozenset(["argmax", "argmin", "argsort", "searchsorted", "nonzero", "argpartition", "digitize"])
STEPS = frozenset(["round", "rint", "floor", "ceil", "trunc", "sign", "fix", "around", "heaviside", "floor_divide"])
MASKS = frozenset(
    ["where", "select", "relu", "relu6", "clip", "maximum", "minimum", "max", "min", "leaky_relu", "hard_tanh", "hard_sigmoid", "abs"]
)
SATURATING = frozenset(
    ["tanh", "sigmoid", "expit", "softmax", "erf", "logistic", "log_softmax", "arctan", "softsign", "log_sigmoid", "gelu", "silu", "swish"]
)


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that a gradient suffers from.

    Attributes:
        kind: what it is, in a word or two: ``"detach"``, ``"no_grad"``, ``"integer cast"``, ``"saturation"`` ...
        entry: the number of the entry on the tape where it happens; None where it is not one entry's.
        what: what happened there.
        repair: what to do.

    """

    kind: str
    entry: int | None
    what: str
    repair: str


def cut_at(entry: Entry, unrecorded: bool) -> Cause:
    """Say why no gradient flows through an entry that depends on what requires grad."""
    number = entry.number
    if entry.op in COMPARISONS:
        return Cause(
            "comparison",
            number,
            f"{entry.op} gives booleans, which have no derivative",
            "use a smooth measure, such as tape.nn.sigmoid(k * (a - b))",
        )
    if entry.op in CHOICES:
        return Cause(
            "integer index",
            number,
            f"{entry.op} gives positions, which have no derivative",
            "use the values (x.max()), or weights: (tape.nn.softmax(x) * positions).sum()",
        )
    kind = getattr(entry.dtype, "kind", "f")
    if kind in "iub":
        return Cause(
            "integer cast",
            number,
            f"{entry.op} gives {entry.dtype}, through which no gradient flows",
            "stay in a floating dtype until after the loss",
        )
    if entry.op == "detach":
        return Cause(
            "detach",
            number,
            "the value was taken off the tape by detach() or stop_gradient",
            "leave detach() out where the gradient is wanted",
        )
    if entry.no_grad:
        return Cause(
            "no_grad", number, f"{entry.op} was recorded under no_grad()", "compute it outside the block, or in tape.enable_grad()"
        )
    if entry.sweep is not None or unrecorded:
        return Cause(
            "create_graph",
            number,
            "it is a gradient that was taken without recording, so that its own derivative is lost",
            "pass create_graph=True where the first gradient is taken",
        )
    return Cause(
        "cut", number, f"the result of {entry.op} was cut from its past", "leave unchain() out, or ask for the gradient at the cut"
    )


def not_finite_at(entry: Entry, operands: Sequence[Any], incoming: object) -> Cause:
    """Say why the derivative of an entry is not finite though what arrives is."""
    op, number = entry.op, entry.number
    zero = any(np.any(x == 0) for x in operands if x.dtype.kind in "fc")
    dead = incoming is not None and bool(np.any(np.asarray(incoming) == 0))
    if op == "sqrt" or (op in ("power", "float_power", "pow", "integer_pow", "rsqrt", "cbrt") and zero):
        what = f"the derivative of {op} at 0 is infinite"
        if dead:
            return Cause(
                "infinity times zero",
                number,
                f"{what}, and the gradient that arrives there is 0 (a mask after it): 0 * inf is NaN",
                "mask the input as well: safe = tnp.where(mask, x, 1.0), then tnp.where(mask, tnp.sqrt(safe), 0.0)",
            )
        return Cause("infinite slope", number, what, f"keep its input away from 0: tnp.{op}(x + 1e-12), or tnp.maximum(x, eps)")
    if op in ("norm", "vector_norm", "hypot"):
        return Cause(
            "norm at 0", number, "the derivative of a norm at 0 is 0 / 0", "use the square (x * x).sum(), or tnp.sqrt((x * x).sum() + eps)"
        )
    if op in ("log", "log2", "log10", "log1p", "divide", "true_divide", "reciprocal") and zero:
        kind = "infinity times zero" if dead else "log(0)" if op.startswith("log") else "division by 0"
        what = f"{op} at 0 has the derivative 1 / 0" + (", and the gradient that arrives is 0: 0 * inf is NaN" if dead else "")
        return Cause(kind, number, what, "keep its input positive before it: tnp.log(tnp.maximum(x, 1e-12)); masks go around the input")
    infinite = any(not np.all(np.isfinite(x)) for x in operands if x.dtype.kind in "fc")
    if infinite:
        return Cause(
            "infinity times zero" if dead else "infinity",
            number,
            f"{op} was given values that are not finite" + (", and multiplies them by 0 (a mask)" if dead else ""),
            "find out where they come from, and select with tnp.where(mask, x, 0.0) before the infinity arises, not by multiplying",
        )
    return Cause(
        "overflow", number, f"the derivative of {op} overflows {entry.dtype}", "scale the values down, or compute in a wider dtype"
    )


def born_at(entry: Entry, operands: Sequence[Any], result: Any) -> Cause:
    """Say why an entry's value is not finite though its operands are."""
    op, number = entry.op, entry.number
    biggest = max((float(np.max(np.abs(x))) for x in operands if x.dtype.kind in "fc" and x.size), default=0.0)
    if op.startswith("log") and any(np.any(x <= 0) for x in operands if x.dtype.kind == "f"):
        return Cause(
            "log(0)",
            number,
            f"{op} of 0 (or less) is not finite",
            "keep its input positive: tnp.log(tnp.maximum(x, 1e-12)), or use a log-space form",
        )
    if op in ("exp", "exp2", "expm1", "cosh", "sinh", "power", "square"):
        repair = "subtract the maximum first, as tape.nn.softmax, tape.nn.log_softmax and tape.nn.logsumexp do"
        return Cause(
            "softmax overflow" if op.startswith("exp") else "overflow",
            number,
            f"{op} of {biggest:.4g} is above what {entry.dtype} holds",
            repair,
        )
    if op in ("divide", "true_divide", "reciprocal"):
        return Cause("division by 0", number, f"{op} by 0", "keep the divisor away from 0: tnp.maximum(d, eps)")
    if np.any(np.isnan(result)) and op == "sqrt":
        return Cause("domain", number, "sqrt of a negative number is NaN", "keep its input at 0 or above: tnp.maximum(x, 0.0)")
    return Cause(
        "overflow",
        number,
        f"{op} gives values that are not finite of operands up to {biggest:.4g}",
        "scale the values down, or use a wider dtype",
    )


def sums_to_one(result: np.ndarray, cotangent: np.ndarray) -> bool:
    """Tell whether what follows a softmax sums it over the axis over which it is normalised, so that nothing depends on its input."""
    return any(
        bool(np.all(np.ptp(cotangent, axis=axis) == 0)) and np.allclose(result.sum(axis), 1, rtol=1e-2)
        for axis, length in enumerate(result.shape)
        if length > 1
    )


def zero_at(entry: Entry, operands: Sequence[Any], result: object) -> Cause:
    """Say why an entry passes nothing on of a gradient that is not 0."""
    op, number = entry.op, entry.number
    if op in STEPS:
        return Cause(
            "rounding",
            number,
            f"{op} is constant between its steps, so its derivative is 0",
            "round after the loss, or pass the gradient through: x + (tnp.round(x) - x).detach()",
        )
    if op in ("softmax", "log_softmax"):
        if np.all((result == 0) | (result == 1)):
            return Cause(
                "saturation", number, f"{op} is 0 or 1 everywhere", "scale its input down, or use tape.nn.log_softmax with the loss"
            )
        return Cause(
            "wrong axis",
            number,
            f"what follows sums {op} over the axis over which it is normalised: that is 1, whatever the input",
            "give the other axis to one of the two: check axis=",
        )
    if op in MASKS:
        return Cause(
            "zero mask",
            number,
            f"{op} selects other values everywhere, so nothing flows to this one",
            "look at the mask or the limits: do they take all of the input away? (relu: leaky_relu, smaller steps)",
        )
    if op in SATURATING:
        return Cause(
            "saturation",
            number,
            f"{op} is flat where its input is (up to {_size(operands)})",
            "scale the input down: initialise smaller, normalise, or use another activation",
        )
    if op in ("multiply", "matmul", "dot", "einsum", "tensordot") and any(not np.any(x) for x in operands if x.dtype.kind in "fc"):
        return Cause("zero mask", number, f"{op} by 0 everywhere", "look at the other factor: a mask or an initial value of zeros")
    return Cause(
        "underflow",
        number,
        f"what {op} passes on is too small for {entry.dtype} and becomes 0",
        "scale the loss up (loss.backward(scale)), or use a wider dtype",
    )


def _size(operands: Sequence[Any]) -> str:
    return f"{max((float(np.max(np.abs(x))) for x in operands if x.dtype.kind in 'fc' and x.size), default=0.0):.4g}"
