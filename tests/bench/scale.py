"""What 100, 1,000 and 8,000 ranks cost their driver: joining, reports, output, and the end of one of them; what each
attempt of an elastic job costs it whose nodes are lost one after the other, 100 of 1,000 in a minute; and what 64 and
256 ranks take to form a group of the `phalanx` backend.

    python tests/bench/scale.py [--quick]

The driver's end is a process of its own. The nodes are simulated in another (rust/job/examples/scale.rs): real
connections, TLS and frames, and no ranks. They share this machine with the driver. The hub's share of a core is its
thread's processor time over the time that so many reports are of, so other load of the machine doesn't
count as its own; where time is measured, it does. Nobody else has such a hub: there is no peer here.

Of a group each rank is a process (rust/collective/examples/forming.rs), and its hosts are pretended.
"""

from __future__ import annotations

import argparse

from common import Report, build_example, figures_of, interleaved

CASES = {
    "100 ranks, 25 nodes": (100, 25),
    "1,000 ranks, 125 nodes": (1000, 125),
    "8,000 ranks, 1,000 nodes": (8000, 1000),
}
MIB = 1 << 20
# Key of the example, name, unit, and how many of the key's units that is.
METRICS = (
    ("join_s", "all joined, placed and told", "s", 1),
    ("join_hub_cpu_s", "processor time of the hub for it", "s", 1),
    ("report_hub_share", "hub, each rank reports twice a second", "cores", 1),
    ("worst_ping_s", "worst ping meanwhile", "s", 1),
    ("written_s", "64 KiB of output of each rank", "s", 1),
    ("driver_bytes", "driver's memory then", "MiB", MIB),
    ("stopped_s", "one rank dead, all have the order to stop", "s", 1),
    ("named_s", "one rank dead, the caller has the error", "s", 1),
    ("error_lines", "lines of the error", "lines", 1),
)
# Nodes of a rank each, how many of them are lost, and in how many seconds.
LOSSES = {
    "250 nodes lose 25": (250, 25, 15),
    "500 nodes lose 50": (500, 50, 30),
    "1,000 nodes lose 100": (1000, 100, 60),
}
LOSS_METRICS = (
    ("attempts", "attempts after the first", "attempts", 1),
    ("attempt_cpu_s", "processor time of the hub for an attempt", "s", 1),
    ("worst_pause_s", "longest time until all ranks run again", "s", 1),
    ("driver_bytes_before", "driver's memory before", "MiB", MIB),
    ("driver_bytes", "driver's memory after", "MiB", MIB),
)
GROUPS = {
    "64 ranks form a group, one host": (64, 64),
    "64 ranks form a group, 8 hosts": (64, 8),
    "256 ranks form a group, one host": (256, 256),
    "256 ranks form a group, 32 hosts": (256, 8),
}
GROUP_METRICS = (
    ("formed_s", "until the last has joined", "s"),
    ("cpu_s", "processor time of all", "s"),
    ("keys", "keys asked for", "keys"),
    ("answered", "the store answers", "bytes"),
    ("descriptors", "open in a rank", "descriptors"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one repetition, and reports for 4 s: within three minutes"
    )
    options = parser.parse_args()
    example = build_example("phalanx-job", "scale")
    report = Report("scale")
    seconds = 4 if options.quick else 20
    runs = {case: figures_of(example, (ranks, nodes, seconds), 600) for case, (ranks, nodes) in CASES.items()}
    for case, figures in interleaved(runs, 1 if options.quick else 5).items():
        for key, metric, unit, size in METRICS:
            report.add("phalanx", case, metric, unit, [figure[key] / size for figure in figures])
    lost = {case: figures_of(example, ("losses", *shape), 600) for case, shape in LOSSES.items()}
    for case, figures in interleaved(lost, 1 if options.quick else 3).items():
        for key, metric, unit, size in LOSS_METRICS:
            report.add("phalanx", case, metric, unit, [figure[key] / size for figure in figures])
    forming = build_example("phalanx-collective", "forming")
    groups = {case: figures_of(forming, shape, 300) for case, shape in GROUPS.items()}
    for case, figures in interleaved(groups, 1 if options.quick else 5).items():
        for key, metric, unit in GROUP_METRICS:
            report.add("phalanx", case, metric, unit, [figure[key] for figure in figures])


if __name__ == "__main__":
    main()
