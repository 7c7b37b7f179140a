"""Arguments of compiled steps: which are static, which are arrays and Variables, and what makes two calls alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tape.bounded import Bounded
from tape.callables.matching import told_apart
from tape.configuration import configuration
from tape.errors import TapeTypeError, TapeValueError
from tape.graph.constants import constant, known_array, refused
from tape.graph.scope import LOCAL
from tape.graph.segment import Handle, itself
from tape.graph.trees import flatten, leaves_of, variables_in
from tape.jitting import records

_ARRAYS = (jax.Array, np.ndarray, np.generic)
_NUMBERS = (bool, int, float, complex)


class Call(NamedTuple):
    """The arguments of one call, taken apart.

    ``leaves`` are arrays, numbers and Variables; ``tree`` puts them back, and ``given`` says in which order dicts are then; ``statics``
    are (position or name, value); ``length`` is the number of positional arguments.
    """

    leaves: list[Any]
    tree: Any
    statics: tuple[tuple[int | str, Any], ...]
    length: int
    donated: frozenset[int]  # which leaves are
    given: Any = None  # the arguments, where dicts are among them
    order: Any = None  # and how they are ordered

    @property
    def variables(self) -> list[Any]:
        """The Variables among the leaves, each once."""
        return list({id(x): x for x in self.leaves if isinstance(x, Handle)}.values())

    @property
    def arrays(self) -> list[Any]:
        """The other leaves."""
        return [x for x in self.leaves if not isinstance(x, Handle)]

    @property
    def array_flags(self) -> list[bool]:
        """For each of those, whether it is donated."""
        return [i in self.donated for i, x in enumerate(self.leaves) if not isinstance(x, Handle)]

    def donates(self, variable: Handle) -> bool:
        """Tell whether a Variable is donated."""
        return any(self.leaves[i] is variable for i in self.donated)

    def put_back(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with other leaves."""
        dynamic, kwargs = jax.tree.unflatten(self.tree, leaves)
        if self.given is not None:
            dynamic, kwargs = records.in_order_of(self.given, (dynamic, kwargs))
        rest = iter(dynamic)
        positional = {k: v for k, v in self.statics if isinstance(k, int)}
        args = tuple(positional[i] if i in positional else next(rest) for i in range(self.length))
        return args, {**kwargs, **{k: v for k, v in self.statics if isinstance(k, str)}}


