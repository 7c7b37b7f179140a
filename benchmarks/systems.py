"""The systems that run a workload: how each converts arrays, differentiates and steps.

A program sees a system as its namespace ``xp``: the functions of NumPy, ``nn``-like functions (``softmax``, ``gelu``, ``relu``), ``conv``,
``max_pool``, ``scan``, ``cholesky``, ``solve_triangular``, and differentiation:

- ``value_and_grad(fun, parameters)``: the value of ``fun(parameters)`` and its gradients, the final ones;
- ``gradients(fun, inputs)``: gradients that can be differentiated again;
- ``operand(x)``: a NumPy array as an operand: itself where operators take it;
- ``leaf(x)``: the same array, cut from what made it, for ``gradients`` with respect to it;
- ``cut(x)``: the same array without gradient, so that every system lets Python look at what is computed from it;
- ``hvp(fun, parameters, tangents)``: the Hessian times a list of arrays.

Each is what a user of that system would write by hand for speed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tape
from benchmarks.workloads import ARRAYS, NUMPY

__all__ = ["MOMENTUM", "RATE", "Jitted", "LookFirst", "Namespace", "System", "Tape", "TapeJit", "Unjitted", "convert", "leaves", "taken"]

RATE, MOMENTUM = 1e-3, 0.9
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {  # of optax
    "adam": lambda optax: optax.adam(RATE),
    "sgd": lambda optax: optax.sgd(RATE, momentum=MOMENTUM),
}


def convert(tree: Any, to: Callable[[Any], Any]) -> Any:
    """Apply ``to`` to the NumPy arrays of nested tuples, lists and dicts; other leaves stay."""
    if isinstance(tree, dict):
        return {key: convert(x, to) for key, x in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(convert(x, to) for x in tree)
    return to(tree) if isinstance(tree, np.ndarray) else tree


_NESTED = frozenset({tuple, list, dict})


def leaves(tree: Any) -> list[Any]:
    """Return what nested tuples, lists and dicts (in the order of their keys, as JAX takes them apart) hold.

    It is a part of the steps of systems that know no trees, so it is quick where nothing is nested.
    """
    if tree.__class__ not in _NESTED:
        return [tree]
    found: list[Any] = []
    for item in [tree[key] for key in sorted(tree)] if tree.__class__ is dict else tree:
        if item.__class__ in _NESTED:
            found += leaves(item)
        else:
            found.append(item)
    return found


def _first(tree: Any) -> Any:
    """Return the first of what nested tuples and lists hold."""
    while tree.__class__ is tuple or tree.__class__ is list:
        tree = tree[0]
    return tree


class Namespace:
    """Functions found in several modules, first one first; a function is looked up once."""

    def __init__(self, *modules: Any, **functions: Any) -> None:
        self._modules = modules
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        for module in self._modules:
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))
                return getattr(module, name)
        raise AttributeError(name)


class System:
    """One way to compute gradients.

    Attributes:
        name: what tables call it.
        lacks: features that it lacks, as :class:`benchmarks.workloads.Workload` names them.
        varies: whether it is of use for steps whose structure never repeats.

    """

    name: str
    lacks: frozenset[str] = frozenset()
    varies: bool = True
    xp: Namespace

    @staticmethod
    def installed() -> bool:
        """Tell whether the system can be imported."""
        return True

    def data(self, tree: Any) -> Any:
        """Convert NumPy arrays to constants of the system."""
        raise NotImplementedError

    def arrays(self, tree: Any) -> Any:
        """Convert NumPy arrays to what users of the system have as raw arrays."""
        return self.data(tree)

    def given(self, tree: Any, operands: str) -> Any:
        """Convert data as a workload wants them."""
        if operands == NUMPY:
            return tree
        return self.arrays(tree) if operands == ARRAYS else self.data(tree)

    def parameters(self, arrays: Any) -> Any:
        """Convert a tree of NumPy arrays to parameters of the system."""
        raise NotImplementedError

    def step(self, program: Callable[..., Any], parameters: list[Any]) -> Callable[..., Any]:
        """Return ``step(*data)`` that runs a program and returns its results, dispatched if not finished."""
        xp = self.xp
        return lambda *data: program(xp, parameters, *data)

    def training(self, loss: Callable[..., Any], parameters: list[Any], optimizer: str) -> Callable[..., Any]:
        """Return ``step(*data)`` that updates the parameters by an optimizer and returns them."""
        raise NotImplementedError

    def wait(self, results: Any) -> None:
        """Wait for results that are still being computed."""

    def learnt(self) -> object:
        """Return what is another value after a step that was not of the steady state; systems that learn nothing return None."""

    def numpy(self, results: Any) -> list[Any]:
        """Return the arrays of a tree of results."""
        return [np.asarray(x) for x in leaves(results)]


def _max_pool(lax: Any, x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _jax_like(numpy: Any, lax: Any, nn: Any, scipy: Any, random: Any, **differentiation: Any) -> Namespace:
    return Namespace(
        numpy,
        nn,
        random=random,
        scan=lax.scan,
        cholesky=numpy.linalg.cholesky,
        solve_triangular=lambda factor, right: scipy.linalg.solve_triangular(factor, right, lower=True),
        conv=lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
        max_pool=lambda x: _max_pool(lax, x),
        operand=lambda x: x,
        **differentiation,
    )


class Unjitted(System):
    """``jax.grad`` without ``jax.jit``."""

    name = "jax.grad"
    xp = _jax_like(
        jnp,
        jax.lax,
        jax.nn,
        jax.scipy,
        jax.random,
        value_and_grad=lambda fun, parameters: jax.value_and_grad(fun)(parameters),
        gradients=lambda fun, inputs: jax.grad(fun)(inputs),
        leaf=lambda x: x,
        cut=jax.lax.stop_gradient,
        hvp=lambda fun, parameters, tangents: jax.jvp(jax.grad(fun), (parameters,), (tangents,))[1],
    )

    def data(self, tree: Any) -> Any:
        return convert(tree, jnp.asarray)

    def parameters(self, arrays: Any) -> Any:
        return convert(arrays, jnp.asarray)

    def update(self, loss: Callable[..., Any], optimizer: str) -> tuple[Callable[..., Any], Any]:
        """Return the function of parameters, state and data that makes one update, and the optimizer."""
        import optax  # noqa: PLC0415 - an optional dependency

        transformation, xp = OPTIMIZERS[optimizer](optax), self.xp

        def update(parameters: list[Any], state: Any, *data: Any) -> tuple[Any, Any, Any]:
            value, gradients = jax.value_and_grad(lambda p: loss(xp, p, *data))(parameters)
            updates, state = transformation.update(gradients, state, parameters)
            return optax.apply_updates(parameters, updates), state, value

        return update, transformation

    def training(self, loss: Callable[..., Any], parameters: list[Any], optimizer: str) -> Callable[..., Any]:
        function, transformation = self.update(loss, optimizer)
        function = self.prepared(function)
        state = transformation.init(parameters)

        def step(*data: Any) -> Any:
            nonlocal parameters, state
            parameters, state, _ = function(parameters, state, *data)
            return parameters

        return step

    def prepared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs in place of a function."""
        return function

    def wait(self, results: Any) -> None:
        jax.block_until_ready(results)


