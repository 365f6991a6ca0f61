"""Tensors of a commit, through `torch.distributed.checkpoint` (DCP).

Several ranks write together: each its own shards of a DTensor, and what several have alike is written by one of them.
They read each for itself, so that a commit can be read in any layout and by any number of ranks.

DCP keeps its index in a pickle and loads it with no restriction. Here only the classes that such an index consists
of are accepted, so that a checkpoint from elsewhere can't run code; the tensors themselves are loaded by DCP with
`weights_only=True`.
"""

import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from ..errors import RankError
from ..ranks.channel import PeerError

_INDEX_FILE = ".metadata"
_INDEX_CLASSES: Mapping[str, frozenset[str]] = {
    "pathlib": frozenset({"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}),
    "torch": frozenset({"Size"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo"}),
    "torch.distributed.checkpoint.metadata": frozenset(
        {
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        }
    ),
}


def save_tensors(
    folder: Path, tensors: Mapping[str, Tensor], what: str, ranks: Sequence[int], group: ProcessGroup | None
) -> None:
    """Write named tensors into a folder that has none yet, fsynced file by file.

    Args:
        folder: where to; all ranks have it.
        tensors: what this rank has.
        what: what it is for, for errors.
        ranks: those that write, in the order of `group`; all of them call this.
        group: the process group by which DCP makes its plan; None for that of all ranks.

    Raises:
        PeerError: another rank is gone, or late.
        RankError: on all ranks, if one of them can't write. In a single process, any error.
    """
    state = {name: tensor.detach() for name, tensor in tensors.items()}
    writer = FileSystemWriter(folder, sync_files=True)
    with _plain_errors(), _shared_errors(what, ranks):
        dcp_save(state, storage_writer=writer, process_group=group, no_dist=len(ranks) == 1)


def tensor_names(folder: Path) -> list[str]:
    """The names of the tensors of a folder."""
    return list(_SafeReader(folder).read_metadata().state_dict_metadata)


def load_tensors(folder: Path, into: Mapping[str, Tensor] | None, prefix: str = "") -> dict[str, Tensor]:
    """Named tensors of a folder: those whose names begin with `prefix`, or those of `into`, filled in place.

    Raises:
        KeyError, ValueError: `into` has a tensor that isn't there, or has another shape or dtype there.
    """
    reader = _SafeReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    if into is None:
        targets = {name: _empty_like(entry) for name, entry in stored.items() if name.startswith(prefix)}
    else:
        targets = {name: tensor.detach() for name, tensor in into.items()}
        for name, tensor in targets.items():
            _check_fits(name, tensor, stored)
    with _plain_errors():
        dcp_load(dict(targets), storage_reader=reader, no_dist=True)
    return targets if into is None else dict(into)


def _empty_like(entry: Any) -> Tensor:
    if not isinstance(entry, TensorStorageMetadata):
        raise ValueError("the checkpoint holds something other than tensors")
    return torch.empty(entry.size, dtype=entry.properties.dtype)


def _check_fits(name: str, tensor: Tensor, stored: Mapping[str, Any]) -> None:
    if name not in stored:
        raise KeyError(f"there is no tensor '{name}' (there are {len(stored)}, such as '{next(iter(stored), '')}')")
    size, dtype = tuple(stored[name].size), stored[name].properties.dtype
    if size != tuple(tensor.shape) or dtype != tensor.dtype:
        have = f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise ValueError(f"the tensor '{name}' is {size} of {dtype} there, and {have} in this run")


class _SafeReader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / _INDEX_FILE).open("rb") as stream:
            metadata: Metadata = _IndexUnpickler(stream).load()
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and name not in _INDEX_CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"the index names {module}.{name}, which no checkpoint of tensors needs")
        return super().find_class(module, name)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Without DCP's remark that it works in a single process, which is meant, and with the error that really occurred.

    DCP wraps the errors of all ranks into one that isn't even an `Exception`.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
            yield
    except CheckpointException as wrapper:
        error, _ = next(iter(wrapper.failures.values()))
        raise error from None


@contextmanager
def _shared_errors(what: str, ranks: Sequence[int]) -> Iterator[None]:
    """Among several ranks, errors that say which one they are from."""
    try:
        yield
    except CheckpointException as wrapper:
        if len(ranks) == 1:
            raise
        index, (error, _) = min(wrapper.failures.items(), key=lambda failure: failure[0])
        raise RankError(ranks[index], error) from None
    except RuntimeError as error:  # of gloo: DCP wraps those that occur in a rank's own work
        if len(ranks) == 1:
            raise
        raise PeerError(f"{what}: another rank is gone or late ({str(error).splitlines()[0]})") from error
