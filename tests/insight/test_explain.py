"""``tape.explain``: the verdict is that of ``tape.gradients``, and the cause is named with its line and a repair that works."""

import pathlib

import jax
import numpy as np
import pytest

import tape
import tape.lax
import tape.numpy as tnp
from tape.graph import trie
from tape.insight import replaying
from tape.ops.kernel import Kernel
from tests.insight.gallery import ACCIDENTS
from tests.platforms import at_home

A = np.array([1.0, -2.0, 0.5], np.float32)
PAGE = (pathlib.Path(__file__).parent.parent.parent / "docs" / "explain.md").read_text()


def kinds(explanation):
    return [c.kind for c in explanation.causes]


def verdict_of(y, x):
    """What tape.gradients says."""
    g = tape.gradients(y, x, unconnected="none", retain_graph=True) if y.requires_grad and x.requires_grad else None
    if g is None:
        return "None"
    g = np.asarray(g.value)
    return "NaN" if np.isnan(g).any() else "inf" if np.isinf(g).any() else "zero" if not g.any() else "finite"


def test_the_repair_of_a_power_at_zero_can_be_pasted():
    x = tape.Variable(np.array([0.0, 1.0], np.float32))
    (cause,) = tape.explain((x**0.5).sum(), x).causes
    assert cause.repair == "keep its input away from 0: x + 1e-12, or tnp.maximum(x, eps)"  # no tnp.power(x + 1e-12)


@pytest.mark.parametrize("name", ACCIDENTS)
def test_the_answer_names_cause_and_repair(name):
    title, verdict, kind, accident, repaired = ACCIDENTS[name]
    trie._ROOTS.clear()  # another test may have recorded the same ops, and lines are those of the first time
    y, x = accident()
    if name == "forgotten_create_graph":
        with pytest.raises(tape.errors.UnrecordedGradientError):
            tape.gradients(y, x)
    elif name != "rebinding":
        expected = verdict_of(y, x)
        assert expected == (verdict if verdict in ("None", "NaN", "inf", "zero") else "finite")
    why = tape.explain(y, x)
    assert why.verdict == verdict
    assert why.causes[0].kind == kind
    assert why.causes[0].repair
    text = str(why)
    for line in text.splitlines():
        if line.lstrip().startswith(("cause:", "repair:", "The gradient")) and __name__ not in line:
            assert " ".join(line.split(" at %")[0].split()) in " ".join(PAGE.split())  # where it is folded
    assert f"## {title}" in PAGE
    if why.causes[0].entry is not None:
        assert "gallery.py:" in text
        assert tape.Tape.of(y)[why.causes[0].entry].where[0].endswith("gallery.py")
    y, x = repaired()
    assert tape.explain(y, x).verdict in (("zero",) if name == "norm_at_zero" else ("fine",))
    assert verdict_of(y, x) in ("finite", "zero")


CUTS = {
    "no_grad": lambda x: under_no_grad(x) * 3,
    "detach": lambda x: tape.stop_gradient(x * 1.0) * 3,
    "comparison": lambda x: (x * 2 > 1) * 3.0,
    "integer cast": lambda x: (x * 1.5).astype("int32").astype("float32"),
    "rounding": lambda x: tnp.round(x * 2),
}


def under_no_grad(x):
    with tape.no_grad():
        return x * 2


@pytest.mark.parametrize("kind", CUTS)
@pytest.mark.parametrize("look", [False, True])
def test_what_cuts_a_gradient_is_found(kind, look):
    x = tape.Variable(A, name="x")
    h = CUTS[kind](x)
    if look:
        h.block_until_ready()
    y = (h + 1.0).sum()
    assert verdict_of(y, x) == "None"
    why = tape.explain(y, x)
    assert why.verdict == "None"
    assert kind in kinds(why)


@pytest.mark.parametrize(
    ("kind", "make", "value"),
    [
        ("zero mask", tape.nn.relu, [-1.0, -2.0]),
        ("zero mask", lambda x: x * tape.constant(np.zeros(2, np.float32)), [1.0, 2.0]),
        ("saturation", tnp.tanh, [100.0, -200.0]),
        ("saturation", tape.nn.sigmoid, [200.0, 300.0]),
        ("underflow", lambda x: x * 1e-30 * 1e-30, [1.0, 2.0]),
    ],
)
def test_what_kills_a_gradient_is_found(kind, make, value):
    x = tape.Variable(np.asarray(value, np.float32), name="x")
    y = make(x).sum()
    assert verdict_of(y, x) == "zero"
    why = tape.explain(y, x)
    assert (why.verdict, why.norm) == ("zero", 0.0)
    assert kind in kinds(why)


