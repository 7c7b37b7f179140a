"""What leaves the tape: shapes and dtypes, Python numbers, NumPy arrays, text.

Shape and dtype are known without running anything; everything else looks at the value.
"""

from __future__ import annotations

import contextlib
import functools
import html
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import jax
import numpy as np
from jax.typing import DTypeLike

from tape import jaxapi
from tape.errors import ConcretizationError, LeakedTracerError, LostGradientError, TapeError, TapeRuntimeError, TapeTypeError, wrap
from tape.graph import boundary
from tape.graph.constants import known_array
from tape.graph.kinds import Kind, differentiable
from tape.graph.scope import LOCAL, note_given
from tape.graph.segment import Handle
from tape.graph.trie import RECORD
from tape.graph.watcher import NOBODY
from tape.mirrored import absent
from tape.programs.program import look, taken
from tape.recording import record
from tape.sweeps.seeds import describe
from tape.variables import advice, callers, methods
from tape.variables.awaiting import awaited

T = TypeVar("T")
_ABOUT = re.compile(r",\s+(?=shape=|dtype=)")  # between the numbers of an array and what is said of them
_ASKS_FOR_SHAPES = {"shaped_abstractify", "typeof", "get_aval", "canonicalize_value"}
_BELOW = "\n" + " " * len("Variable(")


