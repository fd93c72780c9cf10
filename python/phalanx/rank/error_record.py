"""What a rank writes down when the training code raises: `error.json`, and the traceback on stderr.

RANK-8 (written-first): the file is written before anything that may hang, such as pickling a value on a stuck GPU. It
is whole or absent. Where the disk takes no file, the record goes to the node as a note, cut to a note's length.
RANK-9 (user-frames): Phalanx's own frames are in no traceback.
RANK-10 (never-raises): writing the record raises nothing.
RANK-38 (limit-named): where the rank may map so many addresses only, an exception that says that memory was refused has
a sentence behind its first line: how many, whose limit it is, and what to do.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import pickle
import re
import sys
import time
import traceback
from collections import deque

from ..plumbing import address_space
from ..plumbing.whole_file import whole_or_absent
from . import contract, reporting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

# Address space that nobody touches, given back when the rank fails: what failed may have left none to tell of it, and
# for the stacks of the two threads that end the rank in time (`ending.py`).
RESERVE_BYTES = 24 << 20
_reserve = [bytes(RESERVE_BYTES)]

# What of a text travels: the middle of a longer one is left out. On stderr, and so in the rank's output, all of it is.
MAX_MESSAGE_CHARS = 32 << 10
MAX_TRACEBACK_CHARS = 128 << 10

# The exception travels inside the failure's JSON; one that drags a model along isn't worth that.
MAX_PICKLE_BYTES = 1 << 20

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

# gloo has no exception class in Python: what its pairs find out arrives as a bare RuntimeError. Its text has the place
# in gloo's source where it was raised, which stands for the class; no other word of it counts:
# "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [...]: ...".
_GLOO_PLACE = re.compile(r"\[[^\]\s]*gloo/transport/[^\]\s]*:\d+\]")

# A disk that is full or broken, or was mounted anew to be read only.
_DISK = frozenset({errno.ENOSPC, errno.EIO, errno.EROFS})
# A GPU that is busy or not there, has memory or a link beyond repair, a fault of its hardware, or a system that isn't
# ready: `cudaError` of cuda_runtime_api.h. What the training code's kernels can bring about by themselves isn't here.
_GPU = frozenset({46, 100, 214, 220, 714, 802})

# Errors of the native module that torch's C++ was given: of an exception that a future's callback raises, it takes the
# text alone, so what it raises afterwards is known by containing that text.
_given_to_torch: deque[tuple[str, bool]] = deque(maxlen=64)


def torch_takes(error: BaseException) -> None:
    """Remembers an error that torch's C++ is about to turn into a RuntimeError with its text."""
    _given_to_torch.append((_text(error), is_peer_loss(error)))


def now_us() -> int:
    """The host's monotonic clock, in microseconds, as the node reads it."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def write_error(exc: BaseException, directory: str, *, at_us: int, before_start: bool) -> None:
    """Writes `exc` to `directory`/error.json: the type RankError of the Rust core."""
    _reserve.clear()
    record = {
        contract.ERROR_TYPE_NAME: type(exc).__name__,
        contract.ERROR_MESSAGE: _with_limit(exc, _without_middle(_text(exc), MAX_MESSAGE_CHARS)),
        contract.ERROR_TRACEBACK: _without_middle(formatted(exc), MAX_TRACEBACK_CHARS),
        contract.ERROR_PEER_LOST: is_peer_loss(exc),
        contract.ERROR_BLOCKS_LOST: any(getattr(link, "kind", "") == "blocks_lost" for link in _chain(exc)),
        contract.ERROR_BEFORE_START: before_start,
        contract.ERROR_PREEMPTED: is_preemption(exc),
        contract.ERROR_MACHINE: blames_machine(exc),
        contract.ERROR_AT_US: at_us,
        contract.ERROR_PICKLE: "",
    }
    path = os.path.join(directory, contract.FILE_ERROR)
    try:
        _replace(path, record)
        record[contract.ERROR_PICKLE] = pickled(exc)
        if record[contract.ERROR_PICKLE]:
            _replace(path, record)
    except OSError as problem:
        _complain(f"phalanx: could not write {path}: {problem}\n")
        reporting.error({**record, contract.ERROR_PICKLE: ""})


def show(exc: BaseException) -> None:
    """Prints the traceback to stderr as Python does at an uncaught exception; of `phalanx.Preempted` a line."""
    if is_preemption(exc):
        _complain(f"phalanx: {_text(exc)}\n")
        return
    hook = sys.excepthook
    # init_process_group puts "[rank3]:" before every line; the node does so, too. Python's own hook is
    # passed by because before 3.13 it looks for source lines in files only, and a notebook's cells are none.
    if hook is sys.__excepthook__ or getattr(hook, "__module__", "").startswith("torch.distributed"):
        _complain(formatted(exc))
        return
    try:
        hook(type(exc), exc, exc.__traceback__)
    except BaseException as problem:
        _complain(f"Error in sys.excepthook: {problem!r}\nOriginal exception was:\n{formatted(exc)}")


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that isn't Phalanx's."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace


def formatted(exc: BaseException) -> str:
    """The traceback with causes and contexts, as text."""
    for link in _chain(exc):
        link.__traceback__ = without_own_frames(link.__traceback__)
    try:
        return "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    except Exception as problem:  # an exception whose __str__ raises in a way that traceback doesn't expect
        return f"{type(exc).__name__} (its traceback could not be formatted: {problem!r})\n"


def is_peer_loss(exc: BaseException) -> bool:
    """Whether the exception, or one that led to it, says that a peer went away.

    So say torch.distributed's DistNetworkError and DistBackendError (NCCL), ConnectionError and its subclasses, the
    NativeError of the `phalanx` backend by its kind, and the RuntimeError of gloo by the place where it was raised.
    Such an exception is most probably the echo of another rank's failure; taking a rank's own failure for one costs
    only the first place among several failures.
    """
    return any(_says_peer_loss(link) for link in _chain(exc))


def blames_machine(exc: BaseException) -> bool:
    """Whether the exception, or one that led to it, says that this machine is to blame and not the training code: an
    OSError of a disk that is full or broken, or torch's AcceleratorError of a GPU that has gone, by their numbers."""
    return any(_says_machine(link) for link in _chain(exc))


