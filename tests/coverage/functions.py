"""One public function of JAX beside its counterpart: values, gradients and second derivatives, in all the ways of ``forms.py``."""

from __future__ import annotations

import functools
import importlib
import os
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import tape
from tape.rules import coverage
from tests.agreement import is_variable
from tests.coverage import forms
from tests.mirrored import samples
from tests.mirrored.beside_jax import DIFFERENTIATED, Sample, agree, reference, swept
from tests.mirrored.left_out import IN_SECOND_ORDER, LEFT_OUT, ROUNDED, SLOW

SECONDS = float(
    os.environ.get("COVERAGE_SECONDS", "0.6")
)  # of processor time for the ways to call one function: what comes later is not asked
NOT_ASKED = {"reads, writes or prints", "needs a mapped axis, a mesh or a token", "a function of functions (tests/callables)"}
UNDEFINED = {"jax.numpy.empty", "jax.numpy.empty_like", "jax.lax.empty", "jax.lax.rng_uniform"}  # results without defined values
# Ways to call that JAX's derivatives are wrong at, or none (tests/rules/test_beyond_jax.py and what is named).
_SCALARS = ("scalar at 0", "rank 0 at 0", "integer at 0", "true at 0", "NumPy scalar at 0")
BEYOND = {
    "jax.scipy.special.spence": ("zeros",),  # JAX says 0, and it is minus infinity (tests/rules/test_special.py)
    **dict.fromkeys(("jax.numpy.arctan2", "jax.numpy.atan2", "jax.lax.atan2"), ("infinite",)),
    **dict.fromkeys(("jax.numpy.logaddexp", "jax.numpy.logaddexp2"), ("infinite",)),
    **dict.fromkeys(("jax.nn.silu", "jax.nn.soft_sign", "jax.nn.squareplus"), ("infinite",)),
    **dict.fromkeys(("jax.numpy.float_power", "jax.numpy.pow", "jax.numpy.power", "jax.lax.pow"), ("zeros", "large and small", "ties")),
    "jax.numpy.vander": ("zeros", "large and small", "ties"),
    **dict.fromkeys(("jax.numpy.fmod", "jax.numpy.remainder", "jax.numpy.mod", "jax.lax.rem"), _SCALARS),  # the quotient is rounded
    # one triangle is read (tests/rules/test_apart.py)
    **dict.fromkeys(("jax.numpy.linalg.eigh", "jax.numpy.linalg.eigvalsh", "jax.lax.linalg.eigh"), ("symmetrize_input=False",)),
    # infinite where JAX has NaN, and no derivative
    "jax.numpy.linalg.qr": ("ones", "minus ones"),
    "jax.numpy.polydiv": ("zeros",),
    "jax.lax.linalg.qr": ("ones", "minus ones"),
    # the slope of I0 is I1: 0 at 0, where JAX has 1, and infinite with it
    "jax.scipy.special.i0": ("zeros", "ties", "large and small"),
    "jax.scipy.special.i1": ("large and small",),
    "jax.scipy.special.i1e": ("NaN",),  # NaN, and half of 1 in JAX
    **dict.fromkeys(("jax.scipy.special.digamma", "jax.lax.digamma"), ("infinite",)),  # level there
    "jax.scipy.special.ndtri": ("zeros", "ones"),  # steep without end
}
TOLERANCE = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 1e-3, "complex64": 1e-3}


@functools.cache
def facts():
    """What the installed JAX and the registry say of every public function: name, counterpart, how it runs, and why it is left out."""
    return {f.name: (f.how, reason(f.name)) for f in coverage().functions}


def reason(name):
    """Why a function's derivative is not compared; an empty text where it is."""
    source, _, last = name.rpartition(".")
    return next((text for text, table in LEFT_OUT.items() if last in table.get(source, ())), "")


