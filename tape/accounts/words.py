"""Words: what :func:`tape.stats` prints, and what :func:`tape.log_compiles` says."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tape.accounts.records import Compilation, Line, Site
from tape.terminal import aligned, clipped, coloured, columns, counted, named, painted, placed, short_files, source_of

# Why what is pending runs: what happened, and what would avoid it.
REASONS = {
    "look": (
        "a value was looked at (float(v), v.value, print, np.asarray, a comparison)",
        (
            "look after backward() and step(), and not at each step, so that a step is one program; looks at what small programs "
            "computed cost half on a CPU after jax.config.update('jax_cpu_enable_async_dispatch', False), before anything runs"
        ),
    ),
    "backward": ("a sweep ended: backward() runs what it needs, once", ""),
    "step": ("an optimizer's step ended", ""),
    "length": (
        "the tape had reached the length of a segment, which is bounded",
        "write long loops as tape.lax.scan, or have each step look or sweep",
    ),
    "stream": ("a gradient was given out as soon as it was final", ""),
    "jit": ("a tape.jit function needed the value of a pending Variable", "call it with Variables whose values are there"),
    "update": ("an update had ended, after which ever other structures came", ""),
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


Counts = Any  # tape.statistics.Stats, which has this module's words for its text


def told(stats: Counts, *, color: bool | None = None) -> str:
    """Return what was counted, in words; in colours where the standard output has some, unless ``color`` says so."""
    return "\n".join(_told(stats, columns(), coloured() if color is None else color))


def _told(stats: Counts, width: int, color: bool) -> Iterator[str]:
    runs, compilations, each = stats.flushes, stats.compilations, list(stats.sites.values())
    how = "" if not stats.interpreted else ", one by one"
    alone = f", {stats.interpreted:,} of them one by one" if 0 < stats.interpreted < stats.executed else how
    compiled = (
        f"{counted(stats.compiles, 'program')} compiled in {stats.compile_seconds:.2f} s" if stats.compiles else "no program compiled"
    )
    again = f", found again {counted(stats.hits, 'time')}" if stats.hits else ""
    yield _wrapped(f"{counted(runs.total(), 'run')} of what was pending: {_entries(stats.executed)} ran{alone}; {compiled}{again}.", width)
    sites = sorted([(site.reason, site.line, site.count) for site in each if site.count and site.reason], key=lambda s: -s[2])
    varying = sorted([s for s in each if s.differs is not None and 2 * s.alone > s.count], key=lambda s: -s.alone_entries)
    short = short_files([line[0] for line in (*[s[1] for s in sites], *[c.line for c in compilations]) if line])
    sections: Sequence[tuple[str, Sequence[Any], Callable[..., Iterator[str]]]] = (
        ("What ran what was pending, by line", sites, _runs),
        ("What ran one by one, because its structures are ever other ones", varying, _alone),
        ("What was compiled, and why", compilations, _compiled),
    )
    for title, what, lines in sections:
        if what:
            yield ""
            yield painted(title, "1", color)
            yield from lines(what, short, width, color)


def _runs(sites: Sequence[tuple[str, Line | None, int]], short: dict[str, str], width: int, color: bool) -> Iterator[str]:
    shown = [(f"{count:,}", reason, named(line, short) or "somewhere", source_of(line)) for reason, line, count in sites[:_LINES]]
    wide = [max(map(len, column)) for column in zip(*shown, strict=True)][:3]
    wide[2] = min(wide[2], max(width // 3, 14))
    for count, reason, place, source in shown:
        head = f"  {count.rjust(wide[0])}  {aligned(reason, wide[1], '36', color)}  {aligned(place, wide[2], '2', color, end=False)}"
        yield f"{head}  {clipped(source, max(width - 8 - sum(wide), 1))}".rstrip()
    if len(sites) > _LINES:
        yield f"  {sum(c for _, _, c in sites[_LINES:]):,} more from {len(sites) - _LINES} other lines"
    for reason in dict.fromkeys(reason for reason, _, _ in sites):
        what, instead = REASONS.get(reason, ("", ""))
        if what:
            yield _wrapped(f"{reason}: {what}{f'; to avoid it, {instead}' if instead else ''}", width, "  ", reason, "36" if color else "")


def _alone(sites: Sequence[Site], short: dict[str, str], width: int, color: bool) -> Iterator[str]:
    for site in sites[:_LINES]:
        place = named(site.line, short) or "somewhere"
        said = f"{site.alone:,} of {counted(site.count, 'run')} ({_entries(site.alone_entries)}), of {counted(site.new, 'structure')}"
        yield _wrapped(said, width, f"  {painted(place, '2', color)}  ")
        yield _wrapped(f"they differ in {_shortened(str(site.differs))}", width, "    ")
        repair = "" if site.differs is None else _ALONE.get(site.differs.kind, site.differs.repair)
        if repair:
            yield _wrapped(f"to avoid it: {repair}", width, "    ", "to avoid it:", "32" if color else "")
    if len(sites) > _LINES:
        yield f"  {counted(len(sites) - _LINES, 'more line')}"


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
        yield f"  {counted(len(rest), 'more', 'more')}, {sum(c.seconds or 0.0 for c in rest):.2f} s"


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
    different = list(dict.fromkeys(compilation.ops))
    names = ", ".join(different[:_NAMED]) + (", ..." if len(different) > _NAMED else "")
    return f"{counted(len(compilation.ops), 'op')} ({names})"


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


def _entries(n: int) -> str:
    return counted(n, "entry", "entries")


def _wrapped(text: str, width: int, indent: str = "", head: str = "", code: str = "") -> str:
    plain = re.sub("\x1b\\[[0-9;]*m", "", indent)
    further = " " * min(len(plain) + 2 if plain.strip() == "" else 4, 24)
    options = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": further}
    lines = textwrap.wrap(text, max(width, len(plain) + 24), initial_indent="-" * len(plain), **options)  # type: ignore[arg-type]
    said = "\n".join(lines)[len(plain) :].replace(_NO_BREAK, " ")
    if head and code:
        said = said.replace(head, painted(head, code, color=True), 1)
    return indent + said
