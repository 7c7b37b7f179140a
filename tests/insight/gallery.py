"""Classic accidents, each with what tape.explain says of it, and the repair; ``python -m tests.insight.gallery docs/explain.md`` writes the page."""

import inspect
import linecache
import pathlib
import sys
import textwrap

import numpy as np

import tape
import tape.numpy as tnp

ACCIDENTS = {}  # name -> (title, verdict, kind of cause, accident, repaired)


def accident(title, verdict, kind, repaired):
    def enter(function):
        ACCIDENTS[function.__name__] = (title, verdict, kind, function, repaired)
        return function

    return enter


def variable(value):
    return tape.Variable(np.asarray(value, np.float32), name="x")


def safe_root():
    x = variable([0.0, 4.0])
    safe = tnp.where(x > 0, x, 1.0)
    return tnp.where(x > 0, tnp.sqrt(safe), 0.0).sum(), x


@accident("A root behind a mask", "NaN", "infinity times zero", safe_root)
def where_and_sqrt():
    x = variable([0.0, 4.0])
    return tnp.where(x > 0, tnp.sqrt(x), 0.0).sum(), x


def safe_log():
    x = variable([0.0, 1.0])
    return tnp.log(tnp.maximum(x, 1e-12)).sum(), x


@accident("The logarithm of 0", "inf", "log(0)", safe_log)
def log_of_zero():
    x = variable([0.0, 1.0])
    return tnp.log(x).sum(), x


def squares():
    x = variable([0.0, 0.0])
    return (x * x).sum(), x


@accident("A norm at 0", "NaN", "norm at 0", squares)
def norm_at_zero():
    x = variable([0.0, 0.0])
    return tnp.linalg.norm(x), x


def shifted_softmax():
    x = variable([1000.0, 999.0])
    return tape.nn.log_softmax(x)[0], x


@accident("A softmax that overflows", "NaN", "softmax overflow", shifted_softmax)
def softmax_overflow():
    x = variable([1000.0, 999.0])
    e = tnp.exp(x)
    return tnp.log(e / e.sum())[0], x


def whole_loss():
    x = variable([1.0, 2.0])
    return (x * x).sum(), x


@accident("A loss that was detached", "None", "detach", whole_loss)
def detached_loss():
    x = variable([1.0, 2.0])
    y = (x * x).detach()
    return y.sum() * 1.0, x


def recorded_gradient():
    x = variable([1.0, 2.0])
    g = tape.gradients((x**3).sum(), x, create_graph=True)
    return (g * g).sum(), x


@accident("create_graph was forgotten", "None", "create_graph", recorded_gradient)
def forgotten_create_graph():
    x = variable([1.0, 2.0])
    g = tape.gradients((x**3).sum(), x)
    return (g * g).sum(), x


def soft_position():
    x = variable([1.0, 2.0])
    return (tape.nn.softmax(x) * tnp.arange(2.0)).sum(), x


@accident("A position in place of a value", "None", "integer index", soft_position)
def integer_index():
    x = variable([1.0, 2.0])
    return tnp.argmax(x) * 2.0, x


def kept_name():
    x = variable([1.0, 2.0])
    loss = (x * x).sum()
    return loss, x


@accident("A name that was bound to something else", "None", "rebinding", kept_name)
def rebinding():
    x = variable([1.0, 2.0])
    loss = (x * x).sum()
    x = x - 0.1  # a new Variable: the loss was computed from the old one
    return loss, x


def selected():
    x = variable([0.0, 2.0])
    mask = tape.constant(np.array([False, True]))
    return tnp.where(mask, tnp.log(tnp.where(mask, x, 1.0)), 0.0).sum(), x


@accident("A mask times infinity", "NaN", "infinity times zero", selected)
def mask_times_infinity():
    x = variable([0.0, 2.0])
    mask = tape.constant(np.array([0.0, 1.0], np.float32))
    return (tnp.log(x) * mask).sum(), x


def orthogonal_network():
    w, x = tape.constant(np.eye(4, dtype=np.float32)[::-1].copy()), variable(np.ones(4))
    h = x
    for _ in range(30):
        h = h + 0.01 * tnp.tanh(w @ h)
    return h.sum(), x


@accident("A recurrent network whose gradient vanishes", "tiny", "vanishing", orthogonal_network)
def vanishing_network():
    w, x = tape.constant(0.1 * np.eye(4, dtype=np.float32)), variable(np.ones(4))
    h = x
    for _ in range(30):
        h = tnp.tanh(w @ h)
    return h.sum(), x


@accident("A recurrent network whose gradient explodes", "huge", "exploding", orthogonal_network)
def exploding_network():
    w, x = tape.constant(3.0 * np.eye(4, dtype=np.float32)), variable(1e-10 * np.ones(4))
    h = x
    for _ in range(30):
        h = w @ h
    return h.sum(), x


def other_axis():
    x = variable([[1.0, 2.0, 0.5], [0.0, 1.0, 3.0]])
    return (tape.nn.softmax(x, axis=-1)[:, 0]).sum(), x


@accident("The wrong axis", "zero", "wrong axis", other_axis)
def wrong_axis():
    x = variable([[1.0, 2.0, 0.5], [0.0, 1.0, 3.0]])
    return tape.nn.softmax(x, axis=-1).sum(axis=-1).mean(), x


def body(function):
    """The code of a function as a script that leaves y and x."""
    lines = inspect.getsource(function).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def ")) + 1
    text = textwrap.dedent("\n".join(lines[start:])).strip()
    return text.replace("return ", "y = ").removesuffix(", x") + "\n"


def told(source):
    """What is said of a script in a terminal of 100 columns, with the lines of the script."""
    linecache.cache["example.py"] = (len(source), None, source.splitlines(keepends=True), "example.py")
    names = {"tape": tape, "tnp": tnp, "np": np, "variable": variable}
    with tape.Tape():  # another one may have recorded the same ops
        exec(compile(source + "said = tape.explain(y, x)._text(100)", "example.py", "exec"), names)  # noqa: S102 - it stands above
    return names["said"]


def page():
    said = [
        "# Why is the gradient None, zero or NaN?",
        "",
        "`tape.explain(output, input)` names what cut, killed or blew up a gradient, where, and what to do. Twelve classic accidents, with",
        "what it says of each (`python -m tests.insight.gallery docs/explain.md` writes this page, and tests hold its lines). `variable(...)`",
        'is `tape.Variable(..., name="x")` in float32.',
        "",
    ]
    for title, _, _, function, repaired in ACCIDENTS.values():
        source = body(function)
        said += [f"## {title}", "", "```python", source + "print(tape.explain(y, x))", "```", "", "```text", told(source), "```", ""]
        said += ["Repaired:", "", "```python", body(repaired).rstrip(), "```", ""]
    return "\n".join(said)


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(page())