def close(ours, theirs):
    """Tell where two arrays differ; an empty text where they agree."""
    a, b = np.asarray(ours), np.asarray(theirs)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{a.dtype}{list(a.shape)} where JAX has {b.dtype}{list(b.shape)}"
    if a.dtype.kind in "iub?":
        return "" if np.array_equal(a, b) else "other integers"
    tolerance = TOLERANCE.get(a.dtype.name, 0.3 if a.dtype.itemsize < 2 else 1e-7)
    x, y = a.astype(np.complex128), b.astype(np.complex128)
    size = min(1e3, max([1.0, *np.abs(y[np.isfinite(y)])]))
    near = np.isclose(x, y, rtol=tolerance, atol=tolerance * size, equal_nan=True)
    if near.all():
        return ""
    i = int(np.argmin(near))
    return f"{a.ravel()[i]!s} where JAX has {b.ravel()[i]!s}"


def leaves_of(tree):
    return jax.tree.leaves(tree, is_leaf=is_variable)


def is_inexact(x):
    return is_variable(x) or forms.is_inexact(x)


def attempt(call):
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - whatever is refused, and with what, is compared
        return None, error


def said(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:110]


def compare(theirs, ours, args, options, derived=True):
    """Compare one call: "same", "refused" (JAX refuses it), or what differs."""
    leaves, tree = jax.tree.flatten((args, options))
    places = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array) and forms.is_inexact(x)]

    def with_inputs(fun, inputs):
        changed = list(leaves)
        for i, x in zip(places, inputs, strict=True):
            changed[i] = x
        args, given = jax.tree.unflatten(tree, changed)
        return fun(*args, **{name: given[name] for name in options})  # JAX sorts them

    inputs = [leaves[i] for i in places]
    expected, refusal = attempt(lambda: theirs(*args, **options))
    variables = [tape.Variable(x) for x in inputs]
    found, error = attempt(lambda: [with_inputs(ours, variables) for _ in range(2)][1])  # known, a call is found again in another way
    if refusal is not None:
        return "refused" if error is None or isinstance(error, tape.errors.TapeError) else f"raises {said(error)}"
    if error is not None:
        return f"raises {said(error)}"
    a, b = leaves_of(found), jax.tree.leaves(expected)
    if len(a) != len(b):
        return f"{len(a)} results where JAX has {len(b)}"
    for x, y in zip(a, b, strict=True):
        if not isinstance(y, (jax.Array, np.ndarray)):
            continue
        if not is_variable(x):
            return f"a {type(x).__name__} where JAX has an array"
        if jnp.issubdtype(y.dtype, jax.dtypes.prng_key):
            continue
        value, error = attempt(lambda x=x: x.value)
        different = f"raises {said(error)}" if error is not None else close(value, y)
        if different:
            return different
    return gradients(theirs, with_inputs, inputs, variables, a, b) if derived else "same"


def gradients(theirs, with_inputs, inputs, variables, found, expected):
    """Compare the first derivatives of one call."""
    numbers = [i for i, y in enumerate(expected) if isinstance(y, jax.Array) and forms.is_inexact(y)]
    if not numbers or not inputs:
        return "same"
    cts = [jnp.cos(1.0 + i + jnp.arange(expected[i].size)).reshape(expected[i].shape).astype(expected[i].dtype) for i in numbers]

    def derived():
        _, vjp = jax.vjp(lambda *xs: [leaves_of(with_inputs(theirs, xs))[i] for i in numbers], *inputs)
        return vjp(cts)

    def swept():
        pairs = [(found[i], ct) for i, ct in zip(numbers, cts, strict=True) if found[i].requires_grad]
        if not pairs:
            return [jnp.zeros_like(x) for x in inputs]
        roots, seeds = zip(*pairs, strict=True)
        return [g.value for g in tape.gradients(roots, variables, list(seeds), unconnected="zero")]

    wanted, refusal = attempt(derived)
    got, error = attempt(swept)
    if refusal is not None:
        return "same"  # JAX has no derivative of it
    if error is not None:
        return f"gradient raises {said(error)}"
    different = next((d for d in (close(g, w) for g, w in zip(got, wanted, strict=True)) if d), "")
    return f"gradient {different}" if different else "same"


