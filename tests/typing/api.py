"""What type checkers make of the public API: mypy and pyright hold each ``assert_type``, and the tests hold each of them at run time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import jax
import numpy as np
import optax

import interop
import interop.optax
import tape
import tape.numpy as tnp
from tape import Variable
from tape.hooking.handles import HandleGroup, RemovableHandle
from tape.insight.entries import Entry
from tape.insight.explaining import Explanation
from tape.insight.memory import Memory
from tape.insight.picture import Picture


def energy(x: Variable, scale: float = 1.0) -> Variable:
    return (scale * x * x).sum()


def operators() -> None:
    x = Variable([1.0, 2.0], name="x")
    array, numbers = jax.numpy.ones(2), np.float32(2.0)
    for result in (x + 1, 1 - x, x * x, 2.0 / x, x // 2, x % 2, x**2, 2**x, x @ x, -x, +x, abs(x), round(x, 1)):
        assert_type(result, Variable)
    for result in (x == 1, x != 2, x < 1, x <= 1.5, x > 0, x >= 2, ~(x > 1), (x > 1) & (x < 2), (x > 1) | (x < 2), (x > 1) ^ (x < 2)):
        assert_type(result, Variable)
    assert_type(x + array, Variable)
    assert_type(array * x, Variable)
    assert_type(x * numbers, Variable)
    assert_type(divmod(x, 2.0), tuple[Variable, Variable])
    y = x.detach()
    y += 1
    y[0] = 5.0
    assert_type(y, Variable)


def attributes() -> None:
    x = Variable([[1.0, 2.0], [3.0, 4.0]])
    assert_type(x.value, jax.Array)
    assert_type(x.grad, Variable | None)
    assert_type(x.shape, tuple[int, ...])
    assert_type((x.ndim, x.size, x.nbytes, x.itemsize, len(x)), tuple[int, int, int, int, int])
    assert_type((x.requires_grad, x.is_leaf), tuple[bool, bool])
    assert_type(x.name, str | None)
    assert_type((x.T, x.mT, x.real, x.imag), tuple[Variable, Variable, Variable, Variable])
    assert_type(x[0], Variable)
    assert_type(x[..., None, 1:], Variable)
    assert_type(list(x), list[Variable])
    assert_type(x.at[0].set(1.0), Variable)
    assert_type(x.at[0, 0].add(x[1, 1]), Variable)
    x.value = np.zeros((2, 2), "float32")
    x.grad = jax.numpy.ones((2, 2))
    x.grad = None


def methods() -> None:
    x = Variable([[1.0, 2.0], [3.0, 4.0]])
    for result in (x.sum(), x.mean(0), x.max(axis=(0, 1)), x.reshape(4), x.reshape(2, -1), x.transpose(), x.astype("float16"), x.cumsum()):
        assert_type(result, Variable)
    for result in (x.argmax(), x.clip(0, 1), x.dot(x), x.ravel(), x.std(), x.take(0), x.sort(), x.copy(), x.squeeze(), x.repeat(2, axis=0)):
        assert_type(result, Variable)
    assert_type(x.detach(), Variable)
    assert_type(x.requires_grad_(), Variable)
    assert_type(x.block_until_ready(), Variable)
    assert_type(x.numpy(), np.ndarray[Any, Any])
    assert_type((float(x[0, 0]), int(x[0, 0]), bool(x[0, 0])), tuple[float, int, bool])
    assert_type(x.register_hook(lambda gradient: 2 * gradient), RemovableHandle)
    x.sum().backward()
    x.zero_grad()


def sweeps() -> None:
    x, y = Variable([1.0, 2.0]), Variable([3.0, 4.0])
    loss = (x * y).sum()
    keep = {"x": x, "y": y}
    assert_type(tape.gradients(loss, x, retain_graph=True), Variable)
    assert_type(tape.gradients(loss, x, create_graph=True), Variable)
    assert_type(tape.gradients(loss, [x, y], retain_graph=True), tuple[Variable, ...])
    assert_type(tape.gradients(loss, (x, y), retain_graph=True, unconnected="zero"), tuple[Variable, ...])
    assert_type(tape.gradients(loss, iter([x, y]), retain_graph=True), tuple[Variable, ...])
    assert_type(tape.gradients(loss, keep, retain_graph=True), dict[str, Variable])
    assert_type(tape.gradients(loss, x, unconnected="none", retain_graph=True), Variable | None)
    assert_type(tape.gradients(loss, [x], unconnected="none", retain_graph=True), tuple[Variable | None, ...])
    assert_type(tape.stream_gradients(loss), Iterator[tuple[Variable, Variable]])
    assert_type(tape.stop_gradient(x), Variable)
    assert_type(tape.constant(1.0), Variable)
    assert_type(tape.register_multi_grad_hook([x, y], lambda gradients: print(len(gradients))), HandleGroup)
    assert_type(tape.register_multi_grad_hook([x, y], lambda gradient: print(gradient.shape), mode="any"), HandleGroup)


def transforms() -> None:
    x = Variable([1.0, 2.0])
    both = tape.value_and_grad(energy)
    assert_type(both(x, scale=2.0), tuple[Variable, Any])
    assert_type(tape.value_and_grad(energy, argnums=(0, 1))(x, 2.0)[0], Variable)
    gradient: Variable = tape.grad(energy)(x, scale=2.0)
    assert_type(gradient, Variable)
    float(tape.grad(tape.grad(lambda x: x**3))(2.0))

    def with_aux(x: Variable) -> tuple[Variable, int]:
        return energy(x), 3

    assert_type(tape.grad(with_aux, has_aux=True)(x), tuple[Any, int])
    assert_type(tape.value_and_grad(with_aux, has_aux=True)(x)[0], tuple[Variable, int])
    assert_type(tape.vmap(energy)(Variable([[1.0], [2.0]])), Variable)
    assert_type(tape.checkpoint(energy)(x, 3.0), Variable)
    _, pull = tape.vjp(energy, x)
    assert_type(pull(1.0), tuple[Any, ...])
    assert_type(tape.vjp(with_aux, x, has_aux=True)[2], Any)
    assert_type(tape.jvp(energy, (x,), (x,)), tuple[Any, Any])
    tape.linearize(energy, x)[1](x)
    assert_type(tape.linearize(with_aux, x, has_aux=True)[2], Any)
    tape.hessian(energy)(x)
    tape.jacrev(energy)(x, scale=2.0)
    tape.hvp(energy, (x,), (x,))


class Model:
    """With a compiled method."""

    def __init__(self) -> None:
        self.w = Variable([1.0, 2.0])

    @tape.jit
    def loss(self, x: Variable, scale: float = 1.0) -> Variable:
        return (scale * self.w * x).sum()


@tape.jit
def compiled(x: Variable) -> Variable:
    return x * x


@tape.jit(donate_state=True)
def stepped(x: Variable, *, rate: float = 0.1) -> tuple[Variable, Variable]:
    return x, x * rate


def jitted() -> None:
    x = Variable([1.0, 2.0])
    assert_type(compiled(x), Variable)
    assert_type(stepped(x, rate=0.5), tuple[Variable, Variable])
    assert_type(Model().loss(x), Variable)
    assert_type(Model().loss(x, scale=2.0), Variable)
    assert_type(compiled.explain(), str)
    assert_type(compiled.cache_info().traces, int)
    compiled.clear_cache()


def namespaces() -> None:
    x = Variable([[2.0, 1.0], [1.0, 2.0]])
    for result in (tnp.sin(x), tnp.sum(x, axis=0), tnp.matmul(x, x), tnp.concatenate([x, x]), tnp.zeros((2, 2)), tnp.arange(3)):
        assert_type(result, Variable)
    for result in (tnp.where(x > 0, x, 0.0), tnp.linspace(0.0, 1.0, 5), tnp.linalg.norm(x), tnp.einsum("ij,jk", x, x), tnp.unique(x)):
        assert_type(result, Variable)
    for result in (tape.nn.relu(x), tape.nn.softmax(x), tape.nn.one_hot(0, 3), tape.lax.rsqrt(x), tape.scipy.special.erf(x)):
        assert_type(result, Variable)
    for result in (tape.random.normal(tape.random.key(0), (3,)), tape.scipy.stats.norm.logpdf(x), tape.numpy.fft.fft(x)):
        assert_type(result, Variable)
    assert_type(tnp.linalg.eigh(x).eigenvalues, Variable)
    assert_type(tnp.linalg.svd(x).S, Variable)
    assert_type(tnp.linalg.qr(x).Q, Variable)
    assert_type(tnp.split(x, 2), list[Variable])
    assert_type(tnp.nonzero(x), tuple[Variable, ...])


@tape.no_grad()
def quiet(n: int) -> str:
    return "." * n


class Square(tape.Function):
    """With a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Variable) -> Variable:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Variable) -> Variable:
        x: Variable = ctx.saved[0]
        return 2 * g * x


