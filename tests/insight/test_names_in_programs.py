"""Compiled programs carry the tape's ops and the user's lines, where JAX's own profiler shows them."""

import gzip
import inspect
import json
import re

import jax
import jax.numpy as jnp
import numpy as np

import tape
import tape.numpy as tnp
from tape.ops.kernel import Op
from tape.programs import background
from tape.programs.naming import name_of

HERE = "test_names_in_programs.py"
A = np.linspace(0.1, 0.9, 169, dtype=np.float32).reshape(13, 13) / 13  # a structure of no other test: its names are the first one's


def line():
    """Return the number of the line that calls."""
    return inspect.currentframe().f_back.f_lineno


def names(text):
    return set(re.findall(r'op_name="([^"]*)"', text))


def test_a_step_of_tape_jit_names_forward_and_sweep():
    x = tape.Variable(A)

    @tape.jit
    def step():
        y = tnp.tanh(x @ x)
        y.sum().backward()
        g, x.grad = x.grad, None
        return g

    first = step.__wrapped__.__code__.co_firstlineno + 2  # the decorator, def, and then the line of tanh
    found = names(step.lower().compile().as_text())
    assert f"jit(step)/tanh ({HERE}:{first})/tanh" in found
    assert any(name.startswith("jit(step)/vjp_tanh (") for name in found)


def compiled_of(monkeypatch, step, times):
    """Run a step so often that its program is bought; return the texts of the programs compiled meanwhile."""
    made = []
    compiling_all = background.compiling_all

    def kept(functions):
        made.extend((f, list(arguments)) for f, arguments in functions)
        return compiling_all(functions)

    monkeypatch.setattr(background, "compiling_all", kept)
    for _ in range(times):
        step()
    return [f.lower(*arguments).compile().as_text() for f, arguments in made]


def test_a_program_found_again_names_each_entry_with_its_line(monkeypatch):
    x = tape.Variable(A)

    def step():
        y = tnp.sinh(x @ x)
        where.add(line() - 1)
        y.sum().backward()
        x.grad = None

    where = set()
    found = set().union(*map(names, compiled_of(monkeypatch, step, 40)))
    (at,) = where
    assert any(f"/sinh ({HERE}:{at})/" in name for name in found), found
    assert any(f"/vjp_matmul ({HERE}:{at})/" in name for name in found), found


def test_loops_of_a_program_name_their_entries(monkeypatch):
    x = tape.Variable(A)

    def step():
        y = x
        for _ in range(60):
            y = tnp.cosh(y * 0.1) + x
            where.add(line() - 1)
        y.sum().backward()
        x.grad = None

    where = set()
    found = set().union(*map(names, compiled_of(monkeypatch, step, 40)))
    (at,) = where
    assert any(f"cosh ({HERE}:{at})/" in name for name in found), found


def test_names_change_no_number_and_no_jaxpr_of_another_transformation():
    def f(a):
        return tnp.tanh(tape.constant(a) @ a).sum().value

    assert np.array_equal(jax.jit(f)(A), jax.jit(lambda a: jnp.tanh(a @ a).sum())(A))
    jaxpr = jax.make_jaxpr(f)(A)
    stacks = {str(e.source_info.name_stack) for e in jaxpr.eqns} | {
        str(i.source_info.name_stack) for e in jaxpr.eqns for p in e.params.values() if hasattr(p, "jaxpr") for i in p.jaxpr.eqns
    }
    assert any(stack.startswith(f"tanh ({HERE}:") for stack in stacks), stacks


def test_a_name_is_one_level_of_the_stack():
    class Entry:
        op, where = Op("a/b", jnp.sin), ("dir/file.py", 3)

    assert name_of(Entry) == "a.b (file.py:3)"


def test_jaxs_own_profiler_shows_programs_by_these_names(tmp_path):
    x = tape.Variable(A)

    @tape.jit
    def named_step():
        return tnp.tanh(x @ x).sum()

    with tape.no_grad():
        named_step()
        with jax.profiler.trace(str(tmp_path)):
            named_step().block_until_ready()
    (captured,) = tmp_path.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(captured.read_bytes()))["traceEvents"]
    assert any("named_step" in str(event.get("name", "")) for event in events)
    (whole,) = tmp_path.rglob("*.xplane.pb")
    assert f"tanh ({HERE}:".encode() in whole.read_bytes()  # the metadata of the program, which the capture holds
