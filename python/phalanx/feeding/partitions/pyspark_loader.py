"""pyspark's own `_get_spark_partition_data_loader`, in a rank: training code that imports it goes on to work.

pyspark's reads a file that its own stage writes. Here the rows are in blocks, and no rank has such a file.

FEED-38 (either-loader): in a rank of `_train_on_dataframe` pyspark's function does what Phalanx's does, also where a
warm pool has imported it; in all others, and outside of ranks, it does what it did.
FEED-39 (no-import): importing this module, which each import of phalanx does, imports neither pyspark nor torch.
"""

from __future__ import annotations

from ...plumbing.import_hooks import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def install() -> None:
    """Waits for pyspark's module; what is imported already stays. Any number of times."""
    after_import(("pyspark.ml.torch.distributor",), _stand_in)


def _stand_in(module: ModuleType) -> None:
    import functools
    import os

    pysparks = vars(module).get("_get_spark_partition_data_loader")
    if pysparks is None:
        return

    @functools.wraps(pysparks)
    def loader(*args: Any, **kwargs: Any) -> Any:
        from ...rank import contract
        from .partitions import partition_data_loader

        ours = contract.ENV_PARTITION_INDEX in os.environ
        return (partition_data_loader if ours else pysparks)(*args, **kwargs)

    vars(module)["_get_spark_partition_data_loader"] = loader
