"""The users' names in a graph on servers: asked for when they are needed, some at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from khop.features.store import Rows
from khop.graph.folder import ORIGINAL_ID
from khop.graph.names import Names
from khop.graph.store import BatchServers
from khop.kernels.id_table import Keys, Kind, StringKeys, joined_keys
from khop.schema import NodeType
from khop.servers.counts import written_nodes
from khop.servers.frame import Frame, Tensors
from khop.servers.graph import RemoteFeatures, RemoteView
from khop.servers.json_fields import Document, Plain
from khop.servers.name_answers import LABELS, MOST_IDS, NODE_IDS


def remote_names(servers: BatchServers) -> Names:
    """Return the names in the graph on some servers. Nothing is asked for yet."""
    assert isinstance(servers, RemoteView)
    whole = replace(servers, view=())
    given, features = whole.description, RemoteFeatures(whole.description.schema.columns, whole)
    return Names(
        {t: RemoteIds(whole, t, kind) for t, kind in given.own_ids.items()},
        _RemoteLabels(whole),
        {t: _OriginalIds(features, t) for t in given.renumbered},
    )


@dataclass(frozen=True, eq=False)
class RemoteIds:
    """The users' ids of the nodes of one type, on servers (an IdsByNode)."""

    view: RemoteView
    node_type: NodeType
    kind: Kind

    def at(self, nodes: Tensor) -> Keys:
        """Return the ids of some nodes. A request has up to 2^20 nodes, and fewer if their ids are long."""
        pieces, done, at_once = list[Keys](), 0, MOST_IDS
        while done < nodes.numel():
            found = self._some(nodes[done : done + at_once])
            pieces.append(found)
            done, at_once = done + len(found), max(len(found), 1)
        return joined_keys(pieces, self.kind)

    def _some(self, nodes: Tensor) -> Keys:
        tensors = Tensors()
        fields: dict[str, Plain] = {"type": self.node_type, **written_nodes(nodes, tensors)}

        def read(frame: Frame) -> Keys:
            keys = _text(frame) if self.kind == "string" else _integers(frame, "ids").numpy()
            if not 0 < len(keys) <= nodes.numel():
                raise ValueError(f"answer: {len(keys)} ids, for {nodes.numel()} nodes")
            return keys

        return self.view.ask(NODE_IDS, fields, tensors, read)


@dataclass(frozen=True, eq=False)
class _OriginalIds:
    """Ids from before nodes were renumbered: rows of a column on the servers."""

    features: RemoteFeatures
    node_type: NodeType
    kind: Literal["int64"] = "int64"

    def at(self, nodes: Tensor) -> Keys:
        """Return the ids of some nodes."""
        found = self.features.gather({self.node_type: Rows(nodes, (ORIGINAL_ID,))})
        return found[self.node_type][ORIGINAL_ID].numpy()


@dataclass(frozen=True, eq=False)
class _RemoteLabels(Mapping[NodeType, Mapping[str, Any]]):
    """Records of labels, each asked for when it is read."""

    view: RemoteView

    def __getitem__(self, node_type: NodeType) -> Mapping[str, Any]:
        if node_type not in self:
            raise KeyError(node_type)
        return self.view.ask(LABELS, {"type": node_type}, Tensors(), _record)

    def __contains__(self, node_type: object) -> bool:
        return node_type in self.view.description.labels

    def __iter__(self) -> Iterator[NodeType]:
        return iter(self.view.description.labels)

    def __len__(self) -> int:
        return len(self.view.description.labels)


def _record(frame: Frame) -> dict[str, Any]:
    """Return the class names and the unit of an answer, those that are recorded."""
    classes, unit = (frame.document.given(name) for name in ("classes", "unit"))
    names = {} if classes is None else {"classes": [_text_of(each) for each in classes.each()]}
    return names if unit is None else {**names, "unit": unit.text()}


def _text_of(given: Document) -> str:
    return given.text()


def _integers(frame: Frame, name: str) -> Tensor:
    found = frame.tensor(frame.document[name])
    if found.dtype != torch.int64 or found.dim() != 1:
        raise ValueError(f"answer.{name}: are {found.dtype} {tuple(found.shape)}, must be int64 (n)")
    return found


def _text(frame: Frame) -> StringKeys:
    """Return the strings of an answer; ValueError unless each is UTF-8 by itself."""
    offsets, text = _integers(frame, "offsets").numpy(), frame.tensor(frame.document["text"])
    if text.dtype != torch.uint8 or text.dim() != 1:
        raise ValueError(f"answer.text: is {text.dtype} {tuple(text.shape)}, must be uint8 (n)")
    content, ends = text.numpy(), [] if not len(offsets) else [int(offsets[0]), int(offsets[-1])]
    if ends != [0, len(content)] or (np.diff(offsets) < 0).any():
        raise ValueError(f"answer.offsets: do not rise from 0 to {len(content)}, the length of the text")
    str(content.data, "utf-8")  # UnicodeDecodeError is a ValueError
    begins = offsets[offsets < len(content)]
    if ((content[begins] & 0xC0) == 0x80).any():
        raise ValueError("answer.offsets: an id begins within a character")
    return StringKeys(offsets, content)
