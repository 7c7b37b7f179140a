"""Operators of functions of one argument become operators of any argument, or of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tape.errors import TapeTypeError

__all__ = ["get_name", "unary_to_nary", "wraps"]


def get_name(fun: object) -> str:
    """Return a function's name for messages."""
    return str(getattr(fun, "__name__", "[unknown name]"))


def wraps(fun: object, name: str = "{fun}", doc: str = "{doc}", **words: Any) -> Callable[[Any], Any]:
    """Give a function the name and docstring of another one."""

    def named(f: Any) -> Any:
        given = {"fun": get_name(fun), "doc": getattr(fun, "__doc__", None) or "", **words}
        f.__name__ = f.__qualname__ = name.format(**given)
        f.__doc__ = doc.format(**given)
        f.__module__ = getattr(fun, "__module__", None) or f.__module__
        return f

    return named


def unary_to_nary(unary_operator: Callable[..., Any]) -> Callable[..., Any]:
    """Make of an operator ``op(fun, x)`` one that is given the number of the argument: ``op(fun, argnum=0)(*args, **kwargs)``.

    Args:
        unary_operator: takes a function of one argument, that argument, and further ones.

    Example:
        >>> from interop.autograd.core import make_vjp
        >>> from interop.autograd.wrap_util import unary_to_nary
        >>> slope = unary_to_nary(lambda fun, x: make_vjp(fun, x)[0](1.0))
        >>> float(slope(lambda a, b: a * b * b, 1)(2.0, 3.0))
        12.0

    """

    def nary_operator(fun: Callable[..., Any], argnum: int | tuple[int, ...] | list[int] = 0, *extra: Any, **options: Any) -> Any:
        if type(argnum) not in (int, tuple, list):
            msg = f"{get_name(unary_operator)}: argnum must be an int, or a tuple or list of ints, got {argnum!r}"
            raise TapeTypeError(msg)

        def nary_f(*args: Any, **kwargs: Any) -> Any:
            positions = [argnum] if isinstance(argnum, int) else argnum
            if any(not -len(args) <= i < len(args) for i in positions):
                msg = f"{nary_f.__name__}: argnum is {argnum!r}, but there are {len(args)} positional arguments"
                raise TapeTypeError(msg)

            def unary_f(x: Any) -> Any:
                filled = list(args)
                for i, value in zip(positions, [x] if isinstance(argnum, int) else x, strict=True):
                    filled[i] = value
                return fun(*filled, **kwargs)

            unary_f.__name__ = get_name(fun)
            x = args[argnum] if isinstance(argnum, int) else tuple([args[i] for i in argnum])
            return unary_operator(unary_f, x, *extra, **options)

        operator = get_name(unary_operator)
        first = "    {op} of function {fun} with respect to argument number {argnum}. Takes the\n"
        doc = first + "    same arguments as {fun} but returns the {op}.\n"
        return wraps(fun, "{op}_of_{fun}_wrt_argnum_{argnum}", doc, op=operator, argnum=argnum)(nary_f)

    return wraps(unary_operator)(nary_operator)  # type: ignore[no-any-return]
