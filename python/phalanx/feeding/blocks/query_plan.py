"""What Spark's own description of a DataFrame's query tells of the order of its rows. A classic session and a client
of Spark Connect give the same text, so there is one reading of it.

FEED-65 (known): rows keep the order in which Spark computes them where the user sorted them, or where that order is
the same each time: no shuffle, and nothing below that comes in another order. What isn't known counts as unsettled.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...connect.client import is_remote

_SECTION = re.compile(r"^== (?P<name>.+?) ==$", re.MULTILINE)
# `:  +- *(2) ColumnarToRow`: where the node stands, and what it is called.
_NODE = re.compile(r"(?P<lines>[ :]*(?:[:+]- )?)(?:\*\(\d+\) )?\*?(?P<name>[A-Za-z]+)")

# Through these of the analysed plan a sort's order stays.
_PASSING = {"Project", "Filter", "SubqueryAlias", "View", "GlobalLimit", "LocalLimit"}
# These of the physical plan have other partitions than what they read, in the same stage.
_REGROUPING = {"Coalesce", "Union", "CartesianProduct"}


class _Node(NamedTuple):
    depth: int
    name: str


class QueryPlan:
    """That of a DataFrame, before it is executed. Making one has Spark analyse and plan it."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        text = _described(frame)
        parts = _SECTION.split(text)
        sections = dict(zip(parts[1::2], parts[2::2], strict=False))
        self._analysed = sections.get("Analyzed Logical Plan", "")
        self._physical = list(_nodes(sections.get("Physical Plan", "")))
        self._is_whole = bool(self._physical) and "more characters" not in text[-200:]

    @property
    def is_sorted(self) -> bool:
        """Whether the user has sorted the rows, and nothing has been done since that would lose their order."""
        # Above the nodes are the columns.
        for node in _nodes(self._analysed.strip().partition("\n")[2]):
            if node.name not in _PASSING:
                return node.name == "Sort"
        return False

    @property
    def is_settled(self) -> bool:
        """Whether Spark computes the rows in the same order each time, as far as is known."""
        if not self._is_whole or any(map(_is_shuffle, self._physical)):
            return False
        return not any(node.name == "Scan" for node in self._physical) or self._rdds_are_settled()

    @property
    def regroups(self) -> bool:
        """Whether the last stage has partitions that are put together from others', which a barrier stage refuses."""
        below: int | None = None
        for node in self._physical:
            if below is not None and node.depth > below:
                continue
            below = node.depth if _is_shuffle(node) else None
            if node.name in _REGROUPING:
                return True
        return False

    def digest(self) -> str:
        """What tells the query from another one, also in another application of the same Spark."""
        names = re.sub(r"#\d+L?|\bplan_id=\d+|@[0-9a-f]+\b|\$\$Lambda\S*|0x[0-9a-f]+", "", self._analysed)
        return hashlib.sha256(names.encode()).hexdigest()[:16]

    def _rdds_are_settled(self) -> bool:
        """Whether what is read of RDDs comes in the same order each time; a client of Spark Connect can't know."""
        if is_remote(self._frame.sparkSession):
            return False
        leaves = _leaves(self._frame._jdf.queryExecution().sparkPlan())
        return all(
            leaf.rdd().outputDeterministicLevel().toString() == "DETERMINATE"
            for leaf in leaves
            if leaf.getClass().getSimpleName() == "RDDScanExec"
        )


def _described(frame: Any) -> str:
    if is_remote(frame.sparkSession):
        return str(frame._explain_string(extended=True))
    spark_utils = frame.sparkSession.sparkContext._jvm.PythonSQLUtils
    return str(spark_utils.explainString(frame._jdf.queryExecution(), "extended"))


def _nodes(text: str) -> Iterator[_Node]:
    for line in text.splitlines():
        if match := _NODE.match(line):
            yield _Node(len(match["lines"]), match["name"])


def _is_shuffle(node: _Node) -> bool:
    """Also those of other engines: `ColumnarExchange`, `GpuShuffleExchange`. What is broadcast keeps its order."""
    return "Exchange" in node.name and "Broadcast" not in node.name


def _leaves(plan: Any) -> Iterator[Any]:
    """The leaves of a physical plan that isn't executed, and those of what is cached below it."""
    found = plan.collectLeaves()
    for at in range(found.size()):
        leaf = found.apply(at)
        name = leaf.getClass().getSimpleName()
        if name == "InMemoryTableScanExec":
            yield from _leaves(leaf.relation().cachedPlan())
        elif name == "AdaptiveSparkPlanExec":
            yield from _leaves(leaf.executedPlan())
        else:
            yield leaf
