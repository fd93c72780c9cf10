"""Pods without Kubernetes: programs that start on one of two hosts as the kubelet starts a container.

Each program is process 1 of its pod, and reaps nobody but its own children. The root file system is read-only, `/tmp`
is a `noexec` tmpfs, `/dev/shm` a small one. The user is not root, and has no capability, no new privileges, and a
seccomp filter. One folder, a volume, can be written, and is the same in all pods. The memory is that of a cgroup,
where one can be made.

TEST-14 (nothing-left): after `remove` no cgroup is left; a pod's processes and mounts go with the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from support import jvm
from support.cgroup import Cgroup
from support.cluster import Host
from support.hosts import TwoHosts, Unavailable
from support.places import APPS
from support.programs import Program, below

# `nobody`: a user that /etc/passwd of every image has, since Spark's drivers want their user's name.
USER = 65534
CONFINED = APPS / "confined.py"

# All that a pod has is of its cgroup.
ENTER = 'if [ -n "$0" ]; then echo $$ >"$0/cgroup.procs"; fi; exec "$@"'

# As process 1 of the pod: its arguments are a name, the volume and the options of its mount, the MiB of /dev/shm, the
# kind of cgroup, the folder of the interpreter and the folder that hides it from others, or nothing.
FURNISH = """set -e
name=$0 volume=$1 options=$2 shm=$3 cgroup=$4 python=$5 hidden=$6; shift 6
hostname "$name"
cd "$volume"
mount -t tmpfs -o noexec,nosuid,nodev,mode=1777,size=1g tmpfs /tmp
mount -t tmpfs -o noexec,nosuid,nodev,mode=1777,size="${shm}m" shm /dev/shm
mkdir -p "$volume"
mount -c --bind . "$volume"
mount -o "remount,bind,nosuid,nodev$options" "$volume"
if [ -n "$hidden" ]; then
  cd "$python"
  mount -t tmpfs -o mode=755 tmpfs "$hidden"
  mkdir -p "$python"
  mount -c --bind . "$python"
  mount -o remount,bind,ro "$python"
  mount -o remount,bind,ro "$hidden"
fi
cd /
mount -t proc -o nosuid,nodev,noexec proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
if [ -e /proc/kcore ]; then mount --bind /dev/null /proc/kcore; fi
mount -o remount,bind,ro /
mount -o remount,bind,ro /dev
case $cgroup in
  v2) mount -t cgroup2 -o ro cgroup2 /sys/fs/cgroup ;;
  v1) mount -t tmpfs tmpfs /sys/fs/cgroup
      mkdir /sys/fs/cgroup/memory
      mount -t cgroup -o ro,memory cgroup /sys/fs/cgroup/memory
      mount -o remount,bind,ro /sys/fs/cgroup ;;
esac
mount -o remount,bind,ro /sys
exec "$@"
"""


class Pods:
    """What pods on both hosts have in common: the volume, the limit of memory, and how small `/dev/shm` is."""

    def __init__(
        self,
        hosts: TwoHosts,
        volume: Path,
        *,
        memory_mib: int = 3072,
        shm_mib: Sequence[int] = (64, 64),
    ) -> None:
        self.hosts = hosts
        self.volume = volume
        self.shm_mib = shm_mib
        volume.mkdir(parents=True, exist_ok=True)
        volume.chmod(0o777)
        self.cgroups: list[Cgroup] = []
        for name in hosts.names:
            self.cgroups.append(Cgroup(f"{name}-pod", memory_mib << 20))
        try:
            self._try()
        except BaseException:
            self.remove()
            raise

    @property
    def no_limit(self) -> str:
        """Why pods have no limit of memory; nothing where they have."""
        return "".join(cgroup.problem for cgroup in self.cgroups if not cgroup.path)

    def host(self, index: int, *, limited: bool = True, noexec: bool = False) -> Host:
        """Each program that starts there is a pod of its own, though they share the host's network. `noexec`: nothing
        may be executed on the volume, either."""
        on = self.hosts.host(index)
        python = Path(sys.base_prefix).resolve()
        # Others than root may not look below, where the interpreter is in root's home.
        hidden = [str(folder) for folder in python.parents if not folder.stat().st_mode & 0o001]
        cgroup = self.cgroups[index] if limited else None
        prefix = [
            *("sh", "-c", ENTER, cgroup.path if cgroup else ""),
            *on.prefix,
            *("unshare", "--mount", "--uts", "--ipc", "--cgroup", "--pid", "--fork", "--kill-child"),
            *("sh", "-c", FURNISH, self.hosts.names[index], str(self.volume)),
            *(",noexec" if noexec else "", str(self.shm_mib[index])),
            *(cgroup.kind if cgroup else "", str(python), hidden[-1] if hidden else ""),
            *("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"),
            *("--bounding-set=-all", "--inh-caps=-all"),
            *("env", *(f"{name}={value}" for name, value in self.environment(index).items())),
            *(sys.executable, str(CONFINED)),
        ]
        return Host(on.address, prefix)

    def environment(self, index: int) -> Mapping[str, str]:
        local = self.volume / f"local-{index}"
        return {
            **jvm.environment("/tmp"),
            "HOME": "/nonexistent",
            "SPARK_LOCAL_DIRS": str(local),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _try(self) -> None:
        """Whether there can be such pods here."""
        with self.host(0).start(["true"], self.volume / "true") as pod:
            if pod.ends(30) != 0:
                raise Unavailable(f"a pod can't be made here: {pod.text.strip()}")

    def remove(self) -> None:
        for cgroup in self.cgroups:
            cgroup.remove()


def first_process(pod: Program) -> psutil.Process:
    """Process 1 of a pod; with its end all others end."""
    [first] = psutil.Process(pod.pid).children()
    return first


def processes(pod: Program) -> list[psutil.Process]:
    """What is in a pod beside its process 1, with what nobody has waited for."""
    return below(first_process(pod).pid)


def files(pod: Program, folder: str) -> list[str]:
    """What is in a folder that the pod has for itself."""
    return sorted(os.listdir(f"/proc/{first_process(pod).pid}/root{folder}"))
