"""A function of a mirrored namespace beside JAX's: values, gradients and second derivatives at the arguments of ``samples.py``."""

import functools
import importlib
import itertools

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np

import tape
from tape.namespaces import namespace as namespaces
from tests.agreement import is_variable
from tests.mirrored import samples
from tests.mirrored.left_out import LEFT_OUT


def names(source):
    """Public functions of a JAX module that are functions in the mirror, too."""
    module = importlib.import_module(source)
    ours = importlib.import_module(source.replace("jax", "tape", 1))
    found = {*ours.__all__, *namespaces.CALLABLES.get(source, ())}
    return sorted(n for n in found if callable(f := getattr(module, n, None)) and not isinstance(f, type))


EVERY = [(source, name) for source in samples.SOURCES for name in names(source)]
DIFFERENTIATED = [(s, n) for s, n in EVERY if not any(n in table.get(s, ()) for table in LEFT_OUT.values())]


def inexact(x):
    return isinstance(x, (jax.Array, tape.Variable)) and jnp.issubdtype(x.dtype, jnp.inexact)


class Sample:
    """One call of a function of JAX and of its counterpart, as functions of the inexact arrays among the arguments."""

    def __init__(self, source, name, dtype):
        theirs = getattr(importlib.import_module(source), name)
        ours = getattr(importlib.import_module(source.replace("jax", "tape", 1)), name)
        args, options = samples.smooth(source, name, theirs)
        leaves, self.tree = jax.tree.flatten((args, options))
        self.theirs, self.ours = [functools.partial(self.outputs, fun) for fun in (theirs, ours)]
        self.leaves = [self.cast(x, dtype) if inexact(x) else x for x in leaves]
        self.places = [i for i, x in enumerate(self.leaves) if inexact(x)]
        self.inputs = [self.leaves[i] for i in self.places]
        self.directions = [jnp.sin(2.0 + jnp.arange(x.size)).reshape(x.shape).astype(x.dtype) for x in self.inputs]

    def cast(self, x, dtype):
        return x.astype(np.result_type(dtype, np.complex64) if jnp.iscomplexobj(x) else dtype)

    def outputs(self, fun, inputs):
        leaves = list(self.leaves)
        for i, x in zip(self.places, inputs, strict=True):
            leaves[i] = x
        args, options = jax.tree.unflatten(self.tree, leaves)
        return [x for x in jax.tree.leaves(fun(*args, **options), is_leaf=is_variable) if inexact(x)]


def total(outputs, xp):
    """A number that depends on all outputs, and not linearly."""
    found = 0
    for k, x in enumerate(outputs):
        real = np.zeros(0, x.dtype).real.dtype
        weights = np.cos(1.0 + k + np.arange(x.size)).reshape(x.shape).astype(real)
        y = x * x + x
        parts = (xp.real(y), xp.imag(y) * 2) if jnp.issubdtype(x.dtype, jnp.complexfloating) else (y,)
        for part in parts:
            found = found + xp.sum(part * weights)
    return found


def along(gradients, directions, xp):
    return sum(xp.sum(xp.real(g * u)) for g, u in zip(gradients, directions, strict=True))


def reference(sample, second, inputs):
    """JAX's value, gradients, and second derivatives along a direction."""

    def value(inputs):
        return total(sample.theirs(inputs), jnp)

    def slope(inputs):
        found, gradients = jax.value_and_grad(value)(inputs)
        return along(gradients, sample.directions, jnp), (found, gradients)

    if not second:
        found, gradients = jax.value_and_grad(value)(inputs)
        return [found, *gradients]
    further, (found, gradients) = jax.grad(slope, has_aux=True)(inputs)
    return [found, *gradients, *further]


def swept(sample, second, inputs, looked):
    """The same by sweeps."""
    variables = [tape.Variable(x) for x in inputs]
    found = total(sample.ours(variables), tape.numpy)  # the results are not held
    if looked:
        assert found.value is not None
    gradients = tape.gradients(found, variables, create_graph=second, unconnected="zero")
    if not second:
        return [x.value for x in (found, *gradients)]
    if looked:
        assert gradients[0].value is not None
    slope = along(gradients, sample.directions, tape.numpy)
    further = tape.gradients(slope, variables, unconnected="zero") if slope.requires_grad else [tape.numpy.zeros_like(x) for x in variables]
    return [x.value for x in (found, *gradients, *further)]


def steps(closed):
    """A program's primitives in order, calls taken apart: their parameters, and of each operand its number or the constant that it is."""
    count, numbers, found = itertools.count(), {}, []

    def constant(x, aval):
        array = np.asarray(jax.random.key_data(x) if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key) else x)
        return array.tobytes(), str(aval)

    def number(x):
        return constant(x.val, x.aval) if isinstance(x, jex.core.Literal) else numbers[x]

    def follow(jaxpr, consts):
        numbers.update((var, constant(x, var.aval)) for var, x in zip(jaxpr.constvars, consts, strict=True))
        for eqn in jaxpr.eqns:
            operands = [*map(number, eqn.invars)]
            if eqn.primitive.name in {"pjit", "jit"}:
                inner = eqn.params["jaxpr"]
                numbers.update(zip(inner.jaxpr.invars, operands, strict=True))
                results = follow(inner.jaxpr, inner.consts)
            else:
                found.append((eqn.primitive.name, str(eqn.params), operands, [str(v.aval) for v in eqn.outvars]))
                results = [next(count) for _ in eqn.outvars]
            numbers.update(zip(eqn.outvars, results, strict=True))
        return [*map(number, jaxpr.outvars)]

    numbers.update((var, next(count)) for var in closed.jaxpr.invars)
    results = follow(closed.jaxpr, closed.consts)
    return found, results


def recorded_as_jax_does(sample):
    """Tell whether the tape records what JAX computes, primitive by primitive; a derivative of the tape's own is a call around JAX's."""
    theirs = steps(jax.make_jaxpr(sample.theirs)(sample.inputs))
    ours = steps(jax.make_jaxpr(lambda inputs: [x.value for x in sample.ours([tape.Variable(x) for x in inputs])])(sample.inputs))
    return ours == theirs


def agree(ours, theirs, tolerance):
    scale = max([1.0, *(float(np.max(np.abs(b), initial=0)) for b in theirs[1:])])
    for a, b in zip(ours, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.all(np.isfinite(b)), "the sample is not smooth"
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)