class Parameters:
    """The parameters of a function, with those that are static or donated."""

    def __init__(self, fun: Callable[..., Any], options: dict[str, Any]) -> None:
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        ordered = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        any_number = not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters)
        any_name = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._named = frozenset(named)
        self.static = _chosen("static", options, ordered, None if any_name else named, any_number)
        self.donated = _chosen("donate", options, ordered, None if any_name else named, any_number)
        both = self.static & self.donated
        if both:
            msg = f"jit: {min(map(str, both))} is both static and donated; a static argument has no buffer"
            raise TapeValueError(msg)

    def take_apart(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Separate the arguments of one call."""
        static = self.static
        statics: list[tuple[int | str, Any]] = []
        dynamic: tuple[Any, ...] = args
        if static:
            chosen = _positions(static, len(args))
            statics = [(i, args[i]) for i in sorted(chosen)]
            statics += [(k, kwargs[k]) for k in sorted(kwargs) if k in static]
            dynamic = tuple(a for i, a in enumerate(args) if i not in chosen)
            kwargs = {k: v for k, v in kwargs.items() if k not in static}
            for k, v in statics:
                try:
                    hash(v)
                except TypeError as e:
                    msg = (
                        f"jit: the static argument {k!r} of {name} has type {type(v).__name__}, which cannot be hashed; pass a tuple, "
                        "or another hashable value"
                    )
                    raise TapeTypeError(msg) from e
                if variables_in(v):
                    msg = (
                        f"jit: the static argument {k!r} of {name} is or holds a Variable, whose value is no part of a program; "
                        "do not name it static"
                    )
                    raise TapeTypeError(msg)
        leaves, tree = flatten((dynamic, kwargs))
        donated = self._donated(dynamic, kwargs, len(args)) if self.donated else frozenset()
        for x in leaves:
            if not isinstance(x, (Handle, *_ARRAYS, *_NUMBERS)) or (isinstance(x, np.ndarray) and x.dtype == object):
                msg = (
                    f"jit: an argument of {name} is or holds {type(x).__name__}, which is not a Variable, array or number; name it in "
                    "static_argnums or static_argnames (it must be hashable then), or let the function close over it"
                )
                raise TapeTypeError(msg)
        bring = LOCAL.scope.caller.bring
        leaves = [itself(x) if isinstance(x, Handle) else constant(x) if isinstance(x, _ARRAYS) and bring(x) else x for x in leaves]
        rest = [k for k in kwargs if k not in self._named]  # whose order a function sees
        if len(rest) < 2 and not any(isinstance(x, (dict, list, tuple)) for x in (*dynamic, *kwargs.values())):
            return Call(leaves, tree, tuple(statics), len(args), donated)
        given = (dynamic, {k: kwargs[k] for k in (*sorted(kwargs.keys() - rest), *rest)})
        return Call(leaves, tree, tuple(statics), len(args), donated, given, records.flatten(given)[1])

    def _donated(self, dynamic: tuple[Any, ...], kwargs: dict[str, Any], n: int) -> frozenset[int]:
        """Return which leaves belong to donated arguments."""
        numbers, static = _positions(self.donated, n), _positions(self.static, n)
        flags: list[bool] = []
        for i, a in zip([i for i in range(n) if i not in static], dynamic, strict=True):
            flags += [i in numbers] * len(leaves_of(a))
        for k in sorted(kwargs):
            flags += [k in self.donated] * len(leaves_of(kwargs[k]))
        return frozenset(i for i, d in enumerate(flags) if d)


def _positions(chosen: frozenset[int | str], n: int) -> set[int]:
    """Return which of ``n`` positional arguments are chosen."""
    return {i % n for i in chosen if isinstance(i, int) and -n <= i < n}


def _chosen(kind: str, options: dict[str, Any], ordered: Sequence[str], named: set[str] | None, any_number: bool) -> frozenset[int | str]:
    """Return positions and names of parameters, each named one with its position and the other way round."""
    numbers = _listed(f"{kind}_argnums", options.get(f"{kind}_argnums"), int)
    names = _listed(f"{kind}_argnames", options.get(f"{kind}_argnames"), str)
    for i in numbers:
        if not any_number and not -len(ordered) <= i < len(ordered):
            msg = f"jit: {kind}_argnums names argument {i}, but the function has {len(ordered)} positional parameters"
            raise TapeValueError(msg)
    for n in names:
        if named is not None and n not in named:
            msg = f"jit: {kind}_argnames names {n!r}, which is not a parameter of the function; it has {', '.join(sorted(named)) or 'none'}"
            raise TapeValueError(msg)
    as_names = [ordered[i] for i in numbers if -len(ordered) <= i < len(ordered)]
    return frozenset([*numbers, *names, *as_names, *[ordered.index(n) for n in names if n in ordered]])


def _listed(option: str, given: object, kind: type) -> list[Any]:
    if given is None:
        return []
    listed = [given] if isinstance(given, (int, str)) or not hasattr(given, "__iter__") else list(given)
    for x in listed:
        if not isinstance(x, kind) or isinstance(x, bool):
            msg = f"jit: {option} takes one {kind.__name__} or a sequence of them, got {type(x).__name__}"
            raise TapeTypeError(msg)
    return listed


def signature(call: Call) -> Hashable:
    """Return what two calls have in common that one program can serve."""
    met: dict[int, int] = {}
    leaves = [(met.setdefault(id(x), len(met)), x._place.kind) if isinstance(x, Handle) else aval_of(x) for x in call.leaves]
    return (call.tree, call.order, tuple(leaves), tuple([(k, told_apart(v)) for k, v in call.statics]), call.length)


_AVALS: Bounded[Hashable, Any] = Bounded("avals of NumPy arrays", 1 << 10)  # by dtype, shape and settings


def aval_of(x: Any) -> Any:
    """Return shape and dtype of an array or number, as JAX sees them."""
    if isinstance(x, jax.Array):
        return jax.typeof(x)
    try:
        if x.__class__ is np.ndarray:  # to put one on the device, which the program's call does again, takes 40 us
            return _AVALS.cached((x.dtype, x.shape, configuration()), lambda: jax.typeof(known_array(x)))
        return jax.typeof(known_array(x))
    except (TypeError, ValueError, OverflowError) as e:
        raise refused("jit: an argument", x, e) from e


def belongs_to(function: Any, first: object) -> bool:
    """Tell whether a function is a classmethod of its first argument: since Python 3.13, it is not bound to the class, which is passed."""
    name = getattr(function, "__name__", "")
    methods = [vars(c).get(name) for c in first.__mro__] if isinstance(first, type) else []
    return any(isinstance(m, classmethod) and m.__func__ is function for m in methods)
