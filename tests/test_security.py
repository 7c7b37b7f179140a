"""What SECURITY.md says is so: nothing is unpickled, evaluated or started but what stands in the list below, each with whose word it is."""

import ast
import io
import json
import pathlib
import pickle
import re

import jax.numpy as jnp
import numpy as np
import pytest

import interop
import tape
import tape.numpy as tnp
from tape.errors import TapeValueError

ROOT = pathlib.Path(__file__).parent.parent
NOTE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
SOURCES = sorted([*ROOT.glob("tape/**/*.py"), *ROOT.glob("interop/**/*.py"), ROOT / "_jax_tape_pytest.py"])

DANGEROUS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "urllib.request.urlopen"}
MODULES = {
    "pickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "joblib",
    "subprocess",
    "runpy",
    "ctypes",
    "socket",
    "urllib",
    "requests",
    "http",
}
READS = {
    "load",
    "loads",
    "Unpickler",
    "run",
    "Popen",
    "call",
    "check_output",
    "check_call",
    "run_path",
    "run_module",
    "CDLL",
    "urlopen",
    "get",
}

# What there is, and whose word it is.
CALLS = {
    ("interop/optax.py", "pickle.loads"): "a part of what is being unpickled",
    ("tape/command/targets.py", "eval"): "the user's own command line",
    ("tape/insight/picture.py", "subprocess.run"): "Graphviz's dot, given text",
    ("tape/command/demo.py", "exec"): "the steps of the demonstration, in that module",
    ("tape/command/demo.py", "compile"): "the same text",
    ("tape/ops/hosting.py", "exec"): "names made there",
    ("tape/ops/hosting.py", "compile"): "the same text",
    ("tape/testing/operands.py", "eval"): "literals of that module",
    ("tape/testing/operations.py", "eval"): "literals of that module",
    ("tape/testing/operations.py", "compile"): "the same text",
    ("tape/testing/programs.py", "eval"): "literals of tape.testing.operations",
    ("tape/testing/programs.py", "compile"): "the same text",
}


def spelled(function):
    """Return how a called function is written: ``name`` or ``module.name``."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return ""


def dangerous(source):
    """Yield the dangerous calls of a module, and what it takes out of dangerous modules by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield from (f"from {node.module} import {alias.name}" for alias in node.names if alias.name in READS)
        if isinstance(node, ast.Call):
            name = spelled(node.func)
            module, _, attribute = name.rpartition(".")
            if name in DANGEROUS or (module in MODULES and attribute in READS):
                yield name
            if any(k.arg == "allow_pickle" and not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in node.keywords):
                yield "allow_pickle"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle\npickle.loads(x)", ["pickle.loads"]),
        ("from pickle import loads", ["from pickle import loads"]),
        ("eval(text)", ["eval"]),
        ("np.load(f, allow_pickle=True)", ["allow_pickle"]),
        ("subprocess.run([])", ["subprocess.run"]),
        ("re.compile('x'); pickle.dumps(x); lowered.compile(options); np.load(f, allow_pickle=False)", []),
    ],
)
def test_the_search_finds(source, found):
    assert list(dangerous(source)) == found


def test_every_dangerous_call_is_known():
    found = {(str(path.relative_to(ROOT)), call) for path in SOURCES for call in dangerous(path.read_text(encoding="utf-8"))}
    assert found == set(CALLS)


def test_the_note_names_what_there_is():
    for said in (
        "pickle.loads",
        "python -m tape check",
        "jax_compilation_cache_dir",
        "tape/ops/hosting.py",
        "`dot`",
        "tape/testing",
        "TAPE_RECORDER",
    ):
        assert said in NOTE
    for path in re.findall(r"`((?:tape|tests|\.github)/[\w./]+)`", NOTE):
        assert list(ROOT.glob(f"{path}*")), path


class Payload:
    """Something whose unpickling is seen."""

    ran = False

    def __reduce__(self):
        return _run, ()


def _run():
    Payload.ran = True
    return 0


@pytest.mark.parametrize("name", ["file.safetensors", "file"])
def test_a_pickle_is_not_loaded(tmp_path, name):
    pytest.importorskip("safetensors")
    path = tmp_path / name
    path.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(TapeValueError):
        interop.load(path)
    assert not Payload.ran


def test_numpys_objects_are_not_loaded():
    file = io.BytesIO()
    np.save(file, np.array([Payload()], dtype=object), allow_pickle=True)
    file.seek(0)
    with pytest.raises(ValueError, match="allow_pickle"):
        tnp.load(file)
    assert not Payload.ran


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<!--<script>", '"]; x [label="', "');import os#"])
def test_names_stay_text(name):
    """A name that would break out of a page or a picture does not."""
    x = tape.Variable(jnp.ones(2), name=name)
    with tape.Tape() as t:
        (x * x).sum()
    picture = t.draw()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', picture.html(), re.DOTALL)[1]
    assert "<" not in data
    assert name in json.dumps(json.loads(data), ensure_ascii=False).replace('\\"', '"')
    assert '"]; x [label="' not in picture.dot()
