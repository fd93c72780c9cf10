"""The jar of the JVM's side, which comes with the package, and the settings that give it to Spark.

SESSION-6 (natives-once): a wheel has each native file once, and its jars have none. The first use of a jar makes the
whole one, which executors need nothing beside, in a folder that only its user can write to.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import stat
import tempfile
import zipfile

from .._native import VERSION
from ..plumbing.whole_file import whole_or_absent
from .versions import scala_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PLUGIN = "dev.phalanx.spark.PhalanxPlugin"
_EXTENSION = "dev.phalanx.spark.PhalanxExtensions"

NATIVES = {
    "lib_native.so": "_native.abi3.so",
    "libphalanx_jni.so": "jars/libphalanx_jni.so",
    "phalanx-guard": "bin/phalanx-guard",
}
"""The native files: what they are called in a whole jar, and where a wheel's package has them."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def has_extension(spark: Any) -> bool:
    """Whether a session, or the server of one of Spark Connect, has Phalanx's extension of Spark SQL."""
    return _EXTENSION in (spark.conf.get("spark.sql.extensions", None) or "")


def jar_path(scala: str | None = None) -> str:
    """The path of the jar: what `spark-submit --jars` or a Scala build takes.

    There is one for each Scala that Spark is built with: `2.13`, and `2.12` for Spark 3.5. Where `scala` is None, it is
    the one for the Spark that is here: that of SPARK_HOME, else of this Python's pyspark.

    A wheel's jars have no native files, since the package has them. So the first call makes the whole jar, in a folder
    below `$XDG_CACHE_HOME` or `~/.cache`, or below the one for temporary files where that can't be written.

    Raises `FileNotFoundError` where the package was built without it.
    """
    path = expected_path(scala)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"this installation of Phalanx was built without the jar for this Spark's Scala ({path}); "
            "`make jars` in a clone builds it, and `make wheel` a wheel that has it"
        )
    return _whole(path)


def expected_path(scala: str | None = None) -> str:
    """Where the package has the jar for this Scala, or for the Spark that is here, if it was built with it."""
    return os.path.join(_PACKAGE, "jars", f"phalanx-spark_{scala or scala_version()}-{VERSION}.jar")


def spark_conf() -> dict[str, str]:
    """Settings of Spark with which its executors start and watch the ranks themselves, without Python workers.

    They count when the application starts, not in a session that is there already:

    >>> SparkSession.builder.config(map=phalanx.spark_conf()).getOrCreate()

    With `spark-submit`, give each by `--conf key=value`. Where the application has jars or plugins of its own,
    join the two lists by commas.

    Raises `FileNotFoundError` where the package was built without the jar.
    """
    return {"spark.jars": jar_path(), "spark.plugins": PLUGIN}


def with_natives(jar: str, natives: Mapping[str, bytes], machine: str) -> bytes:
    """A jar's bytes, with native files for this kind of machine in it."""
    with open(jar, "rb") as file:
        whole = io.BytesIO(file.read())
    with zipfile.ZipFile(whole, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, content in natives.items():
            # Not the time of writing: the same files make the same jar.
            archive.writestr(zipfile.ZipInfo(f"native/linux/{machine}/{name}"), content, zipfile.ZIP_DEFLATED)
    return whole.getvalue()


def _whole(jar: str) -> str:
    """The jar itself where it has its native files, as in a clone; else a copy that has them."""
    natives = {name: os.path.join(_PACKAGE, path) for name, path in NATIVES.items()}
    if not os.path.isfile(natives["libphalanx_jni.so"]):
        return jar
    parts = [(path, os.stat(path)) for path in (jar, *natives.values())]
    known = repr([(path, known.st_size, known.st_mtime_ns) for path, known in parts])
    name = os.path.join(hashlib.sha256(known.encode()).hexdigest()[:16], os.path.basename(jar))
    problem: OSError | None = None
    for folder in _caches():
        path = os.path.join(folder, name)
        try:
            _make_private(folder)
            if not os.path.isfile(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with whole_or_absent(path) as file:
                    file.write(with_natives(jar, _read(natives), platform.machine()))
        except OSError as refused:
            problem = refused
        else:
            return path
    assert problem is not None
    raise problem


def _read(files: Mapping[str, str]) -> dict[str, bytes]:
    found = {}
    for name, path in files.items():
        with open(path, "rb") as file:
            found[name] = file.read()
    return found


def _caches() -> list[str]:
    """The folders that may have whole jars."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [
        os.path.join(cache, "phalanx"),
        os.path.join(tempfile.gettempdir(), f"phalanx-{os.getuid()}"),
    ]


def _make_private(folder: str) -> None:
    """Makes a folder that is this user's; raises `OSError` where it is another's, or others can write to it."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    others = stat.S_IWGRP | stat.S_IWOTH
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & others:
        raise PermissionError(f"{folder} is not a folder that only its user, {os.getuid()}, can write to")
