"""A file of Spark's settings is read as Spark's own parser reads it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from phalanx.spark.properties import settings_in

pytestmark = pytest.mark.timeout(120)

CASES = (
    "spark.jars a.jar,b.jar",
    "spark.jars=a.jar\nspark.jars : b.jar\n",
    "  spark.jars\t=\ta.jar  \n",
    "spark.jars = a.jar,\\\n    b.jar,\\\r\n  c.jar",
    "spark.jars a.jar,\\\n# no comment",
    "spark.jars a.jar \\\n\nspark.plugins p",
    "# spark.jars a\n ! spark.jars b\\\nspark.jars c",
    "spark.jars \\u0061.jar,\\u00e9,\\ud83d\\ude80",
    "spark\\:jars\\ x\\=y a\\tb\\n",
    "spark.jars a\\\\\nspark.plugins b\\\\\\\nc",
    "spark.jars a.jar\rspark.plugins b",
    "spark.jars",
    "spark.jars =",
    "spark.jars == a",
    "spark.jars Gr\u00fc\u00dfe, \u6771\u4eac, \U0001f680",
    "spark.jars \\q\\\"\\'\\!",
    "spark.jars a\x0b b\x1c\x85\u2028c",
    "\\",
    "",
)
PIECES = (
    *(
        "spark.jars",
        "a",
        "b.jar",
        "#",
        "!",
        "=",
        ":",
        " ",
        "\t",
        "\f",
        "\n",
        "\r",
        "\r\n",
        "\\",
        "\\\\",
        "\\\n",
    ),
    *("\\u0041", "\\u000a", "\\u003d", "\\t", "\\n", "\x0b", "\x00", "\xa0", "\u2028", "\xe9", ","),
)


class Sparks:
    """Spark's own parser."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark.sparkContext._jvm

    def settings_in(self, path: Path) -> dict[str, str]:
        found = self._jvm.org.apache.spark.util.Utils.getPropertiesFromFile(str(path))
        pairs = found.iterator()
        settings = {}
        while pairs.hasNext():
            pair = pairs.next()
            settings[pair._1()] = pair._2()
        return settings


def test_each_form_is_read_as_spark_reads_it(spark: Any, tmp_path: Path) -> None:
    sparks, file = Sparks(spark), tmp_path / "spark-defaults.conf"
    for text in CASES:
        file.write_bytes(text.encode())
        _same(sparks, file, text)


def test_whatever_is_in_a_file_is_read_as_spark_reads_it(spark: Any, tmp_path: Path) -> None:
    sparks, file, chance = Sparks(spark), tmp_path / "spark-defaults.conf", random.Random(13)
    for _ in range(400):
        text = "".join(chance.choices(PIECES, k=chance.randrange(24)))
        file.write_bytes(text.encode())
        _same(sparks, file, text)


def test_what_spark_can_not_read_is_an_error_here_too(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    for text in ("spark.jars \\u00g1", "spark.jars a\\u12", "spark\\u1 a"):
        file.write_text(text)
        with pytest.raises(Exception, match="Malformed"):
            Sparks(spark).settings_in(file)
        with pytest.raises(ValueError, match="without four hexadecimal digits"):
            settings_in(str(file))


def _same(sparks: Sparks, file: Path, text: str) -> None:
    found, own = sparks.settings_in(file), settings_in(str(file))
    # A setting without a name is none; how Java comes by one differs from version to version.
    found.pop("", None)
    own.pop("", None)
    assert own == found, f"SESSION-9: {text!r}"
