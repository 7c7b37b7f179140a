"""Primitives through which no gradient flows: comparisons, rounding, logic and bits, positions, random keys."""

from __future__ import annotations

from tape.rules.registry import Cost, zero

_DISCRETE = "the result is boolean, an integer or a key: it carries no gradient"

zero("eq", "ne", "lt", "le", "gt", "ge", "eq_to", "lt_to", "le_to", "is_finite", source=_DISCRETE)
zero("floor", "ceil", "round")
zero("sign", source="piecewise constant on the line; on the plane JAX's convention is zero too")
zero("and", "or", "xor", "not", "reduce_and", "reduce_or", "reduce_xor", source=_DISCRETE)
zero("shift_left", "shift_right_arithmetic", "shift_right_logical", "clz", "population_count", source=_DISCRETE)
zero("argmax", "argmin", source="positions: integers, piecewise constant")
zero("iota", source="no differentiable input", cost=Cost.FREE)
zero("axis_index", "empty2", "create_token", "after_all", source="no differentiable input")
zero("bitcast_convert_type", source="the bits of a number are no smooth function of it")
zero("random_bits", source=_DISCRETE, cost=Cost.HIGH)
zero("random_seed", "random_split", "random_fold_in", "random_wrap", "random_unwrap", "random_clone", source=_DISCRETE)
zero("threefry2x32", "rng_bit_generator", source=_DISCRETE, cost=Cost.HIGH)
zero("stop_gradient", source="by definition")
