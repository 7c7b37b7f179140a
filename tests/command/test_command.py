"""``python -m tape``: what it checks, what it prints, and the status with which it ends."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import jax
import numpy as np
import pytest

import tape
from tape import jaxapi, layout
from tape.command import demo, main, report
from tape.command import verify as verification
from tape.command.targets import Drawing, arguments
from tape.command.verify import verifiable
from tape.graph import trie
from tape.rules import Example
from tape.terminal import progress as bars
from tape.terminal.progress import progress, stages, working_on
from tests.rules.records import DIFFERENTIABLE, planted, scaled

ROOT = pathlib.Path(__file__).parents[2]

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
        (["check", "jax.numpy:tanh", "--shape", "a"], "is not a shape"),
        (["check", "jax.numpy:tanh", "--arg", "1 +"], "cannot be evaluated"),
        (["check", "jax.numpy:tanh", "--dtype", "floaty"], "is not a dtype"),
        (["check", "jax.numpy:tanh", "--between", "2", "1"], "is not an interval"),
        (["check", "jax.numpy:matmul", "--shape", "2,3", "--shape", "2"], "cannot be called with (float32[2,3], float32[2])"),
        (["check", "tests.command.test_command:unannotated"], "nothing says what its argument 'x' is"),
        (["verify", "--only", "nothing"], "the families are"),
        (["check"], "required"),
        (["nothing"], "invalid choice"),
    ],
)
def test_what_is_not_understood_ends_with_two_and_says_why(words, told, capsys):
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--help"], ["--version"]])
def test_it_says_which_recorder_runs(words, capsys):
    main(words)
    said = capsys.readouterr()
    assert f"recorder {layout.RUNS}" in " ".join((said.out + said.err).replace("recorder:", "recorder").split())


def test_it_says_its_version(capsys):
    main(["--version"])
    assert f"tape {tape.__version__}" in capsys.readouterr().out


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


# -- without a command, and the guided run -----------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch):
    """A self-check of four rules."""
    records = {r.primitive.name: r for r in verifiable()}
    chosen = [records[name] for name in ("tanh", "dot_general", "reduce_prod", "composite")]
    monkeypatch.setattr(report, "verifiable", lambda: chosen)
    return chosen


@pytest.mark.parametrize("width", ["80", "140"])
def test_without_a_command_it_says_what_there_is_and_checks_rules(few, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", width)
    assert main(["--seconds", "600"]) == 0
    said, device = capsys.readouterr().out, f"float32 on {jax.devices()[0].device_kind}"
    assert "4 rules against jax.grad" in said
    assert ": 0 wrong" in said
    for what in ("Versions", "Devices", "Caches", "Extras", "Self-check", "jaxlib", "compiled programs", device):
        assert what in said
    long = [row for row in said.splitlines() if len(row) > int(width)]
    assert all(str(ROOT) in row or "/" in row for row in long), long  # a path has no place to break


def test_the_self_check_finds_a_rule_that_is_scaled(few, capsys):
    (record,) = [r for r in few if r.primitive.name == "tanh"]
    with planted(record, scaled(record.vjp, 1.001)):
        assert main(["--seconds", "600"]) == 1
    said = capsys.readouterr().out
    assert "1 wrong" in said
    assert "tanh" in said


def test_the_self_check_finds_a_rule_that_raises(few, capsys):
    def broken(ct, out, x, **_):
        raise ZeroDivisionError

    (record,) = [r for r in few if r.primitive.name == "tanh"]
    with planted(record, broken):
        assert main(["--seconds", "600"]) == 1
    assert "raises ZeroDivisionError" in " ".join(capsys.readouterr().out.split())


def test_what_jax_does_not_have_on_a_device_is_said_and_not_wrong(few, monkeypatch, capsys):
    absent = jaxapi.Primitive("absent")
    absent.def_abstract_eval(lambda x: x)
    few.append(dataclasses.replace(few[0], primitive=absent, examples=(Example(absent.bind, ((3,),)),)))
    assert main(["--seconds", "600"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 rules against jax.grad" in said
    assert f"not on {jax.default_backend()}, in JAX: absent right" in said
    monkeypatch.setattr(verification, "registered", lambda: few)
    assert main(["verify"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[-2].split() == ["absent", "elementary", "0", "0.0e+00", "skip"]
    assert rows[-1].endswith(f": 0 wrong, 1 not in float32 on {jax.default_backend()}")


def test_a_self_check_without_time_is_none(few, capsys):
    assert main(["--seconds", "0"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "nothing was checked" in said
    assert f"{len(few)} more were left out for time" in said
    assert {name.strip(",") for name in said.split("left out: ")[1].split()[: len(few)]} == {r.primitive.name for r in few}


def test_no_rule_is_begun_that_may_take_longer_than_is_left(few, monkeypatch):
    moment = [0.0]
    monkeypatch.setattr(report.time, "perf_counter", lambda: moment[0])

    def slow(*_):
        moment[0] += 4.0
        return True

    monkeypatch.setattr(report, "_agrees", slow)
    monkeypatch.setattr(report.os, "cpu_count", lambda: 1)
    found = report.check(report.jax.devices()[0], 10.0)
    assert (len(found.right), len(found.left), found.seconds) == (2, len(few) - 2, 8.0)


def test_every_rule_that_needs_no_derivative_of_jax_is_verified(capsys):
    for name in ("composite", "linear_call"):  # JAX batches the one of them not, and differentiates neither
        assert main(["verify", "--only", name]) == 0, capsys.readouterr().out


def test_extras_are_those_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        extra: {re.split(r"[<>=!~ ]", package)[0] for package in packages}
        for extra, packages in project["optional-dependencies"].items()
        if extra not in ("dev", "docs")  # which are for those who work on it
    }
    assert {extra: set(packages) for extra, (packages, _) in report.EXTRAS.items()} == named


def test_an_extra_that_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(report, "_version", lambda package: None if package == "optax" else "1.0")
    rows = {name: (value, good) for name, value, good in report.extras()}
    assert rows["optax"] == ("pip install 'jax-tape[optax]' (interop.optax; without: optax)", False)
    assert rows["einops"] == ("einops 1.0 (einops on Variables)", True)


def test_caches_are_counted(tmp_path, monkeypatch):
    import jax

    before = jax.config.jax_compilation_cache_dir
    (tmp_path / "a").write_bytes(b"x" * 3000)
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        assert report.caches()[0] == ("compiled programs", f"{tmp_path}: 1 files, 2.9 KiB", True)
        jax.config.update("jax_compilation_cache_dir", None)
        assert "JAX_COMPILATION_CACHE_DIR" in report.caches()[0][1]
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_the_guided_run_fits_a_terminal_and_says_what_is_true(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(demo, "_ROUNDS", 2)
    monkeypatch.setattr(demo, "_FIRST", 5)
    trie._ROOTS.clear()  # another test may have recorded the same ops, and lines are those of the first time
    assert main(["demo"]) == 0
    said = capsys.readouterr().out
    assert all(len(row) <= 80 for row in said.splitlines())
    for words in ("vjp_sin", "sweep 1, asked for at demo_1.py:8", "The gradient of y with respect to x is NaN", "infinity times zero"):
        assert words in said
    fourth, sine = next(row for row in said.splitlines() if row.startswith("    0.479")).split()
    assert float(fourth) == pytest.approx(float(sine))
    grads = [row for row in said.splitlines() if "0.726" in row]
    assert len(grads) == 2
    assert "Variable(" in grads[0]
    assert all(name in said for name in ("tape, as written above", "jax.jit(jax.grad(f))", "jax.grad(f), not jitted"))


def test_the_guided_run_has_its_colours_where_it_is_on_a_terminal():
    code = 'import tape\nx = tape.Variable([0.0], name="x")\nprint(tape.explain(tape.numpy.log(x).sum(), x))\nprint(tape.Tape.of(x * 2))\n'
    said = demo._output(code, "demo_colours.py", {}, 80, color=True)
    assert "\x1b[1;31mcause:\x1b[0m" in said
    assert "\x1b[1;36mmultiply\x1b[0m" in said
    assert "\x1b" not in demo._output(code, "demo_plain.py", {}, 80, color=False)


# -- progress -----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("library", ["rich", "tqdm", None])
def test_progress_is_drawn_where_there_is_a_terminal(library, monkeypatch):
    found = bars._imported
    monkeypatch.setattr(bars, "_imported", lambda name: found(name) if library and name.startswith(library) else None)
    if library and found(library) is None:
        pytest.skip(f"{library} is not installed")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", said := Terminal())
    assert list(progress(range(3), "work")) == [0, 1, 2]
    assert ("work" in said.getvalue()) is (library is not None)
    assert ("3/3" in said.getvalue()) is (library is not None)


def test_progress_is_silent_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    assert list(progress(iter("ab"), "work")) == ["a", "b"]
    monkeypatch.setattr(sys, "stderr", said2 := Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert list(progress([1], "work")) == [1]
    assert (said.getvalue(), said2.getvalue()) == ("", "")


def test_a_bar_inside_of_a_bar_is_not_drawn(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", said := Terminal())
    assert [list(progress(range(2), "inner")) for _ in progress(range(2), "outer")] == [[0, 1], [0, 1]]
    assert "inner" not in said.getvalue()
    for _ in progress(range(5), "left"):
        break
    assert not bars._ACTIVE


def drawn(library, monkeypatch):
    """Have a bar drawn by one library; return what is written."""
    found = bars._imported
    if found(library) is None:
        pytest.skip(f"{library} is not installed")
    monkeypatch.setattr(bars, "_imported", lambda name: found(name) if name.startswith(library) else None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", said := Terminal())
    return said


@pytest.mark.parametrize("library", ["rich", "tqdm"])
def test_what_an_item_works_on_stands_beside_the_bar(library, monkeypatch):
    said = drawn(library, monkeypatch)
    working_on("nothing is shown")
    for name in progress(["one", "two"], "work"):
        working_on(name)
    assert "work: one" in said.getvalue()
    assert "work: two" in said.getvalue()
    assert "nothing" not in said.getvalue()


@pytest.mark.parametrize("library", ["rich", "tqdm"])
def test_stages_are_shown_once_they_take_long(library, monkeypatch):
    said = drawn(library, monkeypatch)
    with stages("baking [now]", 3) as begin:
        begin("kneading")
        begin("waiting")
    assert said.getvalue() == ""
    monkeypatch.setattr(bars, "PATIENCE", 0.0)
    with contextlib.suppress(ZeroDivisionError), stages("baking [now]", 3) as begin:
        begin("kneading")
        begin("waiting")
        assert list(progress([1], "inside")) == [1]
        raise ZeroDivisionError
    assert "baking [now]: kneading" in said.getvalue()
    assert "baking [now]: waiting" in said.getvalue()
    assert "1/3" in said.getvalue()
    assert "inside" not in said.getvalue()
    assert not bars._ACTIVE


@pytest.mark.parametrize("library", ["rich", "tqdm"])
def test_checkers_show_what_they_do(library, monkeypatch):
    pytest.importorskip("hypothesis")
    from tape.testing import check_gradients, gradient_property, strategies

    said = drawn(library, monkeypatch)
    monkeypatch.setattr(bars, "PATIENCE", 0.0)
    check_gradients(_cube, np.float32([0.5, 1.5]))
    assert "check_gradients of _cube: its values" in said.getvalue()
    assert "second derivative" in said.getvalue()
    said.seek(0)
    said.truncate()

    def check(fun, *args):
        return check_gradients(fun, *args, order=1)

    gradient_property(strategies.arrays((2,), domain=(1, 2)), settings=hypothesis_settings(3), check=check)(_cube)()
    assert "examples of _cube" in said.getvalue()
    assert "2/3" in said.getvalue()
    assert "check_gradients" not in said.getvalue()  # a bar inside of a bar
    assert not bars._ACTIVE


def hypothesis_settings(count):
    from hypothesis import settings

    return settings(max_examples=count, database=None)


def _cube(x):
    return x**3


def test_checkers_are_silent_without_a_terminal(monkeypatch, capsys):
    from tape.testing import check_gradients

    monkeypatch.setattr(bars, "PATIENCE", 0.0)
    check_gradients(_cube, np.float32([0.5, 1.5]), order=1)
    assert capsys.readouterr() == ("", "")


def test_the_core_needs_no_library_for_bars():
    code = "import sys, tape, tape.terminal.progress; assert not {'rich', 'tqdm'} & set(sys.modules), sys.modules.keys()"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=300)  # noqa: S603 - this test's own words


@pytest.mark.parametrize("words", [["error"], ["error", "SeedError"], ["error", "LostGradientError"]])
def test_prose_fits_the_terminal(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("tape.command.pages.is_terminal", lambda: True)
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10
    assert [line for line in lines if len(line) > 80 and not line.startswith("    ")] == []  # what is indented is code
