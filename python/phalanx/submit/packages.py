"""What a job's packages are for Spark, whose `--py-files` takes modules and archives that Python can import from."""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

_IMPORTABLE = (".py", ".zip", ".egg", ".whl")
# name-version-python-abi-platform.whl, before which there may be a build's number
_WHEEL_PARTS = 5


def for_spark(uris: Sequence[str], package_path: str | None, folder: Path) -> list[str]:
    """The job's `packageUris` and the package of `--package-path`, as `--py-files` takes them.

    A source distribution (`.tar.gz`) that lies here is packed anew in `folder`.

    Raises `OSError` for what isn't there, `ValueError` for what Spark can't ship.
    """
    shipped = [(uri, _shippable(uri, folder)) for uri in uris]
    if package_path is not None:
        shipped.append((package_path, str(_from_package(Path(package_path), folder))))
    sources: dict[str, str] = {}
    for source, path in shipped:
        name = path.rpartition("/")[2]
        before = sources.setdefault(name, source)
        if before != source:
            raise ValueError(
                f"{source} and {before} have the same file name, {name}, by which Spark tells files apart"
            )
    return list(dict.fromkeys(path for _, path in shipped))


def _shippable(uri: str, folder: Path) -> str:
    path = uri.removeprefix("file://")
    if uri.endswith(_IMPORTABLE):
        if "://" not in path:
            _check_here(path)
        _check_wheel(uri)
        return uri
    if uri.endswith((".tar.gz", ".tgz")) and "://" not in path:
        return str(_from_distribution(Path(path), folder))
    raise ValueError(
        f"Spark can't ship {uri}: it takes {', '.join(_IMPORTABLE)} from any URI, and a .tar.gz from this host only"
    )


def _check_here(path: str) -> None:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no package {path}")
    if not path.endswith(".py") and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an archive that Python can import from: it is not a zip file")


def _check_wheel(uri: str) -> None:
    parts = uri.rpartition("/")[2].removesuffix(".whl").split("-")
    if uri.endswith(".whl") and len(parts) >= _WHEEL_PARTS and parts[-1] != "any":
        raise ValueError(
            f"{uri} is built for {parts[-1]}: Python can't import compiled code from an archive; install it "
            "in the executors' Python"
        )


def _from_package(package: Path, folder: Path) -> Path:
    if not (package / "__init__.py").is_file():
        raise FileNotFoundError(f"{package} is not a Python package: it has no __init__.py")
    package = package.resolve()
    target = folder / f"{package.name}.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(package.parent))
    return target


def _from_distribution(source: Path, folder: Path) -> Path:
    """The packages of a source distribution: what lies below its one folder, or below `src` in there."""
    if not source.is_file():
        raise FileNotFoundError(f"there is no package {source}")
    target = folder / f"{source.name.removesuffix('.gz').removesuffix('.tar').removesuffix('.tgz')}.zip"
    try:
        _repack(source, target)
    except (tarfile.TarError, EOFError, zlib.error) as problem:
        raise ValueError(f"{source} is not a tar archive, or is incomplete") from problem
    return target


def _repack(source: Path, target: Path) -> None:
    with tarfile.open(source) as tar, zipfile.ZipFile(target, "w") as archive:
        names = [member.name for member in tar if member.isfile()]
        below_src = any(name.split("/")[1:2] == ["src"] for name in names)
        for member in tar:
            inside = member.name.split("/")[1:]
            if below_src and inside[:1] == ["src"]:
                inside = inside[1:]
            try:
                file = tar.extractfile(member)
            except KeyError:  # a link to what isn't in there
                continue
            if file is not None and inside and ".." not in inside:
                archive.writestr("/".join(inside), file.read())
