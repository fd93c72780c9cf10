#!/usr/bin/env python3
"""Makes the wheel, into target/wheel/.

    scripts/wheel.py [x86_64|aarch64]    for any Linux with glibc 2.17: what `make wheel` makes, and a release is
    scripts/wheel.py --quick             of what `make build` made, for this machine only: what the tests install

Zig links the native files, against the glibc of 2012, and brings the C compiler for the other kind of processor.
maturin writes the metadata, and auditwheel says whether the wheel keeps the rules of its name. The jars lose their
native files: the package has each once (SESSION-6). `make jars` has to have built them.
"""

from __future__ import annotations

import argparse
import base64
import calendar
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import third_party
from spark_lines import ROOT

OUT = ROOT / "target" / "wheel"
PACKAGE = ROOT / "python" / "phalanx"
GLIBC = "2.17"
NATIVES = {
    "lib_native.so": "phalanx/_native.abi3.so",
    "libphalanx_jni.so": "phalanx/jars/libphalanx_jni.so",
    "phalanx-guard": "phalanx/bin/phalanx-guard",
}
"""What Cargo builds, and where the wheel has it; python/phalanx/spark/jar.py has the same table."""
SBOM = "phalanx.cdx.json"
THIRD_PARTY = "LICENSE-THIRD-PARTY"
# Files of a zip have a time, and the same sources make the same wheel.
WHEN = (2026, 1, 1, 0, 0, 0)


class Tools:
    """The environment of what builds a release, and of nothing else: python/uv.lock says which versions."""

    def __init__(self) -> None:
        self.folder = OUT / "tools"
        sync = ["sync", "--project", "python", "--only-group", "release", "--frozen", "--quiet"]
        subprocess.run(
            [ROOT / ".venv" / "bin" / "uv", *sync, "--python", ROOT / ".venv" / "bin" / "python"],
            cwd=ROOT,
            env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(self.folder)},
            check=True,
        )
        self.env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def run(self, *words: str | Path, **env: str) -> None:
        subprocess.run([str(word) for word in words], cwd=ROOT, env={**self.env, **env}, check=True)

    def zig(self) -> tuple[Path, str]:
        """Its folder and its version."""
        [folder] = self.folder.glob("lib/python*/site-packages/ziglang")
        [info] = folder.parent.glob("ziglang-*.dist-info")
        return folder, info.name.removeprefix("ziglang-").removesuffix(".dist-info")


def build_natives(tools: Tools, target: str) -> dict[str, bytes]:
    """The native files for a target of Rust's, built for old systems."""
    crates = [word for crate in third_party.BUILT for word in ("-p", crate)]
    cargo = OUT / "cargo"
    downloads = os.environ.get("CARGO_HOME") or Path.home() / ".cargo"
    tools.run(
        "cargo", "zigbuild", "--quiet", "--locked", "--profile", "wheel", "--lib", "--bins",
        "--target", f"{target}.{GLIBC}", "--target-dir", cargo, *crates,
        # Messages name places in the sources, not on this machine.
        RUSTFLAGS=f"--remap-path-prefix={downloads}=/cargo --remap-path-prefix={ROOT}=/phalanx",
        PYO3_BUILD_EXTENSION_MODULE="1",
    )  # fmt: skip
    return {name: (cargo / target / "wheel" / name).read_bytes() for name in NATIVES}


def natives_of(jar: Path, machine: str) -> dict[str, bytes]:
    """The native files that a jar of `make build` has."""
    with zipfile.ZipFile(jar) as whole:
        return {name: whole.read(f"native/linux/{machine}/{name}") for name in NATIVES}


def write_info(folder: Path, inside: list[third_party.Component], machine: str) -> Path:
    """The wheel's metadata, licences and SBOM; their folder."""
    maturin = [ROOT / ".venv" / "bin" / "maturin", "pep517", "write-dist-info"]
    python = ["--metadata-directory", folder, "--interpreter", ROOT / ".venv" / "bin" / "python"]
    subprocess.run([*maturin, *python], cwd=ROOT / "python", check=True, capture_output=True)
    [info] = folder.glob("*.dist-info")
    (info / "licenses").mkdir()
    shutil.copy(ROOT / "LICENSE", info / "licenses" / "LICENSE")
    (info / "licenses" / THIRD_PARTY).write_text(third_party.licences(inside))
    metadata = (info / "METADATA").read_text()
    lines = re.sub(
        "(?m)^License-Expression: .*$",
        rf"\g<0>\nLicense-File: LICENSE\nLicense-File: {THIRD_PARTY}",
        metadata,
        count=1,
    )
    (info / "METADATA").write_text(lines)
    (info / "sboms").mkdir()
    (info / "sboms" / SBOM).write_text(third_party.sbom(version_of(info), inside))
    tags = (info / "WHEEL").read_text()
    (info / "WHEEL").write_text(re.sub(r"linux_\w+", f"linux_{machine}", tags))
    return info


