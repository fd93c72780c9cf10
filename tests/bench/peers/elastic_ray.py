"""The training of tests/bench/elastic.py by Ray Train, which starts its workers again when one has gone.

elastic_ray.py FOLDER
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["PYTHONPATH"] = sys.path[0]  # for the workers


def train(config: dict[str, Any]) -> None:
    from elastic_training import train

    train(config["folder"])


def main(folder: str) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    # Paths of its sockets have to be short.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as place:
        ray.init(
            num_cpus=4,
            object_store_memory=1 << 30,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=place,
            _node_ip_address="127.0.0.1",
        )
        try:
            TorchTrainer(
                train,
                train_loop_config={"folder": folder},
                torch_config=TorchConfig(backend="gloo"),
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(
                    storage_path=os.path.join(folder, "ray"), failure_config=FailureConfig(max_failures=1000)
                ),
            ).fit()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
