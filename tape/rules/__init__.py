"""VJP rules: one record per ``lax`` primitive, in one module per family (:mod:`tape.rules.families`).

The records are this project's own; primitives without one use JAX's derivative.  :func:`coverage` lists which are which.
"""

from __future__ import annotations

from tape.rules.gates import accurate_logistic, accurate_tanh
from tape.rules.inventory import Coverage, coverage
from tape.rules.registry import Domain, Example, Rule
from tape.rules.table import defvjp, lookup, registered

__all__ = ["Coverage", "Domain", "Example", "Rule", "accurate_logistic", "accurate_tanh", "coverage", "defvjp", "lookup", "registered"]
