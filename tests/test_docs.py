"""Every page does what it says: its code runs and prints what it shows, its links and anchors, and the files that it names, are there."""

import pathlib
import re
import shlex

import jax
import numpy as np
import pytest

from tape.rules import registry
from tests import snippets

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"
OWN = {"docs/explain.md": "tests/insight/test_explain.py runs it, with its lines", "README.md": "tests/test_readme.py runs it"}
LANGUAGES = {"python", "pycon", "text", "sh", "toml", "{code-block} python", "{code-block} text"}
UNREAD = {"build", "dist", "generated", "node_modules"}
PAGES = sorted(
    p
    for pattern in ("*.md", "*/**/*.md")
    for p in ROOT.glob(pattern)
    if not any(part.startswith((".", "_")) or part in UNREAD or part.endswith(".egg-info") for part in p.relative_to(ROOT).parts)
)
LOOKED_AT = re.compile(r"(?:tape|interop|tests|docs|benchmarks|examples|\.ci|\.github)/[\w./_*-]*")  # what is a file of this repository
MADE = {"docs/_build/html": "by sphinx-build", "tape/_recorder": "the extension, with the suffix of its Python"}

PRINTED = np.get_printoptions()  # before any test


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@pytest.fixture
def _alone(tmp_path, monkeypatch):
    """Let a page write where it is, choose how it draws, and change JAX's settings, without a trace of it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("COLUMNS", "100")  # tables are as wide as a terminal
    before = dict(jax.config.values)
    with np.printoptions(**PRINTED):
        yield
    for name, value in before.items():
        if jax.config.values[name] != value:
            jax.config.update(name, value)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("path", [p for p in PAGES if name_of(p) not in OWN], ids=name_of)
def test_page(path, monkeypatch):
    if path.name == "CONTRIBUTING.md":
        monkeypatch.setattr(registry, "RULES", dict(registry.RULES))  # the record that it enters is none to go on with
    page = snippets.Page(path.read_text(encoding="utf-8"), path)
    page.run()
    if page.left_out and not page.ran:
        pytest.skip("needs packages that are not installed")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_block_is_of_a_language_that_is_tested(path):
    assert {b.language for b in snippets.blocks(path.read_text(encoding="utf-8"))} <= LANGUAGES


def slug(heading):
    """Return the anchor of a heading, as GitHub and MyST make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(path):
    """Return what a link may name behind ``#``: headings, explicit targets and anchors of HTML."""
    text = snippets.FENCE.sub("", path.read_text(encoding="utf-8"))
    seen, found = {}, set(re.findall(r"^\(([\w.:-]+)\)=$", text, re.MULTILINE)) | set(re.findall(r"""<a (?:id|name)=["']([^"']+)""", text))
    for heading in re.findall(r"^#{1,6} +(.+?) *#* *$", text, re.MULTILINE):
        name = slug(heading)
        seen[name] = seen.get(name, -1) + 1
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
    return found


def links(text):
    """Return the targets of a page's links and pictures."""
    plain = snippets.prose(text)
    found = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", plain)
    found += re.findall(r"^ {0,3}\[[^\]]+\]:\s+(\S+)", plain, re.MULTILINE)
    return found + re.findall(r"""<(?:a|img)\b[^>]*?(?:href|src)=["']([^"']+)""", plain)


