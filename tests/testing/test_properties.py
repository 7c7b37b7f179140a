"""Functions become Hypothesis tests of their gradients."""

import itertools
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings

import tape
from benchmarks.compiles import watching
from tape.testing import GradientMismatch, check_vjp, gradient_property, strategies

FEW = settings(max_examples=10, database=None, derandomize=True, print_blob=False)


@jax.custom_vjp
def halved(x):
    """A square root of sums whose rule is wrong for negative numbers."""
    return jnp.tanh(x)


halved.defvjp(lambda x: (jnp.tanh(x), x), lambda x, ct: (jnp.where(x < 0, 0.5, 1.0) * ct * (1 - jnp.tanh(x) ** 2),))


@gradient_property(strategies.arrays(strategies.shapes((3,), ()), domain=(-3, 3)), settings=FEW, order=1)
def test_a_right_gradient_passes(x):
    return jnp.tanh(x) * x


@gradient_property
def products(x, y):
    return x * jnp.sin(y)


def test_arguments_are_drawn_from_the_signature():
    seen = []

    def recorded(fun, *args, **options):
        seen.append([np.shape(a) for a in args])
        return type("Report", (), {"verdict": "pass"})

    gradient_property(settings=FEW, check=recorded)(lambda x, y: x * y)()
    assert len(seen) >= 10
    assert all(len(shapes) == 2 for shapes in seen)
    assert products.__name__ == "products"
    assert products.is_hypothesis_test


def test_examples_of_a_shape_seen_before_compile_nothing():
    drawn = strategies.arrays(strategies.shapes((3,), (2, 2)), domain=(-3, 3))
    compiled = []
    for _ in range(2):
        with watching() as seen:
            gradient_property(drawn, settings=FEW)(lambda x: jnp.tanh(x) * x + jnp.exp(x))()
        compiled.append(len(seen.compiled))
    assert 0 < compiled[0] <= 20
    assert compiled[1] == 0


def test_a_wrong_gradient_shrinks_to_the_smallest_case_and_prints_a_reproducer():
    search = settings(max_examples=8, database=None, derandomize=True, print_blob=False)
    wrong = gradient_property(strategies.arrays((3,), strided=False), settings=search, order=1)(halved)
    with pytest.raises(GradientMismatch) as caught:
        wrong()
    notes = "\n".join(caught.value.__notes__)
    source = notes[notes.index("Reproduce with") :].splitlines()[1:]
    code = "\n".join(
        line.strip() for line in itertools.takewhile(lambda line: line.startswith("    "), source)
    )  # Hypothesis's notes follow
    names = {"halved": halved}
    with pytest.raises(GradientMismatch):
        exec("\n".join(line for line in code.splitlines() if "import halved" not in line), names)  # noqa: S102 - what is printed is to be pasted
    assert names["x0"].shape == (3,)
    assert names["x0"].tolist() == [1.0, 1.0, 1.0]  # the plainest that is drawn; the check looks behind zero by itself


def test_a_failure_is_not_explained_by_lines_of_the_checker():
    drawn = strategies.arrays((3,), domain=(-3, 3))
    with pytest.raises(GradientMismatch) as caught:
        gradient_property(drawn, settings=FEW, order=1)(halved)()
    said = "\n".join(caught.value.__notes__)
    assert "Reproduce with" in said
    assert "failing test cases:" not in said
    assert "varied together" not in said


def test_a_lambda_that_is_wrong_is_reported_and_shrunk():
    op = jax.custom_vjp(lambda x: x * x)
    op.defvjp(lambda x: (x * x, x), lambda x, ct: (3 * ct * x,))
    few = settings(max_examples=5, database=None)
    for fun in (op, lambda x: op(x)):
        with pytest.raises(GradientMismatch, match=r"1\.5x too large") as caught:
            gradient_property(strategies.arrays((2,)), settings=few, order=1)(fun)()
        assert "Reproduce with" in "".join(caught.value.__notes__)


def test_the_same_array_given_twice_is_one_name_in_the_reproducer():
    from tape.testing.properties import reproducer

    x = np.array([1.0, np.inf], "float32")
    text = reproducer(halved, (x, x, {"w": (x[:0],)}), check_vjp, {"order": 1})
    assert "x0 = np.array([1.0, np.inf], 'float32')" in text
    assert "check_vjp(halved, x0, x0, x1, order=1)" in text
    assert "np.zeros((0,), 'float32')" in text


def test_a_property_that_decides_nothing_is_an_error():
    undecided = gradient_property(
        strategies.arrays((2,)), settings=FEW, check=lambda *_, **__: type("Report", (), {"verdict": "inconclusive"})
    )
    with pytest.raises(tape.errors.InconclusiveGradientError, match="nothing was tested"):
        undecided(lambda x: x)()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_property(3), "argument 0 must be a Hypothesis strategy"),
        (lambda: gradient_property(strategies.arrays())(3), "decorates a function"),
        (lambda: gradient_property(lambda: 1.0), "no required positional arguments"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(tape.errors.TapeTypeError, match=message):
        call()


SUITE = """
import jax, jax.numpy as jnp
from tape.testing import gradient_property, strategies, check_gradients

@jax.custom_vjp
def double(x):
    return 2 * x
double.defvjp(lambda x: (2 * x, None), lambda _, ct: (ct,))

def test_plain():
    check_gradients(double, jnp.ones(3))

def nothing(fun, x, **options):
    with open("calls", "a") as file:
        file.write("x")
    return type("Report", (), {"verdict": "pass"})

test_nightly = gradient_property(strategies.arrays((1,), ties=False, strided=False), check=nothing)(jnp.sin)
"""


def test_the_plugin_renders_failures_and_searches_longer(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    root = pathlib.Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tape-examples", "300", "test_suite.py"]
    loaded = subprocess.run([sys.executable, "-m", "pytest", "--help"], check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    if "--tape-examples" not in loaded:  # the project is on the path, not installed
        command[3:3] = ["-p", "_jax_tape_pytest"]
    env = {**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)  # noqa: S603
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"test_suite.py:\d+: in test_plain", done.stdout), done.stdout
    assert "2x too small everywhere" in done.stdout
    assert "examination.py" not in done.stdout
    assert len((tmp_path / "calls").read_text()) == 300


def test_the_plugin_does_not_import_jax():
    code = "import sys, _jax_tape_pytest; assert not {'jax', 'tape'} & set(sys.modules)"
    root = pathlib.Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(root)})  # noqa: S603
