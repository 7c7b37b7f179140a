"""What is checked: a function with some of its arguments made differentiable, and its derivative under test."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.errors import TapeTypeError, TapeValueError
from tape.functions.function import Function
from tape.graph.segment import Handle
from tape.programs.program import look
from tape.transforms import jvp as tape_jvp
from tape.transforms import vjp as tape_vjp
from tape.variables.variable import Variable, constant


def is_inexact(x: object) -> bool:
    """Tell whether ``x`` is an array (or stands for one) of a floating or complex dtype."""
    dtype = getattr(x, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


class Subject:
    """A function of flat lists of arrays, with its derivatives under test.

    Attributes:
        name: what reports call it: a ``tape.Function`` goes by its class.
        leaves: the values of the arguments that are differentiated.
        names: what the user calls them.
        owners: for each, the number of the positional argument that it is a part of; None for a keyword's.
        kind: ``"jax"`` or ``"tape"``.
        positions: which of the function's results are differentiated.
        outputs: their shapes and dtypes.
        first: the jaxpr of the first trace; None where JAX cannot trace the function.

    """

    def __init__(
        self,
        fun: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        argnums: int | Sequence[int] | None,
        vjp: Callable[..., Any] | None = None,
        *,
        scalars: bool = True,
    ) -> None:
        if not callable(fun):
            msg = f"expected a function to check, got {type(fun).__name__}"
            raise TapeTypeError(msg)
        self.fun = fun
        self.name = getattr(_function_of(fun) or fun, "__name__", type(fun).__name__)
        self.own_vjp = vjp
        chosen = _positions(argnums, len(args), getattr(fun, "nondiff_argnums", ()))
        paths, self._tree = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)), is_leaf=_is_handle)
        self._leaves = [look(x) if isinstance(x, Handle) else x for _, x in paths]
        self._places: list[int] = []
        labels = _labels(fun, len(args))
        self.names: list[str] = []
        self.owners: list[int | None] = []
        for i, ((path, given), value) in enumerate(zip(paths, self._leaves, strict=True)):
            number = isinstance(value, (float, complex)) and not isinstance(value, np.generic)
            if number and not (scalars and path[0].idx == 0):
                continue
            if not (number or (isinstance(value, (jax.Array, np.ndarray, np.generic)) and is_inexact(value))):
                continue
            if (path[0].idx == 0 and path[1].idx not in chosen) or (isinstance(given, Handle) and not given._place.kind.requires_grad):
                continue
            self._places.append(i)
            self._leaves[i] = jnp.asarray(value)
            base = labels[path[1].idx] if path[0].idx == 0 else str(path[1].key)
            self.owners.append(path[1].idx if path[0].idx == 0 else None)
            self.names.append(base + jax.tree_util.keystr(path[2:]))
        self.leaves = [self._leaves[i] for i in self._places]
        if not self.leaves:
            msg = "nothing to differentiate: no argument is an array of a floating or complex dtype; pass one, or other argnums"
            raise TapeValueError(msg)
        handles = any(isinstance(x, Handle) for _, x in paths) or _function_of(fun) is not None
        self.kind = "tape" if handles else "jax"
        self.first: Any = None
        self._result: Any = None
        result = self._first_look()
        self.positions = [i for i, y in enumerate(result) if is_inexact(y)]
        self.outputs = [jax.ShapeDtypeStruct(np.shape(result[i]), result[i].dtype) for i in self.positions]
        if not self.outputs:
            msg = "nothing to differentiate: the function returns no array of a floating or complex dtype"
            raise TapeValueError(msg)

    @property
    def owner(self) -> Any:
        """What lives as long as the function does: a bound method is made anew whenever somebody asks for it."""
        return _function_of(self.fun) or self.fun

    @property
    def places(self) -> tuple[int, ...]:
        """Which of all leaves are differentiated."""
        return tuple(self._places)

    @property
    def arrays(self) -> list[Any]:
        """All arrays among the arguments, also those that are not differentiated."""
        return [x for _, x in self.arrays_by_place]

    @property
    def arrays_by_place(self) -> list[tuple[int, Any]]:
        """The same, with their places among all leaves; keys of random numbers are none."""
        arrays = [(i, x) for i, x in enumerate(self._leaves) if isinstance(x, (jax.Array, np.ndarray, np.generic))]
        return [(i, x) for i, x in arrays if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]

    @property
    def integers(self) -> dict[int, np.ndarray]:
        """Integers and flags among the arguments, arrays and Python's own, by their places; bits of random keys are none."""
        leaves = [(i, x) for i, x in enumerate(self._leaves) if isinstance(x, (bool, int)) or i in dict(self.arrays_by_place)]
        arrays = [(i, np.asarray(x)) for i, x in leaves if getattr(x, "dtype", None) != np.uint32]
        return {i: x for i, x in arrays if x.dtype.kind in "iub"}

    def with_arrays(self, others: dict[int, np.ndarray]) -> list[Any]:
        """Return all leaves, with other arrays or numbers in some places, in the dtypes of those that were there."""

        def like(x: Any, other: np.ndarray) -> Any:
            if isinstance(x, (bool, int)):
                return type(x)(other)
            return jnp.asarray(other.astype(x.dtype)) if isinstance(x, jax.Array) else other.astype(x.dtype)

        return [like(x, others[i]) if i in others else x for i, x in enumerate(self._leaves)]

    def renewed(self, leaves: list[Any]) -> Subject:
        """Return the same function with other arguments of the same structure."""
        other = copy.copy(self)
        other._leaves = leaves
        other.leaves = [leaves[i] for i in self._places]
        return other

    def _first_look(self) -> list[Any]:
        """Trace the function, or call it where JAX cannot trace it; see whether it belongs to the tape."""
        kind = self.kind
        try:
            self.first, shapes = self._tried(lambda: jaxapi.trace(self._arrays, *self.leaves))
            if self.kind != kind:  # what it was given were no Variables yet
                self.first, shapes = jaxapi.trace(self._arrays, *self.leaves)
        except Exception:  # noqa: BLE001 - it may look at values; if it is wrong, the call raises what the user would see
            shapes = self._tried(lambda: self._arrays(*self.leaves))
            if self.kind == "jax" and self._takes_variables():
                self.kind = "tape"  # JAX differentiates nothing that looks at values
        return list(shapes)

    def _takes_variables(self) -> bool:
        """Tell whether a function that is written in methods and operators makes Variables of Variables."""
        try:
            return any(isinstance(y, Handle) for y in self._call([Variable(x) for x in self.leaves]))
        except Exception:  # noqa: BLE001 - it calls JAX
            return False

    def _tried(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except Exception:
            if self.kind == "tape":
                raise
            self.kind = "tape"  # it may need Variables; where it does not like them either, the first error is the one to show
            with contextlib.suppress(Exception):
                return run()
            self.kind = "jax"
            raise

    def _arrays(self, *xs: jax.Array) -> list[Any]:
        """Return all outputs as arrays; a function that makes Variables belongs to the tape."""
        flat = self._call(xs)
        if any(isinstance(y, Handle) for y in flat):
            self.kind = "tape"
        return [look(y) if isinstance(y, Handle) else self._array(y) for y in flat]

    def _array(self, y: object) -> jax.Array:
        """Return an output as an array."""
        try:
            return jnp.asarray(y)
        except TypeError as error:
            msg = f"{self.name} returned {type(y).__name__}; return arrays or Variables, or pytrees of them"
            raise TapeTypeError(msg) from error

    def _filled(self, xs: Sequence[Any]) -> tuple[Any, Any]:
        """Return positional and keyword arguments with ``xs`` in the places of the differentiated ones."""
        leaves = list(self._leaves)
        if self.kind == "tape":
            leaves = [constant(x) if isinstance(x, (jax.Array, np.ndarray)) else x for x in leaves]
        for i, x in zip(self._places, xs, strict=True):
            leaves[i] = x
        args, kwargs = jax.tree.unflatten(self._tree, leaves)
        return args, kwargs

    def _call(self, xs: Sequence[Any]) -> list[Any]:
        if self.kind == "tape":
            xs = [x if isinstance(x, Handle) else constant(x) for x in xs]
        args, kwargs = self._filled(xs)
        flat, self._result = jax.tree.flatten(self.fun(*args, **kwargs), is_leaf=_is_handle)
        return flat

    def _inexact(self, *xs: jax.Array) -> list[Any]:
        flat = self._call(xs)
        return [flat[i] for i in self.positions]

    def primal(self, *xs: jax.Array) -> list[Any]:
        """Return the outputs (floating and complex ones) as arrays."""
        return [look(y) if isinstance(y, Handle) else jnp.asarray(y) for y in self._inexact(*xs)]

    def vjp(self, xs: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """Return the outputs and what makes cotangents of the arguments from theirs: the derivative under test."""
        if self.own_vjp is not None:
            return self._own_pullback(xs)
        outputs, back = (tape_vjp if self.kind == "tape" else jax.vjp)(self._inexact, *xs)
        return list(outputs), lambda cts: list(back(list(cts)))

    def pull(self, xs: Sequence[Any], cts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the outputs and the cotangents of the arguments."""
        outputs, back = self.vjp(xs)
        return outputs, back(cts)

    def pull_alone(self, xs: Sequence[Any], cts: Sequence[Any], arguments: Sequence[int], outputs: Sequence[int]) -> list[Any]:
        """Return the cotangents of some arguments, the others being constants, when nobody uses any but some of the outputs."""

        def part(*chosen: jax.Array) -> list[Any]:
            filled = list(xs)
            for k, x in zip(arguments, chosen, strict=True):
                filled[k] = x
            results = self._inexact(*filled)
            return [results[o] for o in outputs]

        _, back = (tape_vjp if self.kind == "tape" else jax.vjp)(part, *[xs[k] for k in arguments])
        return list(back([cts[o] for o in outputs]))

    def pull_shared(self, xs: Sequence[Any], cts: Sequence[Any], places: Sequence[int]) -> tuple[list[Any], Any]:
        """Return the outputs, and the cotangent of one Variable that is given as several arguments."""

        def shared(x: Any) -> list[Any]:
            return self._inexact(*[x if k in places else other for k, other in enumerate(xs)])

        outputs, back = tape_vjp(shared, xs[places[0]])
        return list(outputs), back(list(cts))[0]

    def pull_twice(self, xs: Sequence[Any], cts: Sequence[Any], us: Sequence[Any]) -> list[Any]:
        """Return the cotangents of arguments and cotangents when the gradient has the cotangents ``us``."""
        n = len(self.leaves)
        vjp = tape_vjp if self.kind == "tape" and self.own_vjp is None else jax.vjp
        _, back = vjp(lambda *a: self.pull(a[:n], a[n:])[1], *xs, *cts)
        return list(back(list(us)))

    def push(self, xs: Sequence[Any], vs: Sequence[Any]) -> list[Any]:
        """Return the tangents of the outputs, by forward mode."""
        jvp = tape_jvp if self.kind == "tape" else jax.jvp
        return list(jvp(self._inexact, tuple(xs), tuple(vs))[1])

    def _own_pullback(self, xs: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """Call the user's VJP function."""
        args, kwargs = self._filled(xs)
        assert self.own_vjp is not None
        result, back = self.own_vjp(*args, **kwargs)
        flat, tree = jax.tree.flatten(result)
        if tree != self._result:
            msg = f"the value returned beside the pullback has the structure {tree}, the function's {self._result}"
            raise TapeValueError(msg)

        def pullback(cts: Sequence[Any]) -> list[Any]:
            full = [jnp.zeros(np.shape(y), y.dtype) if is_inexact(y) else np.zeros(np.shape(y), jaxapi.float0) for y in flat]
            for i, ct in zip(self.positions, cts, strict=True):
                full[i] = ct
            returned = back(jax.tree.unflatten(tree, full))
            slots = self._slots(args, tuple(returned) if isinstance(returned, (tuple, list)) else (returned,))
            gradients = [slots[i] for i in self._places]
            return [jnp.zeros(np.shape(x), x.dtype) if g is None else g for g, x in zip(gradients, xs, strict=True)]

        return [flat[i] for i in self.positions], pullback

    def _slots(self, args: Sequence[Any], returned: tuple[Any, ...]) -> list[Any]:
        """Return the cotangents that a pullback found as a flat list, one for each leaf."""
        if len(returned) != len(args):
            msg = f"the pullback returned {len(returned)} cotangents for {len(args)} arguments; return a tuple with one per argument"
            raise TapeValueError(msg)
        slots: list[Any] = []
        for arg, ct in zip(args, returned, strict=True):
            places, shape = jax.tree.flatten(arg, is_leaf=_is_none)
            given, own = ([None] * len(places), shape) if ct is None else jax.tree.flatten(ct, is_leaf=_is_none)
            if len(given) != len(places):
                msg = f"the pullback returned a cotangent of structure {own} for an argument of structure {shape}"
                raise TapeValueError(msg)
            for x, g in zip(places, given, strict=True):
                _check_constant(x, g)
            slots += [g for x, g in zip(places, given, strict=True) if x is not None]
        return [*slots, *[None] * (len(self._leaves) - len(slots))]


def _check_constant(x: Any, g: Any) -> None:
    """Refuse a cotangent of what has no derivative, be it an integer, that could be taken for one."""
    if is_inexact(x) or not hasattr(x, "dtype") or g is None or getattr(g, "dtype", None) == jaxapi.float0:
        return
    if np.shape(g) != np.shape(x) or (not isinstance(g, jaxapi.Tracer) and np.any(np.asarray(g) != 0)):
        msg = (
            f"the pullback returned a cotangent of shape {np.shape(g)}, not all zero, for an argument of dtype {x.dtype} and shape "
            f"{np.shape(x)}, which has no derivative; return None for it"
        )
        raise TapeValueError(msg)


def _is_handle(x: object) -> bool:
    return isinstance(x, Handle)


def _is_none(x: object) -> bool:
    return x is None


def _function_of(fun: object) -> type[Function] | None:
    """Return the class whose ``apply`` this is."""
    owner = getattr(fun, "__self__", None)
    return owner if isinstance(owner, type) and issubclass(owner, Function) else None


def _positions(argnums: int | Sequence[int] | None, count: int, static: Sequence[int]) -> frozenset[int]:
    if argnums is None:
        return frozenset(range(count)) - frozenset(i % count for i in static if isinstance(i, int) and -count <= i < count)
    listed = tuple(argnums) if hasattr(argnums, "__iter__") else (argnums,)
    for i in listed:
        if not isinstance(i, (int, np.integer)) or not -count <= i < count:
            msg = f"argnums names argument {i!r}, but the function is called with {count} positional arguments"
            raise TapeValueError(msg)
    return frozenset(int(i) % count for i in listed)


def _labels(fun: Callable[..., Any], count: int) -> list[str]:
    """Name the positional arguments as the function's signature does, or that of a Function's forward."""
    owner = _function_of(fun)
    try:
        parameters = list(inspect.signature(fun if owner is None else owner.forward).parameters.values())[owner is not None :]
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (named + [f"argument {i}" for i in range(len(named), count)])[:count]
