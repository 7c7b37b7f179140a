"""Primitives: functions whose body is plain NumPy and SciPy on concrete values, and whose derivatives are rules of the user's.

A primitive is a ``tape.Function`` with the values of its Variables in their places.  A rule sees arrays where nobody differentiates it
again, so that it may call anything; else it sees Variables, and is differentiated by running again.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from interop.autograd import trees
from interop.autograd.arguments import Arguments, holds_variables
from interop.autograd.lowering import holds_tracers, lowered, with_variables
from interop.autograd.tracing import plain, scope
from interop.autograd.trees import is_variable
from interop.autograd.wrap_util import get_name, wraps
from tape import jaxapi
from tape.errors import TapeNotImplementedError, TapeTypeError
from tape.functions.function import Function
from tape.graph import constants
from tape.graph.scope import LOCAL
from tape.graph.trie import RECORD
from tape.modes import enable_grad

primitive_vjps: dict[Any, Callable[..., Any]] = {}
primitive_jvps: dict[Any, Callable[..., Any]] = {}
_CONTAINERS = (tuple, list, dict)


def getval(x: Any) -> Any:
    """Return the value of a Variable as NumPy has it, also inside lists, tuples and dicts; anything else as it is.

    Example:
        >>> import interop.autograd as autograd
        >>> seen = []
        >>> slope = autograd.grad(lambda x: (seen.append(autograd.tracer.getval(x)), x * x)[1])(3.0)
        >>> [float(x) for x in seen]
        [3.0]

    """
    if is_variable(x):
        return plain(x)
    return trees.map_leaves(plain, x) if holds_variables(x) else x


def _no_rule(name: str, give: str, places: Iterable[int]) -> str:
    """Return the message for a primitive that is differentiated by arguments for which nobody gave a rule."""
    return f"{name}: there is no rule for its derivative by argument {', '.join(map(str, places))}; give one with {give}"


def _constant(x: Any) -> Any:
    if isinstance(x, (np.ndarray, np.generic, float, complex, bool, int)):
        return constants.operand(np.asarray(x))
    return x


class _Call:
    """What the rules of one call need: its arguments, and the structure of its answer."""

    __slots__ = ("arguments", "function", "name", "tree")

    def __init__(self, function: Any, name: str, arguments: Arguments) -> None:
        self.function = function
        self.name = name
        self.arguments = arguments
        self.tree: Any = None

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Run the body on plain values; return its answer's leaves as constants."""
        args, kwargs = self.arguments.filled(values)
        answer = self.function.fun(*args, **kwargs)
        leaves, self.tree = trees.flatten(answer)
        return [_constant(x) for x in leaves]


class _Primitive(Function):
    """A call of a primitive: ``apply(call, *variables)``."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *variables: Any) -> Any:
        keywords = call.arguments.keywords
        for k, needed in zip(keywords, ctx.needs_input_grad[len(variables) - len(keywords) :], strict=True):
            if needed:  # JAX says so
                raise _differentiated(call.name, k)
        outputs = call.run([plain(v) for v in variables])
        ctx.call = call
        ctx.set_materialize_grads(True)
        ctx.save_for_backward(list(variables), list(outputs))
        return list(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        call: _Call = ctx.call
        vjpmaker = primitive_vjps.get(call.function)
        if vjpmaker is None:
            if ctx._call is not None and ctx._call.linear and call.function in primitive_jvps:
                return _returned([np.zeros(v.shape, v.dtype) for v in ctx.saved[0]], ctx)  # of seeds that are zeros, for a jvp
            msg = _no_rule(call.name, "defvjp", call.arguments.places)
            raise TapeNotImplementedError(msg)
        args, kwargs, answer, wrap = _seen(ctx, call)
        rule = vjpmaker(tuple(call.arguments.places), answer, args, kwargs)
        gradients = rule(trees.unflatten(call.tree, [wrap(ct) for ct in cotangents]))
        return _returned(call.arguments.taken(tuple(gradients)), ctx)

    @staticmethod
    def push(ctx: Any, *tangents: Any) -> Any:
        """Call the user's jvp, where there is one."""
        call: _Call = ctx.call
        args, kwargs, answer, wrap = _seen(ctx, call)
        arguments = call.arguments
        it = iter([wrap(t) for t in tangents])
        given = [trees.unflatten(tree, [next(it) if leaf is None else leaf for leaf in leaves]) for tree, leaves in arguments.trees]
        pushed = primitive_jvps[call.function](tuple(arguments.places), tuple(given), answer, args, kwargs)
        leaves = trees.leaves_like(call.tree, pushed)
        outputs = ctx.saved[1]
        return [_of_shape(x, v) for x, v in zip(leaves, outputs, strict=True)]


