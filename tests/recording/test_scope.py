"""Scopes are replaced, never changed, and come back as they were."""

import threading

import numpy as np
import pytest

import tape
import tape.numpy as tnp
from tape.graph.scope import LOCAL, in_mode, in_scope, parked, within
from tape.graph.trie import CONSTANT, RECORD
from tape.graph.watcher import NOBODY
from tape.recording.record import record


def test_a_scope_does_not_change():
    with pytest.raises(AttributeError):
        LOCAL.scope.mode = CONSTANT
    before = LOCAL.scope
    changed = before.but(eager=True, linear=True)
    assert (changed.eager, changed.linear, changed.mode) == (True, True, RECORD)
    assert changed.but(eager=False, linear=False) == before
    with pytest.raises(KeyError):
        before.but(eeger=True)


def failing():
    LOCAL.scope = LOCAL.scope.but(linear=True)
    tape.no_grad().__enter__()  # and is never left
    raise KeyboardInterrupt


def in_block(block):
    with block:
        failing()


WAYS = {
    "in_mode": lambda: in_mode(CONSTANT, failing),
    "in_scope": lambda: in_scope(LOCAL.scope.but(writing=True), failing),
    "within": lambda: in_block(within(writing=True)),
    "parked": lambda: in_block(parked(eager=True)),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_scope_before_comes_back_whatever_happens_inside(way):
    def act():
        x = tape.Variable(np.float32(3))
        y = x * x
        before = LOCAL.scope
        with pytest.raises(KeyboardInterrupt):
            WAYS[way]()
        assert LOCAL.scope is before
        z = y * x  # in the same segment, which records again
        assert z._segment is y._segment
        assert float(tape.gradients(z, x)) == 27

    threaded(act)


def threaded(act):
    """In a thread of its own: the mode that is never left stays behind there."""
    errors = []

    def run():
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_what_is_pending_outside_is_parked():
    x = tape.Variable(np.float32(2))
    y = x * x
    segment = LOCAL.segment()
    depth = segment.state.depth
    with parked(mode=CONSTANT):
        z = tnp.sin(x)
        assert z._segment is not segment
        assert not z.requires_grad
    assert LOCAL.segment() is segment
    assert segment.state.depth == depth
    with parked():
        assert float(y) == 4  # somebody looks at it
    assert LOCAL.segment() is None


def test_the_pending_segment_goes_on_in_the_mode_of_the_scope():
    x = tape.Variable(np.float32(2))
    y = x * x
    with within(mode=CONSTANT):
        assert not (y * x).requires_grad
        with within(mode=RECORD):
            assert (y * x).requires_grad
        assert not (y * x).requires_grad
    assert (y * x).requires_grad


def test_nobody_watches_without_a_word():
    v = tape.Variable(np.float32(2))
    assert NOBODY.read(v) is v
    assert NOBODY.owns(v)
    assert not NOBODY.write(v)
    assert NOBODY.bring(v) is False
    assert NOBODY.watched(v, {}, record) is record
    with NOBODY.part():
        pass