def test_a_gradient_without_fault_is_fine_and_its_norms_are_right():
    x, w = tape.Variable(A, name="x"), tape.Variable(A + 3, name="w")
    y = (tnp.tanh(x * w) * w).sum()
    why = tape.explain(y, x)
    assert why.verdict == "fine"
    assert not why.causes
    g = tape.gradients(y, x, retain_graph=True)
    assert np.isclose(why.norm, np.linalg.norm(g.value), rtol=1e-5)
    assert [s.entry.op for s in why.path] == ["sum", "multiply", "tanh", "multiply"]
    assert np.isclose(why.path[1].gradient, np.sqrt(3))
    assert np.isclose(why.path[2].gradient, np.linalg.norm(A + 3), rtol=1e-5)
    assert "forward" in why.draw().dot()
    assert why._repr_html_().startswith("<pre")
    assert tape.explain(x, x).verdict == "fine"


def test_looking_changes_nothing():
    x = tape.Variable(A)
    y = (x * x).sum()
    tape.explain(y, x)
    assert x.grad is None
    y.backward()
    assert np.allclose(x.grad.value, 2 * A)


def test_after_a_sweep_it_says_what_it_can():
    x = tape.Variable([0.0, 4.0], name="x")
    y = tnp.where(x > 0, tnp.sqrt(x), 0.0).sum()
    y.backward()
    why = tape.explain(y, x)
    assert why.verdict in ("NaN", "connected")
    with tape.Tape():
        z = (tape.constant(A) * tape.Variable(A, name="w")).sum()
        w = tape.Tape.of(z).leaves
    z.backward()
    assert len(w) == 2


def test_values_that_no_sweep_reads_may_be_gone():
    x = tape.Variable(A, name="x")
    y = x
    for _ in range(5):
        y = y + 1.0
    float(y.sum())
    z = (tnp.sin(y) * 2.0).sum()
    why = tape.explain(z, x)
    assert why.verdict == "fine"
    assert np.isclose(why.norm, np.linalg.norm(2 * np.cos(A + 5)), rtol=1e-5)


def test_a_loss_that_was_made_of_a_number():
    x = tape.Variable(A)
    loss = tape.Variable(float((x * x).sum()))
    assert kinds(tape.explain(loss, x)) == ["detached loss"]
    assert kinds(tape.explain((tape.Variable(A) * 2).sum(), x)) == ["not used"]


def test_functions_of_the_users_and_loops_are_gone_through():
    class Flip(tape.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            return -g

    x = tape.Variable(A, name="x")
    h, _ = tape.lax.scan(lambda c, _: (tnp.sin(c), None), Flip.apply(x), None, length=3)
    y = h.sum()
    why = tape.explain(y, x)
    assert why.verdict == "fine"
    assert np.isclose(why.norm, np.linalg.norm(tape.gradients(y, x, retain_graph=True).value), rtol=1e-5)
    assert "Flip" in [s.entry.op for s in why.path]


def test_wrong_shapes_are_hinted_at():
    x, y = tape.Variable(np.ones((4, 1), np.float32)), tape.constant(np.ones(4, np.float32))
    why = tape.explain(((x - y - 1.0) ** 2).mean(), x)
    assert "wrong axis" in kinds(why)
    assert "(4, 4)" in str(why)


def test_mistakes_are_said():
    x = tape.Variable(A)
    with pytest.raises(tape.errors.TapeTypeError, match="input must be a tape"):
        tape.explain(x * 2, jax.numpy.ones(2))
    i = tape.constant([1, 2])
    assert kinds(tape.explain((i * x[:2]).sum(), i)) == ["integer input"]
    c = tape.constant(A)
    assert "requires_grad" in kinds(tape.explain((c * x).sum(), c))


def test_the_gradient_of_no_elements_is_no_accident():
    x = tape.Variable(np.zeros((0, 3), np.float32))
    why = tape.explain((x * 2).sum(), x)
    assert (why.verdict, list(why.causes)) == ("fine", [])
    assert "has no elements" in str(why)


def long_chain(n):
    x = tape.Variable(np.linspace(0.1, 1, 7, dtype=np.float32), name="x")
    h = x
    for _ in range(n):
        h = tnp.sin(h * 1.01) + x * 0.1
    return h.sum(), x


@pytest.mark.parametrize("name", [*ACCIDENTS, "long_chain", "softmax_of_bfloat16"])
def test_the_answer_is_the_same_where_numpy_computes_it_and_where_jax_does(name, monkeypatch):
    def one():
        if name == "long_chain":
            return long_chain(30)
        if name == "softmax_of_bfloat16":
            x = tape.Variable(A.astype(jax.numpy.bfloat16), name="x")
            return (tape.nn.softmax(x * 2) * A.astype(jax.numpy.bfloat16)).sum(), x
        return ACCIDENTS[name][3]()

    y, x = one()
    told = tape.explain(y, x)
    monkeypatch.setattr(replaying, "at_home", lambda _: False)
    other = tape.explain(y, x)
    assert told.verdict == other.verdict
    assert [(c.kind, c.entry, c.repair) for c in told.causes] == [(c.kind, c.entry, c.repair) for c in other.causes]
    assert [s.entry.number for s in told.path] == [s.entry.number for s in other.path]
    rtol = 2e-2 if name == "softmax_of_bfloat16" else 1e-5
    for a, b in [
        (told.norm, other.norm),
        *[pair for s, t in zip(told.path, other.path, strict=True) for pair in zip(s[1:], t[1:], strict=True)],
    ]:
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=rtol)