class Jitted(Unjitted):
    """Hand-written ``jax.jit(jax.value_and_grad(f))``, the reference."""

    name = "jax.jit"
    varies = False

    def prepared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(function, donate_argnums=(0, 1))

    def step(self, program: Callable[..., Any], parameters: list[Any]) -> Callable[..., Any]:
        xp = self.xp

        def run(p: list[Any], *data: Any) -> Any:
            return program(xp, p, *data)

        compiled = jax.jit(run)
        return lambda *data: compiled(parameters, *data)


def _swept(fun: Callable[[Any], Any], parameters: Any, *, look: bool = False) -> tuple[Any, list[Any]]:
    loss = fun(parameters)
    if look:
        loss.item()
    loss.backward()
    return loss, taken(leaves(parameters))


def taken(parameters: list[Any]) -> list[Any]:
    """Return the gradients of parameters, and clear them."""
    gradients = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    return gradients


def _recorded(fun: Callable[[Any], Any], inputs: Any) -> Any:
    return tape.gradients(fun(inputs), inputs, create_graph=True)


def _leaf(x: Any) -> Any:
    return x.detach().requires_grad_()


def _cut(x: Any) -> Any:
    return x.detach()


def _hvp(fun: Callable[[Any], Any], parameters: list[Any], tangents: list[Any]) -> Any:
    return tape.gradients(tape.gradients(fun(parameters), parameters, create_graph=True), parameters, tangents)


