"""All cases: wrong gradients and right ones."""

from tests.power import (  # noqa: F401 - each enters its cases when it is imported
    right_algebra,
    right_extremes,
    right_forms,
    right_given,
    right_kinks,
    wrong_arguments,
    wrong_axes,
    wrong_branches,
    wrong_company,
    wrong_edges,
    wrong_factors,
    wrong_forms,
    wrong_formulas,
    wrong_guards,
    wrong_modes,
    wrong_others,
    wrong_places,
    wrong_second,
    wrong_shapes,
    wrong_sizes,
    wrong_solvers,
    wrong_state,
    wrong_structures,
    wrong_sums,
)
from tests.power.case import CASES

WRONG = [case for case in CASES if case.wrong]
RIGHT = [case for case in CASES if not case.wrong]