def is_preemption(exc: BaseException) -> bool:
    """Whether the exception is `phalanx.Preempted`: the training code has left its work, and has not failed."""
    notices = sys.modules.get(f"{__package__}.notices")
    return notices is not None and isinstance(exc, notices.Preempted)


def pickled(exc: BaseException) -> str:
    """The exception and its causes, pickled, in base64; "" where it doesn't come back or is large."""
    try:
        import io

        import cloudpickle

        from .chained_exception import ChainedException
        from .results import LimitedFile

        buffer = io.BytesIO()
        cloudpickle.dump(ChainedException(exc), LimitedFile(buffer, MAX_PICKLE_BYTES))
        data = buffer.getvalue()
        if type(pickle.loads(data)) is not type(exc):
            return ""
        return base64.b64encode(data).decode()
    except Exception:
        return ""


def _says_peer_loss(exc: BaseException) -> bool:
    if isinstance(exc, ConnectionError):
        return True
    dist = sys.modules.get("torch.distributed")
    kinds = tuple(getattr(dist, name, ()) for name in ("DistNetworkError", "DistBackendError"))
    if dist is not None and isinstance(exc, kinds):
        return True
    if not isinstance(exc, RuntimeError):
        return False
    native = sys.modules.get("phalanx._native")
    if native is not None and isinstance(exc, native.NativeError):
        return getattr(exc, "kind", "") == "peer_lost"
    text = _text(exc)
    ours = [is_loss for given, is_loss in _given_to_torch if given in text]
    if ours:
        return any(ours)
    return _GLOO_PLACE.search(text) is not None


def _says_machine(exc: BaseException) -> bool:
    if isinstance(exc, OSError):
        return exc.errno in _DISK
    accelerator = getattr(sys.modules.get("torch"), "AcceleratorError", ())
    return isinstance(exc, accelerator) and getattr(exc, "error_code", None) in _GPU


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """The exception, its cause and its context, theirs, and so on, each once."""
    waiting, seen = [exc], set()
    while waiting:
        link = waiting.pop()
        if id(link) not in seen:
            seen.add(id(link))
            yield link
            waiting += [e for e in (link.__cause__, link.__context__) if e is not None]


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:
        return f"<the text of this {type(exc).__name__} could not be made>"


def _without_middle(text: str, most: int) -> str:
    missing = len(text) - most
    if missing <= 0:
        return text
    return f"{text[: most // 2]}\n[... {missing} characters are left out ...]\n{text[-(most // 2) :]}"


def _with_limit(exc: BaseException, text: str) -> str:
    limit = address_space.limit()
    if limit is None or not address_space.lacks_memory(_chain(exc)):
        return text
    first, end, rest = text.partition("\n")
    of_spark = address_space.is_sparks(limit, os.environ.get(address_space.FROM_SPARK))
    means, do = address_space.words(limit, of_spark=of_spark)
    return f"{first} (a rank here {means}; {do}){end}{rest}".lstrip()


def _replace(path: str, record: dict[str, object]) -> None:
    with whole_or_absent(path) as file:
        file.write(json.dumps(record).encode("ascii"))  # lone surrogates in messages stay escaped


def _complain(text: str) -> None:
    try:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
    except (OSError, ValueError):
        pass
