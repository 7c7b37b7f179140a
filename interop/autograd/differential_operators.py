"""The operators: functions of functions, by any of their arguments or several, nested at will."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from interop.autograd import core
from interop.autograd.primitives import defvjp_argnum, getval, primitive
from interop.autograd.tracing import Call, scope, unflatten
from interop.autograd.vspaces import vspace
from interop.autograd.wrap_util import unary_to_nary
from tape import numpy as tnp
from tape.errors import TapeTypeError
from tape.transforms.forward import swept
from tape.transforms.jacobians import _basis

make_vjp = unary_to_nary(core.make_vjp)
make_jvp = unary_to_nary(core.make_jvp)
_ADVICE = "use jacobian or elementwise_grad for arrays, holomorphic_grad for complex numbers"


def _called(fun: Callable[[Any], Any], x: Any, name: str, *, scalar: bool = True) -> Call:
    """Call the function; check that there is something to differentiate."""
    call = Call(fun, x)
    size = sum(v.size for v in call.outputs)
    if any(v.dtype.kind == "c" for v in call.outputs):
        msg = f"{name}: the function must return real numbers; {_ADVICE}"
        raise TapeTypeError(msg)
    if any(v.dtype.kind not in "fV" and not (v.dtype.kind in "iu" and v.shape) for v in call.outputs) or (scalar and size != 1):
        shapes = ", ".join(f"{v.dtype}{list(v.shape)}" for v in call.outputs) or "nothing"
        msg = f"{name}: the function must return one real number, but it returns {shapes}; {_ADVICE}"
        raise TapeTypeError(msg)
    if not call.connected:
        call.warn()
    return call


@unary_to_nary
def grad(fun: Callable[[Any], Any], x: Any) -> Any:
    """Return a function that computes the gradient of ``fun`` by its argument number ``argnum``, an int or several.

    The function that is returned takes the arguments of ``fun``, and returns a gradient of the type of the argument: a tree of it for
    lists, tuples and dicts, and a tuple where ``argnum`` is a tuple or list.  ``fun`` returns one real number.

    Raises:
        TapeTypeError: ``fun`` returns something else, or the argument is neither a float, nor an array, nor a container of them.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import grad
        >>> float(grad(grad(np.sin))(0.0)), float(grad(np.sin)(0.0))
        (-0.0, 1.0)
        >>> grad(lambda p: np.sum(p["w"] ** 2))({"w": np.array([1.0, 2.0])})
        {'w': array([2., 4.])}

    """
    with scope():
        call = _called(fun, x, "Grad")
        return call.pull([None])


@unary_to_nary
def value_and_grad(fun: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    """Return a function that computes the value of ``fun`` and its gradient, as :func:`grad` does.

    Example:
        >>> from interop.autograd import value_and_grad
        >>> [float(a) for a in value_and_grad(lambda x: x**2)(3.0)]
        [9.0, 6.0]

    """
    with scope():
        call = _called(fun, x, "value_and_grad")
        gradient = call.pull([None])
        return call.answer(), gradient


@unary_to_nary
def grad_and_aux(fun: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    """Return a function that computes the gradient of the first of two results, and the second one.

    Example:
        >>> from interop.autograd import grad_and_aux
        >>> slope, aux = grad_and_aux(lambda x: (x**2, "seen"))(3.0)
        >>> float(slope), aux
        (6.0, 'seen')

    """
    aux: Any = None

    def first(x: Any) -> Any:
        nonlocal aux
        result, aux = fun(x)
        return result

    with scope():
        call = _called(first, x, "grad_and_aux")
        gradient = call.pull([None])
        return gradient, aux if call.nested else getval(aux)


@unary_to_nary
def elementwise_grad(fun: Callable[[Any], Any], x: Any) -> Any:
    """Return a function that computes the sum of each column of the Jacobian: of an elementwise function, its derivative.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import elementwise_grad as egrad
        >>> egrad(egrad(lambda x: x**3))(np.array([1.0, 2.0]))
        array([ 6., 12.])

    """
    with scope():
        call = _called(fun, x, "Elementwise_grad", scalar=False)
        return call.pull([None if v.size == 1 else np.ones(v.shape, v.dtype) for v in call.outputs])


@unary_to_nary
def deriv(fun: Callable[[Any], Any], x: Any) -> Any:
    """Return a function that computes the derivative by forward mode, along ones.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import deriv
        >>> float(deriv(np.sin)(0.0))
        1.0

    """
    return core.make_jvp(fun, x)(vspace(x).ones())[1]


@unary_to_nary
def jacobian(fun: Callable[[Any], Any], x: Any) -> Any:
    """Return a function that computes the Jacobian, of shape (shape of the output, shape of the argument).

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import jacobian
        >>> jacobian(lambda x: x[:2] * x[2])(np.array([1.0, 2.0, 3.0]))
        array([[3., 0., 1.],
               [0., 3., 2.]])

    """
    with scope():
        call = Call(fun, x)
        if len(call.outputs) != 1 or call.outputs[0].dtype.kind == "c":
            got = ", ".join([f"{v.dtype}{list(v.shape)}" for v in call.outputs]) or "nothing"
            msg = f"jacobian: the function must return one real array, got {got}"
            raise TapeTypeError(msg)
        (out,) = call.outputs
        if not call.connected:
            call.warn()
            rows = [record_zeros(out.size, v) for v in call.inputs]
        elif out.size == 0 or not call.inputs:
            rows = [record_zeros(out.size, v) for v in call.inputs]
        else:
            rows = swept([(out, _basis([out])[0])], call.inputs, out.size, create_graph=call.nested)
        shaped = [row.reshape(*out.shape, *v.shape) for row, v in zip(rows, call.inputs, strict=True)]
        return unflatten(call.tree, call.given(shaped))


def record_zeros(count: int, v: Any) -> Any:
    """Return zeros for so many rows."""
    return tnp.zeros((count, *v.shape), v.dtype)


@unary_to_nary
def holomorphic_grad(fun: Callable[[Any], Any], x: Any) -> Any:
    """Return a function that computes the derivative of a holomorphic function.

    Example:
        >>> from interop.autograd import holomorphic_grad
        >>> complex(holomorphic_grad(lambda z: z**2)(1.0 + 2.0j))
        (2+4j)

    """
    if vspace(x).iscomplex is False:
        warnings.warn("holomorphic_grad: the argument is real; grad is for such", stacklevel=2)
    return grad(lambda x: tnp.real(fun(x)))(x)


def grad_named(fun: Callable[..., Any], argname: str) -> Any:
    """Return the gradient by the argument of this name.

    Example:
        >>> from interop.autograd import grad_named
        >>> float(grad_named(lambda a, b: a * b, "b")(2.0, 3.0))
        2.0

    """
    return grad(fun, list(inspect.signature(fun).parameters).index(argname))


@unary_to_nary
def hessian(fun: Callable[[Any], Any], x: Any) -> Any:
    """Return a function that computes the Hessian.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import hessian
        >>> hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 2.0]))
        array([[4., 2.],
               [2., 0.]])

    """
    return jacobian(jacobian(fun))(x)


@unary_to_nary
def make_hvp(fun: Callable[[Any], Any], x: Any) -> Any:
    """Return a function that computes, for a point, the function that multiplies the Hessian there by a vector, and the gradient.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import make_hvp
        >>> product, slope = make_hvp(lambda x: (x**3).sum())(np.array([1.0, 2.0]))
        >>> product(np.array([1.0, 1.0])), slope
        (array([ 6., 12.]), array([ 3., 12.]))

    """
    return core.make_vjp(grad(fun), x)


def hessian_tensor_product(fun: Callable[..., Any], argnum: int = 0) -> Any:
    """Return a function of ``fun``'s arguments and a tensor that computes the product of the Hessian and that tensor.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import hessian_tensor_product
        >>> hessian_tensor_product(lambda x: (x**3).sum())(np.array([1.0, 2.0]), np.array([1.0, 1.0]))
        array([ 6., 12.])

    """
    fun_grad = grad(fun, argnum)

    def vector_dot_grad(*args: Any, **kwargs: Any) -> Any:
        *rest, vector = args
        return _tensordot(fun_grad(*rest, **kwargs), vector)

    return grad(vector_dot_grad, argnum)


hessian_vector_product = hessian_tensor_product


def _tensordot(a: Any, b: Any) -> Any:
    """Contract all axes of ``b``: with the first ones of ``a``."""
    return tnp.tensordot(tnp.asarray(a), tnp.asarray(b), np.ndim(vspace(b).zeros()))


def tensor_jacobian_product(fun: Callable[..., Any], argnum: int = 0) -> Any:
    """Return a function of ``fun``'s arguments and a tensor that computes the product of that tensor and the Jacobian.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import tensor_jacobian_product
        >>> tensor_jacobian_product(lambda x: x**3)(np.array([1.0, 2.0]), np.array([1.0, 1.0]))
        array([ 3., 12.])

    """

    def vector_dot_fun(*args: Any, **kwargs: Any) -> Any:
        *rest, vector = args
        value = fun(*rest, **kwargs)
        return tnp.tensordot(tnp.asarray(vector), tnp.asarray(value), axes=len(vspace(vector).shape))

    return jacobian(vector_dot_fun, argnum)


vector_jacobian_product = tensor_jacobian_product


@unary_to_nary
def make_jvp_reversemode(fun: Callable[[Any], Any], x: Any) -> Any:
    """Return a function that computes, for a point, the function that pushes tangents forward (and returns the tangent alone).

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd.differential_operators import make_jvp_reversemode
        >>> make_jvp_reversemode(lambda x: x**2)(np.array([1.0, 2.0]))(np.array([1.0, 1.0]))
        array([2., 4.])

    """
    jvp = core.make_jvp(fun, x)
    return lambda g: jvp(g)[1]


def make_ggnvp(f: Callable[..., Any], g: Callable[[Any], Any] | None = None, f_argnum: int = 0) -> Any:
    """Return a function that computes, for a point, the function that multiplies by the generalized Gauss-Newton matrix of ``g(f(x))``.

    Args:
        f: the inner function.
        g: the outer one, convex, of what ``f`` returns; half the sum of squares where there is none.
        f_argnum: the argument of ``f``.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import make_ggnvp
        >>> make_ggnvp(lambda x: 3.0 * x)(np.array([1.0, 2.0]))(np.array([1.0, 1.0]))
        array([9., 9.])

    """
    outer = g or (lambda x: 0.5 * tnp.sum(x**2, axis=-1))

    @unary_to_nary
    def ggnvp_of(f: Callable[[Any], Any], x: Any) -> Any:
        f_vjp, f_x = core.make_vjp(f, x)
        g_hvp, _ = core.make_vjp(grad(outer), f_x)
        f_jvp = core.make_jvp(f, x)
        return lambda v: f_vjp(g_hvp(f_jvp(v)[1]))

    return ggnvp_of(f, f_argnum)


def multigrad_dict(fun: Callable[..., Any]) -> Any:
    """Return a function that computes the gradients by all arguments: a dict by their names.

    Example:
        >>> from interop.autograd import multigrad_dict
        >>> {k: float(v) for k, v in multigrad_dict(lambda a, b=3.0: a * b)(2.0).items()}
        {'a': 3.0, 'b': 2.0}

    """
    signature = inspect.signature(fun)

    def gradfun(*args: Any, **kwargs: Any) -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()

        def of_dict(arguments: dict[str, Any]) -> Any:
            given = inspect.BoundArguments(signature, arguments)
            return fun(*given.args, **given.kwargs)

        gradients = grad(of_dict)(dict(bound.arguments))
        return {name: gradients[name] for name in bound.arguments}

    return gradfun


def checkpoint(fun: Callable[..., Any]) -> Any:
    """Return ``fun``, of which nothing is kept for the sweep: it is called again there.

    Example:
        >>> import interop.autograd.numpy as np
        >>> from interop.autograd import checkpoint, grad
        >>> float(grad(checkpoint(lambda x: np.exp(x) ** 2))(0.0))
        2.0

    """
    wrapped = primitive(fun)
    defvjp_argnum(wrapped, lambda argnum, _ans, args, kwargs: make_vjp(fun, argnum)(*args, **kwargs)[0])
    return wrapped
