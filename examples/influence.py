"""Influence functions
===================

Which training examples does a prediction hang on?  Influence functions (Koh and Liang 2017) against leaving them out for real.

Removing one patient moves the fitted weights by H^-1 g / n, where g is the gradient of its loss and H the Hessian of all; so the change of a
test loss is predicted by one linear solve, for all patients at once.  The solve is conjugate gradients on Hessian-vector products: no
Hessian is made.  Gradients of all examples come from ``tape.vmap(tape.grad(...))``.  Then some patients are removed, the model is
fitted again, and prediction and truth are compared.

In JAX the same calls exist and every piece has to be jitted apart; PyTorch needs ``torch.func`` for gradients per example and graphs kept
for products.  Here the loop of conjugate gradients looks at its residual in Python.

Run it with ``python examples/influence.py``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from experiment import Array, options, picture, progress
from sklearn.datasets import load_breast_cancer

import interop
import tape
import tape.numpy as tnp

DECAY = 0.02


def example_loss(w: Any, x: Any, y: Any) -> Any:
    """Logistic loss of one patient (or of many), y in {-1, 1}, with its share of the weight decay."""
    return tape.nn.softplus(-y * (x @ w)) + 0.5 * DECAY * (w**2).sum()


def fit(x: Array, y: Array, start: Array) -> Array:
    """Weights at the minimum of the mean loss, by Newton's method with exact products."""
    found = interop.scipy.minimize(lambda w: example_loss(w, x, y).mean(), start, method="trust-ncg", options={"gtol": 1e-6})
    return np.asarray(found.x)


def solve(product: Callable[[Any], Any], b: Any, tolerance: float = 1e-5) -> Any:
    """Conjugate gradients for the positive definite matrix that ``product`` multiplies by."""
    x, r = tnp.zeros_like(b), b
    p, size = r, r @ r
    first = float(size)
    while float(size) > tolerance**2 * first:
        q = product(p)
        step = size / (p @ q)
        x, r = x + step * p, r - step * q
        before, size = size, r @ r
        p = r + size / before * p
    return x


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Predict, leave out, assert that both agree, and draw one against the other."""
    chosen = options(__doc__, arguments, "influence.png")
    rng = np.random.default_rng(chosen.seed)
    inputs, targets = load_breast_cancer(return_X_y=True)
    inputs = np.concatenate([(inputs - inputs.mean(0)) / inputs.std(0), np.ones((len(inputs), 1))], axis=1).astype("float32")
    labels = (2 * targets - 1).astype("float32")
    order = rng.permutation(len(inputs))
    (train, test) = order[:200], order[200:]
    x, y = inputs[train], labels[train]
    weights = fit(x, y, np.zeros(x.shape[1], "float32"))
    with tape.no_grad():
        losses = example_loss(tape.constant(weights), inputs[test], labels[test])
        asked = int(test[int(losses.argmax())])  # the test patient that the model is most wrong about

    w = tape.Variable(weights)
    slope = tape.gradients(example_loss(w, x, y).mean(), w, create_graph=True)
    of_test = tape.gradients(example_loss(w, inputs[asked], labels[asked]), w)
    moved = solve(lambda v: tape.gradients(slope, w, v, retain_graph=True), of_test)  # H^-1 times the gradient of the test loss
    of_each = tape.vmap(tape.grad(example_loss), in_axes=(None, 0, 0))(w, x, y)  # shape (patients, weights)
    predicted = (of_each @ moved).numpy() / len(x)

    strongest = np.argsort(-np.abs(predicted))[: 6 if chosen.quick else 40]
    actual = []
    for left_out in progress(strongest, "fitting without one patient"):
        kept = np.arange(len(x)) != left_out
        again = fit(x[kept], y[kept], weights)
        both = [float(example_loss(tape.constant(v), inputs[asked], labels[asked])) - 0.5 * DECAY * float(v @ v) for v in (again, weights)]
        actual.append(both[0] - both[1])
    expected = predicted[strongest]
    correlation = float(np.corrcoef(expected, actual)[0, 1])
    print(f"test patient {asked}: loss {float(losses.max()):.3f}")
    print(f"strongest influence: predicted {expected[0]:+.4f}, without that patient {actual[0]:+.4f}")
    print(f"correlation over {len(actual)} patients {correlation:.3f}")
    assert correlation > 0.95
    with picture(chosen.output, 1, "Influence of training patients on one prediction") as (axes,):
        axes.axline((0, 0), slope=1, color="gray", linewidth=1)
        axes.plot(actual, expected, "o")
        axes.set(xlabel="change of the test loss without the patient", ylabel="predicted by one linear solve")
    return {"correlation": correlation}


if __name__ == "__main__":
    main()
