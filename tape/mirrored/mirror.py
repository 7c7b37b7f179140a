"""The mirror: one mechanism that turns a JAX function into one that records.

A call is split into arrays (Variables, JAX and NumPy arrays, and Python scalars where the function takes an array) and everything else.
What is not an array, together with the function, makes the op's key, so that the same call finds the same op again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import jax.export
import numpy as np

from tape import errors, jaxapi
from tape.bounded import Bounded
from tape.errors import ConcretizationError, LostGradientError, TapeError
from tape.graph.boundary import made_of_looked_at, met
from tape.graph.kinds import NUMBERS, SMALL, differentiable
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle
from tape.graph.trees import flatten, leaves_of, mapped
from tape.mirrored.roles import Roles, closes_over_inputs, quick_key, roles_of
from tape.ops.kernel import Op, intern_op
from tape.programs.program import look
from tape.recording import record
from tape.recording.entering import kernel_on
from tape.recording.record import record_one, record_two
from tape.recording.template import ARRAY, SEQUENCE, Baked, Fixed, Node, Static, Structured, fill, fix, unfix

_SCALARS = (bool, int, float, complex)
_ARRAYS = (jax.Array, np.ndarray, np.generic)
_BAKED_BYTES = 1 << 14
_KNOWN_LIMIT = 1024


def variable(value: object) -> Any:
    """Return a Variable as it is, and a constant of anything else that JAX takes for an array."""
    if isinstance(value, Handle):
        return value
    if hasattr(value, "__jax_array__") and not isinstance(value, _ARRAYS):
        value = value.__jax_array__()
    return record.constant(value)


class Application:
    """A function with the template of its arguments: what an op runs."""

    __slots__ = ("closed", "fixed", "fun", "keyword", "positional")

    def __init__(self, fun: Callable[..., Any], positional: tuple[Any, ...], keyword: tuple[Any, ...]) -> None:
        self.fun = fun
        self.positional = positional
        self.keyword = keyword
        self.fixed = False  # whether some results are not arrays
        self.closed: bool | None = None  # whether its derivative needs the value of an array; None where nobody asked yet

    def __call__(self, *arrays: object) -> object:
        """Call the function, the arrays in their places among its arguments."""
        it = iter(arrays)
        args = [fill(t, it) for t in self.positional]
        kwargs = {k: fill(t, it) for k, t in self.keyword}
        try:
            results = self.fun(*args, **kwargs)
        except (AttributeError, KeyError) as e:  # an argument of another type than JAX thought of
            raise TypeError(str(e)) from e
        except (AssertionError, ZeroDivisionError) as e:
            raise ValueError(str(e) or type(e).__name__) from e
        if isinstance(results, jax.Array):
            return results
        results = fix(results)
        self.fixed = self.fixed or any(isinstance(x, Fixed) for x in jax.tree.leaves(results, is_leaf=lambda x: isinstance(x, Fixed)))
        return results


class _Splitter:
    """Splits the arguments of one call into Variables and a template."""

    def __init__(self, *, scalars: bool, bake: str | None) -> None:
        self.variables: list[Handle] = []
        self.scalars = scalars  # Python scalars are arrays where the function takes one
        self.bake = bake  # put the values of no ("None"), integer ("integers") or all ("all") arrays without gradient into the template
        self.baked_bytes = 0
        self.met_scalars = False
        self.places: list[int] = []  # of scalars that are arrays, among the variables

    def split(self, value: Any, takes_array: int) -> Any:
        """Return the template of ``value`` and append the arrays in it."""
        if isinstance(value, Handle):
            return self._array(value)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, np.generic) and made_of_looked_at(value):
            return self._array(record.constant(value))
        if type(value) in NUMBERS or isinstance(value, np.generic):
            if not takes_array or (takes_array == SEQUENCE and type(value) is int and not -SMALL <= value < SMALL):
                return Static(value)  # among other numbers a big integer becomes a float
            self.met_scalars = True
            if self.scalars:
                self.places.append(len(self.variables))
                self.variables.append(record.constant(value))
                return ARRAY
            return Static(value)
        if isinstance(value, _ARRAYS):
            return self._array(record.operand(value), value)
        if isinstance(value, (tuple, list)):
            return self._node(type(value), value, SEQUENCE if takes_array == SEQUENCE else False)
        if isinstance(value, dict):
            return self._node(dict, value.values(), names=tuple(value))
        if isinstance(value, slice):
            return self._node(slice, (value.start, value.stop, value.step))
        if isinstance(value, Structured):
            leaves, tree = flatten(value.inner)
            return self._node(tree, leaves)
        if jax.export.is_symbolic_dim(value):
            return self._array(record.leaf(jax.numpy.asarray(value))) if takes_array and self.scalars else Static(value)
        if not isinstance(value, type) and hasattr(value, "__jax_array__"):
            return self._array(record.constant(value.__jax_array__()))
        if isinstance(value, _SCALARS):
            return Static(value)
        return value

    def _node(self, kind: object, items: Iterable[object], takes_array: int = False, names: tuple[Any, ...] | None = None) -> Node:
        return Node(kind, names, tuple([self.split(v, takes_array) for v in items]))

    def _array(self, value: Handle, given: Any = None) -> Any:
        kind = value._place.kind
        if self.bake and not (kind.requires_grad or kind.unrecorded) and (self.bake == "all" or np.dtype(kind.aval.dtype).kind in "iub"):
            array = look(value)
            if isinstance(array, jaxapi.Tracer) and isinstance(given, (np.ndarray, np.generic)):  # a trace has taken it in
                array = np.array(given, kind.aval.dtype)
            if not isinstance(array, jaxapi.Tracer):
                baked = Baked(np.asarray(array))
                self.baked_bytes += baked.value.nbytes
                return baked
        self.variables.append(value)
        return ARRAY


_NEEDS_VALUES: Bounded[Hashable, bool] = Bounded("templates that need values", _KNOWN_LIMIT)  # the function sees its scalars or arrays


def call(
    fun: Callable[..., Any],
    name: str,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    learn: Callable[[Op, int], None] | None = None,
) -> Any:
    """Record ``fun(*args, **kwargs)`` as one entry; Variables, arrays and scalars, in containers too, are its inputs.

    ``learn`` is told the op and the number of its inputs when the same template will give the same op again.

    Raises:
        TapeError: the arguments do not fit (JAX's message, and the builtin class that JAX raises).
        LostGradientError: the function must see the value of a Variable that requires grad.

    """
    roles = roles_of(fun, name)
    error: Exception | None = None
    without: Any = None  # a result through which no gradient could flow
    met_scalars = True
    try:
        for scalars, bake in ((True, None), (False, None), (False, "integers"), (False, "all")):
            if bake is None and scalars != roles.scalars and not met_scalars:
                continue
            splitter, op, key = _split(fun, name, roles, args, kwargs, scalars=scalars, bake=bake)
            met_scalars = splitter.met_scalars
            needing = key, *splitter.places  # where a number has to be known, an array may do
            if key is not None and needing in _NEEDS_VALUES:
                continue
            if bake and not splitter.variables:
                break  # nothing is left to trace with
            try:
                if scalars and met_scalars:  # asked first: numbers that have entered a tape stay there, and make a structure of their own
                    kernel_on(op, [v._place.kind for v in splitter.variables])
                result = record.record(op, splitter.variables)
            except jaxapi.CONCRETE_ERRORS as e:
                error = e
                if key is not None:
                    _NEEDS_VALUES[needing] = True
                continue
            except TapeError as e:
                if not (scalars and met_scalars) and "concrete" not in str(e) and "hashable" not in str(e):
                    raise
                error = e
                continue
            if op.fun.fixed:  # type: ignore[attr-defined]
                return unfix(result)
            kinds = tuple([v._place.kind for v in splitter.variables])
            if closes_over_inputs(op, kinds):
                if without is None and not (LOCAL.scope.mode and any(k.requires_grad or k.unrecorded for k in kinds)):
                    without = result
                continue
            if key is not None and bake is None and learn is not None:
                if not scalars and met_scalars:
                    roles.scalars = False
                learn(op, len(splitter.variables))
            return result
        return on_values(fun, name, args, kwargs, error) if without is None else without
    finally:
        error = None  # its traceback refers to this frame: a cycle, which would keep the arguments


def _split(
    fun: Callable[..., Any],
    name: str,
    roles: Roles,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    scalars: bool,
    bake: str | None,
) -> tuple[_Splitter, Op, Hashable]:
    """Split a call; return the splitter (with the inputs), the op, and the op's key (None where it is not kept)."""
    splitter = _Splitter(scalars=scalars, bake=bake)
    try:
        positional = tuple([splitter.split(a, roles.at(i)) for i, a in enumerate(args)])
        # In the order of the call, as quick keys are: inputs in another order would be given to an op that was found by such a key.
        keyword = tuple([(k, splitter.split(kwargs[k], roles.names.get(k, False))) for k in kwargs])
    except TapeError:
        raise
    except (TypeError, ValueError, OverflowError) as e:
        raise (errors.wrap(e, name) or e) from e
    application = Application(fun, positional, keyword)
    key = (fun, positional, keyword)
    try:
        hash(key)
    except TypeError:
        return splitter, Op(name, application, keyword), None
    if splitter.baked_bytes > _BAKED_BYTES:
        return splitter, Op(name, application, keyword), None
    return splitter, intern_op(key, lambda: Op(name, application, keyword)), key


def describe(fun: Callable[..., Any], name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """Return what ``fun`` says of its arguments' shapes and dtypes, without recording or looking at values."""
    for scalars in (True, False):
        splitter, op, _ = _split(fun, name, roles_of(fun, name), args, kwargs, scalars=scalars, bake=None)
        try:
            kernel = op.kernel(tuple(v._place.kind.aval for v in splitter.variables))
        except errors.FOREIGN as e:
            if scalars and isinstance(e, jaxapi.CONCRETE_ERRORS):
                continue
            raise (errors.wrap(e, name, [v._place.kind.aval for v in splitter.variables]) or e) from e
        return unfix(jax.tree.unflatten(kernel.tree, kernel.out_avals))
    raise AssertionError


def on_values(fun: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception | None = None) -> Any:
    """Look at every argument and run the function now; its arrays are constants.

    Raises:
        LostGradientError: a result could carry the gradient of an argument that requires grad.
        ConcretizationError: a value is not known inside a JAX transformation.

    """
    requiring = None
    for leaf in leaves_of((args, kwargs)):
        if isinstance(leaf, jaxapi.Tracer) or (isinstance(leaf, Handle) and isinstance(look(leaf), jaxapi.Tracer)):
            msg = (
                f"{name}: needs the value of an argument, which is not known inside a JAX transformation; "
                "give static sizes, or call it outside"
            )
            raise ConcretizationError(msg) from error
        if isinstance(leaf, Handle) and (leaf._place.kind.requires_grad or leaf._place.kind.unrecorded) and LOCAL.scope.mode:
            requiring = leaf._place.kind
    values, options = mapped(_value, (args, kwargs))
    with jaxapi.ensure_compile_time_eval():
        try:
            results = fun(*values, **options)
        except errors.FOREIGN as e:
            arrays = [x for x in jax.tree.leaves((values, options)) if isinstance(x, _ARRAYS)]
            raise (errors.wrap(e, name, arrays) or e) from e
    if requiring is not None and any(isinstance(x, _ARRAYS) and differentiable(x) for x in jax.tree.leaves(results)):
        what = "a Variable that requires grad" if requiring.requires_grad else "a gradient that was taken without recording"
        msg = (
            f"{name}: the result depends on the values of {what} (shape {requiring.aval.shape}, dtype {requiring.aval.dtype}) in a way "
            "that is not traced, so no gradient could flow; pass it detached (.detach()), or give the static size that the function offers"
        )
        raise LostGradientError(msg) from error
    return jax.tree.map(lambda x: record.constant(x) if isinstance(x, _ARRAYS) else x, results)


def _value(leaf: object) -> object:
    if not isinstance(leaf, Handle):
        return leaf
    value = look(leaf)
    return value if isinstance(value, jax.Array) else jax.numpy.asarray(value)


def mirrored(fun: Callable[..., Any], name: str | None = None, *, module: str = "tape.numpy") -> Callable[..., Any]:
    """Return the recording counterpart of a JAX function, with its name, signature and docstring."""
    called = name or fun.__name__
    known: Bounded[tuple[object, ...], Op] = Bounded("calls", _KNOWN_LIMIT)
    roles: Roles | None = None
    of_one: Op | None = None  # the op of a call with one Variable and nothing else, and with two: the quickest ways
    of_two: Op | None = None

    def wrapper(*args: Any, **kwargs: Any) -> object:
        try:
            if not kwargs:
                if of_one is not None and len(args) == 1 and isinstance(args[0], Handle):
                    return record_one(of_one, args[0])
                if of_two is not None and len(args) == 2 and isinstance(args[0], Handle):
                    a, b = args
                    if isinstance(b, Handle):
                        return record_two(of_two, a, b)
            variables: list[Any] = []
            key = None if roles is None else quick_key(roles, args, kwargs, variables)
            if all(not isinstance(v, Handle) or v._segment is None for v in variables) and jaxapi.in_trace():
                met()
            if key is not None:
                op = known.get(key)
                if op is not None:
                    return record.record(op, variables)
        except jaxapi.CONCRETE_ERRORS:  # an op that is known for arrays of another kind has to see this one's values
            return call(fun, called, args, kwargs)
        return first_call(key, len(variables), args, kwargs)

    def first_call(key: tuple[object, ...] | None, count: int, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        nonlocal roles
        if roles is None:
            roles = roles_of(fun, called)
            if front is not wrapper:
                front.roles = roles
            return wrapper(*args, **kwargs)
        if key is None:
            return call(fun, called, args, kwargs)

        def learn(op: Op, inputs: int) -> None:
            nonlocal of_one, of_two
            if inputs == count:
                known[key] = op
                if key == (ARRAY,):
                    of_one = op
                elif key == (ARRAY, ARRAY):
                    of_two = op

        return call(fun, called, args, kwargs, learn)

    front: Any = record.quick(wrapper, known=known)
    functools.update_wrapper(front, fun)
    front.__name__ = called
    front.__qualname__ = called
    front.__module__ = module
    return front  # type: ignore[no-any-return]
