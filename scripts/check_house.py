#!/usr/bin/env python3
"""Compares the tree with the rules that its own documents promise; `make check` runs it.

    scripts/check_house.py [ROOT]

Each check is a function from the tree to sentences, one for each breach, that name the place and what to do.
HOUSE-1 (rules): a rule's id is defined once, and a test quotes it.
HOUSE-2 (unsafe): unsafe code stands only where docs/architecture.md says.
HOUSE-3 (size): no source file has more than 500 lines, no line more than 120 columns, strings aside.
HOUSE-4 (version): the version of the package stands in Cargo.toml only.
HOUSE-5 (lists): the lists of crates, modules and folders in the documents are those of the tree.
HOUSE-6 (circles): no two files import each other, directly or round a circle.
HOUSE-7 (names): the files, folders, settings, variables, Scala types and make's targets that documents name are there,
and so are the settings that code and messages name.
HOUSE-8 (threads): the threads that code names are those of the table in docs/architecture.md, which says who owns them.
HOUSE-9 (messages): the messages that docs/troubleshooting.md quotes are those of the code.
HOUSE-10 (units): what python/tests has are unit tests. What starts Spark is in tests/.
HOUSE-11 (one-loop): in a node nothing waits but its loop, and threads that do what takes time.
HOUSE-14 (prefixes): the ids of a room's rules have its prefix, and look-alikes of others don't come about.
HOUSE-15 (rooms): no two rooms of the Python package, and no two packages of the jar, use each other.

It uses the standard library only, so that it runs before anything is installed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from arrows import jvm_references, python_imports, rust_imports, strong_components
from sources import SOURCES, Tree, is_test, without_tests

MOST_LINES = 500
MOST_COLUMNS = 120
# What ends the name of a file of ours in a document.
NAMED = (*SOURCES, ".toml", ".ipynb", ".md", ".xml", ".svg")
# Some code that may be a path; a link's target; a script in a command.
FILE = re.compile(r"`([\w./-]+)`|\]\(([^)#:]+)[)#]|(?<![\w./-])((?:[\w-]+/)+[\w.-]+\.(?:py|sh|xml|toml))\b")
# Files of a user's in examples.
NO_FILES = {"example.py", "train.py"}
SETTING = re.compile(r"\bspark\.phalanx\.([A-Za-z.]*[A-Za-z])(?![\w.*]*\*)")
# A name that is given to a thread, in Rust, Python or Scala.
THREAD = re.compile(
    r"(?:\.name\((?:format!\()?|Helper::start\(\s*|\.beside\(\s*"
    r'|Thread\([^"]*?name=|new Thread\([^"]*?)"(phalanx-[a-z-]+)'
)
# How tests start Spark.
STARTS_SPARK = re.compile(r"\b(getOrCreate|own_session|support\.sessions|import sessions|support\.cluster)\b")
NODE = "rust/job/src/node/"
# The files and rooms of a node that may wait: its loop, the caller's thread, and threads beside them.
NODE_WAITS = ("run.rs", "process.rs", "helpers/", "line/", "output/")
WAITS = re.compile(r"select!|\brecv(_timeout|_deadline)?\(|\bpause\(|\bsleep\(")
# What looks like an id of a rule and is none.
NO_RULES = {"UTF-8", "SHA-256", "AVX-512", "GPU-77", "MIG-7"}
OWN_TESTS = "tests/contract/test_house.py"
RULE = re.compile(r"\b([A-Z]{2,12}-\d+)\b")
STRING = re.compile(r'"(?:\\.|[^"\\])*"')
DEFINITION = re.compile(r"\b([A-Z]{2,12}-\d+)(?: \([\w -]+\))?: ")


def rules(tree: Tree) -> Iterator[str]:
    """HOUSE-1. A rule is defined where a module's own documentation has its id and a colon; else it is a mention."""
    defined: dict[str, list[str]] = defaultdict(list)
    quoted: set[str] = set()
    for name in tree.ending(*SOURCES):
        text = tree.text(name)
        if name == OWN_TESTS:  # the other ids are those of trees that it makes up
            quoted.update(rule for rule in RULE.findall(text) if rule.startswith("HOUSE-"))
            continue
        contract = module_contract(name, text)
        here = {match[1] for match in DEFINITION.finditer(contract)}
        for rule in here:
            defined[rule].append(name)
        _, tests = without_tests(name, text)
        # A harness is proved by every test that uses it.
        quoted.update(RULE.findall(tests if is_harness(name) else tests.replace(contract, "", 1)))
    for rule, places in sorted(defined.items()):
        if len(places) > 1:
            yield f"{rule} is defined in {', '.join(places)}: define it once, and say `as {rule}` elsewhere"
        if rule not in quoted:
            yield f"{places[0]}: {rule} is quoted by no test: name it in the test that fails without it"
    for rule in sorted(quoted - defined.keys() - NO_RULES):
        yield f"tests quote {rule}, which is defined nowhere"


