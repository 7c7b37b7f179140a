"""Peers that need not be installed: PyTorch, HIPS autograd, MyGrad; and the list of all systems."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.systems import RATE, Jitted, LookFirst, Namespace, System, Tape, TapeJit, Unjitted, convert, found, leaves

__all__ = ["SYSTEMS", "Autograd", "MyGrad", "Torch", "found_torch", "systems"]


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
            value_and_grad=self._swept,
            gradients=self._recorded,
            leaf=lambda x: x.detach().requires_grad_(),
            cut=lambda x: x.detach(),
            hvp=self._hvp,
        )

    @staticmethod
    def _swept(fun: Callable[[list[Any]], Any], parameters: list[Any]) -> tuple[Any, list[Any]]:
        loss = fun(parameters)
        loss.backward()
        gradients = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        return loss, gradients

    def _recorded(self, fun: Callable[[Any], Any], inputs: Any) -> Any:
        gradients = self.torch.autograd.grad(fun(inputs), inputs, create_graph=True)
        return gradients if isinstance(inputs, list) else gradients[0]

    def _hvp(self, fun: Callable[[Any], Any], parameters: list[Any], tangents: list[Any]) -> Any:
        return self.torch.autograd.grad(self._recorded(fun, parameters), parameters, tangents)

    def data(self, tree: Any) -> Any:
        return convert(tree, self.torch.tensor)

    def parameters(self, arrays: list[Any]) -> list[Any]:
        return [self.torch.tensor(a, requires_grad=True) for a in arrays]

    def training(self, loss: Callable[..., Any], parameters: list[Any]) -> Callable[..., Any]:
        optimizer, xp = self.torch.optim.Adam(parameters, lr=RATE, fused=True), self.xp

        def step(*data: Any) -> Any:
            loss(xp, parameters, *data).backward()
            optimizer.step()
            optimizer.zero_grad()
            return parameters

        return step

    def numpy(self, results: Any) -> list[Any]:
        return [t.detach().numpy().copy() for t in leaves(results)]


class Autograd(System):
    """HIPS autograd on NumPy."""

    name = "HIPS autograd"
    lacks = frozenset({"convolution", "optimizer", "linear algebra"})

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
            cut=importlib.import_module("autograd.tracer").getval,
            hvp=lambda fun, parameters, tangents: grad(
                lambda p: sum(numpy.sum(g * t) for g, t in zip(grad(fun)(p), tangents, strict=True)),
            )(parameters),
        )

    def data(self, tree: Any) -> Any:
        return tree

    def parameters(self, arrays: list[Any]) -> list[Any]:
        return arrays


class MyGrad(System):
    """MyGrad on NumPy."""

    name = "MyGrad"
    lacks = frozenset({"convolution", "optimizer", "linear algebra", "second order"})

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
        )

    @staticmethod
    def _swept(fun: Callable[[list[Any]], Any], parameters: list[Any]) -> tuple[Any, list[Any]]:
        loss = fun(parameters)
        loss.backward()
        gradients = [p.grad for p in parameters]
        for p in parameters:
            p.null_grad()
        return loss, gradients

    def _array(self, x: Any) -> Any:
        return x.data if isinstance(x, self.mygrad.Tensor) else x

    def data(self, tree: Any) -> Any:
        return tree

    def parameters(self, arrays: list[Any]) -> list[Any]:
        return [self.mygrad.tensor(a) for a in arrays]

    def numpy(self, results: Any) -> list[Any]:
        return [np.asarray(self._array(t)) for t in leaves(results)]


SYSTEMS: tuple[type[System], ...] = (Jitted, Tape, TapeJit, LookFirst, Unjitted, Torch, Autograd, MyGrad)


@functools.cache
def systems() -> dict[str, System]:
    """Return the systems that are installed, by name; the reference first."""
    return {kind.name: kind() for kind in SYSTEMS if kind.installed()}


def found_torch() -> Any:
    """Return PyTorch, or None."""
    return importlib.import_module("torch") if Torch.installed() else None
