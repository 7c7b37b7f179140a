"""Random steps over random state: compiled and plain leave the same behind, whatever happens between the calls."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import tape
import tape.numpy as tnp

N = 3  # parameters


class World:
    """The state that a step works on, and what somebody outside may do to it."""

    def __init__(self):
        self.w = [tape.Variable(np.linspace(-1, 1, 3, dtype=np.float32) * (i + 1)) for i in range(N)]
        self.buffer = tape.constant(np.arange(3, dtype=np.float32))
        self.total = tape.constant(np.float32(0.0))
        self.kept = {}

    def seen(self):
        yield from self.w
        yield from (self.buffer, self.total)
        yield from self.kept.values()


# Each instruction of a step: a function of the world, the argument, and two positions.
INSIDE = {
    "assign": lambda m, x, i, j: setattr(m.w[i], "value", (m.w[j] * 0.5 + x).value),
    "backward": lambda m, x, i, j: (tnp.sin(m.w[i] * x) * m.w[j]).sum().backward(),
    "through": lambda m, x, i, j: (m.buffer * m.w[i] + m.total * x).sum().backward(),
    "clear": lambda m, x, i, j: m.w[i].zero_grad(),
    "descend": lambda m, x, i, j: None if m.w[i].grad is None else setattr(m.w[i], "value", m.w[i].value - 0.1 * m.w[i].grad.value),
    "grad": lambda m, x, i, j: setattr(m.w[i], "grad", (m.w[j].detach() * 0.5 + x)),
    "item": lambda m, x, i, j: m.buffer.__setitem__(i, m.w[j].detach()[0] + m.total),
    "rebind": lambda m, x, i, j: setattr(m, "total", m.total * 0.5 + m.w[i].detach().sum()),
    "keep": lambda m, x, i, j: m.kept.__setitem__(f"k{i}", (m.w[j] * 2).detach()),
    "swap": lambda m, x, i, j: m.w.__setitem__(slice(None), [m.w[j], *[v for k, v in enumerate(m.w) if k != j]]),
    "flag": lambda m, x, i, j: m.w[i].requires_grad_(i != 2),
    "gradients": lambda m, x, i, j: setattr(
        m.buffer, "value", tape.gradients((m.w[i] ** 2 * x).sum(), m.w[i], unconnected="zero").value + 0
    ),
    "quiet": lambda m, x, i, j: setattr(m.total, "value", _quiet(m, i)),
}
RESULTS = {
    "none": lambda m, x, i, j: None,
    "itself": lambda m, x, i, j: m.w[i],
    "gradient": lambda m, x, i, j: m.w[i].grad,
    "live": lambda m, x, i, j: (m.w[i] * m.w[j] * x + m.buffer).sum(),
    "tree": lambda m, x, i, j: {"a": m.w[i].value, "b": [m.total * 2, x, "text"], "c": m.buffer},
}
OUTSIDE = {
    "nothing": lambda m, i: None,
    "clear": lambda m, i: m.w[i].zero_grad(),
    "assign": lambda m, i: setattr(m.w[i], "value", jnp.full(3, 0.25 * i)),
    "backward": lambda m, i: (m.w[i] ** 2).sum().backward() if m.w[i].requires_grad else None,
    "pending": lambda m, i: setattr(m, "buffer", m.buffer * 2),
    "new": lambda m, i: m.w.__setitem__(i, tape.Variable(np.full(3, 0.1 * i, np.float32))),
    "share": lambda m, i: setattr(m.w[i], "grad", m.buffer) if m.w[i].requires_grad else None,
    "flag": lambda m, i: m.w[i].requires_grad_(True),
    "forget": lambda m, i: m.kept.clear(),
}
POSITION = st.integers(0, N - 1)
STEP = st.tuples(
    st.lists(st.tuples(st.sampled_from(sorted(INSIDE)), POSITION, POSITION), min_size=1, max_size=5),
    st.tuples(st.sampled_from(sorted(RESULTS)), POSITION, POSITION),
)
CALLS = st.lists(st.tuples(st.sampled_from(sorted(OUTSIDE)), POSITION, st.sampled_from([(), (3,)])), min_size=2, max_size=5)


def _quiet(m, i):
    with tape.no_grad():
        return (m.w[i] * 3).sum().value


def step(m, instructions, result):
    def run(x):
        for name, i, j in instructions:
            INSIDE[name](m, x, i, j)
        name, i, j = result
        return RESULTS[name](m, x, i, j)

    return run


def told(v):
    if not isinstance(v, tape.Variable):
        return np.asarray(v) if hasattr(v, "shape") else v
    return (np.asarray(v.value), None if v.grad is None else np.asarray(v.grad.value), v.requires_grad, v.is_leaf)


def same(a, b):
    if isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)
    else:
        assert a == b


def flat(result):
    if isinstance(result, dict):
        return [result["a"], *result["b"], result["c"]]
    return [result]


def attempt(function, x):
    try:
        return function(x), None
    except tape.errors.TapeError as e:
        return None, type(e)


@given(program=STEP, calls=CALLS, sweep=st.booleans())
def test_compiled_steps_agree_with_plain_ones(program, calls, sweep):
    instructions, result = program
    plain, compiled = World(), World()
    eager, jitted = step(plain, instructions, result), tape.jit(step(compiled, instructions, result))
    for name, i, shape in calls:
        OUTSIDE[name](plain, i)
        OUTSIDE[name](compiled, i)
        x = jnp.full(shape, 0.5)
        expected, failure = attempt(eager, tape.constant(x))
        found, other = attempt(jitted, x)
        if failure is not None:  # a plain step may have done half of its work
            assert other is failure
            return
        assert other is None
        for a, b in zip(flat(found), flat(expected), strict=True):
            same(told(a), told(b))
        for a, b in zip(compiled.seen(), plain.seen(), strict=True):
            same(told(a), told(b))
        if sweep and result[0] == "live" and expected.requires_grad:
            _, failure = attempt(lambda _, v=expected: v.backward(), x)
            _, other = attempt(lambda _, v=found: v.backward(), x)
            assert failure is other
            for a, b in zip(compiled.seen(), plain.seen(), strict=True):
                same(told(a), told(b))
