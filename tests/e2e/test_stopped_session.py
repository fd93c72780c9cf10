"""A distributor and DataFrames of a Spark session that was stopped: what still runs, and what is said of the rest."""

from __future__ import annotations

import pytest
from support.own_session import in_session
from support.tiers import whole

pytestmark = pytest.mark.timeout(200)

BELONGS = "belongs to a Spark session that was stopped; "
MAKE_BOTH = (
    BELONGS
    + "create a new session (SparkSession.builder.getOrCreate()), then create it again in that session"
)
MAKE_AGAIN = BELONGS + "create it again in the session that is active now"

TEXT = """
    from phalanx import TorchDistributor

    answer = []
    def tell(call):
        try:
            answer.append(repr(call()))
        except BaseException as error:
            answer.append(f"{type(error).__name__}: {error}")

    def train():
        return 7

    near, far = TorchDistributor(1, True, False), TorchDistributor(1, False, False)
    frame = spark.range(3)
    spark.stop()
    tell(lambda: near.run(train))
    tell(lambda: far.run(train))
    tell(lambda: far.start(train).result())
    tell(lambda: far._train_on_dataframe(train, frame))
    tell(lambda: near.run(train, data={"rows": frame}))
"""


def test_a_distributor_of_a_stopped_session_says_so_and_what_to_do() -> None:
    more = """
    from phalanx import stored, streamed
    spark = builder.getOrCreate()
    tell(lambda: far.run(train))
    again = TorchDistributor(1, False, False)
    tell(lambda: again._train_on_dataframe(train, frame))
    for given in (frame, streamed(frame), stored(frame, "/tmp/rows")):
        tell(lambda: again.run(train, data={"rows": given}))
    tell(lambda: again.run(train))
    """
    answer = in_session("local[1]", TEXT + more, timeout=150)
    this = f"RuntimeError: this TorchDistributor {MAKE_BOTH}"
    assert answer[0] == "7", "as with pyspark's class: ranks of this host need nothing of Spark's"
    assert answer[1:5] == [this] * 4, "SESSION-10"
    assert answer[5] == f"RuntimeError: this TorchDistributor {MAKE_AGAIN}", "SESSION-10"
    assert answer[6] == f"RuntimeError: the DataFrame {MAKE_AGAIN}", "SESSION-10"
    assert answer[7:10] == [f"RuntimeError: the data set 'rows' {MAKE_AGAIN}"] * 3, "SESSION-10"
    assert answer[10:] == ["7"]


@whole("over Spark Connect")
def test_a_distributor_of_a_stopped_client_says_so_and_what_to_do() -> None:
    answer = in_session("local[1]", TEXT, connect=True, timeout=150)
    assert answer == [f"RuntimeError: this TorchDistributor {MAKE_BOTH}"] * 5, "SESSION-10"
