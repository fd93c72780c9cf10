"""The hub: how long 1,000 nodes take to join, and a result of 1 GiB to arrive, encryption included.

    python tests/bench/hub.py [--quick]

Hub and clients are one process (rust/rendezvous/examples/hub_load.rs), so the processor time is that of both ends.
Nobody else has such a hub: there is no peer here. What output costs is in logs.py.
"""

from __future__ import annotations

import argparse

from common import Report, build_example, figures_of, interleaved

CASES = {"1,000 nodes join": ["join", "1000"], "a result of 1 GiB": ["result", str(1 << 30)]}
METRICS = {"seconds": "time", "cpu_s": "processor time"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: within a minute")
    options = parser.parse_args()
    load = build_example("phalanx-rendezvous", "hub_load")
    report = Report("hub")
    runs = {case: figures_of(load, arguments, 120) for case, arguments in CASES.items()}
    for case, figures in interleaved(runs, 3 if options.quick else 9).items():
        for key, metric in METRICS.items():
            report.add("phalanx", case, metric, "s", [figure[key] for figure in figures])


if __name__ == "__main__":
    main()