class Counter(tape.OpHook):
    """With one method of four."""

    seen = 0

    def forward_postprocess(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        self.seen += 1


def modes_and_hooks() -> None:
    assert_type(quiet(3), str)
    x = Variable([1.0])
    with tape.eager(), tape.reproducible(), tape.detect_anomaly(), tape.hooks(Counter()):
        Square.apply(x).backward()
    with tape.op_hooks.Timer(), tape.saved_value_hooks(lambda v: v, lambda v: v):
        (x * x).sum().backward()


def insight() -> None:
    x = Variable([1.0, 2.0])
    with tape.Tape() as t:
        loss = energy(x)
    assert_type(t, tape.Tape)
    assert_type(t.entries, tuple[Entry, ...])
    assert_type(t.text(), str)
    assert_type(t.draw(), Picture)
    assert_type(tape.explain(loss, x), Explanation)
    assert_type(tape.stats().compiles, int)
    assert_type(tape.memory(), Memory)
    with tape.profile(entries=True) as p, tape.log_compiles():
        x.sum().backward()
    assert_type(p.seconds, float)
    assert_type(tape.profile()(energy)(x), Variable)


def testing() -> None:
    assert_type(tape.testing.check_gradients(energy, jax.numpy.ones(2), order=1), tape.testing.Report)


def bridges() -> None:
    def norm(x: jax.Array) -> jax.Array:
        return jax.numpy.sqrt((x * x).sum())

    x = Variable([3.0, 4.0])
    assert_type(interop.lift(norm)(x), Variable)
    assert_type(interop.lower(energy)(jax.numpy.ones(2)), jax.Array)
    optimizer = interop.optax.Optimizer([x], optax.sgd(0.1))

    def closure() -> Variable:
        optimizer.zero_grad()
        loss = energy(x)
        loss.backward()
        return loss

    assert_type(optimizer.step(closure), Variable)
    optimizer.step()


EVERYTHING = (operators, attributes, methods, sweeps, transforms, jitted, namespaces, modes_and_hooks, insight, testing, bridges)
