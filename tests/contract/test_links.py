"""The link check: what a jar refers to and a Spark doesn't have is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import phalanx
import pytest
from phalanx.spark import jar
from support.places import ROOT
from support.programs import spark_home
from support.tiers import whole

sys.path.append(str(ROOT / "scripts"))

import check_links

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(
        not os.path.exists(jar.expected_path()), reason="the jar is not built; `make build` does it"
    ),
]


def lacking(*without: str) -> list[str]:
    """What the jar lacks in the Spark that is installed, without these jars of it."""
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    left = [path for path in jars if not path.name.startswith(without or ("nothing",))]
    ours = check_links.Library([Path(phalanx.jar_path())])
    return list(check_links.missing(ours, check_links.Library(left)))


@whole("what `make link-check` says")
def test_the_spark_that_is_installed_has_all_that_the_jar_refers_to() -> None:
    assert lacking() == [], "JAR-5"


def test_a_class_that_is_not_there_is_named() -> None:
    missing = lacking("spark-core")
    assert "no class org/apache/spark/SparkContext" in missing
    assert not any("SparkSession" in line for line in missing)


def test_a_method_of_another_shape_is_named() -> None:
    ours = check_links.Library([Path(phalanx.jar_path())])
    conf = ours.find("dev/phalanx/spark/internal/SparkVersions")
    assert conf is not None
    conf.uses.add(
        ("org/apache/spark/util/Utils", "getLocalDir", "(Ljava/lang/Object;)Ljava/lang/String;", 10)
    )
    conf.uses.add(("org/apache/spark/TaskContext", "partitionId", "()I", 11))
    theirs = check_links.Library(sorted((spark_home() / "jars").glob("*.jar")))
    assert list(check_links.missing(ours, theirs)) == [
        "org/apache/spark/TaskContext, which has partitionId, is a class",
        "no org/apache/spark/util/Utils.getLocalDir (Ljava/lang/Object;)Ljava/lang/String;",
    ]
