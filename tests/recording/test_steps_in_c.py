"""Steps that are found again, by the recorder in C: they run no Python of the tape's, and do what the recorder in Python does."""

import gc
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import interop.optax
import tape
import tape.numpy as tnp
from tape import extend, layout, modes
from tape.graph import scope, trie
from tape.graph.scope import LOCAL, close
from tape.mirrored import detachment
from tape.programs import execution, numbers, program, retention
from tape.recording import record
from tape.sweeps import differentiation

A = np.linspace(-1.3, 0.9, 29, dtype=np.float32)
native = pytest.mark.skipif(layout.NATIVE is None, reason="the recorder in Python runs")


def settled(step):
    """Call a step until nothing was interpreted or compiled for some calls; return what it gives."""
    for noted in retention.noted().values():
        noted.clear()  # of other tests: a run trims one segment
    quiet = 0
    for _ in range(3000):
        before = tape.stats().interpreted, tape.stats().compiles
        found = step()
        quiet = quiet + 1 if before == (tape.stats().interpreted, tape.stats().compiles) else 0
        if quiet == 40:
            return found
    raise AssertionError


def called(step):
    """Return which functions of the library's Python a step calls, by name."""
    names = []
    root = tape.__file__.removesuffix("tape/__init__.py")

    def see(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith((root + "tape/", root + "interop/")):
            names.append(frame.f_code.co_qualname)

    sys.setprofile(see)
    try:
        step()
    finally:
        sys.setprofile(None)
    return names


def pending():
    segment = LOCAL.segment()
    if segment is not None:
        close(segment)


@native
def test_a_step_of_ops_a_sweep_and_a_gradient_calls_no_python():
    x = tape.Variable(A)

    def step():
        x.grad = None
        (tnp.sin(x) * 2.0).sum().backward()
        return x.grad.value

    settled(step)
    assert set(called(step)) <= {"in_trace"}


@native
def test_a_step_of_many_numbers_calls_no_python():
    x = tape.Variable(A)

    def step(number):
        x.grad, y = None, x
        for k in range(60):
            y = y * (1.0 + k / 100) if k else y * number
        y.sum().backward()
        return x.grad.value

    settled(lambda: step(0.5))
    assert set(called(lambda: step(0.5))) <= {"in_trace"}
    right = np.prod([1.0 + k / 100 for k in range(1, 60)])
    for number in (0.5, 0.25, 0.5):
        np.testing.assert_allclose(step(number), np.full_like(A, number * right), rtol=1e-4)


@native
def test_a_penalty_and_a_detached_value_call_no_python_but_for_the_leaf():
    w = tape.Variable(A)

    def step():
        w.grad = None
        y = tnp.tanh(w) * 0.5
        g = tape.gradients((y * y).sum(), w, create_graph=True)
        (g * y.detach() + g * g).sum().backward()
        return w.grad.value

    right = settled(step)
    assert set(called(step)) <= {"in_trace"}

    def loss(w):
        g = jax.grad(lambda w: jnp.sum((jnp.tanh(w) * 0.5) ** 2))(w)
        return jnp.sum(g * jax.lax.stop_gradient(jnp.tanh(w) * 0.5) + g * g)

    np.testing.assert_allclose(right, jax.grad(loss)(A), rtol=1e-5, atol=1e-6)


@native
@pytest.mark.parametrize("looks", [False, True])
def test_an_optimizer_that_updates_again_calls_little(looks):
    w = tape.Variable(A)
    optimizer = interop.optax.Optimizer([w], optax.adam(1e-2))

    def step():
        loss = (w * w * 1.5).sum()
        loss.backward()
        if looks:  # nothing is pending then
            loss.item()
        optimizer.step()
        optimizer.zero_grad()

    settled(step)
    found = called(step)
    assert "Update.again" in found
    assert not {"run_pending", "_run", "Segment.__init__", "_repeated"} & set(found)
    assert len(found) < 12 + 6 * looks


def trained(turns, monkeypatch=None, *, looks=False):
    """Return what some steps of Adam make of a parameter, without the update in C where they are patched."""
    if monkeypatch is not None:
        monkeypatch.setattr(extend.update, "_as_before", lambda *_: False)
    w, b = tape.Variable(A), tape.Variable(A * 0.5)
    optimizer = interop.optax.Optimizer([w, b], optax.adam(1e-2))
    seen = []
    for k in range(turns):
        loss = (tnp.sin(w * b) + w * (1.0 + (k == turns // 2))).sum()
        loss.backward()
        if looks:
            loss.item()
        optimizer.step()
        seen.append((w.value, b.value))
        optimizer.zero_grad()
    return seen


@pytest.mark.parametrize("looks", [False, True])
def test_updates_again_are_those_of_python(monkeypatch, looks):
    for found, right in zip(trained(40, looks=looks), trained(40, monkeypatch, looks=looks), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-7)


def test_an_update_with_what_changed_is_made_anew():
    w, b = tape.Variable(A), tape.Variable(A * 0.5)
    optimizer = interop.optax.Optimizer([w, b], optax.sgd(0.5))

    def step(loss, clear=True):
        loss().backward()
        optimizer.step()
        if clear:
            optimizer.zero_grad()

    for _ in range(8):
        step(lambda: (w * 2.0 + b).sum())
    before = w.value, b.value
    step(lambda: (w * 2.0).sum())  # b has no gradient: it stays
    np.testing.assert_allclose(w.value, before[0] - 1.0, rtol=1e-6)
    np.testing.assert_array_equal(b.value, before[1])
    step(lambda: (w * 2.0 + b).sum(), clear=False)
    before = w.value, b.value
    step(lambda: (w * 2.0 + b).sum())  # twice the gradient
    np.testing.assert_allclose(w.value, before[0] - 2.0, rtol=1e-5)
    np.testing.assert_allclose(b.value, before[1] - 1.0, rtol=1e-5)
    w.grad, b.grad = tape.constant(A), tape.constant(A)  # the user's own
    before = w.value
    optimizer.step()
    np.testing.assert_allclose(w.value, before - 0.5 * A, rtol=1e-5)


@pytest.mark.parametrize("what", ["shape", "dtype", "gradient", "no gradient", "one less"])
def test_an_update_of_other_kinds_is_not_made_again(what):
    w, update, assign = tape.Variable(A), extend.Update(), extend.Assignment()
    extend.awaiting([w], owner=update)

    def step(rate):
        w.zero_grad()
        (w * w).sum().backward()
        done = update.again([w], rate)
        if not done:
            with extend.updating():
                new = [w - rate[0] * w.grad, rate[0] * rate[0] / rate[0]]  # numbers would have it made anew
                update.note(new)
            assign([w, *rate], new)
        return done

    rate = [tape.constant(np.float32(0.25))]
    assert [step(rate) for _ in range(6)][-1]
    value = w.value
    if what in {"shape", "dtype"}:
        other = tape.constant(np.full((1,), 0.25, np.float32) if what == "shape" else np.float16(0.25))
        assert not step([other])
        np.testing.assert_allclose(w.value, value - 0.25 * 2 * value, rtol=1e-3)
    else:
        w.zero_grad()
        (w * w).sum().backward()
        if what == "one less":
            assert not update.again([w], [])
        elif what == "gradient":
            w.grad = tape.constant(A)
            assert not update.again([w], rate)
        else:
            w.grad = None
            assert not update.again([w], rate)
        np.testing.assert_array_equal(w.value, value)
    assert [step(rate) for _ in range(3)][-1]


@native
def test_an_update_that_fails_changes_nothing(monkeypatch):
    w = tape.Variable(A)
    optimizer = interop.optax.Optimizer([w], optax.sgd(0.5))

    def step():
        (w * 3.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    settled(step)
    before = w.value
    (w * 3.0).sum().backward()

    def broken(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:  # no program is known from this line, so the run is Python's
        patched.setattr(program, "held", broken)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    assert w.value is before
    optimizer.step()
    np.testing.assert_allclose(w.value, before - 1.5, rtol=1e-6)


# -- where segments begin


@pytest.mark.parametrize("change", ["bits", "precision", "mode", "eager", "transformation", "axes"])
def test_a_segment_begins_with_what_holds_now(change):
    x = tape.Variable(A)

    def recorded():
        pending()
        return x * 2.0

    for _ in range(4):
        _ = recorded()
    outside = recorded()._segment
    if change == "bits":
        with jax.enable_x64(True):
            y = tape.Variable(np.float64(1 / 3)) * 3.0
            assert str(y.dtype) == "float64"
            assert y._segment.configuration is not outside.configuration
    elif change == "precision":
        with jax.default_matmul_precision("float32"):
            assert recorded()._segment.configuration is not outside.configuration
    elif change == "mode":
        with tape.no_grad():
            assert not recorded().requires_grad
    elif change == "eager":
        with tape.eager():
            assert recorded()._segment.run is not None
    elif change == "transformation":
        g = jax.grad(lambda a: jnp.sum((tape.Variable(a) * 2.0).sum().value))(A)
        np.testing.assert_array_equal(g, np.full_like(A, 2.0))
    else:
        jax.vmap(lambda a: recorded()._segment.state and a, axis_name="batch")(jnp.asarray(A))
    again = recorded()
    assert again.requires_grad
    assert again._segment.configuration is outside.configuration
    assert again._segment.run is None
    np.testing.assert_array_equal(again.value, 2 * A)


def test_a_thread_begins_with_its_own_settings():
    x = tape.Variable(A)
    pending()
    _ = x * 2.0
    found = []

    def work():
        for _ in range(3):
            pending()
            found.append(x * 2.0)
        with jax.enable_x64(True):
            pending()
            found.append(tape.Variable(np.float64(2.0)) * 2.0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    pending()
    assert str((x * 2.0).dtype) == "float32"
    assert [str(y.dtype) for y in found] == ["float32"] * 3 + ["float64"]
    assert found[3]._segment.configuration is not found[0]._segment.configuration


def test_segments_are_counted_until_they_are_freed():
    x = tape.Variable(A)
    gc.collect()
    recorded, segments = tape.stats().recorded, len(tape.stats().segments)
    for _ in range(7):
        pending()
        y = tnp.cos(x * 2.0)
    assert tape.stats().recorded == recorded + 14
    del y
    pending()
    gc.collect()
    assert tape.stats().recorded == recorded + 14
    assert len(tape.stats().segments) <= segments


def test_the_trie_is_thinned_where_segments_begin_again(monkeypatch):
    x = tape.Variable(A)
    for _ in range(5):
        pending()
        _ = float((x * 2.0).sum())
    thinned = []
    original = trie._evict
    monkeypatch.setattr(trie, "_evict", lambda: thinned.append(original()))
    monkeypatch.setattr(trie, "_limit", trie._count - 1)
    pending()
    assert float((x * 2.0).sum()) == pytest.approx(2 * A.sum(), abs=1e-4)
    assert thinned


def test_op_hooks_see_what_is_recorded_in_a_segment_that_begins_again():
    x = tape.Variable(A)
    for _ in range(4):
        pending()
        _ = x * 2.0

    class Seen(tape.OpHook):
        def __init__(self):
            self.ops = []

        def forward_preprocess(self, op, inputs):
            self.ops.append(str(op))

    seen = Seen()
    pending()
    with tape.hooks(seen):
        _ = x * 2.0
    assert len(seen.ops) == 1


# -- sweeps


@pytest.mark.parametrize("what", ["sums", "hook", "post hook", "assigned", "kept", "seed", "names", "wrong"])
def test_a_sweep_that_is_not_the_common_one_is_not_taken_for_it(what):
    x = tape.Variable(A)

    def loss():
        return (tnp.sin(x) * 1.5).sum()

    def sweep(y):
        y.backward()
        return None if x.grad is None else x.grad.value

    def swept():
        x.grad = None
        return sweep(loss())

    settled(swept)
    once = 1.5 * np.cos(A)
    x.grad = None
    y, seen = loss(), []
    if what == "sums":
        sweep(loss())
        sweep(y)
        np.testing.assert_allclose(x.grad.numpy(), 2 * once, rtol=1e-5)
    elif what == "hook":
        handle = x.register_hook(lambda g: g * 3.0)
        sweep(y)
        handle.remove()
        np.testing.assert_allclose(x.grad.numpy(), 3 * once, rtol=1e-5)
    elif what == "post hook":
        handle = x.register_post_accumulate_grad_hook(lambda v: seen.append(v.grad is not None))
        sweep(y)
        handle.remove()
        assert seen == [True]
    elif what == "assigned":
        y.grad = tape.constant(2.0)
        sweep(y)
        np.testing.assert_allclose(x.grad.numpy(), 2 * once, rtol=1e-5)
    elif what == "kept":
        y.backward(retain_graph=True)
        sweep(y)
        np.testing.assert_allclose(x.grad.numpy(), 2 * once, rtol=1e-5)
    elif what == "seed":
        y.backward(tape.constant(4.0))
        np.testing.assert_allclose(x.grad.numpy(), 4 * once, rtol=1e-5)
    elif what == "names":
        found = tape.gradients(outputs=y, inputs=x)
        np.testing.assert_allclose(found.numpy(), once, rtol=1e-5)
    else:
        for wrong in ({"create_graph": 1}, {"unconnected": "no"}):
            with pytest.raises((TypeError, ValueError)):
                tape.gradients(y, x, **wrong)
        with pytest.raises(TypeError):
            tape.gradients(y, x, create_graph=True, no_such=True)
    if what == "kept":
        with pytest.raises(tape.errors.ReleasedTapeError):
            y.backward()


@native
def test_a_hessian_vector_product_calls_no_python():
    w, b = tape.Variable(A), tape.Variable(A[:1])

    def step(v, u):
        loss = (tnp.sin(w) * w * b).sum()
        return tape.gradients(tape.gradients(loss, [w, b], create_graph=True), [w, b], [v, u])

    def right(v, u):
        def loss(w, b):
            return jnp.sum(jnp.sin(w) * w * b)

        return jax.jvp(jax.grad(loss, (0, 1)), (w.value, b.value), (v.value, u.value))[1]

    v, u = tape.constant(A * 0.5), tape.constant(A[:1] + 1)

    def run():
        return step(v, u)[0].value

    settled(run)
    assert set(called(run)) <= {"in_trace"}
    for tangents in ((v, u), (tape.constant(A + 2), u)):
        found = step(*tangents)
        for one, wanted in zip(found, right(*tangents), strict=True):
            np.testing.assert_allclose(one.value, wanted, rtol=2e-4, atol=1e-5)


# What a known call of gradients() with seeds is followed by: the seeds of roots x * w and sin(x), of which the first one is entered last.
SEEDS = {
    "others": lambda: (tape.constant(A * 3), tape.constant(A - 1)),
    "none": lambda: (tape.constant(np.ones_like(A)), None),
    "the same": lambda: (tape.constant(A),) * 2,
    "pending": lambda: (tape.constant(A) * 2.0, tape.constant(A)),
    "recorded": lambda: (tape.Variable(A) * 2.0, tape.Variable(A)),
    "weak": lambda: (tape.constant(A), tape.constant(1.0) * np.ones_like(A)),
    "arrays": lambda: (jnp.asarray(A), A),
}


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("create_graph", [False, True])
def test_seeds_of_known_calls(seeds, create_graph):
    x, w = tape.Variable(A), tape.Variable(A + 1)

    def swept(given):
        early = tnp.sin(x)
        roots = (x * w, early) if given[1] is not None else x * w
        found = tape.gradients(roots, [x, w], given if given[1] is not None else given[0], create_graph=create_graph)
        total = (found[0] * found[1]).sum() if create_graph else None
        values = [g.value for g in found]
        return values, None if total is None else tape.gradients(total, x).value

    settled(lambda: swept((tape.constant(A), tape.constant(A * 2)))[0][0])
    for _ in range(4):
        given = SEEDS[seeds]()
        (dx, dw), second = swept(given)
        p, q = (0 if seed is None else np.asarray(seed.value if isinstance(seed, tape.Variable) else seed) for seed in given)
        np.testing.assert_allclose(dx, p * (A + 1) + q * np.cos(A), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dw, p * A, rtol=1e-5, atol=1e-6)
        if create_graph:  # of sum((p * w + q * cos x) * p * x)
            right = -q * np.sin(A) * p * A + (p * (A + 1) + q * np.cos(A)) * p
            np.testing.assert_allclose(second, right, rtol=1e-4, atol=1e-5)


def test_seeds_that_do_not_fit_are_refused_after_known_calls():
    x, w = tape.Variable(A), tape.Variable(A + 1)

    def swept(*seeds):
        return tape.gradients((x * w, tnp.sin(x)), [x, w], seeds)[0].value

    settled(lambda: swept(tape.constant(A), tape.constant(A)))
    for wrong in ((tape.constant(A),), (tape.constant(A), tape.constant(A[:2])), (tape.constant(A), None), (tape.constant(A), 1j)):
        with pytest.raises((ValueError, TypeError)):
            swept(*wrong)
    np.testing.assert_allclose(swept(tape.constant(A), tape.constant(A)), A * (A + 1) + A * np.cos(A), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["assigned", "elsewhere", "constant", "hook"])
def test_another_root_of_a_known_call_counts(what):
    x = tape.Variable(A)

    def roots():
        return tnp.sin(x).sum(), (x * x).sum()

    settled(lambda: tape.gradients(roots(), x).value)
    one, other = roots()
    right = np.cos(A) + 2 * A
    if what == "assigned":
        other.grad, right = tape.constant(3.0), np.cos(A) + 6 * A
    elif what == "elsewhere":
        pending()
        one = tnp.sin(x).sum()
    elif what == "constant":
        other = other.detach()
        with pytest.raises(ValueError, match="grad"):
            tape.gradients((one, other), x)
        return
    else:
        other.register_hook(lambda g: g * 4.0)
        right = np.cos(A) + 8 * A
    np.testing.assert_allclose(tape.gradients((one, other), x).value, right, rtol=1e-5, atol=1e-6)


@native
def test_nothing_is_kept_of_sweeps_with_seeds():
    x, v, u = tape.Variable(A), tape.constant(A), tape.constant(np.float16(1.0))

    def step():
        roots = (tnp.sin(x), x * 2.0)
        return tape.gradients(roots, x, [v, v.detach()], create_graph=True).value

    settled(step)
    tape.gradients((x * u).sum(), x)  # another one
    objects = x, v, v._cell, v._place, v._place.kind, x._extra, None.__class__
    found = []
    for _ in range(4):
        for _ in range(30):
            step()
        gc.collect()
        found.append([sys.getrefcount(o) for o in objects])
    assert found[-1] == found[1]


def test_a_rule_of_the_users_is_used_by_the_next_sweep():
    x = tape.Variable(A)

    def step():
        x.grad = None
        tnp.cos(x).sum().backward()
        return x.grad.numpy()

    for _ in range(8):
        step()
    own = tape.rules.table.lookup(jax.lax.cos_p).vjp
    try:
        tape.rules.defvjp(jax.lax.cos_p, lambda ct, out, x, **_: 5.0 * ct)
        np.testing.assert_allclose(step(), np.full_like(A, 5.0))
    finally:
        tape.rules.defvjp(jax.lax.cos_p, own)
    np.testing.assert_allclose(step(), -np.sin(A), rtol=1e-5, atol=1e-6)


@native
def test_a_sweep_whose_run_fails_releases_nothing(monkeypatch):
    x = tape.Variable(A)

    def broken(*_):
        raise KeyboardInterrupt

    def sweep(y):
        y.backward()

    def step():
        x.grad = None
        sweep((tnp.exp(x) * 1.5).sum())
        return x.grad.value

    right = settled(step)
    x.grad = None
    y = (tnp.exp(x) * 1.5).sum()
    compiled = [o for o in gc.get_objects() if isinstance(o, execution.Program) and o.compiled]
    left = []
    with monkeypatch.context() as patched:
        for each in compiled:
            patched.setattr(each, "executable", broken)
        patched.setattr(program, "_run", lambda *args: left.append(args))
        with pytest.raises(KeyboardInterrupt):
            sweep(y)
    assert not left, "it was not the run of the recorder in C"
    assert x.grad is None
    assert y._segment.released == frozenset()
    sweep(y)
    np.testing.assert_allclose(x.grad.value, right, rtol=1e-6)


def test_a_detached_value_is_recorded_as_by_python():
    x = tape.Variable(A)

    def step(detach):
        pending()
        y = tnp.sin(x) * 2.0
        d = detach(y)
        assert (d.requires_grad, d.is_leaf) == (False, True)
        assert LOCAL.segment().state.mode == trie.RECORD
        return (y * d).sum(), LOCAL.segment().state

    slow = getattr(detachment.detach, "__wrapped__", detachment.detach)
    for _ in range(3):
        step(slow)
    (one, there), (other, same) = step(slow), step(tape.Variable.detach)
    assert there is same
    assert float(one) == pytest.approx(float(other), rel=1e-6)
    g = tape.gradients(step(tape.Variable.detach)[0], x)
    np.testing.assert_allclose(g.numpy(), 4 * np.sin(A) * np.cos(A), rtol=1e-5, atol=1e-6)
    with tape.no_grad():
        y = tnp.sin(x)
        np.testing.assert_array_equal(y.detach().numpy(), y.numpy())


# -- numbers in programs

VALUES = [2.0, 2.0, 3.0, 0.0, -0.0, 0.0, float("nan"), float("inf"), 2.0, np.float32(2.0), 2, True, np.float32(0.0), np.float32(-0.0), -2.0]


@pytest.mark.parametrize("phase", ["arguments", "constants"])
def test_a_number_that_changes_is_the_one_that_counts(monkeypatch, phase):
    monkeypatch.setattr(numbers, "MOST", numbers.FEWEST)
    monkeypatch.setattr(numbers, "_COMPILE", 1e-6)
    monkeypatch.setattr(numbers, "_COMPILE_ENTRY", 1e-6)
    x = tape.Variable(A + (phase == "constants"))

    def step(number):
        return tnp.arctan2(tnp.cos(x) * 0.0 + 1.0, number + tnp.sin(x) * 0.0).sum()

    for _ in range(40 if phase == "arguments" else 400):
        _ = step(2.0).value
    for value in VALUES:
        for _ in range(3):
            found = float(step(value))
        right = float(jnp.sum(jnp.arctan2(jnp.float32(1), jnp.full(A.shape, value, "float32") + jnp.sin(x.value) * 0)))
        assert found == pytest.approx(right, rel=1e-5, nan_ok=True), value


@pytest.mark.parametrize("calls", [8, 400])
@pytest.mark.parametrize("first", [0.0, -0.0, np.float32(0.0)], ids=repr)
def test_a_zero_of_another_sign_is_another_number(monkeypatch, calls, first):
    monkeypatch.setattr(numbers, "MOST", numbers.FEWEST)
    monkeypatch.setattr(numbers, "_COMPILE", 1e-6)
    monkeypatch.setattr(numbers, "_COMPILE_ENTRY", 1e-6)
    x = tape.Variable(np.ones(calls % 31 + 2 + int(np.signbit(first)), np.float32))

    def step(number):
        return float((x / (x * number)).sum())

    for _ in range(calls):
        step(first)
    for number in (first, -first, first):
        assert step(number) == np.copysign(np.inf, number)


@native
def test_calls_are_counted_as_by_python(monkeypatch):
    monkeypatch.setattr(numbers, "MOST", numbers.FEWEST)
    entry = type("Entry", (), {"where": None, "kernel": type("K", (), {"name": "k", "out_avals": ()})})()

    def ran(turns):
        settings = tape.configuration.configuration()
        program = jax.jit(lambda a, b: [a * b])
        steady = numbers.on_device(program, [A, 2.0], settings, numbers.Work.of([entry]))
        told = []
        for k in range(turns):
            steady(A, 2.0 if k % 50 < 40 else float(k))
            told.append((steady._calls, steady._special is None))
        return told

    by_c = ran(90)
    monkeypatch.setattr(numbers, "_way", lambda *_: None)
    assert by_c == ran(90)


def test_a_program_of_numbers_is_run_by_several_threads():
    x = tape.Variable(A + 3)

    def step(number):
        return float((tnp.sin(x) * number + 0.5).sum())

    right = {number: step(number) for number in (1.5, 2.5)}
    for _ in range(100):
        step(1.5)
    failed = []

    def work(number):
        failed.extend(k for k in range(200) if step(number) != pytest.approx(right[number], rel=1e-5))

    threads = [threading.Thread(target=work, args=(n,)) for n in (1.5, 2.5, 1.5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_what_repeats_looks_like_the_function_that_it_is():
    for function, name in ((tape.backward, "backward"), (tape.gradients, "gradients"), (tape.Variable.backward, "Variable.backward")):
        assert function.__qualname__ == name
        assert function.__doc__
    assert differentiation.backward.__module__ == "tape.sweeps.differentiation"
    assert record.repeating(1)(test_what_repeats_looks_like_the_function_that_it_is).__name__.startswith("test_what_repeats")


# -- modes


@native
def test_a_block_without_recording_is_entered_and_left_without_the_recorder_in_python():
    x = tape.Variable(A)

    def step():
        pending()
        y = tnp.sin(x)
        with tape.no_grad():
            z = tnp.cos(y)
        return y, z, LOCAL.segment().state

    before = [step() for _ in range(3)][-1]
    assert {name.rpartition(".")[2] for name in called(step)} <= {
        "__new__",
        "__init__",
        "__enter__",
        "__exit__",
        "_present",
        "_enter",
        "_leave",
        "pending",
        "step",
        "close",
    }
    after = step()
    assert [v.requires_grad for v in after[:2]] == [True, False]
    assert after[2] is before[2]


@pytest.mark.parametrize("recorded", ["nothing", "something", "another there"])
def test_modes_are_what_they_are_in_python(monkeypatch, recorded):
    x = tape.Variable(A)

    def walk():
        pending()
        states, scopes = [], []

        def note():
            segment = LOCAL.segment()
            states.append(None if segment is None else (segment.state, segment.epoch is not None))
            scopes.append(LOCAL.scope)

        if recorded != "nothing":
            _ = keep = tnp.sin(x)
        note()
        for mode in (tape.no_grad(), tape.enable_grad(), tape.set_grad_enabled(enabled=False), tape.no_grad()):
            with mode:
                note()
                if recorded == "something":
                    keep = keep * 2.0
                with tape.enable_grad():
                    note()
            note()
        with pytest.raises(KeyError), tape.no_grad():
            raise KeyError
        note()
        return states, scopes

    for _ in range(3):
        in_c = walk()
    if recorded == "another there":
        with tape.no_grad():
            _ = tnp.cos(x) * 3.0
    monkeypatch.setattr(modes, "switch", scope._switch)
    assert walk() == in_c


def test_a_mode_is_entered_where_hooks_watch():
    x = tape.Variable(A)
    seen = []

    class Seen(tape.OpHook):
        def forward_preprocess(self, op, inputs):
            seen.append(LOCAL.scope.mode)

    for _ in range(4):
        pending()
        y = tnp.sin(x)
        with tape.no_grad():
            _ = y * 2.0
    pending()
    with tape.hooks(Seen()):
        y = tnp.sin(x)
        with tape.no_grad():
            _ = y * 2.0
    assert seen == [trie.RECORD, trie.CONSTANT]


@native
def test_nothing_is_kept_of_modes():
    x = tape.Variable(A)

    def step():
        pending()
        y = tnp.sin(x)
        with tape.no_grad():
            _ = y * 2.0
        return LOCAL.segment().state

    found = []
    for _ in range(5):
        for _ in range(30):
            state = step()
        gc.collect()
        scopes = sum(type(o) is scope.Scope for o in gc.get_objects())
        found.append([scopes, *[sys.getrefcount(o) for o in (state, state.parent, LOCAL.scope, x, x._cell)]])
    assert found[-1] == found[1]
