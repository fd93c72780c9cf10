"""What Spark's errors say, without the classes and traces around it. The Rust core takes them apart."""

from __future__ import annotations

from .. import _native


def explain(error: BaseException) -> tuple[str, str]:
    """The kind of a stage's end and why it ended, in a sentence or two.

    The kind is `cancelled` where somebody cancelled the Spark job (its group, its tag, its stage, or all jobs),
    `lost_node` where Spark names a lost executor, else `start`. The sentence is the last line of a worker's traceback,
    else what Spark says.
    """
    # py4j's own text is about the call; what Spark said is in the Java exception.
    return _native.explain_stage(type(error).__name__, str(getattr(error, "java_exception", error)))
