"""A Ray of this program's own, on this host, for what asks it."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_AUTH_MODE": "disabled",
}
# Of the benchmarks, for this program and for its actors.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["PYTHONPATH"] = sys.path[0]


@contextlib.contextmanager
def own_ray(processors: int, store_bytes: int) -> Iterator[None]:
    """It says that it has so many processors."""
    import ray

    # Paths of its sockets have to be short.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as place:
        ray.init(
            num_cpus=processors,
            object_store_memory=store_bytes,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=place,
            _node_ip_address="127.0.0.1",
        )
        try:
            yield
        finally:
            ray.shutdown()
