"""Hooks on Variables, one or several at once, mean the same in every way of execution."""

import copy
import itertools
import threading
import weakref

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tape
import tape.numpy as tnp
from tape.errors import GradientDtypeError, TapeRuntimeError, TapeTypeError, TapeValueError
from tape.graph import scope
from tape.hooking import handles
from tape.sweeps import sweep


def lazily(body, x):
    return body(x)


def eagerly(body, x):
    with tape.eager():
        return body(x)


def by_tape_jit(body, x):
    return tape.jit(lambda v: body(v.value))(tape.constant(x))


def by_jax_jit(body, x):
    return jax.jit(lambda y: body(y))(x)  # a new function: JAX has no trace of it


WAYS = {"lazy": lazily, "eager": eagerly, "tape.jit": by_tape_jit, "jax.jit": by_jax_jit}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def value(x):
    return np.asarray(x.value if isinstance(x, tape.Variable) else x)


# -- one Variable -------------------------------------------------------------------------------------------------------------


def test_contract_24_hooks_see_the_total_in_order_and_replace_it_in_every_way(way):
    calls = []

    def body(x):
        v = tape.Variable(x)
        h = v * v
        y = h * 3 + h * 4  # two paths: the total is 7
        h.register_hook(lambda g: calls.append("first"))
        h.register_hook(lambda g: calls.append("second") or g * g)  # 49
        h.register_hook(lambda g: calls.append("third") or g + 1)  # 50
        v.register_hook(lambda g: calls.append("leaf") or g * 2)  # 50 * 2x * 2
        y.backward()
        return v.grad.value

    for _ in range(3):
        calls.clear()
        np.testing.assert_allclose(value(way(body, np.float32(3))), 600)
        assert calls == ["first", "second", "third", "leaf"]


def scale(g):
    g *= 2


def assign(g):
    g[...] = 2 * g


@pytest.mark.parametrize("write", [scale, assign])
@pytest.mark.parametrize("create_graph", [False, True])
def test_contract_24_a_hook_that_writes_into_its_gradient_changes_it_for_this_variable_alone(way, write, create_graph):
    def body(x):
        v, w = tape.Variable(x), tape.Variable(x)
        h = v * v
        seen = []
        h.register_hook(seen.append)
        h.register_hook(write)
        w.register_hook(write)
        y = h + w  # one cotangent for both
        g = tape.gradients(y + w, (v, w), create_graph=create_graph)
        return tnp.stack([*g, *seen]).value

    for _ in range(3):
        np.testing.assert_allclose(value(way(body, np.float32(3))), [12, 4, 1])


def test_contract_24_post_accumulate_hooks_run_after_grad_is_set_in_every_way(way):
    calls = []

    def body(x):
        v, w = tape.Variable(x), tape.Variable(x)

        def halve(leaf):
            calls.append((leaf is v, w.grad is not None))
            leaf.grad = leaf.grad.value / 2

        v.register_post_accumulate_grad_hook(halve)
        (v * w * w).backward()
        return v.grad.value

    for _ in range(2):
        calls.clear()
        np.testing.assert_allclose(value(way(body, np.float32(3))), 4.5)
        assert calls == [(True, True)]


@pytest.mark.parametrize("repetitions", [3])
def test_contract_24_hooks_during_a_sweep_with_create_graph_in_every_way(way, repetitions):
    def body(x):
        v = tape.Variable(x)
        h = tnp.sin(v)
        h.register_hook(lambda g: g * v)  # recorded: its derivative counts
        g = tape.gradients(h * 2, v, create_graph=True)  # 2 v cos(v)
        return tape.gradients(g, v).value

    for _ in range(repetitions):
        x = np.float32(0.7)
        np.testing.assert_allclose(value(way(body, x)), 2 * np.cos(x) - 2 * x * np.sin(x), rtol=1e-5)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("looked", [False, True])