def prefixes(tree: Tree) -> Iterator[str]:
    """HOUSE-14. CONTRIBUTING.md has the prefixes; of several rooms that a file is below, the innermost counts."""
    rooms = dict(re.findall(r"^\| `([\w./]+/)` \| `([A-Z]+)` \|", tree.text("CONTRIBUTING.md"), re.MULTILINE))
    for name in tree.ending(*SOURCES):
        if name == OWN_TESTS:
            continue
        innermost = max((room for room in rooms if name.startswith(room)), key=len, default="")
        of_room = rooms.get(innermost, "in no list")
        for match in DEFINITION.finditer(module_contract(name, tree.text(name))):
            if match[1].rpartition("-")[0] != of_room:
                yield f"{name}: {match[1]} is not of its room, whose rules are {of_room}-N"


def is_harness(name: str) -> bool:
    return is_test(name) and name.endswith(".py") and not Path(name).stem.startswith("test_")


def module_contract(name: str, text: str) -> str:
    """What a file says of itself: `//!` lines, a docstring, or in Scala and Java its documentation comments."""
    if name.endswith(".rs"):
        return "\n".join(line for line in text.splitlines() if line.startswith("//!"))
    if name.endswith((".scala", ".java")):
        return "\n".join(re.findall(r"/\*\*.*?\*/", text, re.DOTALL))
    return ast.get_docstring(ast.parse(text), clean=False) or ""


def unsafe(tree: Tree) -> Iterator[str]:
    """HOUSE-2. The places are those of the paragraph that begins `Unsafe code is in`."""
    told = tree.text("docs/architecture.md").partition("Unsafe code is in ")[2].partition("\n\n")[0]
    places = tuple(f"rust/{place}" for place in re.findall(r"`([\w/.]+)`", told))
    for name in tree.ending(".rs", below="rust/"):
        if name.startswith(places) or is_test(name):
            continue
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if re.search(r"\bunsafe\s*(\{|fn|impl|extern)", line.split("//")[0]):
                yield f"{name}:{number}: unsafe code has no place here; docs/architecture.md says where it has"


def size(tree: Tree) -> Iterator[str]:
    """HOUSE-3."""
    for name in tree.ending(*SOURCES):
        lines = tree.text(name).splitlines()
        if len(lines) > MOST_LINES:
            yield f"{name} has {len(lines)} lines, more than {MOST_LINES}: which idea is a file of its own?"
        for number, line in enumerate(lines, 1):
            if len(line) <= MOST_COLUMNS or "http" in line:
                continue
            # No formatter breaks a string.
            if line.lstrip().startswith(("//", "*", "#")) or len(STRING.sub("", line)) > MOST_COLUMNS:
                yield f"{name}:{number}: {len(line)} columns, more than {MOST_COLUMNS}"


def version(tree: Tree) -> Iterator[str]:
    """HOUSE-4."""
    found = re.search(r'^version = "([^"]+)"', tree.text("Cargo.toml"), re.MULTILINE)
    if found is None:
        yield "Cargo.toml has no version of the workspace"
        return
    for name in tree.names:
        allowed = name in ("Cargo.toml", "Cargo.lock", "CHANGELOG.md", "python/uv.lock") or name.startswith(
            ".git"
        )
        if allowed or not name.endswith(
            (*SOURCES, ".toml", ".xml", ".md", ".json", ".sh", ".ipynb", "Makefile")
        ):
            continue
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if re.search(rf"(?<![\d.]){re.escape(found[1])}(?![\d.]*\d)", line):
                yield f"{name}:{number}: the version stands in Cargo.toml only: derive it ({line.strip()[:60]})"


