"""Checking others' derivatives
============================

Check derivatives that others wrote, and find that two of them are wrong: functions of the installed JAX.

``tape.testing.check_gradients`` compares a derivative with every other way to compute it, looks at points near those it was given and at
second derivatives, and says what kind of wrong it is.  Here it goes over six functions; two of jax 0.10.2 fail:

- ``jax.scipy.special.spence`` (the dilogarithm): NaN for arguments in (1, 2], and 0 instead of -1 at 1;
- ``jax.lax.reduce`` with a function that does not commute, such as the composition of affine maps: its derivative multiplies in another order.

``jax.test_util.check_grads`` finds neither at the points that are given here: at one point it sees nothing of the interval, and the
reduction it refuses to run; PyTorch's ``gradcheck`` asks for functions of torch, in float64.  Here it is ``check_gradients(function, x)``, in any
dtype.  On a JAX where they are mended, the example says so.

Run it with ``python examples/verify.py``.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from experiment import options, picture, progress
from jax import lax

import interop
import tape
from tape.testing import GradientMismatch, check_gradients


def composed(slopes: Any, shifts: Any) -> Any:
    """Shift of the composition of affine maps ``x -> slope x + shift``, by a reduction: associative, but the order matters."""
    one, zero = jnp.ones((), slopes.dtype), jnp.zeros((), slopes.dtype)
    return lax.reduce((slopes, shifts), (one, zero), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (0,))[1]


def composed_by_loop(slopes: Any, shifts: Any) -> Any:
    """The same by a Python loop, whose derivative nobody doubts."""
    total = jnp.zeros((), slopes.dtype)
    for k in range(len(slopes)):
        total = total * slopes[k] + shifts[k]
    return total


def checks() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Functions of JAX and arguments to check them at."""
    x = jnp.array([0.3, 0.7, 0.5], jnp.float32)
    return {
        "jax.numpy.sinc": (jnp.sinc, (x - 0.3,)),
        "jax.numpy.logaddexp": (jnp.logaddexp, (x, -x)),
        "jax.scipy.special.xlogy": (jax.scipy.special.xlogy, (x, 2 * x)),
        "jax.scipy.special.ndtri": (jax.scipy.special.ndtri, (x,)),
        "jax.scipy.special.spence": (jax.scipy.special.spence, (x + 0.4,)),
        "jax.lax.reduce": (composed, (x, 2 * x)),
    }


def verdict(function: Any, arguments: tuple[Any, ...]) -> tuple[str, str]:
    """Return the verdict and, where it fails, what the checker has to say."""
    try:
        return check_gradients(function, *arguments).verdict, ""
    except GradientMismatch as e:
        return "fail", str(e)


def largest_error(ours: Sequence[Any], true: Sequence[Any]) -> float:
    """Largest difference, NaN where there is one."""
    return float(max(np.abs(np.asarray(a, np.float64) - np.asarray(b)).max() for a, b in zip(ours, true, strict=True)))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Check them all, show JAX's and the tape's derivatives beside the true ones, and draw them."""
    chosen = options(__doc__, arguments, "verify.png")
    listed = dict(list(checks().items())[3 if chosen.quick else 0 :])
    verdicts = {}
    for name, (function, given) in progress(list(listed.items()), "checking"):
        verdicts[name], report = verdict(function, given)
        print(f"{name:<26} {verdicts[name]}")
        if report:
            print("    " + report.replace("\n", "\n    "))

    slopes, shifts = listed["jax.lax.reduce"][1]
    true = jax.grad(composed_by_loop, argnums=(0, 1))(slopes, shifts)
    a, b = tape.Variable(slopes), tape.Variable(shifts)
    errors = {
        "JAX": largest_error(jax.grad(composed, argnums=(0, 1))(slopes, shifts), true),
        "tape": largest_error([g.numpy() for g in tape.gradients(interop.lift(composed)(a, b), [a, b])], true),
    }
    print("largest error of the reduction's derivative:", ", ".join(f"{name} {error:.1e}" for name, error in errors.items()))
    assert errors["tape"] < 1e-6
    assert (verdicts["jax.lax.reduce"] == "fail") == (errors["JAX"] > 1e-3)  # the checker is right about it, mended or not

    x = np.linspace(0.2, 2.8, 131).astype("float32")
    theirs = np.asarray(jax.vmap(jax.grad(jax.scipy.special.spence))(x))
    exact = np.where(np.abs(x - 1) < 1e-6, -1, -np.log(x.astype("float64")) / np.where(x == 1, 1, x.astype("float64") - 1))
    wrong = ~(np.abs(theirs - exact) < 1e-3)
    where = f", from {x[wrong].min():.2f} to {x[wrong].max():.2f}" if wrong.any() else ""
    print(f"jax.grad of spence is wrong at {wrong.sum()} of {len(x)} points{where}")
    assert (verdicts["jax.scipy.special.spence"] == "fail") == bool(wrong.any())
    with picture(chosen.output, 1, "The derivative of jax.scipy.special.spence") as (axes,):
        axes.plot(x, exact, color="gray", label="-log(x) / (x - 1)")
        axes.plot(x, theirs, ".", label=f"jax.grad, jax {jax.__version__}")
        for k, at in enumerate(x[wrong]):
            axes.axvline(at, color="C3", alpha=0.2, label="NaN or wrong" if k == 0 else None)
        axes.set(xlabel="x", ylabel="derivative")
    return {"verdicts": verdicts, "errors": errors}


if __name__ == "__main__":
    main()
