"""Ways to call a function: keywords, options, array-likes, dtypes, sizes and extreme values, made from one sample and the signature."""

from __future__ import annotations

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np

# Values that are tried for parameters of these names; JAX decides which of them fit.
VALUES = {
    "axis": (0, -1, None, (0,), (0, 1), np.int32(0)),
    "axes": (None, (0,), (1, 0), (-1,)),
    "keepdims": (True, np.bool_(True)),
    "where": ("mask", True, None),
    "initial": (0.5, 2, None),
    "dtype": (jnp.float16, "float32", np.int32, jnp.complex64, jnp.bfloat16, None, float, bool),
    "out": (None,),
    "ddof": (1, 0.5),
    "correction": (1, 0.5),
    "n": (2, 5, None),
    "s": ((2, 2), None),
    "norm": ("ortho", "forward", "backward", None),
    "ord": (None, 1, 2, np.inf, "fro", "nuc", 0, -1),
    "mode": ("wrap", "clip", "fill", "reflect", "edge", "same", "valid", "full", "constant", "nearest", "complete", "r", None),
    "side": ("right",),
    "method": ("lower", "nearest", "midpoint", "scan", "svd", "eigh", "linear"),
    "descending": (True,),
    "stable": (True, False),
    "kind": ("stable", None),
    "order": ("C", "F", None),
    "copy": (True, False, None),
    "k": (1, -1, 0),
    "offset": (1, -1),
    "axis1": (1,),
    "axis2": (0,),
    "size": (2, None),
    "fill_value": (0, 7),
    "length": (5,),
    "minlength": (5,),
    "unique_indices": (True, False),
    "indices_are_sorted": (False,),
    "precision": ("highest", jax.lax.Precision.DEFAULT, None),
    "preferred_element_type": (jnp.float32, None),
    "approximate": (False, True),
    "decimals": (1, -1),
    "nan": (0.5,),
    "posinf": (1.0,),
    "neginf": (-1.0,),
    "equal_nan": (True,),
    "rtol": (1e-3,),
    "atol": (1e-3,),
    "full_matrices": (False, True),
    "compute_uv": (False, True),
    "hermitian": (True, False),
    "UPLO": ("U", "L"),
    "lower": (True, False),
    "upper": (True,),
    "trans": (1, "T", 0),
    "unit_diagonal": (True,),
    "symmetrize_input": (False,),
    "rcond": (1e-3, None),
    "left": (0.5, "extrapolate", None),
    "right": (0.5, None),
    "period": (2.0,),
    "bias": (True,),
    "rowvar": (False,),
    "fweights": (None,),
    "aweights": (None,),
    "weights": (None, "like"),
    "returned": (True,),
    "alpha": (0.5, 2),
    "negative_slope": (0.2,),
    "b": ("like", None),
    "return_sign": (True,),
    "loc": (0.1, "like"),
    "scale": (2.0, "like", 3),
    "exclusive": (True,),
    "reverse": (True,),
    "is_stable": (False,),
    "num_keys": (1,),
    "num_segments": (4, None),
    "endpoint": (False,),
    "num": (3, 1, 0),
    "retstep": (True,),
    "shape": ((3, 3), (2, 3), (9,), (), 3, None),
    "repeats": (2, (1, 2, 3)),
    "total_repeat_length": (4,),
    "indexing": ("ij",),
    "sparse": (True,),
    "ndmin": (3,),
    "subok": (True,),
    "wrap_around": (True,),
    "increasing": (True,),
    "N": (4,),
    "bins": (4, "array"),
    "range": ((0.0, 1.0), None),
    "density": (True,),
    "to_begin": (0.5,),
    "to_end": (0.5,),
    "prepend": (0.5, "like"),
    "append": (0.5, "like"),
    "dx": (0.5,),
    "discont": (1.0,),
    "return_index": (True,),
    "return_inverse": (True,),
    "return_counts": (True,),
    "antialias": (False,),
    "type": (2, "constant"),
    "pivoting": (True,),
    "overwrite_a": (True,),
    "check_finite": (False,),
    "output": ("complex",),
    "eigvals_only": (True,),
    "left_side": (True,),
    "transpose_a": (True,),
    "conjugate_a": (True,),
    "optimize": (True, "greedy", False),
    "cval": (0.5,),
    "epsilon": (1e-3,),
    "num_classes": (5,),
    "max_squarings": (4,),
    "promote_integers": (False,),
    "out_sharding": (None,),
    "wrap": (True,),
    "val": (0.5,),
    "inplace": (False,),
    "trim": ("f", "b"),
    "assume_unique": (True, False),
    "strip_zeros": (False,),
    "full": (True,),
    "w": ("like",),
    "cov": (True,),
    "a_min": (0.2, None),
    "a_max": (0.7, None),
    "min": (0.2, None, "like"),
    "max": (0.7, None, "like"),
}


def is_inexact(x):
    return isinstance(x, (jax.Array, np.ndarray)) and jnp.issubdtype(x.dtype, jnp.inexact)


def is_array(x):
    return isinstance(x, (jax.Array, np.ndarray)) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _over(args, one):
    """The arguments with ``one`` applied to each array, in containers too."""
    return jax.tree.map(lambda x: one(x) if is_array(x) else x, tuple(args))


def _floats(args, one):
    return jax.tree.map(lambda x: one(x) if is_inexact(x) else x, tuple(args))


