"""Every family of rules: importing this module fills the table, which happens at the first look into it."""

from __future__ import annotations

from tape.rules.families import (
    arithmetic,
    calls,
    comparison,
    contraction,
    control_flow,
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