def test_contract_17_a_sweep_lets_go_of_what_its_hooks_hold(looked):
    """Also where the leaf's gradient comes from the same segment."""
    x = tape.Variable(np.float32([0.5, -1.0, 2.0, 0.25, 1.5]))
    for _ in range(3):
        y = tnp.sin(x) * x
        z = y.sum()
        if looked:
            float(z)
        marked = type("Marked", (), {"__call__": lambda self, g: None})()
        y.register_hook(marked)
        ended = weakref.ref(marked)
        z.backward()
        del y, z, marked
        assert ended() is None
        x.zero_grad()


def test_contract_24_a_hook_on_a_variable_from_outside_of_a_compiled_function():
    w, seen = tape.Variable(np.float32(3)), []
    handle = w.register_hook(lambda g: seen.append(g.shape) or g * 10)
    step = tape.jit(lambda: tape.gradients(w * w, w))
    assert [float(step()) for _ in range(3)] == [60, 60, 60]
    assert seen == [()]  # traced once, and part of the program
    handle.remove()
    assert float(step()) == 6


@pytest.mark.parametrize("post", [False, True])
def test_a_hook_left_on_a_variable_from_outside_of_a_compiled_function_is_refused(post):
    w = tape.Variable(np.float32(3))

    def registering(remove):
        handle = (w.register_post_accumulate_grad_hook if post else w.register_hook)(lambda g: None)
        w.value = w.value * 1
        (w * w).backward()
        if remove:
            handle.remove()
        w.grad = None

    with pytest.raises(TapeRuntimeError, match="registered inside the function on a Variable from outside"):
        tape.jit(lambda: registering(remove=False))()
    assert not w._extra.post_hooks
    assert not w._extra.node.hooks
    tape.jit(lambda: registering(remove=True))()
    (w * w).backward()
    assert float(w.grad) == 6


# -- several Variables ----------------------------------------------------------------------------------------------------------


def floats(gradients):
    return [None if g is None else float(g) for g in gradients]


@pytest.mark.usefixtures("tier")
def test_a_hook_over_several_variables_is_called_once_with_all_gradients():
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    for _ in range(3):
        h = x * w
        seen = []
        handle = tape.register_multi_grad_hook([x, h, w], lambda grads, seen=seen: seen.append(floats(grads)))
        (h * 5 + x).backward(retain_graph=True)
        assert seen == [[16, 5, 10]]
        (x * 7).backward()  # those that get none are None
        assert seen[1:] == [[7, None, None]]
        (h * 5).backward(inputs=[x], retain_graph=True)  # and those that are not asked for
        assert seen[2:] == [[15, 5, None]]
        handle.remove()
        (x * w).backward()
        assert len(seen) == 3
        x.grad = w.grad = None


@pytest.mark.usefixtures("tier")
def test_a_hook_for_any_of_several_variables_is_called_with_the_first():
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    for _ in range(3):
        h = x * w
        seen = []
        handle = tape.register_multi_grad_hook([x, h, w], lambda g, seen=seen: seen.append(float(g)), mode="any")
        (h * 5 + x).backward()
        assert seen == [5]
        (w * 7).backward()
        assert seen == [5, 7]
        handle.remove()


def test_contract_24_a_hook_over_several_variables_does_not_wait_for_what_is_no_concern_of_it():
    x = tape.Variable(2.0)
    h = x * 3
    k = h * 5
    root = k * 7
    seen = []
    tape.register_multi_grad_hook([h, k], lambda g: seen.append(("any", float(g))), mode="any")
    tape.register_multi_grad_hook([k, root], lambda grads: seen.append(("all", floats(grads))))
    h.register_hook(lambda g: seen.append(("h", float(g))))
    root.backward()
    assert seen == [("any", 7), ("all", [7, 1]), ("h", 35)]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4), st.sampled_from(["all", "any"]))
