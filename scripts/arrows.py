"""Which file uses which: Python's imports, Rust's paths, the types that the jar's files name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from sources import Tree, without_tests


def python_imports(tree: Tree) -> dict[str, set[str]]:
    files = {}
    for name in tree.ending(".py", below="python/phalanx/"):
        parts = list(Path(name.removeprefix("python/")).with_suffix("").parts)
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = name
    arrows: dict[str, set[str]] = {name: set() for name in files.values()}
    for module, name in files.items():
        package = module if name.endswith("__init__.py") else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(tree.text(name))):
            wanted: list[str] = []
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
                wanted = [
                    f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base
                    for alias in node.names
                ]
            # A package's __init__ only introduces names, so it counts as none of its modules' users.
            arrows[name].update(files[want] for want in wanted if want in files and files[want] != name)
    return {name: set() if name == "python/phalanx/__init__.py" else to for name, to in arrows.items()}


def rust_imports(tree: Tree) -> dict[str, set[str]]:
    files: dict[str, str] = {}
    for name in tree.ending(".rs", below="rust/"):
        parts = Path(name).parts
        if parts[2] == "src":
            path = [part.removesuffix(".rs") for part in parts[3:]]
            path = path[:-1] if path[-1] in ("mod", "lib", "main") else path
            files["::".join([parts[1], *path])] = name
    arrows: dict[str, set[str]] = {name: set() for name in files.values()}
    for module, name in files.items():
        code = without_tests(name, tree.text(name))[0]
        # A file that only introduces the names of others doesn't use them.
        code = re.sub(r"//[^\n]*|^\s*pub(?:\([\w: ]+\))? use [^;]+;", "", code, flags=re.MULTILINE)
        for path in rust_paths(code):
            parts, here = path.split("::"), module.split("::")
            if parts[0] == "crate":
                at, rest = here[:1], parts[1:]
            else:
                above = parts.count("super")
                at, rest = here[: len(here) - above], parts[above:]
            while rest and "::".join([*at, rest[0]]) in files:
                at, rest = [*at, rest[0]], rest[1:]
            target = files.get("::".join(at))
            if target and target != name and (rest or at != here[: len(at)]):
                arrows[name].add(target)
    return arrows


def rust_paths(code: str) -> Iterator[str]:
    """Every `crate::` and `super::` path of some code, with the braces of `use` undone."""
    for match in re.finditer(r"\buse ((?:crate|super)[^;]*);", code):
        yield from unbraced(re.sub(r"\s+", "", match[1]))
    for match in re.finditer(r"(?<![\w:])(?:crate|super)(?:::\w+)+", re.sub(r"\buse [^;]*;", "", code)):
        yield match[0]


def unbraced(path: str) -> Iterator[str]:
    head, brace, rest = path.partition("{")
    if not brace:
        yield re.sub(r"as\w+$", "", head) if " as " in path else head
        return
    depth, item = 0, ""
    for letter in rest[: rest.rindex("}")] + ",":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if item:
                yield from unbraced(head + item)
            item = ""
        else:
            item += letter


def jvm_references(tree: Tree) -> dict[str, set[str]]:
    """Which file of the jar uses the types of which other; of one package they need no import."""
    names = tree.ending(".scala", ".java", below="jvm/spark/src/main/")
    code = {
        name: re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', "", tree.text(name), flags=re.S)
        for name in names
    }
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for name, text in code.items():
        for found in re.findall(r"^(?:[\w\[\] ]*\s)?(?:class|object|trait|interface)\s+(\w+)", text, re.M):
            owners[found][name.rpartition("/")[0]] = name

    def owner(word: str, name: str) -> str:
        """Of several types that are called so that of the same folder."""
        folders = owners.get(word, {"": name})
        return folders.get(name.rpartition("/")[0]) or next(reversed(folders.values()))

    return {
        name: {owner(word, name) for word in set(re.findall(r"\b[A-Z]\w+", text))} - {name}
        for name, text in code.items()
    }


def strong_components(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The circles of a graph: its strongly connected components of two or more (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for to in sorted(arrows.get(node, ())):
            if to not in order:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], order[to])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(stack[at:])
            del stack[at:]

    for node in sorted(arrows):
        if node not in order:
            visit(node)
    return found
