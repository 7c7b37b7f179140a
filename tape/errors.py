"""Every error class of the library: each derives from :class:`TapeError` and from the builtin that a user would expect.

A message says what happened, which value it happened to (shape, dtype), and what to do about it. Each class has a page with its cause, an
example and the repair, which ``python -m tape error NAME`` shows; tracebacks say so below the message, as a note (PEP 678), so that the
message itself stays as it is.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "FOREIGN",
    "PAGES",
    "ConcretizationError",
    "ExecutionError",
    "GradientDtypeError",
    "GradientMismatch",
    "GradientShapeError",
    "InconclusiveGradientError",
    "LeakedTracerError",
    "LostGradientError",
    "NonFiniteError",
    "OutOfMemoryError",
    "ReleasedTapeError",
    "RuleError",
    "SeedDtypeError",
    "SeedError",
    "TapeAttributeError",
    "TapeError",
    "TapeImportError",
    "TapeIndexError",
    "TapeNameError",
    "TapeNotImplementedError",
    "TapeOverflowError",
    "TapeRuntimeError",
    "TapeTypeError",
    "TapeValueError",
    "TapeWarning",
    "UnconnectedError",
    "UnrecordedGradientError",
    "check_callable",
    "check_flag",
    "check_mapping",
    "saying",
    "taking",
    "unknown_keyword",
    "warn",
    "wrap",
]


F = TypeVar("F", bound="Callable[..., Any]")

PAGES: str | None = "python -m tape error {}"
"""Where the page of an error class is, with ``{}`` for its name: the command that shows it, which needs no network. The address of a
site does as well (``"https://.../{}.html"``). None names none: for doctests, say, which compare notes too."""


class TapeError(Exception):
    """Base class of everything that this library raises on purpose."""

    @property
    def __notes__(self) -> list[str]:
        """What was added to the message, and the page of this class: made when a traceback shows it."""
        own: list[str] = self.__dict__.get("__notes__", [])
        if PAGES is None:
            return own
        named = next(
            c for c in type(self).__mro__ if c.__module__ == __name__
        )  # a user's own class has that of the one that it is made from
        last = f"See {PAGES.format(named.__name__)}"
        return own if last in own else [*own, last]

    @__notes__.setter
    def __notes__(self, notes: list[str]) -> None:
        self.__dict__["__notes__"] = notes

    def add_note(self, note: str, /) -> None:
        """Add a line, which tracebacks show between the message and the page."""
        if not isinstance(note, str):
            msg = f"add_note: a note is a string, got {type(note).__name__}"
            raise TapeTypeError(msg)
        self.__dict__.setdefault("__notes__", []).append(note)


class TapeTypeError(TapeError, TypeError):
    """An argument has the wrong type or dtype."""


class TapeValueError(TapeError, ValueError):
    """An argument has the right type but a value or shape that does not fit."""


class TapeOverflowError(TapeError, OverflowError):
    """A Python number does not fit the dtype that it would get."""


class TapeIndexError(TapeError, IndexError):
    """An index does not fit the shape of the Variable."""


class TapeRuntimeError(TapeError, RuntimeError):
    """The tape is not in a state that allows what was asked."""


class TapeNotImplementedError(TapeRuntimeError, NotImplementedError):
    """JAX does not implement what was asked."""


class TapeNameError(TapeError, NameError):
    """A named axis is not bound where it is used."""


class TapeAttributeError(TapeError, AttributeError):
    """A Variable or a module does not have an attribute, or it cannot be assigned to."""


class TapeImportError(TapeError, ImportError):
    """A module of this library needs a package that is not installed."""


class SeedError(TapeValueError):
    """A root needs a seed, or the seed given does not fit it (shape)."""


class SeedDtypeError(TapeTypeError):
    """A seed's dtype does not fit its root: a complex seed for a real root."""


class UnconnectedError(TapeValueError):
    """No differentiable path leads from the outputs to an input."""


class LostGradientError(TapeTypeError):
    """An operation would silently take a Variable that requires grad for a constant."""


class ConcretizationError(TapeTypeError):
    """A value was looked at where only its shape and dtype are known."""


class LeakedTracerError(TapeRuntimeError):
    """A value that exists only inside a JAX transformation would be stored in a Variable from outside, or is looked at afterwards."""


class ExecutionError(TapeRuntimeError):
    """An op that was recorded failed when it ran: a callback raised, or XLA did."""


class NonFiniteError(TapeError, FloatingPointError):
    """An op made a NaN or an infinity under ``tape.detect_anomaly``, ``jax.debug_nans`` or ``jax.debug_infs``, which forbid that."""


