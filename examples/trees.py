"""Recursive network on trees
==========================

A network whose structure is the sentence: judge logical formulas by a recursive network, a new tree at every step.

Each formula (``(a and not b) or (c xor d)``) is a random tree; the network is a Python function that calls itself on the branches, with one
layer per connective (Socher et al. 2011).  No two steps have the same structure, which is what compilers like least: ``jax.jit`` would
compile at every step, and PyTorch calls each op of each tree from Python.  Here the recursion is all there is: no line of it is for the tape.
Formulas of other sizes than those it was trained on are judged at the end.

Run it with ``python examples/trees.py``.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax
from experiment import minimise, options, picture

import tape
import tape.numpy as tnp

CONNECTIVES = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
WIDTH, BATCH = 16, 4

Tree = Any  # a truth value, ("not", tree), or (connective, tree, tree)


def grow(rng: np.random.Generator, leaves: int) -> Tree:
    """Draw a formula with that many truth values in it."""
    if leaves == 1:
        return bool(rng.integers(2)) if rng.random() < 0.8 else ("not", bool(rng.integers(2)))
    left = int(rng.integers(1, leaves))
    tree = (str(rng.choice(list(CONNECTIVES))), grow(rng, left), grow(rng, leaves - left))
    return tree if rng.random() < 0.8 else ("not", tree)


def truth(tree: Tree) -> bool:
    """What the formula says."""
    match tree:
        case bool():
            return tree
        case ("not", inner):
            return not truth(inner)
        case (name, left, right):
            return CONNECTIVES[name](truth(left), truth(right))
    raise TypeError(tree)


def meaning(p: dict[str, Any], tree: Tree) -> Any:
    """The formula as a vector of shape (WIDTH,): this is the whole network."""
    match tree:
        case bool():
            return p["true"] if tree else p["false"]
        case ("not", inner):
            return tnp.tanh(p["not"] @ meaning(p, inner) + p["not_bias"])
        case (name, left, right):
            both = tnp.concatenate([meaning(p, left), meaning(p, right)])
            return tnp.tanh(p[name] @ tnp.tanh(p[f"{name}_hidden"] @ both) + p[f"{name}_bias"])
    raise TypeError(tree)


def initialise(rng: np.random.Generator) -> dict[str, Any]:
    """One layer per connective, and the vectors of the truth values."""
    vector, matrix = (WIDTH,), (WIDTH, WIDTH)
    shapes: dict[str, Any] = {"true": vector, "false": vector, "not": matrix, "not_bias": vector, "answer": vector}
    for name in CONNECTIVES:
        shapes |= {f"{name}_hidden": (2 * WIDTH, 2 * WIDTH), name: (WIDTH, 2 * WIDTH), f"{name}_bias": (WIDTH,)}
    return {name: tape.Variable((rng.normal(size=s) * s[-1] ** -0.5).astype("float32"), name=name) for name, s in shapes.items()}


def loss_of(p: dict[str, Any], trees: Sequence[Tree]) -> Any:
    """Mean cross-entropy of the answers."""
    scores = tnp.stack([meaning(p, tree) @ p["answer"] for tree in trees])
    signs = np.array([1.0 if truth(tree) else -1.0 for tree in trees], np.float32)
    return tape.nn.softplus(-4 * signs * scores).mean()


@tape.no_grad()
def accuracy(p: dict[str, Any], rng: np.random.Generator, leaves: int, count: int) -> float:
    """Share of new formulas of one size that are judged rightly."""
    trees = [grow(rng, leaves) for _ in range(count)]
    return float(np.mean([(float(meaning(p, tree) @ p["answer"]) > 0) == truth(tree) for tree in trees]))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Train on formulas of 2 to 6 truth values, judge larger ones, and draw both."""
    chosen = options(__doc__, arguments, "trees.png")
    rng = np.random.default_rng(chosen.seed)
    p = initialise(rng)

    def loss() -> Any:
        return loss_of(p, [grow(rng, int(rng.integers(2, 7))) for _ in range(BATCH)])

    curve = minimise(loss, p, optax.adam(3e-3), 40 if chosen.quick else 2500, "a new structure each step")
    sizes = (4, 16) if chosen.quick else (2, 4, 6, 10, 16, 24)
    right = {size: accuracy(p, rng, size, 20 if chosen.quick else 150) for size in sizes}
    print(f"loss {np.mean(curve[:20]):.3f} -> {np.mean(curve[-20:]):.3f}")
    print("formulas judged rightly, by how many values are in them:", ", ".join(f"{size}: {share:.0%}" for size, share in right.items()))
    assert chosen.quick or (right[6] > 0.9 and right[16] > 0.75), right
    with picture(chosen.output, 2, "A network in the shape of the formula") as (left, other):
        left.plot(np.convolve(curve, np.ones(20) / 20, "valid"))
        left.set(xlabel="step", ylabel="cross-entropy", title="Training on 2 to 6 values")
        other.plot(list(right), [100 * share for share in right.values()], "o-")
        other.axhline(50, color="gray", linestyle=":", label="by chance")
        other.set(xlabel="truth values in the formula", ylabel="% judged rightly", title="New formulas", ylim=(0, 105))
    return {"loss": curve, "right": right}


if __name__ == "__main__":
    main()