def test_hooks_over_any_part_of_the_variables_of_a_sweep(flags, mode):
    """Each flag pair: whether a leaf is used by the root, and whether it is in the group."""
    leaves = [tape.Variable(float(i)) for i in range(len(flags))]
    group = [v for v, (_, member) in zip(leaves, flags, strict=True) if member]
    used = [v for v, (use, _) in zip(leaves, flags, strict=True) if use]
    if not group or not used:
        return
    expected = [float(i + 1) if any(v is u for u in used) else None for i, v in enumerate(leaves) if any(v is m for m in group)]
    seen = []
    tape.register_multi_grad_hook(group, lambda found: seen.append(floats(found if mode == "all" else [found])), mode=mode)
    for repetition in range(1, 4):
        sum((v * (i + 1) for i, v in enumerate(leaves) if any(v is u for u in used)), tape.constant(0.0)).backward()
        reached = any(g is not None for g in expected)
        assert len(seen) == (repetition if reached else 0)
        if mode == "all":
            assert all(s == expected for s in seen)
        else:
            assert all(s[0] in expected for s in seen)


def test_what_a_hook_of_a_sweep_that_is_not_recorded_differentiates_itself_takes_values_for_constants():
    x, v = tape.Variable(2.0), tape.Variable(5.0)
    seen = []

    def hook(g):
        with tape.enable_grad():
            seen.append(float(tape.gradients(v * v * np.asarray(g.value), v)))

    x.register_hook(hook)
    (x * x).backward()
    assert seen == [40]


@pytest.mark.usefixtures("tier")
def test_a_hook_over_several_variables_sees_what_their_own_hooks_left():
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    seen = []
    x.register_hook(lambda g: g * 100)
    tape.register_multi_grad_hook([x, w], lambda grads: seen.append(floats(grads)))
    x.register_hook(lambda g: g + 1)
    (x * w).backward()
    assert seen == [[300, 2]]
    assert float(x.grad) == 301


@pytest.mark.parametrize("mode", ["all", "any"])
@pytest.mark.parametrize("write", [scale, assign])
def test_contract_13_a_hook_over_several_variables_that_writes_into_a_gradient_is_refused(write, mode):
    v, w = tape.Variable(2.0), tape.Variable(3.0)
    handle = tape.register_multi_grad_hook([v, w], lambda g: write(g if mode == "any" else g[1]), mode=mode)
    y = v * w
    with pytest.raises(TapeTypeError, match="over several Variables wrote into a gradient, but it cannot replace gradients"):
        y.backward()
    assert v.grad is None
    assert w.grad is None
    handle.remove()
    y.backward()
    assert [float(v.grad), float(w.grad)] == [3, 2]


def test_a_sweep_inside_a_hook_over_several_variables_is_another_one():
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    seen = []

    def nested(grads):
        seen.append(floats(grads))
        if len(seen) == 1:
            with tape.enable_grad():
                (x * 1).backward()

    handle = tape.register_multi_grad_hook([x, w], nested)
    (x * w).backward()
    assert seen == [[3, 2], [1, None]]
    handle.remove()
    assert (float(x.grad), float(w.grad)) == (4, 2)


def test_a_hook_over_several_variables_may_remove_itself_or_another_during_the_sweep():
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    seen, handles = [], []
    handles.append(tape.register_multi_grad_hook([x, w], lambda grads: seen.append("a") or ([h.remove() for h in handles] and None)))
    handles.append(tape.register_multi_grad_hook([x, w], lambda grads: seen.append("b")))
    (x * w).backward()
    (x * w).backward()
    assert seen == ["a"]


def test_a_hook_over_several_variables_differentiates_with_create_graph():
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    norms = []
    handle = tape.register_multi_grad_hook([x, w], lambda grads: norms.append(sum(g * g for g in grads)))
    tape.gradients(x * x * w, (x, w), create_graph=True)
    handle.remove()
    np.testing.assert_allclose(float(norms[0]), 12**2 + 4**2)
    np.testing.assert_allclose(float(tape.gradients(norms[0], x)), 2 * 12 * 6 + 2 * 4 * 4)


