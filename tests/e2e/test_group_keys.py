"""How the ranks of a job have the keys of their groups: by a file of their own, and by nothing that others see."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.behaviour]


def test_ranks_have_their_groups_keys_from_a_private_file_and_nothing_else_has_them(distributor: Any) -> None:
    def train() -> dict[str, Any]:
        import os
        from pathlib import Path

        import torch
        import torch.distributed as dist

        dist.init_process_group("phalanx")
        world = torch.ones(1)
        dist.all_reduce(world)
        own = dist.new_group([0, 1])
        dist.all_reduce(world, group=own)
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False)
        names = store.list_keys()
        values = b"".join(store.get(name.lstrip("/")) for name in names if "/phalanx/" in name)
        folder = Path(os.environ["PHALANX_RANK_DIR"])
        key = (folder / "groups-key").read_bytes()
        seen = values + Path("/proc/self/environ").read_bytes() + b"".join(os.environb.values())
        seen += Path("/proc/self/cmdline").read_bytes()
        dist.barrier()
        return {
            "sum": world.item(),
            "modes": [oct(path.stat().st_mode & 0o777) for path in (folder, folder / "groups-key")],
            "key": key.hex(),
            "groups": len({name.split("/card/")[0] for name in names if "/card/" in name}),
            "secrets": [name for name in names if "secret" in name],
            "is_seen": key in seen or key.hex().encode() in seen,
        }

    first, second = (distributor.start(train).results(60) for _ in range(2))
    for rank in first:
        assert rank == first[0], "both ranks have the same key"
        assert (rank["sum"], rank["modes"]) == (4.0, ["0o700", "0o600"])
        assert (rank["groups"], rank["secrets"], rank["is_seen"]) == (2, [], False)
    assert first[0]["key"] != second[0]["key"], "another job, another key"
