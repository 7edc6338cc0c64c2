"""meta.yaml has defaults, as DGL has them, and makes plain values alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.importing.sets.dgl_meta import DglMeta

SHORT = "dataset_name: x\nnode_data:\n- file_name: n.csv\nedge_data:\n- file_name: e.csv\n"


def test_defaults(tmp_path: Path) -> None:
    (tmp_path / "meta.yaml").write_text(SHORT)
    meta = DglMeta.read(tmp_path / "meta.yaml")
    assert (meta.separator, meta.node_data[0].ntype, meta.node_data[0].node_id_field) == (
        ",",
        "_V",
        "node_id",
    )
    assert (meta.edge_data[0].etype, meta.edge_data[0].src_id_field) == (("_V", "_E", "_V"), "src_id")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("dataset_name: x\n", "node_data: Field required"), ("a: [", "not plain YAML"), ("- 1\n", "the file: ")],
)
def test_problems_are_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "meta.yaml").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        DglMeta.read(tmp_path / "meta.yaml")
    with pytest.raises(ValueError, match="no such file"):
        DglMeta.read(tmp_path / "other.yaml")
    (tmp_path / "meta.yaml").write_text("#" * (2 << 20))
    with pytest.raises(ValueError, match="has 2,097,152 bytes"):
        DglMeta.read(tmp_path / "meta.yaml")