def lists(tree: Tree) -> Iterator[str]:
    """HOUSE-5."""
    architecture, contributing = tree.text("docs/architecture.md"), tree.text("CONTRIBUTING.md")
    crates = {name.split("/")[1] for name in tree.ending("Cargo.toml", below="rust/") if name.count("/") == 2}
    told = set(re.findall(r"^rust/(\w+)/ ", architecture, re.MULTILINE))
    yield from differences("docs/architecture.md", "rust/", told, crates)
    section = architecture.partition("\n## Python\n")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    told = {
        cell.split("/")[0] + "/" * ("/" in cell) for cell in re.findall(r"`([\w/]+)`", " ".join(first_cells))
    }
    package = [name.removeprefix("python/phalanx/") for name in tree.ending(".py", below="python/phalanx/")]
    modules = {name.split("/")[0] + "/" if "/" in name else name.removesuffix(".py") for name in package} - {
        "__init__"
    }
    yield from differences("docs/architecture.md", "python/phalanx/", told, modules)
    told = set(re.findall(r"^\| `([\w/]+)/`", contributing, re.MULTILINE))
    folders = {name.split("/")[0] for name in tree.names if "/" in name and not name.startswith(".")}
    yield from differences("CONTRIBUTING.md", "", {name.split("/")[0] for name in told}, folders)
    for name in sorted(told):
        if not any(file.startswith(f"{name}/") for file in tree.names):
            yield f"CONTRIBUTING.md names the folder {name}, which is not there"
    section = architecture.partition("\n## Five values through the house\n")[2].partition("\n## ")[0]
    for walk in re.findall(r"^\*\*[^\n]+(?:\n[^\n]+)*", section, re.MULTILINE):
        files, counted = (
            set(re.findall(r"`([\w/]+\.(?:rs|py))`", walk)),
            re.search(r"\b(\d+) files\b", walk),
        )
        if counted and int(counted[1]) != len(files):
            yield f"docs/architecture.md: {walk[:40]!r} names {len(files)} files, and counts {counted[1]}"


def differences(document: str, below: str, told: set[str], there: set[str]) -> Iterator[str]:
    for name in sorted(there - told):
        yield f"{document} doesn't name {below}{name}"
    for name in sorted(told - there):
        yield f"{document} names {below}{name}, which is not there"


def circles(tree: Tree) -> Iterator[str]:
    """HOUSE-6."""
    arrows = {**python_imports(tree), **rust_imports(tree), **jvm_references(tree)}
    for circle in strong_components(arrows):
        yield f"these files import one another: {', '.join(sorted(circle))}"


def rooms(tree: Tree) -> Iterator[str]:
    """HOUSE-15. What stands in the topmost folder is no room: it assembles what the rooms have."""
    for top, arrows in (
        ("python/phalanx", python_imports(tree)),
        ("dev/phalanx/spark", jvm_references(tree)),
    ):
        between: dict[str, set[str]] = defaultdict(set)
        for name, others in arrows.items():
            for here, there in ((room_of(name, top), room_of(other, top)) for other in others):
                if here and there and here != there:
                    between[here].add(there)
        for circle in strong_components(between):
            yield f"these rooms import one another: {', '.join(f'{top}/{room}' for room in sorted(circle))}"


def room_of(name: str, top: str) -> str:
    """The folder below `top` that has a file; empty where that is `top` itself."""
    return name.rpartition("/")[0].partition(top)[2].strip("/")


def names(tree: Tree) -> Iterator[str]:
    """HOUSE-7. A file may be named by the end of its path, as in a document that has said in which folder it is."""
    folders = {str(folder) for name in tree.names for folder in Path(name).parents}
    top = {folder for folder in folders if "/" not in folder}
    there = {end for name in {*tree.names, *folders} for end in path_ends(name)} | NO_FILES
    code = "\n".join(tree.text(name) for name in tree.ending(*SOURCES))
    makefile = tree.text("Makefile") if "Makefile" in tree.names else ""
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for name in tree.ending(".md"):
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            for found in FILE.findall(line):
                path = next(filter(None, found)).removeprefix("../").rstrip("/")
                # Elsewhere a name with slashes may be anything, a network for one.
                is_ours = path.split("/")[0] in top or (Path(path).suffix in NAMED and not found[2])
                if is_ours and path not in there and not re.search("[A-Z]{3}", path):
                    yield f"{name}:{number}: {path} is not there"
            for variable in re.findall(r"\bPHALANX_[A-Z_]+[A-Z]\b", line):
                if variable not in code:
                    yield f"{name}:{number}: no code knows the variable {variable}"
            for type_name in re.findall(r"\bdev\.phalanx\.[a-z.]+\.([A-Z]\w+)", line):
                if type_name not in code:
                    yield f"{name}:{number}: no code knows the type {type_name}"
            for target in re.findall(r"(?:^|`|&& )make ([a-z][a-z-]*)", line):
                if target not in targets:
                    yield f"{name}:{number}: make has no target {target}"
    yield from unknown_settings(tree)


