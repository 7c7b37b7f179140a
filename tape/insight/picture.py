"""Pictures of a tape: DOT, Mermaid, SVG, and a page that can be zoomed, folded and searched."""

from __future__ import annotations

import html
import importlib.resources
import json
import math
import shutil
import string
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tape.errors import TapeImportError, TapeRuntimeError, TapeTypeError, TapeValueError, check_flag
from tape.insight.drawing import Group, lanes
from tape.insight.entries import Entry, types
from tape.insight.scopes import KINDS, scope_of
from tape.terminal import counted, size, source_of

_FEW = 60  # entries that DOT and Mermaid show one by one; above, groups are closed
_COLOURS = ("#dbe7ff", "#ffe3cc", "#d8f3dc", "#f3d9fa")


class Picture:
    """A picture of a tape, as :func:`tape.draw` and ``t.draw()`` return it; notebooks show it.

    The forward and each sweep are lanes of their own.  Loops are folded, and entries that one function of yours recorded stand together.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable([1.0, 2.0], name="x")
        >>> picture = tape.draw(tnp.sin(x).sum())
        >>> print(picture.mermaid())  # doctest: +ELLIPSIS
        flowchart TD
        ...
        >>> picture.dot().splitlines()[0]
        'digraph tape {'

    """

    def __init__(self, entries: Sequence[Entry], group: str | None, *, fold: bool, flow: Mapping[int, float] | None = None) -> None:
        if group not in (None, *KINDS):
            msg = f"draw: group must be 'function', 'class', 'module' or None, got {group!r}"
            raise TapeValueError(msg)
        check_flag("draw", "fold", fold)
        self._entries = entries
        self._group = group
        self._flow = flow or {}
        self._lanes = lanes(entries, group, fold=fold)

    def __repr__(self) -> str:
        said = f"{counted(len(self._entries), 'entry', 'entries')} in {counted(len(self._lanes), 'lane')}"
        return f"<picture of a tape with {said}: save('tape.html') writes it>"

    # -- text that other programs draw ------------------------------------------------------------------------------

    def _shown(self) -> tuple[dict[int, str], dict[str, Group], list[tuple[str, str, Entry]]]:
        """Return what stands for each entry, the groups that are closed, and the edges between what is shown."""
        stands: dict[int, str] = {}
        closed: dict[str, Group] = {}

        def walk(items: Sequence[Entry | Group], many: bool) -> None:
            for item in items:
                if isinstance(item, Entry):
                    stands[item.number] = f"n{item.number}"
                elif item.times or many:
                    closed[item.key] = item
                    stands.update(dict.fromkeys((e.number for e in item.entries()), item.key))
                else:
                    walk(item.items, many)

        for lane in self._lanes:
            walk(lane.items, len(list(lane.entries())) > _FEW)
        edges: dict[tuple[str, str], Entry] = {}
        for e in self._entries:
            for v in e.inputs:
                if v.entry is not None and stands[v.entry] != stands[e.number]:
                    edges.setdefault((stands[v.entry], stands[e.number]), self._entries[v.entry])
        return stands, closed, [(a, b, e) for (a, b), e in edges.items()]

    def dot(self) -> str:
        """Return the picture in Graphviz's language; ``dot -Tsvg`` draws it.

        Example:
            >>> import tape
            >>> tape.draw(tape.numpy.sin(tape.Variable(1.0))).dot().splitlines()[0]
            'digraph tape {'

        """
        stands, closed, edges = self._shown()
        lines = ["digraph tape {", '  node [shape=box style="rounded,filled" fontname="monospace" fontsize=10]', "  edge [color=gray50]"]
        for number, lane in enumerate(self._lanes):
            lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(lane.label)} fontname=monospace color=gray80"]
            lines += [f"    {line}" for line in self._dot_of(lane.items, closed, number)]
            lines.append("  }")
        lane_of = {key: i for i, lane in enumerate(self._lanes) for key in {stands[e.number] for e in lane.entries()}}
        for a, b, e in edges:
            style = [] if lane_of[a] == lane_of[b] else ["constraint=false", "style=dashed", "color=gray75"]
            if e.number in self._flow:
                style += [f"color={_quoted(self._colour(e.number))}", f"penwidth={1 + 4 * self._share(e.number):.2f}"]
            lines.append(f"  {a} -> {b}" + (f" [{' '.join(style)}]" if style else ""))
        return "\n".join([*lines, "}"]) + "\n"

    def _dot_of(self, items: Sequence[Entry | Group], closed: dict[str, Group], lane: int) -> Iterator[str]:
        fill = f"fillcolor={_quoted(_COLOURS[lane % len(_COLOURS)])}"
        for item in items:
            if isinstance(item, Entry):
                edge = f" color={_quoted(self._colour(item.number))} penwidth=2" if item.number in self._flow else ""
                yield f"n{item.number} [label={_quoted(_label(item), types(item))} {fill} tooltip={_quoted(_place(item))}{edge}]"
            elif item.key in closed:
                yield f"{item.key} [label={_quoted(item.label, item.count)} {fill} peripheries=2]"
            else:
                yield f"subgraph cluster_{item.key} {{ label={_quoted(item.label)} style=rounded"
                yield from self._dot_of(item.items, closed, lane)
                yield "}"

    def mermaid(self) -> str:
        """Return the picture in Mermaid's language, which many viewers of Markdown draw.

        Example:
            >>> import tape
            >>> tape.draw(tape.numpy.sin(tape.Variable(1.0))).mermaid().splitlines()[0]
            'flowchart TD'

        """
        _, closed, edges = self._shown()
        lines = ["flowchart TD"]
        for number, lane in enumerate(self._lanes):
            lines.append(f'  subgraph lane{number}["{_escaped(lane.label)}"]')
            lines += [f"    {line}" for line in self._mermaid_of(lane.items, closed)]
            lines.append("  end")
        lines += [f"  {a} --> {b}" for a, b, _ in edges]
        return "\n".join(lines) + "\n"

    def _mermaid_of(self, items: Sequence[Entry | Group], closed: dict[str, Group]) -> Iterator[str]:
        for item in items:
            if isinstance(item, Entry):
                yield f'n{item.number}["{_escaped(_label(item), types(item))}"]'
            elif item.key in closed:
                yield f'{item.key}[["{_escaped(item.label, item.count)}"]]'
            else:
                yield f'subgraph {item.key}["{_escaped(item.label)}"]'
                yield from self._mermaid_of(item.items, closed)
                yield "end"

    # -- files ------------------------------------------------------------------------------------------------------

    def svg(self) -> str:
        """Return an SVG file, laid out by Graphviz's program ``dot``.

        Raises:
            TapeImportError: the program is not found.
            TapeRuntimeError: it failed, or took more than a minute.

        """
        program = shutil.which("dot")
        if program is None:
            msg = (
                "Picture.svg: needs Graphviz's program dot, which was not found; install Graphviz, or take .html(), which has its own "
                "layout"
            )
            raise TapeImportError(msg)
        try:
            done = subprocess.run([program, "-Tsvg"], input=self.dot(), capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
        except (subprocess.SubprocessError, OSError) as e:
            msg = f"Picture.svg: dot could not lay out {len(self._entries)} entries ({type(e).__name__}); take .html(), which folds more"
            raise TapeRuntimeError(msg) from e
        return done.stdout

    def html(self) -> str:
        """Return a page that needs nothing else: zoom by the wheel, drag, open and close groups, search, and click an entry for its line.

        It is laid out in the browser by dagre (its licence is in the page).
        """
        parts = {"css": "viewer.css", "licence": "dagre.LICENSE", "dagre": "dagre.min.js", "viewer": "viewer.js", "page": "page.html"}
        folder = importlib.resources.files("tape.insight").joinpath("viewer")
        read = {name: folder.joinpath(file).read_text(encoding="utf-8") for name, file in parts.items()}
        data = json.dumps(self._data(), separators=(",", ":")).replace("<", "\\u003c")
        return string.Template(read.pop("page")).substitute(read, data=data, count=f"{len(self._entries)} entries")

    def _data(self) -> dict[str, Any]:
        def item(x: Entry | Group) -> Any:
            if isinstance(x, Entry):
                return x.number
            return {"id": x.key, "label": x.label, "times": x.times, "items": [item(i) for i in x.items]}

        lanes = [{"label": lane.label, "items": [item(i) for i in lane.items]} for lane in self._lanes]
        return {"lanes": lanes, "entries": [self._entry(e) for e in self._entries]}

    def _entry(self, e: Entry) -> dict[str, Any]:
        norm = self._flow.get(e.number, 0.0)
        always = {"op": e.op, "inputs": ", ".join(map(str, e.inputs)), "type": types(e)}
        reads = sorted({v.entry for v in e.inputs if v.entry is not None})
        about = {
            "args": _leaves(e),
            "bytes": size(e.nbytes),
            "where": _place(e),
            "source": source_of(e.where),
            "scope": e.scope,
            "group": "" if self._group is None else scope_of(e, self._group),
            "params": ", ".join(f"{k}={v!r}" for k, v in e.params.items())[:400],
            "state": "released" if e.released and e.requires_grad else "",
            "sweep": e.sweep or "",
            "of": "" if e.of is None else e.of,
            "constant": True if e.no_grad or not e.requires_grad else "",
            "flow": "" if e.number not in self._flow else norm if math.isfinite(norm) else 1e308,
        }
        return {**always, "reads": reads, **{key: value for key, value in about.items() if value != ""}}

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file whose ending says what it is: ``.html``, ``.svg``, ``.dot`` (``.gv``) or ``.mmd`` (``.mermaid``).

        Returns:
            The path.

        Raises:
            TapeValueError: another ending.

        Example:
            >>> import pathlib, tape, tempfile
            >>> picture = tape.draw(tape.numpy.sin(tape.Variable(1.0)))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     picture.save(pathlib.Path(folder) / "sine.mmd").name
            'sine.mmd'

        """
        if not isinstance(path, (str, Path)):
            msg = f"Picture.save: the path must be a string or a Path, got {type(path).__name__}"
            raise TapeTypeError(msg)
        file = Path(path)
        kinds = {".html": self.html, ".svg": self.svg, ".dot": self.dot, ".gv": self.dot, ".mmd": self.mermaid, ".mermaid": self.mermaid}
        write = kinds.get(file.suffix.lower())
        if write is None:
            msg = f"Picture.save: no kind of picture has the ending {file.suffix!r}; give the file one of {', '.join(kinds)}"
            raise TapeValueError(msg)
        file.write_text(write(), encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        style = "box-sizing:border-box;width:100%;height:480px;border:1px solid #8884"
        return f'<iframe srcdoc="{html.escape(self.html(), quote=True)}" style="{style}" loading="lazy"></iframe>'

    # -- gradient flow ----------------------------------------------------------------------------------------------

    def _share(self, number: int) -> float:
        """Return where a norm lies between the smallest and the largest, by its logarithm."""
        finite = [math.log10(f) for f in self._flow.values() if f > 0 and math.isfinite(f)]
        norm = self._flow[number]
        if not finite or norm <= 0 or not math.isfinite(norm) or max(finite) == min(finite):
            return 0.5
        return (math.log10(norm) - min(finite)) / (max(finite) - min(finite))

    def _colour(self, number: int) -> str:
        norm = self._flow[number]
        if norm == 0 or not math.isfinite(norm):
            return "#e03131" if norm else "#868e96"
        return f"{(240 - 220 * self._share(number)) / 360:.3f} 0.700 0.850"


def _leaves(e: Entry) -> str:
    return ", ".join(v.name for v in e.inputs if v.entry is None)


def _label(e: Entry) -> str:
    return f"{e.op}({_leaves(e)})" if _leaves(e) else e.op


def _place(e: Entry) -> str:
    return "" if e.where is None else f"{e.where[0]}:{e.where[1]}"


def _quoted(*lines: str) -> str:
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


def _escaped(*lines: str) -> str:
    texts = [html.escape(line, quote=True) for line in lines]
    return "<br/>".join(text.replace("\n", " ").replace("#", "&num;") if "#" in text else text for text in texts)