def test_contract_13_an_exception_in_a_hook_over_several_variables_changes_nothing():
    x, w = tape.Variable(2.0), tape.Variable(3.0)

    def fail(grads):
        raise ZeroDivisionError

    for mode in ("all", "any"):
        handle = tape.register_multi_grad_hook([x, w], fail, mode=mode)
        for root in (x * w, x * 3):  # complete, and at the end of the sweep
            with pytest.raises(ZeroDivisionError):
                root.backward()
            assert x.grad is None
            assert scope.LOCAL.scope.gathered is None
        handle.remove()
        (x * w).backward()
        assert float(x.grad) == 3
        x.grad = w.grad = None


def test_hooks_over_several_variables_are_compiled_with_a_step():
    x, w = (tape.Variable(np.float32(v)) for v in (2.0, 3.0))
    norms = tape.Variable(np.float32(0), requires_grad=False)

    def keep(grads):
        norms.value = sum((g * g for g in grads if g is not None), tape.constant(np.float32(0))).value

    handle = tape.register_multi_grad_hook([x, w], keep)

    @tape.jit
    def step():
        (x * w).backward()
        x.grad = w.grad = None

    for _ in range(3):
        norms.value = np.float32(0)
        step()
        assert float(norms) == 13
    assert step.cache_info().traces == 1
    handle.remove()
    norms.value = np.float32(0)
    step()
    assert float(norms) == 0


