"""The training of tests/bench/elastic.py by Ray Train, which starts its workers again when one has gone.

elastic_ray.py FOLDER
"""

from __future__ import annotations

import os
import sys
from typing import Any

from own_ray import own_ray


def train(config: dict[str, Any]) -> None:
    from elastic_training import train

    train(config["folder"])


def main(folder: str) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    with own_ray(processors=4, store_bytes=1 << 30):
        TorchTrainer(
            train,
            train_loop_config={"folder": folder},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                storage_path=os.path.join(folder, "ray"), failure_config=FailureConfig(max_failures=1000)
            ),
        ).fit()


if __name__ == "__main__":
    main(sys.argv[1])
