"""What a pool has imported, out of sight of a rank until the rank imports it, as a cold one does.

POOL-4 (out-of-sight): until then `sys.modules` has neither torch nor what `warm.imports` names.
POOL-5 (none-unheard): of the variables that the training code has set by then, and that these modules read when they
were imported, those that can be applied later are applied. One line of the rank's output names the others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from importlib.machinery import ModuleSpec

from ..rank import contract
from . import openblas

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType
    from typing import Any

# What the C libraries of torch and numpy read when they are loaded, by how the names begin.
_READ_IN_C = ("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "GOTO_", "TORCH_CPP_LOG_LEVEL", "TORCH_DISTRIBUTED_DEBUG")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS")
_DEBUG = ("TORCH_DISTRIBUTED_DEBUG",)
_LOGS = ("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_LOGS_FORMAT", "TORCH_TRACE")
_OF_A_RANK = frozenset(
    value for key, value in vars(contract).items() if key.startswith("ENV_") and isinstance(value, str)
)
# Every rank needs these, or other modules of the pool do.
_IN_SIGHT = ("numpy", "cloudpickle", "phalanx")


class Reads:
    """Which variables a module reads when it is imported.

    What one place in the code reads without a break, name after name, is a *sweep*. A sweep over all variables is a
    copy, such as `dict(os.environ)`: whoever makes one reads none.
    """

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {}

    @contextlib.contextmanager
    def noted(self, root: str) -> Iterator[None]:
        """Notes what is read in the block as read by the package `root`."""
        names = self.of.setdefault(root, set())
        kind = type(os.environ)
        read = kind.__getitem__
        place: Any = None
        sweep: set[str] = set()

        def end_sweep() -> None:
            if not sweep.issuperset(os.environ):
                names.update(sweep)
            sweep.clear()

        def reading(env: Any, name: Any) -> Any:
            nonlocal place
            frame = sys._getframe(1)
            if frame.f_code.co_name != "__iter__":  # of `items` and `values`, which may be left early
                if place != (frame.f_code, frame.f_lasti):
                    end_sweep()
                    place = frame.f_code, frame.f_lasti
                sweep.add(name if isinstance(name, str) else os.fsdecode(name))
            return read(env, name)

        kind.__getitem__ = reading  # type: ignore[method-assign]
        try:
            yield
        finally:
            kind.__getitem__ = read  # type: ignore[method-assign]
            end_sweep()

    def outdated(self, before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
        """A variable, in a sentence, that what `warm.imports` names has read and that has another value now; None if
        there is none. Those of each rank don't count, nor does torch, whose variables tell pools apart."""
        for root, names in self.of.items():
            for name in sorted(names) if root != "torch" and root not in _IN_SIGHT else ():
                if before.get(name) != now.get(name) and name not in _OF_A_RANK:
                    return f"its {name} differs from the one that {root} has read in the pool"
        return None


def hide(imports: Iterable[str], reads: Reads) -> None:
    """Takes what a pool has imported out of `sys.modules`, until somebody imports it.

    The pool does so before it is forked. A rank calls this once more, when it has its environment.
    """
    for root in dict.fromkeys(name.partition(".")[0] for name in imports):
        if root in sys.modules and root not in _IN_SIGHT:
            sys.meta_path.insert(0, _Hidden(root, reads.of.get(root, set())))
    env = dict(os.environ)
    for hidden in _all_hidden():
        hidden.env = env


def show() -> None:
    """Undoes `hide`, in the pool."""
    for hidden in _all_hidden():
        importlib.import_module(hidden.root)


def loaded(name: str) -> ModuleType | None:
    """A module that is there, in sight or hidden; None where it isn't."""
    hidden = (finder.modules.get(name) for finder in _all_hidden())
    return next(filter(None, hidden), sys.modules.get(name))


def _all_hidden() -> list[_Hidden]:
    return [finder for finder in sys.meta_path if isinstance(finder, _Hidden)]


class _Hidden:
    """The finder and the loader of a package that is there already."""

    def __init__(self, root: str, read: set[str]) -> None:
        self.env: dict[str, str] = {}
        """What the environment was, when the training code could first set a variable."""
        self._read = read
        below = f"{root}."
        names = [name for name in sys.modules if name == root or name.startswith(below)]
        self.modules = {name: sys.modules.pop(name) for name in names}
        self.root = root
        self._spec = self.modules[root].__spec__

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != self.root or not self.modules:
            return None
        own = self._spec
        if own is None:
            return ModuleSpec(name, self)  # type: ignore[arg-type]
        spec = ModuleSpec(name, self, origin=own.origin)  # type: ignore[arg-type]
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location = own.has_location
        return spec

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        modules, self.modules = self.modules, {}
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        for name, module in modules.items():
            sys.modules.setdefault(name, module)
        return modules[self.root]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        # Phalanx's own variables are no setting of anybody's.
        read = {name for name in self._read if not name.startswith("PHALANX_")}
        if self.root == "torch":
            read.update(name for name in os.environ if name.startswith(_READ_IN_C))
        catch_up({name for name in read if os.environ.get(name) != self.env.get(name)})


def catch_up(changed: set[str]) -> None:
    """Applies what can be applied of variables that would have been read by now; names the others on stderr."""
    torch = sys.modules.get("torch")
    if torch is None:
        late = changed
    else:
        late = set(changed)
        for names, apply in ((_THREADS, _set_threads), (_DEBUG, _set_debug_level), (_LOGS, _set_logs)):
            found = late.intersection(names)
            if found and _applied(apply, torch):
                late -= found
    if late and sys.stderr is not None:
        listed = ", ".join(sorted(late))
        print(
            f"phalanx: {listed}: this has no effect, because the pool of this warm rank had read it before; "
            "set it before the run (spark.executorEnv.NAME, in local mode the driver's environment), or run "
            "with warm=False",
            file=sys.stderr,
        )


def _applied(apply: Callable[[Any], None], torch: Any) -> bool:
    try:
        apply(torch)
    except Exception:  # another torch, or a value that it refuses
        return False
    return True


def _set_threads(torch: Any) -> None:
    # As MKL has it where torch is built with it, also in that no more threads are made than there are processors.
    text = os.environ.get("MKL_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    if text:
        count = int(text.partition(",")[0])
        torch.set_num_threads(min(count, len(os.sched_getaffinity(0))))
    openblas.restore_threads(os.environ)


def _set_debug_level(torch: Any) -> None:
    torch.distributed.set_debug_level_from_env()


def _set_logs(torch: Any) -> None:
    torch._logging._init_logs()
