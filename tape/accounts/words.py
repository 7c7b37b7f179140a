"""Words: what :func:`tape.stats` prints, and what :func:`tape.log_compiles` says."""

from __future__ import annotations

import linecache
import re
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from tape.terminal import clipped, coloured, columns, named, painted, placed, short_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tape.accounts.records import Compilation, Limited, Line, Site

# Why what is pending runs: what happened, and what would avoid it.
REASONS = {
    "look": (
        "a value was looked at (float(v), v.value, print, np.asarray, a comparison)",
        "look after backward() and step(), and not at each step, so that a step is one program",
    ),
    "backward": ("a sweep ended: backward() runs what it needs, once", ""),
    "step": ("an optimizer's step ended", ""),
    "length": (
        "the tape had reached the length of a segment, which is bounded",
        "write long loops as tape.lax.scan, or have each step look or sweep",
    ),
    "stream": ("a gradient was given out as soon as it was final", ""),
    "jit": ("a tape.jit function needed the value of a pending Variable", "call it with Variables whose values are there"),
    "used elsewhere": ("a pending value was used in another thread, mode or transformation", "look at it where it is made"),
    "swept elsewhere": ("a sweep came by what another thread, or another mode, had pending", "sweep where it was recorded"),
    "cut elsewhere": ("a Variable was cut from its past elsewhere than where it was recorded", "cut it where it was recorded"),
    "saved values": ("hooks for saved values see the values of each segment", ""),
}
# What avoids that, where it is not what avoids compilations.
_ALONE = {
    "ops": "choose by tape.numpy.where or tape.lax.cond, so that structures come back, or put what stays the same into a tape.jit function"
}
_LINES = 12  # of each kind that are shown
_NAMED = 4  # ops that are named
_NO_BREAK = "\u00a0"  # a space at which no line ends


class Counts(Protocol):
    """What is told: :class:`tape.statistics.Stats`."""

    executed: int
    interpreted: int
    compiles: int
    compile_seconds: float
    hits: int
    sites: Limited

    @property
    def flushes(self) -> Counter[str]:
        """Runs by reason."""

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """The latest ones."""


def told(stats: Counts, *, color: bool | None = None) -> str:
    """Return what was counted, in words; in colours where the standard output has some, unless ``color`` says so."""
    return "\n".join(_told(stats, columns(), coloured() if color is None else color))


def _told(stats: Counts, width: int, color: bool) -> Iterator[str]:
    runs = stats.flushes
    alone = (
        ""
        if not stats.interpreted
        else f", {stats.interpreted:,} of them one by one"
        if stats.interpreted < stats.executed
        else ", one by one"
    )
    compiled = f"{_count(stats.compiles, 'program')} compiled in {stats.compile_seconds:.2f} s" if stats.compiles else "no program compiled"
    found_again = f", found again {_count(stats.hits, 'time')}" if stats.hits else ""
    yield _wrapped(
        f"{_count(runs.total(), 'run')} of what was pending: {_entries(stats.executed)} ran{alone}; {compiled}{found_again}.", width
    )
    sites = [(site.reason, site.line, site.count) for site in list(stats.sites.values()) if site.count and site.reason]
    compilations = stats.compilations
    files = [line[0] for _, line, _ in sites if line] + [c.line[0] for c in compilations if c.line]
    short = short_files(files)
    if sites:
        yield ""
        yield painted("What ran what was pending, by line", "1", color)
        yield from _runs(sorted(sites, key=lambda s: -s[2]), short, width, color)
    varying = [site for site in list(stats.sites.values()) if site.differs is not None and 2 * site.alone > site.count]
    if varying:
        yield ""
        yield painted("What ran one by one, because its structures are ever other ones", "1", color)
        yield from _alone(sorted(varying, key=lambda site: -site.alone_entries), short, width, color)
    if compilations:
        yield ""
        yield painted("What was compiled, and why", "1", color)
        yield from _compiled(compilations, short, width, color)


