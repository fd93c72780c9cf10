"""What of others is inside the native files and the jars: a list for programs (CycloneDX), and the licences' texts.

Cargo says which crates are linked, and its downloads have their licences. What only runs while Phalanx is built (build
scripts, procedural macros) is not inside, and not listed. It uses the standard library only.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_lines import ROOT

BUILT = ("phalanx-python", "phalanx-jni", "phalanx-supervisor")
"""The crates that become native files."""
TEXTS = re.compile(r"(?i)(un)?licen[cs]e|copying|copyright|notice")


@dataclass(frozen=True)
class Component:
    """Something of others that is inside."""

    name: str
    version: str
    purl: str
    """What it is, as package URL."""
    license: str
    """An SPDX expression."""
    texts: tuple[Path, ...]
    sha256: str = ""


def components(target: str, zig: tuple[Path, str] | None) -> list[Component]:
    """All that is linked into the native files for a target of Rust's, and the jars' cloudpickle.

    `zig` is the folder and the version of Zig, where that is the linker.
    """
    found = [*crates(target), rust_library(), cloudpickle()]
    if zig is not None:
        found.append(unwinder(*zig))
    return sorted(found, key=lambda one: (one.name, one.version))


def crates(target: str) -> Iterator[Component]:
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={target}"]
    told = json.loads(subprocess.check_output(command, cwd=ROOT))
    packages = {package["id"]: package for package in told["packages"]}
    nodes = {node["id"]: node for node in told["resolve"]["nodes"]}
    lock = (ROOT / "Cargo.lock").read_text()
    todo = [package["id"] for package in packages.values() if package["name"] in BUILT]
    linked: set[str] = set()
    while todo:
        one = todo.pop()
        if one in linked or any("proc-macro" in target["kind"] for target in packages[one]["targets"]):
            continue
        linked.add(one)
        todo += [
            needed["pkg"]
            for needed in nodes[one]["deps"]
            if any(kind["kind"] is None for kind in needed["dep_kinds"])
        ]
    for package in (packages[one] for one in linked):
        if package["source"] is None:
            continue  # Phalanx's own
        name, version = package["name"], package["version"]
        checksum = re.search(rf'name = "{name}"\nversion = "{version}"\n.*\nchecksum = "(\w+)"', lock)
        folder = Path(package["manifest_path"]).parent
        yield Component(
            name,
            version,
            f"pkg:cargo/{name}@{version}",
            package["license"].replace("/", " OR "),
            tuple(sorted(path for path in folder.iterdir() if path.is_file() and TEXTS.match(path.name))),
            checksum[1] if checksum else "",
        )


def rust_library() -> Component:
    version = subprocess.check_output(["rustc", "--version"], text=True).split()[1]
    sysroot = Path(subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip())
    texts = tuple(
        path
        for name in ("Apache-2.0.txt", "MIT.txt")
        if (path := sysroot / "share/doc/rust/licenses" / name).is_file()
    )
    return Component("rust-std", version, f"pkg:generic/rust-std@{version}", "MIT OR Apache-2.0", texts)


def cloudpickle() -> Component:
    [info] = ROOT.glob(".venv/lib/python*/site-packages/cloudpickle-*.dist-info")
    version = info.name.removeprefix("cloudpickle-").removesuffix(".dist-info")
    texts = (info / "licenses" / "LICENSE",)
    return Component("cloudpickle", version, f"pkg:pypi/cloudpickle@{version}", "BSD-3-Clause", texts)


def unwinder(zig: Path, version: str) -> Component:
    """LLVM's libunwind, which Zig links in the place of GCC's."""
    text = zig / "lib" / "libunwind" / "LICENSE.TXT"
    purl = f"pkg:generic/llvm-libunwind?zig={version}"
    return Component("llvm-libunwind", f"of zig {version}", purl, "Apache-2.0 WITH LLVM-exception", (text,))


def sbom(version: str, inside: list[Component]) -> str:
    """The list for programs: CycloneDX 1.5."""
    listed = []
    for one in inside:
        entry: dict[str, object] = {
            "type": "library",
            "bom-ref": one.purl,
            "name": one.name,
            "version": one.version,
            "purl": one.purl,
            "licenses": [{"expression": one.license}],
        }
        if one.sha256:
            entry["hashes"] = [{"alg": "SHA-256", "content": one.sha256}]
        listed.append(entry)
    purl = f"pkg:pypi/phalanx@{version}"
    own = {
        "type": "library",
        "bom-ref": purl,
        "name": "phalanx",
        "version": version,
        "purl": purl,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": listed,
        "dependencies": [{"ref": purl, "dependsOn": [one.purl for one in inside]}],
    }
    return json.dumps(document, indent=1) + "\n"


def licences(inside: list[Component]) -> str:
    """Every component with its licence, then each text once, with the components that bring it."""
    texts: dict[str, tuple[str, list[str]]] = {}
    without = []
    for one in inside:
        for path in one.texts:
            text = path.read_text(errors="replace").strip()
            texts.setdefault(" ".join(text.split()), (text, []))[1].append(f"{one.name} {one.version}")
        if not one.texts:
            without.append(one)
    rule = "=" * 79
    parts = ["Software of others in Phalanx's native files and jars. Phalanx's own licence is in LICENSE.\n"]
    parts += [f"{one.name} {one.version}: {one.license}" for one in inside]
    for one in without:
        parts.append(
            f"\n{one.name} {one.version} comes without a text of its licence; Phalanx uses it under Apache-2.0, as "
            "in LICENSE."
        )
        assert "Apache-2.0" in one.license, f"{one.name} has no licence text"
    for text, bringing in texts.values():
        parts.append(f"\n{rule}\n{', '.join(bringing)}\n{rule}\n\n{text}")
    return "\n".join(parts) + "\n"
