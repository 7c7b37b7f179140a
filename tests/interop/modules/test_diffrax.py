"""Neural differential equations: Diffrax solves through the tape, trained step by step as Diffrax and Equinox train them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop
import tape
from tests.daily import NIGHTLY, pairs, share

eqx = pytest.importorskip("equinox")
diffrax = pytest.importorskip("diffrax")

STEPS = 20
TIMES = jnp.linspace(0.0, 1.0, 5)
SOLVES = {
    "recursive checkpoints": {"adjoint": diffrax.RecursiveCheckpointAdjoint(), "stepsize_controller": diffrax.PIDController(1e-6, 1e-6)},
    "direct": {"adjoint": diffrax.DirectAdjoint(), "max_steps": 16},
    "backwards in time": {"adjoint": diffrax.BacksolveAdjoint()},
}


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


class Field(eqx.Module):
    """The vector field."""

    mlp: eqx.nn.MLP

    def __init__(self, key):
        self.mlp = eqx.nn.MLP(2, 2, 8, 1, activation=jnp.tanh, key=key, dtype=jnp.float64)

    def __call__(self, t, y, args):
        return self.mlp(y) - 0.1 * t * y


class Options(dict):
    """Options of a solve, the same ones wherever they are met."""

    __hash__ = object.__hash__


def solved(field, start, times, **options):
    options = {"max_steps": 64, **options}
    saved = diffrax.SaveAt(ts=times)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Tsit5(), times[0], times[-1], 0.25, start, saveat=saved, throw=False, **options
    ).ys


class Model(eqx.Module):
    """A neural differential equation: states at some times."""

    field: Field
    options: dict = eqx.field(static=True)

    def __call__(self, times, start):
        return solved(self.field, start, times, **self.options)


@pytest.mark.parametrize("name", share([*SOLVES]))
def test_a_neural_differential_equation(name):
    times = jnp.asarray(TIMES, jnp.float64)
    start = jnp.array([1.0, -0.5])
    goal = jnp.stack([jnp.cos(times), jnp.sin(times)], 1)
    native = Model(Field(jax.random.key(0)), Options(SOLVES[name]))
    ours = interop.equinox.Module(native)
    transformation = optax.adam(1e-2)
    state = transformation.init(eqx.filter(native, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        value, gradients = eqx.filter_value_and_grad(lambda m: ((m(times, start) - goal) ** 2).mean())(model)
        updates, state = transformation.update(gradients, state)
        return eqx.apply_updates(model, updates), state, value

    wanted = []
    for _ in range(STEPS):
        native, state, value = step(native, state)
        wanted.append(float(value))
    optimizer = interop.optax.Optimizer(ours.parameters(), transformation)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = ((ours(times, start) - goal) ** 2).mean()
        loss.backward()
        optimizer.step()
        found.append(float(loss))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    assert found[-1] < found[0]


@pytest.mark.skipif(not NIGHTLY, reason="compiles for long; those of linear solves are below")
def test_second_derivatives_of_a_solve():
    """Of a solve that JAX differentiates twice itself."""
    times = jnp.asarray(TIMES, jnp.float64)
    start = jnp.array([1.0, -0.5])

    def end(start, rate):
        return (solved(lambda _, y, __: -rate * jnp.sin(y), start, times, **SOLVES["direct"])[-1] ** 2).sum()

    def penalty(start, rate):
        return (jax.grad(end)(start, rate) ** 2).sum()

    wanted = jax.grad(penalty, (0, 1))(start, jnp.float64(0.7))
    lifted = interop.lift(end)
    for _ in range(3):
        y, rate = tape.Variable(start), tape.Variable(jnp.float64(0.7))
        (g,) = tape.gradients(lifted(y, rate), [y], create_graph=True)
        (g**2).sum().backward()
        np.testing.assert_allclose(y.grad.numpy(), wanted[0], rtol=1e-9)
        np.testing.assert_allclose(rate.grad.numpy(), wanted[1], rtol=1e-9)


@pytest.mark.parametrize(("solver", "inline"), pairs(["AutoLinearSolver", "CG"], [False, True], 2))
def test_linear_solves_of_lineax(solver, inline):
    """What implicit solvers and Optimistix differentiate through; Lineax's rule refuses tangents of the solver's state, which it cuts off."""
    lineax = pytest.importorskip("lineax")
    tag = lineax.positive_semidefinite_tag
    options = {"AutoLinearSolver": {"well_posed": True}, "CG": {"rtol": 1e-12, "atol": 1e-12}}

    def solved(matrix, b):
        operator = lineax.MatrixLinearOperator(matrix @ matrix.T + jnp.eye(3), tag)
        return lineax.linear_solve(operator, b, getattr(lineax, solver)(**options[solver])).value

    given = jax.random.normal(jax.random.key(0), (3, 3), jnp.float64), jnp.array([1.0, -2.0, 0.5])

    def penalty(*given):
        return sum((g**2).sum() for g in jax.grad(lambda *g: solved(*g).sum(), (0, 1))(*given))

    expected = jax.grad(penalty, (0, 1))(*given)
    variables = [tape.Variable(x) for x in given]
    first = tape.gradients(interop.lift(solved, inline=inline)(*variables).sum(), variables, create_graph=True)
    for own, wanted in zip(first, jax.grad(lambda *g: solved(*g).sum(), (0, 1))(*given), strict=True):
        np.testing.assert_allclose(own.numpy(), wanted, rtol=1e-7, atol=1e-9)
    for own, wanted in zip(tape.gradients(sum((g**2).sum() for g in first), variables), expected, strict=True):
        np.testing.assert_allclose(own.numpy(), wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("inline", [False, True])
def test_implicit_derivatives_of_optimistix(inline):
    """Whose primitives hold open jaxprs with constants."""
    optimistix = pytest.importorskip("optimistix")

    def root(a):
        return optimistix.root_find(lambda y, a: y**3 + a * y - 1, optimistix.Newton(1e-12, 1e-12), jnp.ones(3), a).value

    given = jnp.array([1.0, 2.0, 3.0])
    a = tape.Variable(given)
    interop.lift(root, inline=inline)(a).sum().backward()
    np.testing.assert_allclose(a.grad, jax.grad(lambda a: root(a).sum())(given), rtol=1e-9)