@at_home
def test_small_values_of_a_long_tape_are_not_given_to_jax_one_by_one(monkeypatch):
    y, x = long_chain(40)
    tape.explain(y, x)
    calls = []
    monkeypatch.setattr(Kernel, "pull", lambda *_: calls.append("pull"))
    monkeypatch.setattr(jax.numpy, "asarray", lambda *_: calls.append("asarray"))
    assert tape.explain(y, x).verdict == "fine"
    assert not calls


def test_kernels_that_were_not_met_are_not_met_after_it():
    x = tape.Variable(np.linspace(0.1, 1, 19, dtype=np.float32), name="x")
    y = tnp.arctan2(x * 1.25, x + 2.5).sum()
    kernels = [step.kernel for step in y._segment.state.path() if step.kernel is not None]
    before = [k.unmet for k in kernels]
    assert any(before)
    assert tape.explain(y, x).verdict == "fine"
    assert [k.unmet for k in kernels] == before
    assert np.isfinite(float(y))


def test_what_numpy_does_not_run_jax_does():
    x = tape.Variable(np.array([[2.0, 0.5], [0.5, 1.0]], np.float32), name="x")
    y = tnp.linalg.cholesky(x @ x.mT).sum() * 2
    why = tape.explain(y, x)
    assert why.verdict == "fine"
    np.testing.assert_allclose(why.norm, np.linalg.norm(tape.gradients(y, x).value), rtol=1e-5)


class GivesNone(tape.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * w

    @staticmethod
    def backward(ctx, g):
        return None, g * 2


class Raises(tape.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise LookupError("no such table")


class WrongShape(tape.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g.sum()


def test_a_backward_that_gives_none_is_named_for_the_input_that_gets_nothing():
    x, w = tape.Variable(A, name="x"), tape.Variable(A, name="w")
    y = GivesNone.apply(x * 1.5, w).sum()
    assert tape.gradients(y, x, unconnected="none", retain_graph=True) is None
    why = tape.explain(y, x)
    assert (why.verdict, kinds(why)) == ("None", ["backward"])
    assert "the backward of GivesNone gave None for %0" in str(why)
    why = tape.explain(y, w)
    assert why.verdict == "fine"
    np.testing.assert_allclose(why.norm, np.linalg.norm(tape.gradients(y, w).value), rtol=1e-6)


@pytest.mark.parametrize(("function", "error"), [(Raises, LookupError), (WrongShape, tape.errors.GradientShapeError)])
def test_a_backward_that_raises_is_explained(function, error):
    x, w = tape.Variable(A, name="x"), tape.Variable(A, name="w")
    y = (function.apply(x * 3) + w).sum()
    with pytest.raises(error):
        tape.gradients(y, x, retain_graph=True)
    why = tape.explain(y, x)
    assert (why.verdict, kinds(why)) == ("error", ["backward"])
    assert f"the backward of {function.__name__} raises {error.__name__}: " in str(why)
    assert "is an error." in str(why)
    assert tape.explain(y, w).verdict == "fine"  # which no such backward leads to


def test_what_other_inputs_get_is_not_what_this_one_does():
    x, w = tape.Variable(A, name="x"), tape.Variable(np.zeros_like(A), name="w")
    why = tape.explain((x * w).sum(), x)
    assert (why.verdict, kinds(why)) == ("zero", ["zero mask"])  # w gets a gradient of the same entry: nothing cancels


def test_functions_run_once_more_leave_what_is_pending_and_hooks_alone():
    x = tape.Variable(A, name="x")
    seen = []

    class Watch(tape.OpHook):
        def forward_preprocess(self, op, inputs):
            seen.append(op)

    w = tape.Variable(A, name="w")
    y = GivesNone.apply(x, w).sum()
    with Watch():
        pending = tnp.sin(w * 1.75)
        before = len(seen)
        assert tape.explain(y, w).verdict == "fine"
        assert len(seen) == before
    assert pending._segment is not None
    assert pending._segment.pending
    assert float((pending * 1).sum()) == pytest.approx(np.sin(A * 1.75).sum(), rel=1e-5)