def signature_of(fun):
    try:
        return inspect.signature(fun).parameters
    except (TypeError, ValueError):
        return {}


def _special(value, args):
    """What stands for an array that fits the first one."""
    first = next((x for x in jax.tree.leaves(args) if is_inexact(x)), None)
    if first is None or not isinstance(value, str):
        return value
    if value == "mask":
        return first > 0.35
    if value == "like":
        return first * 0.75 + 0.1
    if value == "array":
        return jnp.array([0.0, 0.3, 0.6, 1.0])
    return value


def options(fun, args, kwargs):
    """Calls with one more option each, from the signature."""
    parameters = signature_of(fun)
    taken = set(list(parameters)[: len(args)]) | set(kwargs)
    for name, p in parameters.items():
        if name in taken:
            continue
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            continue
        for value in VALUES.get(name, ()):
            yield f"{name}={value!r}", args, {**kwargs, name: _special(value, args)}


PAIRS = (("axis", "keepdims"), ("axis", "where"), ("axis", "dtype"), ("where", "initial"), ("axis", "ddof"), ("min", "max"))


def pairs(fun, args, kwargs):
    """Calls with two options at once."""
    parameters = signature_of(fun)
    taken = set(list(parameters)[: len(args)]) | set(kwargs)
    for a, b in PAIRS:
        if a in parameters and b in parameters and not {a, b} & taken:
            for first, second in itertools.product(VALUES[a][:3], VALUES[b][:2]):
                given = {a: _special(first, args), b: _special(second, args)}
                yield f"{a}={first!r}, {b}={second!r}", args, {**kwargs, **given}
                yield f"{b}={second!r}, {a}={first!r}", args, {**kwargs, **dict(reversed(given.items()))}


def spellings(fun, args, kwargs):
    """The same call written in other ways."""
    parameters = list(signature_of(fun).values())
    named = []
    for p, a in zip(parameters, args, strict=False):
        if p.kind is not p.POSITIONAL_OR_KEYWORD:
            break
        named.append((p.name, a))
    if named and len(named) == len(args):
        yield "keywords", (), {**kwargs, **dict(reversed(named))}
        if len(args) > 1:
            yield "last as keywords", args[:1], {**kwargs, **dict(reversed(named[1:]))}
    yield "NumPy arrays", _over(args, np.asarray), kwargs
    yield "Python scalars", _floats(args, lambda x: 0.5), kwargs
    yield "NumPy scalars", _floats(args, lambda x: np.float32(0.5)), kwargs
    yield "integers", _floats(args, lambda x: 2), kwargs
    yield "lists", _over(args, lambda x: np.asarray(x).tolist()), kwargs
    places = [i for i, a in enumerate(args) if is_inexact(a)]
    for i in places if len(places) > 1 else ():
        for what, value in (
            ("scalar", 0.5),
            ("integer", 2),
            ("true", True),
            ("NumPy scalar", np.float64(0.5)),
            ("rank 0", jnp.float32(0.5)),
        ):
            yield f"{what} at {i}", (*args[:i], value, *args[i + 1 :]), kwargs


def dtypes(fun, args, kwargs):
    """The same call in other dtypes (in double precision ones only under x64)."""
    for dtype in ("float16", "bfloat16", "complex64", "int32", "bool"):
        extra = 0.25j if dtype == "complex64" else 0

        def cast(x, dtype=dtype, extra=extra):
            if jnp.iscomplexobj(x) and dtype != "complex64":
                return x
            return (jnp.asarray(x) * (4 if dtype in ("int32", "uint8") else 1) + extra * jnp.asarray(x)).astype(dtype)

        yield dtype, _floats(args, cast), kwargs
    places = [i for i, a in enumerate(args) if is_inexact(a)]
    for i in places if len(places) > 1 else ():
        for dtype in ("bfloat16", "int32", "complex64"):
            yield f"{dtype} at {i}", (*args[:i], (jnp.asarray(args[i]) * 2).astype(dtype), *args[i + 1 :]), kwargs


def sizes(fun, args, kwargs):
    """The same call with arrays of size zero, one, rank 0, and of one rank more."""

    def cut(n):
        return lambda x: x[tuple(slice(n) for _ in x.shape)]

    yield "size 0", _over(args, cut(0)), kwargs
    yield "size 1", _over(args, cut(1)), kwargs
    yield "rank 0", _over(args, lambda x: x.ravel()[0] if x.size else x), kwargs
    yield "a batch", _over(args, lambda x: jnp.stack([x, x])), kwargs


def edges(fun, args, kwargs):
    """The same call at ties, kinks and extreme values."""
    fills = {"zeros": 0.0, "ones": 1.0, "minus ones": -1.0, "infinite": np.inf, "NaN": np.nan}
    for what, value in fills.items():
        yield what, _floats(args, lambda x, value=value: jnp.full_like(x, value)), kwargs

    def mixed(x):
        return jnp.resize(jnp.array([0.0, -1.0, 1.0, 2.0, -0.5, 1e4, -1e4, 1e-8, 30.0]), x.shape).astype(x.dtype)

    yield "large and small", _floats(args, mixed), kwargs
    yield "ties", _floats(args, lambda x: jnp.round(x * 2) / 2), kwargs


KINDS = {"dtype": dtypes, "size": sizes, "edge": edges, "spelling": spellings, "option": options, "options": pairs}
