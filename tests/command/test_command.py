"""``python -m tape``: what it checks, what it prints, and the status with which it ends."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tape import layout
from tape.command import main
from tape.command.targets import Drawing, arguments
from tests.rules.records import DIFFERENTIABLE, planted, scaled

LAYERS = """
import jax
import jax.numpy as jnp

@jax.custom_vjp
def scaled(x):
    return jnp.sin(x)

scaled.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (1.01 * ct * jnp.cos(x),))

def right(x, power=2):
    return x**power

def logarithm(x: jax.Array):
    return jnp.log(x)

def affine(x, w, b):
    return x @ w + b

class Layers:
    @staticmethod
    def softplus(x):
        return jax.nn.softplus(x)
"""


@pytest.fixture
def layers(tmp_path, monkeypatch):
    """A file with functions, in a folder of its own; its name is another one for each test."""
    name = f"layers_{tmp_path.name.replace('-', '_')}"
    path = tmp_path / f"{name}.py"
    path.write_text(LAYERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_right_gradient_ends_with_zero(layers, capsys):
    assert main(["check", f"{layers}:right", "--shape", "2,3"]) == 0
    assert "pass" in capsys.readouterr().out


def test_a_wrong_gradient_ends_with_one_and_says_what_is_wrong(layers, capsys):
    assert main(["check", f"{layers}:scaled", "--shape", "4"]) == 1
    printed = capsys.readouterr().out
    assert "float32[4]" in printed
    assert "1.01" in printed


def test_one_wrong_gradient_of_several_is_enough(layers, capsys):
    assert (
        main(["check", f"{layers}:right", f"{layers}:scaled", f"{layers}:Layers.softplus", "--shape", "3", "--json", "--order", "1"]) == 1
    )
    verdicts = {r["function"].partition(":")[2]: r["verdict"] for r in json.loads(capsys.readouterr().out)}
    assert verdicts == {"right": "pass", "scaled": "fail", "Layers.softplus": "pass"}


def test_shapes_and_expressions_fill_the_arguments_in_their_order(layers, capsys):
    given = ["--shape", "2,3", "--arg", "jnp.ones((3, 4))", "--shape", "()"]
    assert main(["check", f"{layers}:affine", *given, "--dtype", "float64", "--json", "--order", "1"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["called_with"] == ["float64[2,3]", "float64[3,4]", "float64[]"]
    assert [a["name"] for a in result["arguments"]] == ["x", "w", "b"]


def test_what_is_not_decided_fails_only_when_strict(layers):
    given = ["check", f"{layers}:logarithm", "--between", "-2", "-1", "--quiet"]  # no value there
    assert main(given) == 0
    assert main([*given, "--strict"]) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check", "nowhere:f"], "cannot be imported"),
        (["check", "jax.numpy:nothing"], "has no"),
        (["check", "jax.numpy"], "package.module:function"),
        (["check", "jax.numpy:pi"], "cannot be called"),
        (["check", "jax.numpy:tanh", "--shape", "a"], "is no shape"),
        (["check", "jax.numpy:tanh", "--arg", "1 +"], "cannot be evaluated"),
        (["check", "jax.numpy:tanh", "--dtype", "floaty"], "is no dtype"),
        (["check", "jax.numpy:tanh", "--between", "2", "1"], "is no interval"),
        (["check", "jax.numpy:matmul", "--shape", "2,3", "--shape", "2"], "cannot be called with (float32[2,3], float32[2])"),
        (["check", "tests.command.test_command:unannotated"], "nothing says what its argument 'x' is"),
        (["verify", "--only", "nothing"], "the families are"),
        (["check"], "required"),
        ([], "required"),
    ],
)
def test_what_is_not_understood_ends_with_two_and_says_why(words, told, capsys):
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"]])
def test_it_says_which_recorder_runs(words, capsys):
    main(words)
    said = capsys.readouterr()
    assert f"recorder: {layout.RUNS}" in " ".join((said.out + said.err).split())


def unannotated(x):
    return x


WEIGHTS = np.ones(2)


class Named:
    """An annotation as jaxtyping makes them."""

    def __init__(self, dim_str, dtypes):
        self.dim_str = dim_str
        self.dtypes = dtypes


def test_arguments_are_found_from_annotations_and_defaults():
    def fun(x: Named("batch channels", ["float32"]), y: Named("channels 7", ["int32"]), a: float, n: int, z: "np.ndarray", w=WEIGHTS, k=3):
        raise AssertionError

    x, y, a, n, z, w = arguments(fun, [], Drawing())
    assert (x.shape, x.dtype) == ((2, 3), "float32")
    assert (y.shape, y.dtype) == ((3, 7), "int32")
    assert (type(a), n, z.shape, w.shape) == (float, 2, (3,), (2,))


def test_a_drawing_depends_on_its_seed_only():
    one, same, other = (Drawing(between=(1.0, 2.0), seed=s).array((5,)) for s in (3, 3, 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert 1 <= one.min() <= one.max() <= 2


def test_verify_prints_a_line_per_rule(capsys):
    assert main(["verify", "--only", "tan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[1:-1]} == {"tan", "tanh", "atan", "atan2", "atanh"}
    assert "0 wrong" in lines[-1]


@pytest.mark.parametrize("name", ["tanh", "reduce_prod"])
def test_verify_notices_a_rule_that_is_scaled(name, capsys):
    (record,) = [r for r in DIFFERENTIABLE if r.primitive.name == name]
    with planted(record, scaled(record.vjp, 1.001)):
        assert main(["verify", "--only", name, "--json"]) == 1
    (line,) = [r for r in json.loads(capsys.readouterr().out)["rules"] if r["primitive"] == name]
    assert line["verdict"] == "fail"
    assert line["worst"] == pytest.approx(1e-3, rel=0.1)


def test_verify_asks_differences_where_the_gradient_of_jax_is_infinite(capsys):
    assert main(["verify", "--only", "scatter-min"]) == 0  # an index that clipping moved onto another's place
    assert "0 wrong" in capsys.readouterr().out


def test_the_module_runs_from_a_shell(tmp_path):
    (tmp_path / "mine.py").write_text(LAYERS)
    words = [sys.executable, "-m", "tape", "check", "mine.py:scaled", "--shape", "3", "--order", "1"]
    env = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300, env=env)  # noqa: S603 - this test's own words
    assert done.returncode == 1, done.stderr
    assert "fail" in done.stdout