class Convertible(methods.ArrayMethods):
    """The part of a Variable that turns it into something else."""

    __slots__ = ()

    if not TYPE_CHECKING:  # which would take every name for one that is there

        def __getattr__(self, name: str) -> Any:  # for what is found nowhere else
            if name == "__jax_array__":  # the property below refuses, at every operator of an array of JAX with a Variable
                raise AttributeError(name)
            raise absent.missing(self, name)

    # -- what is known without looking ------------------------------------------------------------------------------

    @property
    def _kind(self) -> Kind:
        if LOCAL.scope.trace is not NOBODY:
            LOCAL.scope.trace.ask(self)
        return self._place.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self._kind.aval.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> Any:
        """NumPy dtype (or a JAX extended dtype, for PRNG keys)."""
        return self._kind.aval.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._kind.aval.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self._kind.aval.size)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def weak_type(self) -> bool:
        """Whether the dtype gives way to others, as a Python scalar's does."""
        return bool(self._kind.aval.weak_type)

    @record.reading(None)
    def item(self, *args: object) -> Any:
        """Return the one element as a Python scalar (or the element at an index)."""
        return _noted(self, _converted("item", self, _numbers(self, "item").item, *args))

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a NumPy array of its own with the value; a gradient does not follow."""
        note_given(self)
        return _converted("numpy", self, np.array, _numbers(self, "numpy"))

    def tolist(self) -> Any:
        """Return the value as nested lists of Python scalars."""
        note_given(self)
        return _converted("tolist", self, _numbers(self, "tolist").tolist)

    def tobytes(self, order: Literal["K", "A", "C", "F"] | None = "C") -> bytes:
        """Return the value's bytes."""
        note_given(self)
        return _converted("tobytes", self, lambda x: np.asarray(x).tobytes(order), _numbers(self, "tobytes"))

    def block_until_ready(self) -> Self:
        """Run what is pending, wait for it, and return self."""
        value = look(self)
        if hasattr(value, "block_until_ready"):
            (awaited(value) if hasattr(value, "is_ready") else value).block_until_ready()  # keys of random numbers are not asked
        return self

    @property
    def device(self) -> Any:
        """The device (or sharding) of the value; None in a JAX transformation or ``tape.jit``, where it has none yet."""
        return getattr(as_array(look(self)), "device", None)

    def devices(self) -> set[jax.Device]:
        """Return the devices that hold the value."""
        return as_array(look(self)).devices()

    @property
    def sharding(self) -> Any:
        """The sharding of the value."""
        return as_array(look(self)).sharding

    @record.reading(bool)
    def __bool__(self) -> bool:
        return _converted("bool", self, bool, _scalar(self, "bool"))

    @record.reading(float)
    def __float__(self) -> float:
        return _noted(self, _convert(float, self))

    @record.reading(int)
    def __int__(self) -> int:
        return _convert(int, self)

    def __complex__(self) -> complex:
        return _noted(self, _convert(complex, self))

    def __index__(self) -> int:
        return _converted("index", self, _numbers(self, "index").__index__)

    def __format__(self, spec: str) -> str:
        value = look(self)
        if isinstance(value, jax.core.Tracer):
            return repr(self)
        return _converted("format", self, format, concrete(self, "format"), spec)

    def __repr__(self) -> str:
        try:
            value = look(self)
        except ConcretizationError:
            value = None
        about = ["requires_grad=True"] if self._place.kind.requires_grad else []
        if self._extra is not None and self._extra.name:
            about.append(f"name={self._extra.name!r}")
        if value is None or isinstance(value, jax.core.Tracer) or boundary.is_abstract(value):
            return f"Variable({', '.join([f'<{self._place.kind.aval.str_short()}>', *about])})"
        if boundary.is_deleted(value):
            return f"Variable({', '.join([f'<{self._place.kind.aval.str_short()}, deleted>', *about])})"
        body, *overlaid = repr(as_array(value)).split(" overlaying:")  # a key's numbers
        numbers, *kind = _ABOUT.split(body.removeprefix("Array(").removesuffix(")"), maxsplit=1)
        first = f"Variable({numbers}".replace("\n", "\n   ")  # as much deeper as the word is longer than JAX's
        rest = ", ".join([*kind, *about]) + ")"
        fits = len(first) - first.rfind("\n") + len(rest) < np.get_printoptions()["linewidth"]
        return " overlaying:".join([f"{first},{' ' if fits else _BELOW}{rest}", *overlaid])

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what it is, and then the value."""
        kind = self._place.kind
        extra = self._extra
        about = [str(kind.aval.str_short()), "requires grad" if kind.requires_grad else "constant"]
        if extra is not None and extra.name:
            about.insert(0, f"<b>{html.escape(extra.name)}</b>")
        if kind.requires_grad:
            producer = None if self._segment is None else methods.producer(self._segment.state, self._place.slot)
            about.append("leaf" if producer is None else f"by {html.escape(producer.name)}")
            if extra is not None and extra.grad is not None:
                about.append("has .grad")
        head = f'<span style="opacity:.7">{", ".join(about)}</span>'
        value = f'<pre style="font-family:monospace;margin:2px 0">{html.escape(repr(self))}</pre>'
        return f'<div style="font-family:monospace">{head}{value}</div>'

    def __len__(self) -> int:
        if not self.shape:
            msg = f"len() of a Variable without axes ({describe(self)}); take v.size, or v.ravel()"
            raise TapeTypeError(msg)
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        if not self.shape:
            msg = f"iteration over a Variable without axes ({describe(self)}); take v.item() for its number, or v.ravel()"
            raise TapeTypeError(msg)
        return iter([self[i] for i in range(self.shape[0])])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if self._place.kind.requires_grad and not jaxapi.fetches(sys._getframe(1).f_code):
            msg = (
                f"np.asarray of a Variable that requires grad ({describe(self)}) would lose its gradient; use .numpy(), .value or "
                ".detach() for a constant, or tape.numpy functions to stay on the tape"
            )
            raise LostGradientError(msg)
        note_given(self)
        convert: Callable[..., np.ndarray[Any, Any]] = np.asarray if copy is False else np.array
        return _converted("np.asarray", self, functools.partial(convert, dtype=dtype), _numbers(self, "np.asarray"))

    @property
    def __jax_array__(self) -> Callable[[], Any] | None:
        # JAX's binary operators convert an operand that has this attribute, and otherwise leave it to the operand's reflected method, which
        # records. Should JAX rename them, `jax_array * v` raises below for a Variable that requires grad; it never loses its gradient.
        code = sys._getframe(1).f_code
        asking = code.co_name
        if asking.startswith("_operator_"):
            if "getattr" in code.co_names:  # newer releases ask for it or None, which costs a fifth of what raising does
                return None
            raise AttributeError
        if asking.startswith("deferring_binary_op") or asking == "bind":  # a primitive, which says the type that it was given
            raise AttributeError
        if asking in _ASKS_FOR_SHAPES:  # JAX takes a TypeError for its own, and would say other words
            place = _NO_ARRAY if differentiable(self._place.kind.aval) else _NO_INDEX
            raise TapeRuntimeError(self._raw_jax() or f"a Variable ({describe(self)}) {place}")
        return self._refuse_or_look

    def _refuse_or_look(self) -> jax.Array:
        lost = self._raw_jax()
        if lost is not None:
            raise LostGradientError(lost)
        note_given(self)
        return as_array(taken(self))

    def _raw_jax(self) -> str | None:
        """Say what a raw JAX function would lose of this Variable."""
        kind = self._place.kind
        if kind.requires_grad:
            leaf = "; a function of jax.tree handed it out, and hands out arrays under tape.no_grad()" if self._original is not None else ""
            return (
                f"a Variable that requires grad ({describe(self)}) met a raw JAX function, which would lose its gradient; use "
                f"the function's counterpart in tape.numpy, tape.lax or tape.nn, wrap yours with interop.lift, or pass .detach() or "
                f".value{leaf}"
            )
        if kind.unrecorded == boundary.CUT and boundary.is_traced(self):
            return f"a Variable ({describe(self)}) met a raw JAX function, which would lose its gradient: {boundary.CUT}"
        return None

    def __dlpack__(
        self,
        *,
        stream: int | Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if self._place.kind.requires_grad:
            return np.asarray(self).__dlpack__()  # which refuses: the gradient would be lost
        array: Any = as_array(look(self))  # whose annotations lack some of it
        return array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> Any:
        return as_array(look(self)).__dlpack_device__()  # type: ignore[attr-defined]


_NO_INDEX = "stands where JAX takes an array, as in x[i] of a JAX array x; write x[i.value], or tape.constant(x)[i]"
_NO_ARRAY = (
    "stands where JAX takes an array, as for the result of a function that jax.grad differentiates; use tape.grad(f)(x) in place of "
    "jax.grad(f)(x), or jax.grad(interop.lower(f))(x.value) for arrays, and elsewhere pass its .value"
)


def as_array(value: object) -> jax.Array:
    """Return an array also for a scalar constant, whose cell holds the Python value.

    Raises:
        ConcretizationError: there is only a shape and a dtype, as ``jax.eval_shape`` returns them.

    """
    if isinstance(value, jax.Array):
        return value
    if boundary.is_abstract(value):
        raise ConcretizationError(boundary.no_value(value))
    return known_array(value)


def concrete(variable: Handle, what: str) -> jax.Array:
    """Return the array of a Variable for a conversion to Python or NumPy."""
    value = look(variable)
    if isinstance(value, jax.core.Tracer) and (variable._place.kind.requires_grad or variable._place.kind.unrecorded):
        with contextlib.suppress(jax.errors.UnexpectedTracerError):
            value = jax.lax.stop_gradient(value)  # which jax.grad without jax.jit knows
    if isinstance(value, jax.core.Tracer):
        if not jaxapi.in_trace():
            msg = (
                f"{what}: the value of a Variable ({describe(variable)}) existed only inside a JAX transformation (also of a scan, a "
                "checkpoint or a branch) that is over; return it from the function that was traced"
            )
            raise LeakedTracerError(msg)
        msg = (
            f"{what}: the value of a Variable ({describe(variable)}) is not known inside a JAX transformation; use tape.lax.cond or "
            "tape.numpy.where instead of Python control flow, make a flag or a count among the arguments static (static_argnames of "
            "tape.jit and tape.checkpoint), or leave it out of the transformed function"
        )
        raise ConcretizationError(msg)
    array = as_array(value)
    if boundary.is_deleted(array):
        msg = f"{what}: the array of a Variable ({describe(variable)}) {boundary.DELETED}"
        raise TapeRuntimeError(msg)
    if not (array.is_fully_addressable or array.is_fully_replicated):
        raise TapeRuntimeError(_in_pieces(what, variable, array))
    return array


def _numbers(variable: Handle, what: str) -> jax.Array:
    """Return the array of a Variable, unless it is a key of random numbers."""
    if not isinstance(variable._place.kind.aval.dtype, np.dtype):
        msg = f"{what}: a Variable that is a key ({describe(variable)}) is no number; use tape.random.key_data(x) for the numbers in it"
        raise TapeTypeError(msg)
    return awaited(concrete(variable, what))


def _scalar(variable: Handle, what: str) -> Any:
    """Return the array of a Variable; one without axes is NumPy's, which Python makes a number of in a quarter of the time."""
    value = _numbers(variable, what)
    return value if variable._place.kind.aval.shape or isinstance(value, jax.core.Tracer) else np.asarray(value)


