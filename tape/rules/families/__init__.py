"""Every family of rules but those of primitives that hold a jaxpr, which sweep it (:mod:`tape.ops.rules`): importing this module enters them."""

from __future__ import annotations

from tape.rules.families import (
    arithmetic,
    comparison,
    contraction,
    convolution,
    cumulative,
    elementary,
    factorizations,
    fourier,
    indexing,
    layout,
    reductions,
    sorting,
    special,
    spectral,
    triangular,
    windows,
)
