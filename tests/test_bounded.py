"""A bounded mapping keeps what is new, and tells its size."""

import threading

import tape
from tape.bounded import Bounded


def test_the_oldest_go():
    kept = Bounded("test of bounds", 16)
    for i in range(17):
        kept[i] = -i
    assert list(kept.items()) == [(i, -i) for i in range(2, 17)]


def test_what_is_put_in_again_is_the_newest():
    kept = Bounded("test of bounds", 2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}


def test_what_is_known_is_not_made_again():
    kept = Bounded("test of bounds", 4)
    made = []
    assert [kept.cached("a", lambda: made.append(1) or 5) for _ in range(3)] == [5, 5, 5]
    assert made == [1]


def test_stats_tell_how_many_items_there_are():
    kept = Bounded("test of bounds", 4)
    before = tape.stats().caches["test of bounds"]
    kept["a"] = 1
    assert tape.stats().caches["test of bounds"] == before + 1
    del kept
    assert tape.stats().caches["test of bounds"] == before


def test_threads_may_put_in_at_once():
    kept = Bounded("test of bounds", 50)
    failed = []

    def put(name):
        try:
            for i in range(5000):
                kept[name, i % 97] = i
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=put, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert len(kept) <= 50