def _converted(what: str, variable: Handle, convert: Callable[..., T], *args: object) -> T:
    """Return ``convert(*args)``; where it fails, say so as an error of this library."""
    try:
        return convert(*args)
    except (TypeError, ValueError, IndexError, OverflowError) as e:
        raise (wrap(e, f"{what} of a Variable ({describe(variable)})", repair=advice.for_conversion(what, variable)) or e) from e
    except RuntimeError as e:
        raise _elsewhere(what, variable, e) from e


def _elsewhere(what: str, variable: Handle, error: RuntimeError) -> RuntimeError:
    """Return what to say where other processes have a part of the value; any other error as it is."""
    value = as_array(look(variable))
    if value.is_fully_addressable:
        return error
    return TapeRuntimeError(_in_pieces(what, variable, value))


def _in_pieces(what: str, variable: Handle, value: jax.Array) -> str:
    """Say that other processes have a part of a value, and how to look at it."""
    here, all_of_them = len(value.addressable_shards), len(value.sharding.device_set)
    return (
        f"{what}: the value of a Variable ({describe(variable)}) lies in part on devices of other processes, and this one has {here} of "
        f"its {all_of_them} pieces; look at v.addressable_shards, or gather it with "
        "jax.experimental.multihost_utils.process_allgather(v.value, tiled=True)"
    )


