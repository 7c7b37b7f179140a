"""Implicit differentiation
========================

Differentiate through a fixed point without keeping its iterations, and let the gradient choose hyperparameters.

1. A layer that is defined by an equation: z = tanh(W z + x).  Python iterates until the residual is small, under ``tape.no_grad()``.  One more
   turn is recorded, and a hook on its result solves the linear equation that the implicit function theorem gives for the cotangent,
   g = v + J^T g, by the same kind of loop (Bai et al. 2019).  It is compared with the sweep through all turns, which are kept for it.
2. A bilevel problem: one weight of regularisation per feature, chosen so that the ridge regression that they define predicts *other*
   patients well.  The inner problem is solved exactly, ``tape.numpy.linalg.solve`` is differentiated, and Adam moves the weights.

In JAX the first needs ``jax.custom_vjp`` around a ``while_loop``; in PyTorch the same hook, without a compiler.  Here the loops are Python's.

Run it with ``python examples/implicit.py``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import optax
from experiment import distance, minimise, options, picture
from sklearn.datasets import load_diabetes

import tape
import tape.numpy as tnp


def iterate(turn: Any, z: Any, tolerance: float = 1e-6) -> tuple[Any, int]:
    """Return the fixed point of ``turn`` and how many turns it took."""
    for turns in range(1, 1000):
        before, z = z, turn(z)
        if tnp.abs(z - before).max() < tolerance:
            return z, turns
    message = "no fixed point within 1000 turns"
    raise RuntimeError(message)


def equilibrium(w: Any, x: Any) -> tuple[Any, int]:
    """Solve z = tanh(W z + x); a sweep from z solves the adjoint equation instead of going back through the turns."""
    with tape.no_grad():
        start, turns = iterate(lambda z: tnp.tanh(w @ z + x), tnp.zeros(len(x)))
    z = tnp.tanh(w @ start + x)  # the equation once more, at its solution: all that is kept
    anchor = tape.Variable(start.value)
    around = tnp.tanh(w.detach() @ anchor + x.detach())  # its Jacobian J by z

    def adjoint(v: Any) -> Any:
        with tape.no_grad():
            return iterate(lambda g: v + tape.gradients(around, anchor, g, retain_graph=True), v)[0]

    z.register_hook(adjoint)
    return z, turns


def compare(seed: int) -> tuple[float, int]:
    """Return the distance of the implicit gradient from that through all turns, relative, and the number of turns."""
    rng = np.random.default_rng(seed)
    n = 50
    matrix = rng.normal(size=(n, n)).astype("float32")
    w, x = tape.Variable(0.9 * matrix / np.linalg.norm(matrix, 2)), tape.Variable(rng.normal(size=n).astype("float32"))
    z, turns = equilibrium(w, x)
    unrolled, _ = iterate(lambda z: tnp.tanh(w @ z + x), tnp.zeros(n))
    both = zip(*(tape.gradients((end**2).sum(), [w, x]) for end in (z, unrolled)), strict=True)
    return max(distance(implicit, true) for implicit, true in both), turns


def ridge(log_weights: Any, inputs: Any, targets: Any) -> Any:
    """Coefficients of the regression with one penalty per feature: the inner problem, solved exactly."""
    return tnp.linalg.solve(inputs.T @ inputs + tnp.diag(tnp.exp(log_weights)), inputs.T @ targets)


def bilevel(seed: int, steps: int) -> dict[str, Any]:
    """Choose the penalties by the error on validation patients; test patients are looked at only at the end."""
    rng = np.random.default_rng(seed)
    inputs, targets = load_diabetes(return_X_y=True)
    inputs = np.concatenate([inputs / inputs.std(0), rng.normal(size=(len(inputs), 40))], axis=1).astype("float32")  # 40 that say nothing
    targets = ((targets - targets.mean()) / targets.std()).astype("float32")
    train, validate, test = np.split(rng.permutation(len(inputs)), [100, 270])
    log_weights = tape.Variable(np.zeros(inputs.shape[1], "float32"), name="log_weights")

    def error(patients: Any) -> Any:
        coefficients = ridge(log_weights, inputs[train], targets[train])
        return ((inputs[patients] @ coefficients - targets[patients]) ** 2).mean()

    tested = []

    def loss() -> Any:
        with tape.no_grad():
            tested.append(error(test))
        return error(validate)

    validated = minimise(loss, [log_weights], optax.adam(0.1), steps, "choosing penalties")
    return {"weights": log_weights.numpy(), "validation": validated, "test": [float(v) for v in tested]}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run both, assert what they should show, and draw the chosen penalties."""
    chosen = options(__doc__, arguments, "implicit.png")
    apart, turns = compare(chosen.seed)
    print(f"fixed point after {turns} turns; implicit gradient within {apart:.1e} of the one through all turns")
    assert apart < 1e-3
    found = bilevel(chosen.seed, 20 if chosen.quick else 300)
    first, last = found["test"][0], found["test"][-1]
    print(f"error on test patients: {first:.3f} with equal penalties, {last:.3f} with {len(found['weights'])} chosen ones")
    assert last < first
    with picture(chosen.output, 2, "Hyperparameters by gradient: one penalty per feature") as (left, right):
        for name in ("validation", "test"):
            left.plot(found[name], label=name)
        left.set(xlabel="step", ylabel="mean squared error", title="Error of the inner problem's solution")
        right.bar(range(10), found["weights"][:10], label="10 features of patients")
        right.bar(range(10, 50), found["weights"][10:], label="40 columns of noise")
        right.set(xlabel="feature", ylabel="log of its penalty", title="What was chosen")
    return found | {"distance": apart}


if __name__ == "__main__":
    main()
