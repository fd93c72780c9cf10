"""A model on its way to the executors: what is packed of it, and its key."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import sys
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..request.payload import function_payload
from . import loading


class GivenModel(NamedTuple):
    """A model that is packed."""

    key: str
    """The same for the same model: a hash of the packed one."""
    packed: bytes
    is_for_one: bool = False
    """Whether no other call has this key, since the model may be another one then."""

    def anew(self) -> GivenModel:
        """The same with a key that no other call has."""
        return self._replace(key=f"{self.key} {uuid.uuid4()}", is_for_one=True)


class _Kept(NamedTuple):
    tensors: list[weakref.ref[Any]]
    seen: Any
    """What `_seen` made of the module."""
    given: GivenModel


_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()


def given_model(model: Any) -> GivenModel:
    """Packs a model.

    A module that is as it was when it was packed last isn't packed again: the tensors are the same objects with the
    same bits, and so is all the rest of it.

    Raises `TypeError` and `ValueError` for what is no model, `OSError` for a file that can't be read, and
    `UnpicklableError` where a module or a function can't be sent.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        model = _of_checkpoint(model, torch)
        if isinstance(model, torch.nn.Module):
            return _module(model, torch)
    if (
        torch is not None
        and "torch.export" in sys.modules
        and isinstance(model, torch.export.ExportedProgram)
    ):
        buffer = io.BytesIO()
        torch.export.save(model, buffer)
        return _packed(loading.exported, buffer.getvalue())
    if isinstance(model, (str, os.PathLike)):
        return _named(os.fspath(model))
    if callable(model):
        _check_factory(model)
        return given_function(model)
    raise TypeError(
        f"model={type(model).__name__} is none: give a torch.nn.Module, a TorchScript or torch.export file, an MLflow "
        "URI, or a function without arguments that returns the function from a batch to its outputs"
    )


def _check_factory(model: Callable[..., Any]) -> None:
    """Raises `TypeError` where a function needs arguments: it is likely the one that is to be returned."""
    try:
        signature = inspect.signature(model, follow_wrapped=False)  # a wrapper may have the arguments
    except Exception:  # not all of C's functions say theirs, and annotations may name what isn't there
        return
    try:
        signature.bind()
    except TypeError as problem:
        name = getattr(model, "__name__", type(model).__name__)
        raise TypeError(
            f"model={name} is called without arguments, in the model's process, and returns the function from a batch "
            f"to its outputs, but {problem}; give a function that returns yours (lambda: f)"
        ) from problem


def given_function(factory: Callable[[], Any]) -> GivenModel:
    """Packs a function that makes a model. What it reads may be another model the next time, so its key is new.

    Raises `UnpicklableError`.
    """
    return _packed(loading.made, factory).anew()


def _of_checkpoint(model: Any, torch: Any) -> Any:
    """The module in what `phalanx.checkpoint.latest` returned; anything else as it is.

    Raises `TypeError` for a state without a module, which has no code.
    """
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], int):
        model = model[1]
    if not isinstance(model, Mapping):
        return model
    modules = [value for value in model.values() if isinstance(value, torch.nn.Module)]
    if len(modules) != 1:
        raise TypeError(
            f"model= is a state with {', '.join(map(repr, list(model)[:5])) or 'nothing'}, which has weights and no "
            "code; load it into its module (net.load_state_dict), and give the module"
        )
    return modules[0]


def _packed(load: Callable[..., Any], *args: Any) -> GivenModel:
    packed = function_payload(load, args, {}, sys_path=sys.path)
    return GivenModel(hashlib.sha256(packed).hexdigest(), packed)


def _module(model: Any, torch: Any) -> GivenModel:
    if isinstance(model, torch.jit.ScriptModule):
        buffer = io.BytesIO()
        torch.jit.save(model, buffer)
        return _packed(loading.torchscript, buffer.getvalue())
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
    tensors, seen = _seen(model, torch)
    kept = _kept.get(model)
    if kept is not None and kept.seen == seen and _are(kept.tensors, tensors):
        return kept.given
    if any(tensor.device.type != "cpu" for tensor in tensors):
        import copy

        given = _packed(loading.module, copy.deepcopy(model).cpu())
    else:
        given = _packed(loading.module, model)
    _kept[model] = _Kept([weakref.ref(tensor) for tensor in tensors], seen, given)
    return given