def _noted(variable: Handle, number: T) -> T:
    """Return numbers of Python's; where gradients could flow to what gave them, note that: a function may return one."""
    if variable._place.kind.requires_grad:
        LOCAL.gave = True
    return number


def _convert(kind: Callable[[Any], T], variable: Handle) -> T:
    if variable._place.kind.requires_grad and LOCAL.scope.mode == RECORD:
        asking = callers.sink(sys._getframe(2))
        if asking is not None:
            msg = (
                f"{asking.reads}: it would take {kind.__name__}(v) of a Variable that requires grad ({describe(variable)}), and lose its "
                f"gradient; write {asking.number.format(kind.__name__)} for the number, or {asking.recorded} to stay on the tape"
            )
            raise LostGradientError(msg)
    try:
        return kind(_scalar(variable, kind.__name__))
    except TapeError:
        raise
    except RuntimeError as e:
        raise _elsewhere(kind.__name__, variable, e) from e
    except TypeError as e:
        repair = "take .real, or convert it first"
        if variable._place.kind.aval.shape:
            repair = "take v.item()" if variable._place.kind.aval.size == 1 else "reduce it, or index one element"
        msg = f"{kind.__name__}: needs a Variable without axes and of a dtype that fits, got {describe(variable)}; {repair}"
        raise TapeTypeError(msg) from e
    except (ValueError, OverflowError) as e:  # int(nan), int(inf)
        raise (wrap(e, f"{kind.__name__} of a Variable ({describe(variable)})") or e) from e