def _seen(ctx: Any, call: _Call) -> tuple[tuple[Any, ...], dict[str, Any], Any, Callable[[Any], Any]]:
    """Return a call's arguments and its answer as a rule is to see them, and what makes of a (co)tangent what it is to see."""
    again = LOCAL.scope.mode == RECORD
    linear = ctx._call is not None and ctx._call.linear
    show: Callable[[Any], Any] = _same if again and not linear else plain
    variables, outputs = ctx.saved
    args, kwargs = call.arguments.filled([show(v) for v in variables])
    return args, kwargs, trees.unflatten(call.tree, [show(v) for v in outputs]), _same if again else plain


def _same(x: Any) -> Any:
    return x


def _returned(gradients: Sequence[Any], ctx: Any) -> Any:
    fitted = [None if g is None else _of_shape(g, v) for g, v in zip(gradients, ctx.saved[0], strict=True)]
    return fitted[0] if len(fitted) == 1 else tuple(fitted)


def _of_shape(g: Any, v: Any) -> Any:
    """Return a result of the user's rule as a Variable of the dtype, and where it is one number of the shape, of another one."""
    if isinstance(g, jaxapi.Tracer):
        g = constants.operand(g)
    if not is_variable(g):
        array = np.asarray(g)
        g = constants.operand(np.asarray(array.real if array.dtype.kind == "c" and v.dtype.kind != "c" else array, v.dtype))
    elif g.dtype != v.dtype:
        g = (g.real if g.dtype.kind == "c" and v.dtype.kind != "c" else g).astype(v.dtype)
    return g.reshape(v.shape) if g.shape != v.shape and g.size == v.size == 1 else g


def primitive(f_raw: Callable[..., Any]) -> Any:
    """Make a primitive: its body sees plain values, its derivatives are what :func:`defvjp` and :func:`defjvp` say.

    Args:
        f_raw: a function of floats, arrays, containers of them and anything else; its body may be plain NumPy and SciPy.

    Raises:
        TapeNotImplementedError: it is differentiated, and there is no rule for that.

    Example:
        >>> import numpy, interop.autograd.numpy as np
        >>> from interop.autograd import grad
        >>> from interop.autograd.extend import defvjp, primitive
        >>> square = primitive(lambda x: numpy.square(x))
        >>> defvjp(square, lambda ans, x: lambda g: g * 2 * x)
        >>> float(grad(grad(square))(3.0))
        2.0

    """
    name = get_name(f_raw)
    members = {"__doc__": f"The primitive {name}.", "__module__": __name__}
    kind: Any = type(name if name.isidentifier() else "primitive", (_Primitive,), members)

    def f_wrapped(*args: Any, **kwargs: Any) -> Any:
        if kwargs and LOCAL.scope.mode == RECORD and f_wrapped not in _NO_TRACE:
            _check_keywords(name, kwargs)
        traced = (f_wrapped in primitive_vjps or f_wrapped in primitive_jvps) and holds_tracers(args)
        if not any(map(holds_variables, args)):
            return lowered(f_wrapped, args, kwargs) if traced else f_raw(*args, **getval(kwargs))
        if traced:
            args = with_variables(args)
        arguments = Arguments(args, {k: getval(v) for k, v in kwargs.items()})
        differentiated = LOCAL.scope.mode == RECORD and any(v._place.kind.requires_grad for v in arguments.variables)
        if not differentiated or f_wrapped in _NO_TRACE:
            args, kwargs = arguments.filled([plain(v) for v in arguments.variables])
            return f_raw(*args, **kwargs)
        if f_wrapped not in primitive_vjps and f_wrapped not in primitive_jvps:
            msg = _no_rule(name, "defvjp", arguments.places)
            raise TapeNotImplementedError(msg)
        if kind.jvp is None and f_wrapped in primitive_jvps:
            kind.jvp, kind._is_checked = staticmethod(_Primitive.push), False
        call = _Call(f_wrapped, name, arguments)
        with enable_grad() if jaxapi.in_trace() else scope():  # a trace has its own setting
            outputs = kind.apply(call, *arguments.variables)
        return trees.unflatten(call.tree, outputs)

    wraps(f_raw)(f_wrapped)
    f_wrapped.fun = f_raw  # type: ignore[attr-defined]
    return f_wrapped