def _are(kept: list[weakref.ref[Any]], tensors: list[Any]) -> bool:
    """Whether these are the same objects; tensors that are equal may be others."""
    return len(kept) == len(tensors) and all(
        ref() is tensor for ref, tensor in zip(kept, tensors, strict=True)
    )


def _seen(model: Any, torch: Any) -> tuple[list[Any], list[Any]]:
    """All tensors that a module has, wherever; and, to be compared, each one's version and bits, and all the rest."""
    from ..request.pickling import CallPickler

    tensors: list[Any] = []
    places: dict[int, int] = {}

    class Rest(CallPickler):
        def persistent_id(self, obj: Any) -> Any:
            if not isinstance(obj, torch.Tensor):
                return None
            if id(obj) not in places:
                places[id(obj)] = len(tensors)
                tensors.append(obj)
            return places[id(obj)]

    buffer = io.BytesIO()
    try:
        Rest(buffer).dump(model)
        rest = hashlib.sha256(buffer.getvalue()).digest()
    except Exception:
        rest = os.urandom(8)  # packing it says why
    return tensors, [rest, *(_state(tensor, torch) for tensor in tensors)]


def _state(tensor: Any, torch: Any) -> Any:
    """A tensor's version and bits; something else each time, so that it is packed again, where they can't be seen."""
    try:
        return 0 if tensor.is_inference() else tensor._version, _bits(tensor, torch)
    except Exception:  # torch has kinds of tensors that know no bits, and several errors that say so
        return os.urandom(8)


# How many words of eight bytes a line has. Of 67 MB the sums by columns took 3.6 ms, and those by lines 5.7 ms.
_WORDS = 8192


def _bits(tensor: Any, torch: Any) -> bytes:
    """A hash of sums of a tensor's bits, by lines and by columns: what is written past autograd (`tensor.data`) changes
    no version."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError("its memory isn't its numbers")
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if not flat.numel():
        return b""
    bits = flat.view(torch.uint8)
    if bits.storage_offset() % 8:
        bits = bits.clone()
    whole = len(bits) // (8 * _WORDS) * 8 * _WORDS
    words, rest = bits[:whole].view(torch.int64).reshape(-1, _WORDS), bits[whole:]
    told = hashlib.sha256()
    for part in (words.sum(0), words.sum(1), rest):
        told.update(part.cpu().numpy().tobytes())
    return told.digest()


def _named(name: str) -> GivenModel:
    scheme = name.split(":", 1)[0]
    if scheme in ("models", "runs"):
        given = _packed(loading.mlflow, name, _stores_of_mlflow())
        # An alias or a stage may name another version the next time.
        is_fixed = scheme == "runs" or name.rpartition("/")[2].isdigit()
        return given if is_fixed else given.anew()
    if "://" in name:
        try:
            import fsspec
        except ImportError as problem:
            raise ValueError(f"a model at {name} needs fsspec: pip install fsspec") from problem
        with fsspec.open(name, "rb") as file:
            content = file.read()
    elif os.path.isdir(name):
        raise ValueError(
            f"{name} is a folder; give the file of a model, or for a folder of MLflow's a function that loads it"
        )
    else:
        with open(name, "rb") as file:
            content = file.read()
    return _packed(_loader_of(name, content), content)


def _stores_of_mlflow() -> tuple[str, str] | None:
    """Where the caller's MLflow has its runs and its models (SCORE-23)."""
    try:
        import mlflow
    except ImportError:
        return None
    return mlflow.get_tracking_uri(), mlflow.get_registry_uri()


def _loader_of(name: str, content: bytes) -> Callable[..., Any]:
    """Which of torch's formats a file has."""
    import zipfile

    names: list[str] = []
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [entry.partition("/")[2] for entry in archive.namelist()] + archive.namelist()
    if "constants.pkl" in names and any(entry.startswith("code/") for entry in names):
        return loading.torchscript
    if "archive_format" in names or any(entry.startswith("serialized_exported_program") for entry in names):
        return loading.exported
    if "data.pkl" in names:
        raise ValueError(
            f"{name} was written by torch.save: it has tensors or pickled objects, and no model by itself; make the "
            "module, load the file into it (load_state_dict), and give the module"
        )
    raise ValueError(f"{name} is neither a TorchScript nor a torch.export file")