class OutOfMemoryError(TapeError, MemoryError):
    """There was not enough memory to run what is pending; it stays pending."""


class ReleasedTapeError(TapeRuntimeError):
    """A sweep reached a part of the tape that an earlier sweep released."""


class UnrecordedGradientError(TapeRuntimeError):
    """A gradient taken without ``create_graph=True`` was differentiated."""


class RuleError(TapeRuntimeError):
    """A VJP rule or a custom backward returned the wrong number of gradients."""


class GradientShapeError(RuleError, ValueError):
    """A VJP rule or a custom backward returned a cotangent of the wrong shape."""


class GradientDtypeError(RuleError, TypeError):
    """A VJP rule or a custom backward returned a cotangent of the wrong dtype."""


class GradientMismatch(TapeError, AssertionError):  # noqa: N818 - it is a finding, as AssertionError's subclasses are
    """A derivative under test is not the function's; ``report`` says where, by how much, and what kind of wrong it is."""

    def __init__(self, report: object) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        """Show the report."""
        return str(self.report)


class InconclusiveGradientError(TapeError, AssertionError):
    """A property test reached a verdict on none of its examples, so that it tested nothing."""


class TapeWarning(UserWarning):
    """Something is not what it seems: a gradient that is not kept, a tape that grows without end."""


_TOLD: dict[Any, int] = {}


def warn(message: str, where: tuple[str, int] | None) -> None:
    """Give a TapeWarning at a line of a file of the user's (once, unless Python's warning filters say otherwise)."""
    file, line = where or ("<unknown>", 0)
    warnings.warn_explicit(message, TapeWarning, file, line, registry=_TOLD)


def check_flag(function: str, argument: str, given: object) -> None:
    """Raise TapeTypeError where an argument is neither True nor False, and could be meant otherwise than Python takes it."""
    if not isinstance(given, (bool, np.bool_)):
        msg = f"{function}: {argument} must be True or False, got {type(given).__name__}"
        raise TapeTypeError(msg)


def check_callable(function: str, given: object, what: str = "expected a function") -> None:
    """Raise TapeTypeError where something cannot be called."""
    if not callable(given):
        msg = f"{function}: {what}, got {type(given).__name__}"
        raise TapeTypeError(msg)


def check_mapping(function: str, given: object) -> None:
    """Raise TapeTypeError where something does not give values by name."""
    if not isinstance(given, Mapping):
        msg = f"{function}: expected values by name, as state_dict() returns them, got {type(given).__name__}"
        raise TapeTypeError(msg)


# What JAX raises where arguments do not fit, by the class that a user gets for it.
_WRAPPED: tuple[tuple[type[Exception], type[TapeError]], ...] = (
    (TypeError, TapeTypeError),
    (IndexError, TapeIndexError),
    (OverflowError, TapeOverflowError),
    (ValueError, TapeValueError),
    (NotImplementedError, TapeNotImplementedError),
    (NameError, TapeNameError),  # a named axis
    (AttributeError, TapeTypeError),  # of an argument that is not an array
    (KeyError, TapeValueError),
    (AssertionError, TapeValueError),
    (ZeroDivisionError, TapeValueError),
)
FOREIGN = tuple(builtin for builtin, _ in _WRAPPED)

# Keywords of PyTorch that NumPy and JAX call otherwise.
_KEYWORDS = {
    "dim": "axis=",
    "dims": "axis=",
    "keepdim": "keepdims=",
    "unbiased": "ddof= (ddof=1 is unbiased)",
    "correction": "ddof=",
    "descending": "descending order by reversing the result: [::-1]",
    "other": "the second argument without a name",
    "input": "the first argument without a name",
    "requires_grad": "tape.Variable(...) around the result, which requires grad",
    "set_to_none": "zero_grad() without it, which always sets gradients to None",
    "inplace": "the result: values do not change in place",
    "gradient": "the seed as the first argument, without a name",
    "grad_outputs": "the seed as the first argument, without a name",
    "tensors": "outputs=",
    "grad_tensors": "grad_outputs=",
    "retain_variables": "retain_graph=",
    "allow_unused": 'unconnected="none"',
    "materialize_grads": 'unconnected="zero"',
    "only_inputs": "the call without it: no other .grad is touched",
    "is_grads_batched": "tape.vmap(lambda seed: tape.gradients(outputs, inputs, seed, retain_graph=True))(seeds)",
    "in_dims": "in_axes=",
    "size": "shape=",
    "steps": "num=",
    "dtype": "a value of that dtype: numpy.asarray(value, dtype)",
    "device": "a value that lies there: jax.device_put(value, device)",
    "persistent": "retain_graph=True where gradients are asked for",
    "watch_accessed_variables": "variable.detach() for what is not to be differentiated",
    "out_dims": "out_axes=",
}
_NO_ARRAY = re.compile(
    r"(?:problematic value is of type|arguments, got|interpret value of type) <class '([\w.]+)'>(?:.*? at (?:path|position) (\w+))?",
    re.DOTALL,
)
_MEANT = (  # what users of PyTorch and NumPy mean by arguments in other places
    (re.compile("(invalid|unexpected) PRNG key"), "make a key of a seed: tape.random.key(0)"),
    (re.compile(r"interpret '(True|False)' as a data type"), "give keepdims= by its name"),
    (re.compile("'out' argument to"), "give keepdims= by its name, and take the result in place of out="),
    (re.compile(r"interpret '\d+' as a data type$"), "give a shape as one tuple"),
)
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
_TOO_MANY = re.compile(r"positional arguments? but \d+ (was|were) given")