def _check_keywords(name: str, kwargs: dict[str, Any]) -> None:
    """Refuse what is differentiated among the arguments by name: rules are for positions, and its gradient would be lost."""
    for k, x in kwargs.items():
        if any(is_variable(v) and v._place.kind.requires_grad for v in trees.flatten(x)[0]):
            raise _differentiated(name, k)


def _differentiated(name: str, k: str) -> TapeTypeError:
    return TapeTypeError(f"{name}: {k} is differentiated, and a rule is for positional arguments; pass it by position, without {k}=")


_NO_TRACE: set[Any] = set()


def register_notrace(_trace_type: object, primitive_fun: Any) -> None:
    """Have a primitive run on values, as a constant."""
    _NO_TRACE.add(primitive_fun)


def notrace_primitive(f_raw: Callable[..., Any]) -> Any:
    """Make a function that sees the values of Variables, and returns a constant.

    Example:
        >>> from interop.autograd.extend import notrace_primitive
        >>> notrace_primitive(len)([1, 2])
        2

    """
    return wraps(f_raw)(lambda *args, **kwargs: f_raw(*[getval(x) for x in args], **{k: getval(x) for k, x in kwargs.items()}))


def defvjp_argnums(fun: Any, vjpmaker: Callable[..., Any]) -> None:
    """Say what the VJP by several arguments at once is: ``vjpmaker(argnums, ans, args, kwargs)(g)`` returns one gradient for each."""
    primitive_vjps[fun] = vjpmaker


def defvjp_argnum(fun: Any, vjpmaker: Callable[..., Any]) -> None:
    """Say what the VJP by one argument is: ``vjpmaker(argnum, ans, args, kwargs)(g)``."""

    def vjp_argnums(argnums: Sequence[int], *rest: Any) -> Callable[[Any], list[Any]]:
        vjps = [vjpmaker(argnum, *rest) for argnum in argnums]
        return lambda g: [vjp(g) for vjp in vjps]

    defvjp_argnums(fun, vjp_argnums)


def defvjp(fun: Any, *vjpmakers: Callable[..., Any] | None, argnums: Sequence[int] | None = None) -> None:
    """Say what the VJPs of a primitive are: for each argument ``vjpmaker(ans, *args, **kwargs)(g)``, or None for zero.

    Args:
        fun: what :func:`primitive` returned.
        vjpmakers: one for each argument, in order.
        argnums: the arguments that they are for, where these are not the first ones.

    """
    makers = dict(zip(itertools.count() if argnums is None else argnums, vjpmakers, strict=argnums is not None))
    _check(fun, makers.values())

    def vjp_argnums(wanted: Sequence[int], ans: Any, args: Any, kwargs: Any) -> Callable[[Any], list[Any]]:
        missing = [n for n in wanted if n not in makers]
        if missing:
            msg = _no_rule(get_name(fun), "defvjp", missing)
            raise TapeNotImplementedError(msg)
        vjps = [None if (make := makers[n]) is None else make(ans, *args, **kwargs) for n in wanted]
        return lambda g: [None if vjp is None else vjp(g) for vjp in vjps]

    defvjp_argnums(fun, vjp_argnums)


