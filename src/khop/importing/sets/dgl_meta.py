"""meta.yaml of a DGL CSVDataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_MOST_BYTES = 1 << 20
INSTALL = "khop import dgl:FOLDER needs PyYAML: pip install pyyaml"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    file_name: str
    graph_id_field: str = "graph_id"


class DglNodes(_Table):
    """A file of nodes."""

    ntype: str = "_V"
    node_id_field: str = "node_id"


class DglEdges(_Table):
    """A file of edges."""

    etype: Annotated[tuple[str, str, str], Field(strict=False)] = ("_V", "_E", "_V")
    src_id_field: str = "src_id"
    dst_id_field: str = "dst_id"


class DglMeta(BaseModel):
    """The content of meta.yaml."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal["1.0.0"] = "1.0.0"
    dataset_name: str
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    node_data: Annotated[Sequence[DglNodes], Field(min_length=1)]
    edge_data: Annotated[Sequence[DglEdges], Field(min_length=1)]

    @classmethod
    def read(cls, path: Path) -> DglMeta:
        """Read and check the file. YAML is loaded without tags, so that it makes plain values alone."""
        try:
            import yaml
        except ImportError:
            raise ValueError(INSTALL) from None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise ValueError(f"{path}: no such file; give the folder of a CSVDataset") from None
        if len(data) > _MOST_BYTES:
            raise ValueError(
                f"{path}: has {len(data):,} bytes, and a description has at most {_MOST_BYTES:,}"
            )
        try:
            values: Any = yaml.safe_load(data)
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: not plain YAML ({' '.join(str(error).split())}); correct it") from None
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise ValueError(f"{path}: {place}: {first['msg']}; correct it") from None