def unknown_keyword(what: str, keyword: str, *_: str) -> TapeTypeError:
    """Return the error for a keyword that a function does not take."""
    ours = _KEYWORDS.get(keyword)
    return TapeTypeError(f"{what}: there is no argument {keyword}=" + ("" if ours is None else f"; use {ours}"))


def wrap(error: Exception, what: str, avals: Sequence[Any] = (), *, repair: str | None = None) -> TapeError | None:
    """Return the TapeError that says what an error of JAX about arguments says; None for any other (see ``FOREIGN``).

    Args:
        error: what JAX raised.
        what: the function that the user called.
        avals: its operands (anything with a shape and a dtype), which JAX's words may not name.
        repair: what to do, which they may not say.

    """
    unexpected = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if unexpected is not None and unexpected[1] in _KEYWORDS:
        return unknown_keyword(what, unexpected[1])
    other = _NO_ARRAY.search(str(error)) if isinstance(error, TypeError) else None
    if other is not None:
        return TapeTypeError(f"{what}: {_no_array(*other.groups())}{_operands(avals)}")
    for builtin, ours in _WRAPPED:
        if isinstance(error, builtin):
            said = str(error.args[0] if isinstance(error, KeyError) and error.args else error) or builtin.__name__
            repair = repair or next((ours for words, ours in _MEANT if words.search(said)), None)
            return ours(f"{what}: {said}{_operands(avals)}{'' if repair is None else f'; {repair}'}")
    return None


def _no_array(kind: str, place: str | None) -> str:
    """Say what stands where an array should, and what to write; JAX speaks of jitted functions, which the user has none of."""
    if kind in {"list", "tuple"}:
        repair = "make an array of it: tape.numpy.asarray(value)"
    elif kind == "dict":
        repair = "map over its values: jax.tree.map(function, value)"
    elif kind.partition(".")[0] in {"torch", "tensorflow"}:
        repair = "pass tape.constant(value)"
    else:
        repair = "pass a Variable, an array or a number"
    return f"{'an argument' if place is None else f'argument {place}'} is of type {kind}; {repair}"


def saying(fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return ``fun``, raising what JAX or Python says of its arguments as an error of this library."""

    @functools.wraps(fun)
    def _said(*args: object, **kwargs: object) -> object:
        try:
            return fun(*args, **kwargs)
        except TapeError:
            raise
        except FOREIGN as e:
            raise (wrap(e, name) or e) from e

    return _said


def taking(name: str) -> Callable[[F], F]:
    """Decorate a function to raise an error of this library where it is called by arguments that it does not take."""

    def decorate(fun: F) -> F:
        @functools.wraps(fun)
        def taken(*args: object, **kwargs: object) -> object:
            try:
                return fun(*args, **kwargs)
            except TypeError as e:
                if e.__traceback__ is None or e.__traceback__.tb_next is not None:  # raised in it
                    raise
                repair = "; give the options by their names" if _TOO_MANY.search(str(e)) else ""
                msg = f"{wrap(e, name)}{repair}"
                raise TapeTypeError(msg) from e

        return taken  # type: ignore[return-value]

    return decorate


_NAMED = 8  # operands that a message names


def _operands(avals: Sequence[Any]) -> str:
    if not avals:
        return ""
    dtypes = list(dict.fromkeys(str(a.dtype) for a in avals))
    shapes = [str(tuple(a.shape)) for a in avals]
    return f" (operands: shape {_listed(shapes)}, dtype {_listed(dtypes if len(dtypes) == 1 else [str(a.dtype) for a in avals])})"


def _listed(names: list[str]) -> str:
    if len(names) > _NAMED:
        return ", ".join(names[:_NAMED]) + " ..."
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
