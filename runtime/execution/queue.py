"""Values that wait for a later step, as a commit holds them: tensors by flat names, everything else as JSON."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..values import Any_, Frame, Record, Value


class Packer:
    """Turns values into JSON with references to tensors. Frames are kept once each, so sharing survives."""

    def __init__(self, prefix: str) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.frames: list[dict[str, Any]] = []
        self._prefix = prefix
        self._known: dict[int, int] = {}
        self._keep: list[Frame] = []

    def pack(self, value: Any_) -> dict[str, Any]:
        if isinstance(value, Record):
            parts = {
                name: {k: self._value(v) for k, v in part.items()}
                for name, part in (("fields", value.fields), ("hidden", value.hidden))
            }
            return {"record": value.kind, "frame": self._frame(value.frame), "writer": value.writer, **parts}
        return self._value(value)

    def _value(self, value: Value) -> dict[str, Any]:
        frame = self._frame(value.frame) if value.frame else None
        return {"frame": frame, "data": self._tensor(value.data) if isinstance(value.data, Tensor) else value.data}

    def _tensor(self, tensor: Tensor) -> dict[str, str]:
        name = f"{self._prefix}.{len(self.tensors)}"
        self.tensors[name] = tensor.detach()
        return {"tensor": name}

    def _frame(self, frame: Frame) -> int:
        if id(frame) not in self._known:
            parent = self._frame(frame.parent) if frame.parent else None
            index = self._tensor(frame.index) if frame.index is not None else None
            ids = self._tensor(frame.ids) if frame.ids is not None else None
            self._known[id(frame)] = len(self.frames)
            self._keep.append(frame)
            self.frames.append({"name": frame.name, "size": frame.size, "parent": parent, "index": index, "ids": ids})
        return self._known[id(frame)]


class Unpacker:
    """The reverse of Packer."""

    def __init__(self, frames: list[dict[str, Any]], tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._frames: list[Frame] = []
        for f in frames:
            parent = self._frames[f["parent"]] if f["parent"] is not None else None
            self._frames.append(Frame(f["name"], f["size"], parent, self._get(f["index"]), self._get(f["ids"])))

    def unpack(self, packed: Mapping[str, Any]) -> Any_:
        if "record" in packed:
            fields, hidden = ({k: self._value(v) for k, v in packed[part].items()} for part in ("fields", "hidden"))
            return Record(packed["record"], self._frames[packed["frame"]], fields, hidden, packed["writer"])
        return self._value(packed)

    def _value(self, packed: Mapping[str, Any]) -> Value:
        frame = self._frames[packed["frame"]] if packed["frame"] is not None else None
        data = packed["data"]
        return Value(self._get(data) if isinstance(data, dict) else data, frame)  # type: ignore[arg-type]

    def _get(self, reference: Mapping[str, str] | None) -> Tensor | None:
        return None if reference is None else torch.as_tensor(self._tensors[reference["tensor"]])