def version_of(info: Path) -> str:
    return info.name.removeprefix("phalanx-").removesuffix(".dist-info")


def copy_package(folder: Path, natives: dict[str, bytes], info: Path) -> None:
    """The package's sources, its native files and its jars."""
    for path in PACKAGE.rglob("*"):
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            to = folder / "phalanx" / path.relative_to(PACKAGE)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
    for name, place in NATIVES.items():
        to = folder / place
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(natives[name])
        to.chmod(0o755)
    for jar in jars():
        copy_jar(jar, folder / "phalanx" / "jars" / jar.name, info)


def jars() -> list[Path]:
    """The jars of this version, as `make jars` built them."""
    version = re.search(r'(?m)^version = "(.*)"$', (ROOT / "Cargo.toml").read_text())
    assert version
    return sorted((PACKAGE / "jars").glob(f"*-{version[1]}.jar"))


def copy_jar(jar: Path, to: Path, info: Path) -> None:
    """A jar without its native files and the build's own POM, with the licences and the SBOM."""
    added = {
        "META-INF/LICENSE": info / "licenses" / "LICENSE",
        f"META-INF/{THIRD_PARTY}": info / "licenses" / THIRD_PARTY,
        f"META-INF/sbom/{SBOM}": info / "sboms" / SBOM,
    }
    with zipfile.ZipFile(jar) as whole, zipfile.ZipFile(to, "w") as small:
        for entry in whole.infolist():
            if not entry.filename.startswith(("native/", "META-INF/maven/")):
                write(small, entry.filename, whole.read(entry))
        for name, path in added.items():
            write(small, name, path.read_bytes())


def write(archive: zipfile.ZipFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = zipfile.ZipInfo(name, WHEN)
    entry.external_attr = (0o100000 | mode) << 16
    archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)


def pack(folder: Path, info: Path) -> Path:
    """The folder as a wheel beside it."""
    tag = re.search(r"(?m)^Tag: (.*)$", (info / "WHEEL").read_text())
    assert tag
    wheel = folder.parent / f"phalanx-{version_of(info)}-{tag[1]}.whl"
    record = []
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(
            files, key=lambda path: path.is_relative_to(info)
        ):  # the metadata last, as wheels have it
            name, content = path.relative_to(folder).as_posix(), path.read_bytes()
            write(archive, name, content, path.stat().st_mode & 0o755)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
        own = f"{info.name}/RECORD"
        write(archive, own, "".join([*record, f"{own},,\n"]).encode())
    return wheel


def audited(tools: Tools, wheel: Path, manylinux: str) -> Path:
    """The wheel under the name of the systems that it runs on; fails where a file of it needs a newer one."""
    folder = wheel.parent / "audited"
    when = str(calendar.timegm(WHEN))
    tools.run("auditwheel", "repair", "--plat", "auto", "--wheel-dir", folder, wheel, SOURCE_DATE_EPOCH=when)
    [named] = folder.iterdir()
    if manylinux not in named.name:
        raise SystemExit(f"wheel: auditwheel calls it {named.name}, and not {manylinux}")
    return named


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the wheel, into target/wheel/.")
    parser.add_argument("machine", nargs="?", choices=("x86_64", "aarch64"), default=platform.machine())
    parser.add_argument(
        "--quick", action="store_true", help="of what `make build` made, for this machine only"
    )
    parser.add_argument("--into", type=Path, default=OUT, metavar="FOLDER", help="where it is to be")
    wanted = parser.parse_args()
    if not jars():
        print(f"wheel: there is no jar in {PACKAGE / 'jars'}; `make jars` builds them", file=sys.stderr)
        return 1
    target = f"{wanted.machine}-unknown-linux-gnu"
    tools = None if wanted.quick else Tools()
    natives = natives_of(jars()[-1], wanted.machine) if tools is None else build_natives(tools, target)
    inside = third_party.components(target, None if tools is None else tools.zig())
    with tempfile.TemporaryDirectory(prefix="phalanx-wheel-") as made:
        folder = Path(made, "content")
        folder.mkdir()
        info = write_info(folder, inside, wanted.machine)
        copy_package(folder, natives, info)
        wheel = pack(folder, info)
        if tools is not None:
            wheel = audited(tools, wheel, f"manylinux_{GLIBC.replace('.', '_')}_{wanted.machine}")
        wanted.into.mkdir(parents=True, exist_ok=True)
        wheel = Path(shutil.copy(wheel, wanted.into))
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
