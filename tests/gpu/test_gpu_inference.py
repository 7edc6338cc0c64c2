"""Exact evaluation and inference compute on the GPU, with rows on the host or on the GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import khop
from support.small_typed_folders import write_typed_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="without a GPU"),
]


@pytest.mark.parametrize("columns", [None, "host", "pinned", "device"])
def test_rows_are_those_of_the_cpu(tmp_path: Path, columns: str | None) -> None:
    graph = khop.open_graph(write_typed_graph(tmp_path / "g"))
    torch.manual_seed(0)
    model = khop.models.SAGE.for_graph(graph, hidden=16, layers=2, target="user", embedding=4).double()
    wanted = khop.infer(model, graph, tmp_path / "cpu.npy", node_types="user")["user"]
    model = model.cuda()
    on_gpu = graph if columns is None else graph.on("cuda", topology="device", columns=columns)
    found = khop.infer(model, on_gpu, tmp_path / "gpu.npy", node_types="user")["user"]
    np.testing.assert_allclose(np.load(found), np.load(wanted), rtol=1e-12, atol=1e-12)