SELECTED = "the shape of the result depends on values (tests/mirrored/test_numpy.py)"  # they have gradients, of which JAX has none


def in_turns(calls):
    """One call of each kind after the other, as long as there are some: what the time suffices for has all kinds in it."""
    left = dict(calls)
    while left:
        for kind in list(left):
            call = next(left[kind], None)
            if call is None:
                del left[kind]
            else:
                yield kind, call


def forms_of(source, name, kinds=tuple(forms.KINDS)):
    """Compare every way to call a function; return how many there are that JAX takes, by kind, and what differs."""
    theirs = getattr(importlib.import_module(source), name)
    ours = getattr(importlib.import_module(source.replace("jax", "tape", 1)), name)
    args, options = samples.smooth(source, name, theirs)
    derived = reason(f"{source}.{name}") != SELECTED
    counts, differences, begun = {}, [], time.process_time()
    for kind, (label, given, named) in in_turns({kind: iter(forms.KINDS[kind](theirs, args, options)) for kind in kinds}):
        if time.process_time() - begun > SECONDS:
            break
        verdict = compare(theirs, ours, given, named, derived)
        if verdict == "refused" or label in BEYOND.get(f"{source}.{name}", ()):
            continue
        taken, same = counts.get(kind, (0, 0))
        counts[kind] = (taken + 1, same + (verdict == "same"))
        if verdict != "same":
            differences.append((label, verdict))
        elif kind == "dtype" and " " not in label:
            counts.setdefault("dtypes", []).append(label)
    return counts, differences


def mapped_by_jax(sample, inputs):
    """Return first derivatives of the counterpart under ``vmap``; none where JAX does not map its own function."""
    doubled = [jnp.stack([x, x]) for x in inputs]
    try:
        return [x[1] for x in jax.vmap(lambda *xs: swept(sample, False, list(xs), False))(*doubled)]
    except NotImplementedError:
        if attempt(lambda: jax.vmap(lambda *xs: reference(sample, False, list(xs)))(*doubled))[1] is None:
            raise
        return []


def orders_of(source, name):
    """Compare the derivatives in double precision, in one program, also under ``vmap``; return the orders that JAX has too."""
    second = (source, name) not in IN_SECOND_ORDER | SLOW
    with jax.enable_x64(True):
        sample = Sample(source, name, "float64")

        @jax.jit
        def everything(inputs):
            return reference(sample, second, inputs), swept(sample, second, inputs, False), mapped_by_jax(sample, inputs)

        expected, found, mapped = everything(sample.inputs)
        tolerance = 1e-5 if (source, name) in ROUNDED else 1e-8
        agree(found, expected, tolerance)
        agree(mapped, expected[: len(mapped)], tolerance)
    return "2" if second else "1, 2 by night" if (source, name) in SLOW else "1"


def known(name):
    """What is known of a function without calling it."""
    how, why = facts()[name]
    return {"name": name, "how": how, "why": why, "orders": "", "counts": {}, "differences": []}


PARTS = ("orders", "calls")


def row(name, parts=PARTS):
    """All that the page says of a function, or a part of it."""
    source, _, last = name.rpartition(".")
    line = known(name)
    how, why = line["how"], line["why"]
    asked = "calls" in parts and how == "recorded" and why not in NOT_ASKED and name not in UNDEFINED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "orders" in parts and (source, last) in DIFFERENTIATED:
            try:
                line["orders"] = orders_of(source, last)
            except Exception as error:  # noqa: BLE001 - it stands on the page
                line["differences"].append(("derivatives in double precision", said(error)))
        if asked:
            try:
                line["counts"], found = forms_of(source, last)
                line["differences"] += found
            except Exception as error:  # noqa: BLE001 - no sample fits
                line["why"] = line["why"] or f"not called: {said(error)[:60]}"
    return line


def rows(names, parts=PARTS):
    found = [row(name, parts) for name in names]
    jax.clear_caches()
    return found
