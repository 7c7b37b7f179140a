"""Making a failing program small."""

from __future__ import annotations

from dataclasses import replace


def minimal(program, fails, budget=200):
    """Leave out what the failure does not need: steps, roots, modes; ``fails`` tells whether a smaller program still fails."""
    shrinking = True
    while shrinking and budget:
        shrinking = False
        for smaller in _smaller(program):
            budget -= 1
            if budget <= 0:
                break
            if fails(smaller):
                program, shrinking = smaller, True
                break
    return program


def _smaller(program):
    for i in reversed(range(len(program.steps))):
        if not any("penalty(" in step.jax for step in program.steps[i:]):  # it refers to steps by number
            yield replace(program, steps=program.steps[:i] + program.steps[i + 1 :])
    if len(program.roots) > 1:
        for root in program.roots:
            yield replace(program, roots=tuple(r for r in program.roots if r != root))
    for name, simple in (("order", 1), ("every", 0), ("how", "gradients"), ("look_first", False), ("drop_first", False), ("tap", None)):
        if getattr(program, name) != simple:
            yield replace(program, **{name: simple})
    for leaf in program.leaves[1:]:
        yield replace(program, leaves=tuple(x for x in program.leaves if x is not leaf))
