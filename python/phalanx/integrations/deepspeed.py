"""`DeepspeedTorchDistributor`: the same class as pyspark's, on the outside.

LIBRARY-2 (as-pyspark): signature and the ranks' command line are those of
`pyspark.ml.deepspeed.deepspeed_distributor.DeepspeedTorchDistributor` 4.3. A function's ranks have the options in
`sys.argv`, too.
LIBRARY-3 (config-arrives): a configuration that the caller has reaches every rank, on whatever host, and is gone
with the rank's directory.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ..distributor import TorchDistributor
from ..request.payload import FileArgument

_CONFIG_NAME = "deepspeed_config.json"


class DeepspeedTorchDistributor(TorchDistributor):
    """Runs DeepSpeed training as ranks, on the driver or in a Spark stage.

    numGpus           the number of ranks a node, each with a GPU of its own if `useGpu`
    nnodes            the number of nodes: there are `numGpus * nnodes` ranks
    localMode         whether the ranks run on the driver's host; otherwise they run in tasks of the cluster
    useGpu            whether each rank has a GPU of its own
    deepspeedConfig   DeepSpeed's configuration, as a dictionary or as the path of a JSON file, here or else on the
                      ranks' hosts; without it DeepSpeed has what the training code gives to `deepspeed.initialize`

    Ranks have `--deepspeed` in their command line, and `--deepspeed_config PATH` where there is a configuration;
    `deepspeed.add_config_arguments` takes both. The keyword arguments are those of `TorchDistributor`.

    >>> distributor = DeepspeedTorchDistributor(numGpus=4, nnodes=3, localMode=False, deepspeedConfig={...})
    >>> model = distributor.run(train, 1e-3)

    It raises what `TorchDistributor` raises; `TypeError` for a dictionary that JSON can't hold, `OSError` for a
    file that can't be read.
    """

    _DEEPSPEED_SSL_CONF = "deepspeed.spark.distributor.ignoreSsl"

    def __init__(
        self,
        numGpus: int = 1,
        nnodes: int = 1,
        localMode: bool = True,
        useGpu: bool = True,
        deepspeedConfig: str | os.PathLike[str] | dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.deepspeed_config = deepspeedConfig
        self.cleanup_deepspeed_conf = False
        super().__init__(numGpus * nnodes, localMode, useGpu, self._DEEPSPEED_SSL_CONF, **options)

    def _options(self) -> list[str | FileArgument]:
        config = self.deepspeed_config
        if config is None or config == "":
            return ["--deepspeed"]
        return ["--deepspeed", "--deepspeed_config", _config_argument(config)]


def _config_argument(config: str | os.PathLike[str] | dict[str, Any]) -> str | FileArgument:
    if isinstance(config, dict):
        try:
            return FileArgument(_CONFIG_NAME, json.dumps(config))
        except (TypeError, ValueError) as problem:
            raise TypeError(f"deepspeedConfig can't be written as JSON: {problem}") from problem
    path = os.fspath(config)
    if not os.path.isfile(path):
        return path  # of the ranks' hosts
    with open(path, encoding="utf-8") as file:
        return FileArgument(os.path.basename(path), file.read())