def defjvp_argnums(fun: Any, jvpmaker: Callable[..., Any]) -> None:
    """Say what the tangent of the answer is: ``jvpmaker(argnums, gs, ans, args, kwargs)``."""
    primitive_jvps[fun] = jvpmaker


def defjvp_argnum(fun: Any, jvpmaker: Callable[..., Any]) -> None:
    """Say what one argument adds to the tangent of the answer: ``jvpmaker(argnum, g, ans, args, kwargs)``."""

    def jvp_argnums(argnums: Sequence[int], gs: Sequence[Any], ans: Any, args: Any, kwargs: Any) -> Any:
        return _sum([jvpmaker(n, g, ans, args, kwargs) for n, g in zip(argnums, gs, strict=True)], ans)

    defjvp_argnums(fun, jvp_argnums)


def defjvp(fun: Any, *jvpfuns: Callable[..., Any] | str | None, argnums: Sequence[int] | None = None) -> None:
    """Say what each argument adds to the tangent of the answer: ``jvpfun(g, ans, *args, **kwargs)``, None (nothing) or "same" (linear)."""
    makers = dict(zip(itertools.count() if argnums is None else argnums, jvpfuns, strict=argnums is not None))
    _check(fun, [f for f in makers.values() if f != "same"])

    def jvpmaker(argnum: int, g: Any, ans: Any, args: Any, kwargs: Any) -> Any:
        if argnum not in makers:
            msg = _no_rule(get_name(fun), "defjvp", [argnum])
            raise TapeNotImplementedError(msg)
        rule = makers[argnum]
        if rule == "same":
            return fun(*[g if i == argnum else x for i, x in enumerate(args)], **kwargs)
        return None if rule is None else rule(g, ans, *args, **kwargs)  # type: ignore[operator]

    defjvp_argnum(fun, jvpmaker)


def def_linear(fun: Any) -> None:
    """Say that a primitive is linear in each of its arguments."""
    defjvp_argnum(fun, lambda n, g, _ans, args, kwargs: fun(*[g if i == n else x for i, x in enumerate(args)], **kwargs))


def _sum(terms: Sequence[Any], like: Any) -> Any:
    there = [t for t in terms if t is not None]
    if not there:
        return jax.tree.map(lambda x: np.zeros(np.shape(plain(x)), np.result_type(plain(x))), like, is_leaf=is_variable)
    total = there[0]
    for term in there[1:]:
        total = jax.tree.map(lambda a, b: a + b, total, term, is_leaf=is_variable)
    return total


def _check(fun: Any, rules: Any) -> None:
    for rule in rules:
        if rule is not None and not callable(rule):
            msg = f"{get_name(fun)}: a rule is a function, or None where nothing flows, not {rule!r}"
            raise TapeTypeError(msg)


def with_deprecated_methods(f_raw: Callable[..., Any]) -> Any:
    """Make a primitive, as ``extend.primitive``, that has the methods of old programs: ``defgrad``, ``defvjp``, ``defvjp_is_zero``.

    Example:
        >>> import numpy
        >>> from interop.autograd import grad, primitive
        >>> from interop.autograd.extend import defvjp
        >>> square = primitive(lambda x: numpy.square(x))
        >>> defvjp(square, lambda ans, x: lambda g: g * 2 * x)
        >>> float(grad(square)(3.0))
        6.0

    """
    fun = primitive(f_raw)
    makers: dict[int, Any] = {}

    def define(argnum: int, maker: Any) -> None:
        warnings.warn("The methods of primitives are deprecated; use defvjp(fun, ...)", DeprecationWarning, stacklevel=3)
        makers[argnum] = maker
        defvjp(fun, *makers.values(), argnums=tuple(makers))

    def old(vjp: Callable[..., Any], argnum: int = 0) -> None:
        define(argnum, lambda ans, *args, **kwargs: lambda g: vjp(g, ans, None, None, *args, **kwargs))

    fun.defvjp = old
    fun.defgrad = lambda maker, argnum=0: define(argnum, maker)

    def zero(argnums: Sequence[int] = (0,)) -> None:
        for n in argnums:
            define(n, None)

    fun.defvjp_is_zero = zero
    return fun