def path_ends(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[at:]) for at in range(len(parts)))


def unknown_settings(tree: Tree) -> Iterator[str]:
    """The table itself is compared with the code by JOB-22."""
    table = "docs/configuration.md"
    known = (
        set(re.findall(r"^\| `spark\.phalanx\.([\w.]+)`", tree.text(table), re.M))
        if table in tree.names
        else set()
    )
    for name in tree.ending(".md", *SOURCES):
        code, _ = without_tests(name, tree.text(name))
        for number, line in enumerate(code.splitlines(), 1):
            for setting in SETTING.findall(line):
                if setting not in known:
                    yield f"{name}:{number}: spark.phalanx.{setting} is not in {table}"


def threads(tree: Tree) -> Iterator[str]:
    """HOUSE-8."""
    architecture = tree.text("docs/architecture.md")
    table = architecture.partition("\n## Threads and who owns them\n")[2].partition("\n## ")[0]
    cells = " ".join(re.findall(r"^\|[^|]*\|([^|]*)\|", table, re.MULTILINE))
    told = set(re.findall(r"`(phalanx-[\w-]+)`", cells))
    sources = [name for name in tree.ending(*SOURCES) if "/testkit/" not in name]
    code = [(name, without_tests(name, tree.text(name))[0]) for name in sources]
    for name, text in code:
        for thread in THREAD.findall(text):
            if thread not in {one.removesuffix("N") for one in told}:
                yield f"{name}: docs/architecture.md doesn't say who owns the thread {thread}"
    for thread in sorted(told):
        if not any(f'"{thread.removesuffix("N")}' in text for _, text in code):
            yield f"docs/architecture.md names the thread {thread}, which is not there"


def messages(tree: Tree) -> Iterator[str]:
    """HOUSE-9. Dots in a quoted message stand for what differs; what is between them is in one text of the code."""
    page = "docs/troubleshooting.md"
    if page not in tree.names:
        return
    code = "\n".join(
        one_line_texts(without_tests(name, tree.text(name))[0]) for name in tree.ending(*SOURCES)
    )
    for number, line in enumerate(tree.text(page).splitlines(), 1):
        cell = line.split(" | ")[0] if line.startswith("| `") else ""
        for message in re.findall(r"`([^`]+)`", cell):
            for part in filter(re.compile("[a-z]{2}").search, map(str.strip, message.split("..."))):
                if part not in code:
                    yield f"{page}:{number}: no code says {part!r}"


def one_line_texts(code: str) -> str:
    """Code whose texts are each on one line: those that Rust breaks by a backslash, Python and Java between quotes."""
    code = re.sub(r"\\\n\s*", "", code)
    return re.sub(r'"\s*(?:\+\s*)?\n\s*(?:\+\s*)?f?"', "", code)


def units(tree: Tree) -> Iterator[str]:
    """HOUSE-10."""
    for name in tree.ending(".py", below="python/tests/"):
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            if found := STARTS_SPARK.search(line):
                yield f"{name}:{number}: {found[0]} starts Spark: such a test is for tests/local, or a room beside it"


def one_loop(tree: Tree) -> Iterator[str]:
    """HOUSE-11."""
    for name in tree.ending(".rs", below=NODE):
        if not name.startswith(tuple(NODE + waits for waits in NODE_WAITS)):
            code = without_tests(name, tree.text(name))[0]
            for number, line in enumerate(code.splitlines(), 1):
                if found := WAITS.search(line):
                    yield f"{name}:{number}: {found[0]} waits: that is for the loop in run.rs, or a helper's thread"


CHECKS: tuple[Callable[[Tree], Iterable[str]], ...] = (
    rules,
    prefixes,
    unsafe,
    size,
    version,
    lists,
    circles,
    rooms,
    names,
    threads,
    messages,
    units,
    one_loop,
)


def main(root: str) -> int:
    tree = Tree(Path(root))
    breaches = [f"{check.__name__}: {breach}" for check in CHECKS for breach in check(tree)]
    for breach in breaches:
        print(breach, file=sys.stderr)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).resolve().parent.parent)))