class Tape(System):
    """The tape, define-by-run: plain Python, ``.backward()`` and ``tape.gradients``."""

    name = "tape"
    xp = _jax_like(
        tape.numpy,
        tape.lax,
        tape.nn,
        tape.scipy,
        tape.random,
        value_and_grad=_swept,
        gradients=_recorded,
        leaf=_leaf,
        cut=_cut,
        hvp=_hvp,
    )

    looks = False

    def data(self, tree: Any) -> Any:
        return convert(tree, lambda a: tape.constant(jnp.asarray(a)))

    def arrays(self, tree: Any) -> Any:
        return convert(tree, jnp.asarray)

    def parameters(self, arrays: Any) -> Any:
        return convert(arrays, lambda a: tape.Variable(jnp.asarray(a)))

    def step(self, program: Callable[..., Any], parameters: list[Any]) -> Callable[..., Any]:
        xp = self.xp

        def step(*data: Any) -> Any:
            results = program(xp, parameters, *data)
            _ = _first(results).value  # dispatches what no backward() has run; pending results that nobody sees would never run
            return results

        return step

    def training(self, loss: Callable[..., Any], parameters: list[Any], optimizer: str) -> Callable[..., Any]:
        import optax  # noqa: PLC0415 - an optional dependency

        import interop.optax  # noqa: PLC0415 - imports optax

        updater, xp, looks = interop.optax.Optimizer(parameters, OPTIMIZERS[optimizer](optax)), self.xp, self.looks

        def step(*data: Any) -> Any:
            found = loss(xp, parameters, *data)
            if looks:
                found.item()
            found.backward()
            updater.step()
            updater.zero_grad()
            return parameters

        return step

    def wait(self, results: Any) -> None:
        jax.block_until_ready([v.value for v in leaves(results)])

    def learnt(self) -> object:
        stats = tape.stats()
        return stats.interpreted, stats.compiles

    def numpy(self, results: Any) -> list[Any]:
        return [np.asarray(v.value) for v in leaves(results)]


class LookFirst(Tape):
    """The tape, with the loss looked at before the sweep."""

    name = "tape, look first"
    looks = True
    xp = _jax_like(
        tape.numpy,
        tape.lax,
        tape.nn,
        tape.scipy,
        tape.random,
        value_and_grad=lambda fun, parameters: _swept(fun, parameters, look=True),
        gradients=_recorded,
        leaf=_leaf,
        cut=_cut,
        hvp=_hvp,
    )


class TapeJit(Tape):
    """The same steps in ``tape.jit``."""

    name = "tape.jit"
    varies = False

    @staticmethod
    def installed() -> bool:
        return getattr(tape, "jit", None) is not None

    def step(self, program: Callable[..., Any], parameters: list[Any]) -> Callable[..., Any]:
        xp = self.xp
        return self._compiled(lambda *data: program(xp, parameters, *data))

    def training(self, loss: Callable[..., Any], parameters: list[Any], optimizer: str) -> Callable[..., Any]:
        plain = super().training(loss, parameters, optimizer)

        def update(*data: Any) -> None:
            plain(*data)

        compiled = self._compiled(update, donate_state=True)

        def step(*data: Any) -> Any:
            compiled(*data)
            return parameters

        return step

    @staticmethod
    def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return tape.jit(function, **options)


def found(module: str) -> bool:
    """Tell whether a module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None