def test_threads_gather_each_for_itself():
    x, w = tape.Variable(2.0), tape.Variable(3.0)
    seen = []
    tape.register_multi_grad_hook([x, w], lambda grads: seen.append(floats(grads)))
    threads = [threading.Thread(target=lambda i=i: tape.gradients(x * w * i, (x, w))) for i in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(seen) == [[3.0 * i, 2.0 * i] for i in range(1, 5)]


REFUSED = {
    "no function": (lambda x: tape.register_multi_grad_hook([x], 3), TapeTypeError, TypeError, ["register_multi_grad_hook", "int"]),
    "no Variable": (lambda x: tape.register_multi_grad_hook([x, 3], print), TapeTypeError, TypeError, ["variables[1]", "int"]),
    "none": (lambda x: tape.register_multi_grad_hook([], print), TapeValueError, ValueError, ["no Variables"]),
    "a constant": (
        lambda x: tape.register_multi_grad_hook([x, tape.constant(1.0)], print),
        TapeValueError,
        ValueError,
        ["variables[1]", "float32", "leave it out"],
    ),
    "mode": (lambda x: tape.register_multi_grad_hook([x], print, mode="some"), TapeValueError, ValueError, ["'some'", "'all' or 'any'"]),
    "a result": (
        lambda x: (tape.register_multi_grad_hook([x], lambda grads: grads), (x * x).backward()),
        TapeTypeError,
        TypeError,
        ["returned list", "register_hook"],
    ),
    "an op hook's class": (lambda x: tape.hooks(tape.OpHook), TapeTypeError, TypeError, ["class OpHook", "object"]),
    "no op hook": (lambda x: tape.hooks(print), TapeTypeError, TypeError, ["hooks"]),
    "no op": (lambda x: tape.hooks(tape.OpHook(), ops=3), TapeTypeError, TypeError, ["ops", "int"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_and_change_nothing(case):
    refused, error, builtin, parts = REFUSED[case]
    x = tape.Variable(2.0)
    with pytest.raises(error) as caught:
        refused(x)
    assert isinstance(caught.value, builtin)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert x.grad is None


# -- the tests' power -----------------------------------------------------------------------------------------------------------


def twice(self, position, gradient, original=handles._Group.see):
    original(self, position, gradient)
    scope.LOCAL.scope.gathered.pop(self, None)


BUGS = {
    "once per Variable": (handles._Group, "see", twice, test_a_hook_over_several_variables_is_called_once_with_all_gradients),
    "only where all have a gradient": (
        sweep,
        "gathering",
        lambda gathered, last, original=handles.gathering: original(gathered, last=False),
        test_a_hook_over_several_variables_is_called_once_with_all_gradients,
    ),
    "one gathering for all sweeps": (
        sweep,
        "gathering",
        lambda gathered, last, one={}, original=handles.gathering: original(one, last=last),
        test_a_hook_for_any_of_several_variables_is_called_with_the_first,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug, monkeypatch):
    where, name, wrong, test = BUGS[bug]
    with monkeypatch.context() as patched:
        patched.setattr(where, name, wrong)
        with pytest.raises(AssertionError):
            test()


def test_every_way_is_another_one():
    """The ways of execution run the body as often as they say: compiled ones when they trace."""
    counts = {}
    for name, run in WAYS.items():
        calls = itertools.count()
        run(lambda x, calls=calls: (next(calls), x)[1] * 1, np.float32(1))
        counts[name] = next(calls)
    assert counts == {"lazy": 1, "eager": 1, "tape.jit": 1, "jax.jit": 1}


def test_what_no_array_can_be_made_of_is_told_with_the_hook_that_returned_it():
    x = tape.Variable(np.ones(3, np.float32))
    handle = x.register_hook(lambda g: "text")
    with pytest.raises(TapeTypeError, match=r"^what hook '<lambda>' returned: cannot make an array of str"):
        (x * x).sum().backward()
    assert x.grad is None
    handle.remove()
    (x * x).sum().backward()
    np.testing.assert_array_equal(x.grad.value, [2, 2, 2])


def test_a_hook_does_not_change_the_dtype():
    x = tape.Variable(np.float32(2))
    x.register_hook(lambda g: g.astype("float16"))
    with pytest.raises(GradientDtypeError, match="of dtype float16 for one of dtype float32; cast it"):
        (x * x).backward()
    assert x.grad is None


def test_hooks_stay_with_a_variable_whose_tape_was_released():
    """Contract 24, where a later sweep ends at the Variable."""
    x, w = tape.Variable(np.float32([1, 2, 3])), tape.Variable(np.float32([4, 5, 6]))
    y = tnp.sin(w)
    y.register_hook(lambda g: g * 2.0)
    assert y.value.shape == (3,)
    tape.gradients(y.sum(), w)
    for end in (copy.copy(y), y):
        assert tape.gradients((x * end).sum(), end).tolist() == [2, 4, 6]
    y.retain_grad()
    (x * y).sum().backward(inputs=[y])
    assert y.grad.tolist() == [2, 4, 6]
    y.unchain()
    (x * y).sum().backward(inputs=[y])
    assert y.grad.tolist() == [4, 8, 12]


@pytest.mark.parametrize("released", [False, True])
def test_copies_share_the_hooks_that_come_later(released):
    """Contract 24, whichever of the two a hook is registered with, and a sweep ends at, and if the hook is removed."""
    for first in (0, 1):
        w = tape.Variable(np.float32([4, 5, 6]))
        y = w * 3.0
        ends = (y, copy.copy(y))
        handle = ends[first].register_hook(lambda g: g * 2.0)
        if released:
            tape.gradients(y.sum(), w)
        for root in ends:
            assert [tape.gradients((root * 1.0).sum(), end).tolist() for end in ends] == [[2, 2, 2]] * 2
        handle.remove()
        assert [tape.gradients((y * 1.0).sum(), end).tolist() for end in ends] == [[1, 1, 1]] * 2


@pytest.mark.parametrize("way", [lambda f: f, tape.jit])
def test_hooks_of_a_released_result_are_called_in_every_sweep_that_ends_there(way):
    """Contract 24, also where the same was done before, and in a compiled step whose result from outside it is."""
    for _ in range(4):
        x, w = tape.Variable(np.float32([1, 2, 3])), tape.Variable(np.float32([4, 5, 6]))
        y = tnp.sin(w)
        handle = y.register_hook(lambda g: g * 2.0)
        assert y.value.shape == (3,)
        tape.gradients(y.sum(), w)
        ending = way(lambda x=x, y=y: tape.gradients((x * y).sum(), y))
        assert [ending().tolist() for _ in range(3)] == [[2, 4, 6]] * 3
        handle.remove()
        assert ending().tolist() == [1, 2, 3]
        y.register_hook(lambda g: g * 5.0)
        assert ending().tolist() == [5, 10, 15]
        y.unchain()
        assert ending().tolist() == [5, 10, 15]
