"""Peers that need not be installed: PyTorch, MLX, HIPS autograd, MyGrad; and the list of all systems."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.systems import MOMENTUM, RATE, Jitted, LookFirst, Namespace, System, Tape, TapeJit, Unjitted, convert, found, leaves, taken

__all__ = ["MLX", "SYSTEMS", "Autograd", "CompiledMLX", "MyGrad", "Torch", "found_torch", "systems"]


def _scan(stack: Callable[[list[Any]], Any], body: Callable[..., Any], carry: Any, xs: Any) -> tuple[Any, Any]:
    """Loop in Python, as users of an eager system do."""
    outputs = []
    for x in xs:
        carry, output = body(carry, x)
        outputs.append(output)
    return carry, stack(outputs)


def _softmax(numpy: Any, x: Any) -> Any:
    e = numpy.exp(x - numpy.max(x, axis=-1, keepdims=True))
    return e / numpy.sum(e, axis=-1, keepdims=True)


def _gelu(numpy: Any, x: Any) -> Any:
    return 0.5 * x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


class Torch(System):
    """PyTorch, eager."""

    name = "PyTorch"
    lacks = frozenset({"keys"})

    @staticmethod
    def installed() -> bool:
        return found("torch")

    def __init__(self) -> None:
        self.torch = torch = importlib.import_module("torch")
        nn = importlib.import_module("torch.nn.functional")
        self.xp = Namespace(
            torch,
            softmax=functools.partial(torch.softmax, dim=-1),
            gelu=functools.partial(nn.gelu, approximate="tanh"),
            scan=functools.partial(_scan, torch.stack),
            cholesky=torch.linalg.cholesky,
            solve_triangular=lambda factor, right: torch.linalg.solve_triangular(factor, right[:, None], upper=False)[:, 0],
            conv=functools.partial(nn.conv2d, padding="same"),
            max_pool=functools.partial(nn.max_pool2d, kernel_size=2),
            diagonal=torch.diagonal,
            eye=torch.eye,
            operand=lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x,
            value_and_grad=self._swept,
            gradients=self._recorded,
            leaf=lambda x: x.detach().requires_grad_(),
            cut=lambda x: x.detach(),
            hvp=self._hvp,
        )

    @staticmethod
    def _swept(fun: Callable[[Any], Any], parameters: Any) -> tuple[Any, list[Any]]:
        loss = fun(parameters)
        loss.backward()
        return loss, taken(leaves(parameters))

    def _recorded(self, fun: Callable[[Any], Any], inputs: Any) -> Any:
        gradients = self.torch.autograd.grad(fun(inputs), inputs, create_graph=True)
        return gradients if isinstance(inputs, list) else gradients[0]

    def _hvp(self, fun: Callable[[Any], Any], parameters: list[Any], tangents: list[Any]) -> Any:
        return self.torch.autograd.grad(self._recorded(fun, parameters), parameters, tangents)

    def data(self, tree: Any) -> Any:
        return convert(tree, self.torch.tensor)

    def parameters(self, arrays: Any) -> Any:
        return convert(arrays, lambda a: self.torch.tensor(a, requires_grad=True))

    def training(self, loss: Callable[..., Any], parameters: list[Any], optimizer: str) -> Callable[..., Any]:
        optim, xp = self.torch.optim, self.xp
        adam = optimizer == "adam"
        updater = optim.Adam(parameters, lr=RATE, fused=True) if adam else optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, fused=True)

        def step(*data: Any) -> Any:
            loss(xp, parameters, *data).backward()
            updater.step()
            updater.zero_grad()
            return parameters

        return step

    def numpy(self, results: Any) -> list[Any]:
        return [t.detach().numpy().copy() for t in leaves(results)]


class MLX(System):
    """MLX: lazy arrays, evaluated at the end of a step."""

    name = "MLX"
    lacks = frozenset({"convolution", "linear algebra", "keys"})

    @staticmethod
    def installed() -> bool:
        return found("mlx")

    def __init__(self) -> None:
        self.mx = mx = importlib.import_module("mlx.core")
        self.xp = Namespace(
            mx,
            relu=lambda x: mx.maximum(x, 0),
            gelu=functools.partial(_gelu, mx),
            softmax=functools.partial(mx.softmax, axis=-1),
            scan=functools.partial(_scan, mx.stack),
            operand=lambda x: mx.array(x) if isinstance(x, np.ndarray) else x,
            value_and_grad=lambda fun, parameters: mx.value_and_grad(fun)(parameters),
            gradients=lambda fun, inputs: mx.grad(fun)(inputs),
            leaf=lambda x: x,
            cut=mx.stop_gradient,
            hvp=lambda fun, parameters, tangents: mx.jvp(lambda *p: mx.grad(fun)(list(p)), parameters, tangents)[1],
        )

    def data(self, tree: Any) -> Any:
        return convert(tree, self.mx.array)

    def parameters(self, arrays: Any) -> Any:
        return convert(arrays, self.mx.array)

    def step(self, program: Callable[..., Any], parameters: Any) -> Callable[..., Any]:
        xp, run = self.xp, self.mx.eval

        def step(*data: Any) -> Any:
            results = program(xp, parameters, *data)
            run(results)
            return results

        return step

    def training(self, loss: Callable[..., Any], parameters: list[Any], optimizer: str) -> Callable[..., Any]:
        optimizers = importlib.import_module("mlx.optimizers")
        adam = optimizer == "adam"
        updater = optimizers.Adam(RATE, bias_correction=True) if adam else optimizers.SGD(RATE, momentum=MOMENTUM)
        xp, mx, state = self.xp, self.mx, {"p": parameters}
        gradient = mx.value_and_grad(lambda state, *data: loss(xp, state["p"], *data))

        def step(*data: Any) -> Any:
            nonlocal state
            _, gradients = gradient(state, *data)
            state = updater.apply_gradients(gradients, state)
            mx.eval(state, updater.state)
            return state["p"]

        return step


class CompiledMLX(MLX):
    """The same steps in ``mx.compile``."""

    name = "MLX, compiled"
    lacks = MLX.lacks | {"optimizer"}
    varies = False

    def step(self, program: Callable[..., Any], parameters: Any) -> Callable[..., Any]:
        xp, mx = self.xp, self.mx
        compiled = mx.compile(lambda p, *data: program(xp, p, *data))

        def step(*data: Any) -> Any:
            results = compiled(parameters, *data)
            mx.eval(results)
            return results

        return step


class Autograd(System):
    """HIPS autograd on NumPy."""

    name = "HIPS autograd"
    lacks = frozenset({"convolution", "optimizer", "linear algebra", "keys"})

    @staticmethod
    def installed() -> bool:
        return found("autograd")

    def __init__(self) -> None:
        autograd = importlib.import_module("autograd")
        numpy = importlib.import_module("autograd.numpy")
        grad, value_and_grad = autograd.grad, autograd.value_and_grad
        self.xp = Namespace(
            numpy,
            relu=lambda x: numpy.maximum(x, 0),
            softmax=functools.partial(_softmax, numpy),
            gelu=functools.partial(_gelu, numpy),
            scan=functools.partial(_scan, numpy.stack),
            value_and_grad=lambda fun, parameters: value_and_grad(fun)(parameters),
            gradients=lambda fun, inputs: grad(fun)(inputs),
            leaf=lambda x: x,
            operand=lambda x: x,
            cut=importlib.import_module("autograd.tracer").getval,
            hvp=lambda fun, parameters, tangents: grad(
                lambda p: sum(numpy.sum(g * t) for g, t in zip(grad(fun)(p), tangents, strict=True)),
            )(parameters),
        )

    def data(self, tree: Any) -> Any:
        return tree

    def parameters(self, arrays: Any) -> Any:
        return arrays


class MyGrad(System):
    """MyGrad on NumPy."""

    name = "MyGrad"
    lacks = frozenset({"convolution", "optimizer", "linear algebra", "second order", "keys"})

    @staticmethod
    def installed() -> bool:
        return found("mygrad")

    def __init__(self) -> None:
        self.mygrad = mygrad = importlib.import_module("mygrad")
        mygrad.turn_memory_guarding_off()  # as its documentation advises for small arrays
        self.xp = Namespace(
            mygrad,
            relu=lambda x: mygrad.maximum(x, 0),
            softmax=functools.partial(_softmax, mygrad),
            gelu=functools.partial(_gelu, mygrad),
            scan=functools.partial(_scan, mygrad.stack),
            value_and_grad=self._swept,
            cut=self._array,
            operand=lambda x: x,
        )

    @staticmethod
    def _swept(fun: Callable[[Any], Any], parameters: Any) -> tuple[Any, list[Any]]:
        loss, flat = fun(parameters), leaves(parameters)
        loss.backward()
        gradients = [p.grad for p in flat]
        for p in flat:
            p.null_grad()
        return loss, gradients

    def _array(self, x: Any) -> Any:
        return x.data if isinstance(x, self.mygrad.Tensor) else x

    def data(self, tree: Any) -> Any:
        return tree

    def parameters(self, arrays: Any) -> Any:
        return convert(arrays, self.mygrad.tensor)

    def numpy(self, results: Any) -> list[Any]:
        return [np.asarray(self._array(t)) for t in leaves(results)]


SYSTEMS: tuple[type[System], ...] = (Jitted, Tape, TapeJit, LookFirst, Unjitted, Torch, MLX, CompiledMLX, Autograd, MyGrad)


@functools.cache
def systems() -> dict[str, System]:
    """Return the systems that are installed, by name; the reference first."""
    return {kind.name: kind() for kind in SYSTEMS if kind.installed()}


def found_torch() -> Any:
    """Return PyTorch, or None."""
    return importlib.import_module("torch") if Torch.installed() else None