LABELS = {label for p in PAGES for label in anchors(p)}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path):
    for link in links(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue  # other sites are asked by `sphinx-build -b linkcheck`, in hosted CI only; project: and inv: by every build
        target, _, anchor = link.partition("#")
        to = path if not target else (DOCS / target[1:] if target.startswith("/") else path.parent / target).resolve()
        assert to.exists(), f"{name_of(path)}: {link} leads nowhere"
        if anchor and to.suffix == ".md":
            known = anchors(to) | (LABELS if not target else set())
            assert anchor in known, f"{name_of(path)}: {link}: there is no such anchor"


def files(text):
    """Return the files that a page names in its sentences."""
    words = [word.rstrip(",") for code in re.findall(r"`([^`\n]+)`", snippets.FENCE.sub("", text)) for word in code.split()]
    return [word for word in words if LOOKED_AT.fullmatch(word) and word not in MADE]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_files_that_are_named_are_there(path):
    assert [f for f in files(path.read_text(encoding="utf-8")) if not any(ROOT.glob(f.rstrip("/")))] == []


def test_figures_of_the_changelog_are_those_of_the_pages():
    changes, coverage, power = ((ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "docs/coverage.md", "docs/power.md"))
    guide = (DOCS / "guides" / "verification.md").read_text(encoding="utf-8")
    functions = re.search(r"recorded; (\d+) functions", changes)[1]
    rules = re.search(r"its own for (\d+) primitives", changes)[1]
    planted = re.search(r"(\d+) planted errors", guide)[1]
    assert f"| recorded | {functions} |" in coverage
    assert f"| with a rule of the tape's own | {rules} |" in coverage
    assert f"{planted} wrong gradients" in power
    examples = {p.stem for p in (ROOT / "examples").glob("*.py")} - {"experiment"}
    assert {20: "Twenty examples"}.get(len(examples), "another number") in changes
    shown = re.findall(r"^   \.\./examples/(\w+)\.py$", (ROOT / "examples" / "index.rst").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(examples)


def test_modules_that_the_map_names_are_in_their_packages():
    rows = re.findall(
        r"^\| `((?:tape|interop)/[\w/]*)`.*?\| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 20
    named = [(ROOT / package, module) for package, said in rows for module in re.findall(r"`([\w/]+\.(?:py|c))`", said)]
    assert len(named) > 50
    assert [m for package, m in named if not (package / m).exists() and not (ROOT / "tape" / m).exists()] == []


def test_files_are_read():
    assert files("`tape/graph/trie.py` is in `tape/`, `a/b`\n`python docs/gallery.py --quick`") == [
        "tape/graph/trie.py",
        "tape/",
        "docs/gallery.py",
    ]


@pytest.mark.parametrize(
    ("text", "missed"),
    [
        ("```python\nprint(1 + 1)  # 3\n```", "where"),
        ("```python\nprint(1 + 1)\n```", "without a comment"),
        ("```python\nprint(1 + 1)\n```\n\n```text\n3\n```", "it prints"),
        ("```pycon\n>>> 1 + 1\n3\n```", "Expected"),
        ("- in a list\n\n  ```pycon\n  >>> 1 + 1\n  3\n  ```", "Expected"),
        ("````{note}\n```pycon\n>>> 1 + 1\n3\n```\n````", "Expected"),
    ],
)
def test_what_a_page_says_wrongly_is_found(text, missed):
    with pytest.raises(AssertionError, match=missed):
        snippets.Page(text, "where").run()


def test_blocks_share_names_and_those_that_cannot_run_are_left_out():
    shown = "```python\nx = 2\n```\n\n```pycon\n>>> x\n2\n```\n\n```python\nfor i in range(x):\n    print(x)  # 2\n```\n"
    unknown = "```python\nimport json\nimport not_there\ny = 1\n```\n```python\nz = y\n```\n```pycon\n>>> z\n2\n```\n"
    page = snippets.Page(f"{shown}{unknown}```python\ny = json.dumps(x)\n```\n```pycon\n>>> y\n'2'\n```\n", "where")
    page.run()
    assert (page.ran, page.left_out) == (5, 3)


def test_links_and_anchors_are_read():
    assert links('[a](b.md#c) ![d](e.png "f") `[g](h)` <img src="i.png">\n\n[j]: k.md\n\n```text\n[l](m)\n```\n') == [
        "b.md#c",
        "e.png",
        "k.md",
        "i.png",
    ]
    assert slug("Why is `v.grad` None, zero or NaN?") == "why-is-vgrad-none-zero-or-nan"


PROGRAMS = {"python", "python3", "pip", "pytest", "ruff", "mypy", ".", ".ci/run", "sphinx-build", "git", "echo", "./gradbench"}


def complaint(command):
    """Say what is wrong with a command of a page: what it runs has to be there, and to know its options; None where nothing is."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words or words[0] not in PROGRAMS:
        return None if not words else "no program that is known here"
    if words[0] == "pytest":
        return next((f"no {w}" for w in words[1:] if w.startswith("tests") and not (ROOT / w.partition("::")[0]).exists()), None)
    if not words[0].startswith("python") or len(words) < 2 or words[1] == "-c":
        return None
    if words[1] == "-m":
        if words[2].split(".")[0] not in ("tape", "interop", "tests", "benchmarks"):
            return None
        where = ROOT.joinpath(*words[2].split("."))
        sources = [*where.rglob("*.py"), where.with_suffix(".py")]
    else:
        sources = [ROOT / words[1], ROOT / "examples" / "experiment.py"]
    text = "".join(p.read_text(encoding="utf-8") for p in sources if p.exists())
    if not text or (words[1] != "-m" and not sources[0].exists()):
        return "no such module or file"
    options = [w.partition("=")[0] for w in words if w.startswith("--")]
    return next((f"it has no option {o}" for o in options if f'"{o}"' not in text), None)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_name_what_is_there(path):
    for block in snippets.blocks(path.read_text(encoding="utf-8")):
        if block.language == "sh":
            for command in re.split(r"(?<!\\)\n|&&", block.code):
                assert complaint(command) is None, f"{name_of(path)}:{block.line}: {command.strip()}: {complaint(command)}"


def test_a_command_that_cannot_run_is_found():
    assert complaint("python -m benchmarks --quick dispatch") is None
    assert complaint("python -m benchmarks --fast") == "it has no option --fast"
    assert complaint("python examples/no.py") == complaint("python -m tests.nothing") == "no such module or file"
    assert complaint("pytest tests/no") == "no tests/no"
    assert complaint("mystery") == "no program that is known here"
