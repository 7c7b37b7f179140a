"""Every family of rules, but for those of primitives that hold a jaxpr (:mod:`tape.ops.rules`): importing this module enters them."""

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
    ragged,
    reductions,
    sampling,
    sorting,
    special,
    spectral,
    triangular,
    windows,
)