def _runs(sites: Sequence[tuple[str, Line | None, int]], short: dict[str, str], width: int, color: bool) -> Iterator[str]:
    shown = sites[:_LINES]
    counts = [f"{count:,}" for _, _, count in shown]
    lines = [named(line, short) or "somewhere" for _, line, _ in shown]
    wide = max(map(len, counts)), max(len(reason) for reason, _, _ in shown), min(max(map(len, lines)), max(width // 3, 14))
    for (reason, line, _), count, place in zip(shown, counts, lines, strict=True):
        head = f"  {count.rjust(wide[0])}  {painted(reason.ljust(wide[1]), '36', color)}  "
        where = clipped(place, wide[2], end=False).ljust(wide[2])
        rest = width - 2 - sum(wide) - 6
        yield f"{head}{painted(where, '2', color)}  {clipped(_source(line), max(rest, 1))}".rstrip()
    if len(sites) > _LINES:
        yield f"  {sum(c for _, _, c in sites[_LINES:]):,} more from {len(sites) - _LINES} other lines"
    for reason in dict.fromkeys(reason for reason, _, _ in sites):
        what, instead = REASONS.get(reason, ("", ""))
        if what:
            yield _wrapped(f"{reason}: {what}{f'; to avoid it, {instead}' if instead else ''}", width, "  ", reason, "36" if color else "")


def _alone(sites: Sequence[Site], short: dict[str, str], width: int, color: bool) -> Iterator[str]:
    for site in sites[:_LINES]:
        place = named(site.line, short) or "somewhere"
        said = f"{site.alone:,} of {_count(site.count, 'run')} ({_entries(site.alone_entries)}), of {_count(site.new, 'structure')}"
        yield _wrapped(said, width, f"  {painted(place, '2', color)}  ")
        yield _wrapped(f"they differ in {_shortened(str(site.differs))}", width, "    ")
        repair = "" if site.differs is None else _ALONE.get(site.differs.kind, site.differs.repair)
        if repair:
            yield _wrapped(f"to avoid it: {repair}", width, "    ", "to avoid it:", "32" if color else "")
    if len(sites) > _LINES:
        yield f"  {_count(len(sites) - _LINES, 'more line')}"


def _compiled(compilations: Sequence[Compilation], short: dict[str, str], width: int, color: bool) -> Iterator[str]:
    groups: dict[Any, list[Compilation]] = {}
    for one in compilations:
        groups.setdefault((one.what, one.line, one.change.kind, one.change.what), []).append(one)
    ordered = sorted(groups.values(), key=lambda group: -sum(c.seconds or 0.0 for c in group))
    for group in ordered[:_LINES]:
        last = group[-1]
        times = "" if len(group) == 1 else f"{len(group)} times "
        line = named(last.line, short) or "somewhere"
        yield _wrapped(f"{times}{_what(last)}, {_took(group)}", width, f"  {painted(line, '2', color)}  ")
        change = _shortened(str(last.change))
        yield _wrapped(f"because {change}" if last.change.kind != "new" else change, width, "    ")
        if last.change.repair:
            yield _wrapped(f"to avoid it: {last.change.repair}", width, "    ", "to avoid it:", "32" if color else "")
        if last.failed:
            yield _wrapped(f"the compiler refused: {last.failed}", width, "    ", "the compiler refused:", "31" if color else "")
    if len(ordered) > _LINES:
        rest = [c for group in ordered[_LINES:] for c in group]
        yield f"  {_count(len(rest), 'more', 'more')}, {sum(c.seconds or 0.0 for c in rest):.2f} s"


def described(compilation: Compilation) -> str:
    """Return what is logged of a compilation."""
    reason = f" for {compilation.cause}" if compilation.cause and compilation.what != "step" else ""
    avoid = f"; to avoid it: {compilation.change.repair}" if compilation.change.repair else ""
    refused = f"; the compiler refused: {compilation.failed}" if compilation.failed else ""
    why = "" if compilation.change.kind in {"arguments", "new"} else "because "
    done = (
        f"traced {_ops(compilation)} anew{reason}, to run them by NumPy"
        if compilation.what == "traces"
        else f"compiled {_what(compilation)}{reason}"
    )
    return f"{done}, {_took([compilation]).replace(_NO_BREAK, ' ')}; {why}{compilation.change}{avoid}{refused}"


def at(line: Line | None) -> str:
    """Return a line of the user's, for messages."""
    return "somewhere" if line is None else placed(line)


def _what(compilation: Compilation) -> str:
    """Say what was compiled."""
    size = _ops(compilation)
    return {
        "program": f"a program of {size}",
        "ops": f"{size}, each on its own",
        "traces": f"{size}, traced anew and run by NumPy",
        "step": f"a step of {size}",
        "turn": f"a turn of a loop, {size}",
    }[compilation.what]


def _ops(compilation: Compilation) -> str:
    counted = Counter(compilation.ops)
    names = ", ".join(list(counted)[:_NAMED]) + (", ..." if len(counted) > _NAMED else "")
    return f"{_count(len(compilation.ops), 'op')} ({names})"


def _took(group: Sequence[Compilation]) -> str:
    done = [c.seconds for c in group if c.seconds is not None]
    if not done:
        return "not finished"
    behind = sum(c.background for c in group)
    where = "" if not behind else " in the background" if behind == len(group) else f", {behind} of them in the background"
    return f"{sum(done):.2f}{_NO_BREAK}s{where}"


def _shortened(text: str) -> str:
    """Return text with file names in short."""
    return re.sub(r"\((first at )?[^():]*[/\\]([^/\\():]+:\d+)\)", r"(\1\2)", text)


def _source(line: Line | None) -> str:
    return "" if line is None else linecache.getline(*line).strip()


def _entries(n: int) -> str:
    return _count(n, "entry", "entries")


def _count(n: int, one: str, several: str = "") -> str:
    return f"{n:,} {one if n == 1 else several or one + 's'}"


def _wrapped(text: str, width: int, indent: str = "", head: str = "", code: str = "") -> str:
    plain = re.sub("\x1b\\[[0-9;]*m", "", indent)
    further = " " * min(len(plain) + 2 if plain.strip() == "" else 4, 24)
    options = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": further}
    lines = textwrap.wrap(text, max(width, len(plain) + 24), initial_indent="-" * len(plain), **options)  # type: ignore[arg-type]
    said = "\n".join(lines)[len(plain) :].replace(_NO_BREAK, " ")
    if head and code:
        said = said.replace(head, painted(head, code, color=True), 1)
    return indent + said
