"""Names that `pyspark.ml.torch.distributor` has beside `TorchDistributor`, for subclasses and recipes that use them.

REQUEST-1 (as-pyspark): each means and returns what pyspark's does. What is inside of pyspark's own way to start ranks
(its torchrun commands, its task function) has no counterpart here and is missing.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from ..connect.client import is_remote
from ..rank import contract
from .preflight import SSL_OVERRIDE, resources_of

_GPU = re.compile("[1-9][0-9]*|0")
# What pyspark leaves out of `input_params`, and what is ours.
_NO_PARAMS = (
    "spark",
    "ssl_conf",
    "logger",
    "is_remote",
    "is_spark_local_master",
    "last_run",
    "options",
    "_sets",
    "input_params",
)


def _get_conf(spark: Any, key: str, default_value: str) -> str:
    """A setting of the session."""
    value = spark.conf.get(key, default_value)
    assert value is not None
    return str(value)


def _get_conf_boolean(spark: Any, key: str, default_value: str) -> bool:
    """A setting of the session that is `true` or `false`."""
    value = _get_conf(spark, key, default_value).lower()
    assert value in ("true", "false"), f"{key} is {value!r}"
    return value == "true"


def _get_resources(session: Any) -> Mapping[str, Any]:
    """The driver's resources by name."""
    return resources_of(session)


def _get_logger(name: str) -> logging.Logger:
    """A logger that prints to stderr where nobody configured logging."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    if not logger.handlers and not logging.getLogger().handlers:
        logger.addHandler(logging.StreamHandler(sys.stderr))
    return logger


def _get_gpus_owned(context: Any) -> list[str]:
    """The GPUs of a task (`BarrierTaskContext`) or of a session's driver, as `CUDA_VISIBLE_DEVICES` has them.

    Raises `ValueError` where Spark's addresses are no plain numbers.
    """
    found = resources_of(context) if hasattr(context, "conf") else context.resources()
    addresses = [str(address) for address in found["gpu"].addresses]
    if not all(_GPU.fullmatch(address) for address in addresses):
        raise ValueError(
            f"Found GPU addresses {addresses} which are not all in the correct format for CUDA_VISIBLE_DEVICES, "
            "which requires integers with no zero padding."
        )
    visible = os.environ.get(contract.ENV_VISIBLE_GPUS)
    if visible is None:
        return addresses
    gpus = visible.split(",")
    return [gpus[int(address)] for address in addresses]


class Distributor:
    """What pyspark's class of this name gives to its subclasses; `TorchDistributor` is one."""

    _PICKLED_FUNC_FILE = "func.pickle"
    _TRAIN_FILE = "train.py"
    _PICKLED_OUTPUT_FILE = "output.pickle"
    _TORCH_SSL_CONF = SSL_OVERRIDE

    spark: Any
    num_processes: int

    def _look_at(self, spark: Any) -> None:
        """Takes the session, and what there is to know of it."""
        self.spark = spark
        self.is_remote = is_remote(spark)
        """Whether it is one of Spark Connect."""
        master = spark.conf.get("spark.master", None) or ""
        self.is_spark_local_master = master == "local" or master.startswith("local[")
        """Whether the executors are in the driver's process."""

    def _create_input_params(self) -> dict[str, Any]:
        """What the distributor was made with, by name."""
        return {key: value for key, value in vars(self).items() if key not in _NO_PARAMS}

    def _validate_input_params(self) -> None:
        if self.num_processes <= 0:
            raise ValueError("num_processes has to be a positive integer")
