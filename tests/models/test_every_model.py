"""Every model and decoder: types in another order give the same outputs, and float16 is computed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

import khop
import khop.models
from khop.api.inference import Values
from khop.models import LinkPredictor, RelationColumn, SharedDecoder
from khop.models.decoders import RELATION_DECODERS, DecoderKind
from khop.models.layer import _named, parameter_name, plain_name
from khop.models.stack import Sequential
from khop.schema import EdgeType
from khop.training.checkpoint import Checkpoint, StateCopy, load_checkpoint, restore_model, restore_optimizer
from khop.training.optimizer_settings import ModelOptimizer

COUNTS = {"user": 12, "item": 15, "tag": 6}
BUYS, BOUGHT, RATED = ("user", "buys", "item"), ("item", "bought_by", "user"), ("user", "rated", "item")
ON, HAS, KNOWS = ("tag", "on", "item"), ("item", "has", "tag"), ("user", "knows", "user")
EDGES = {BUYS: 40, BOUGHT: 40, RATED: 30, ON: 25, HAS: 25, KNOWS: 30}
LINKS = (BUYS, ON, KNOWS)
RELATIONS = {BUYS: 3, KNOWS: 2}
Orders = tuple[list[str], list[EdgeType]]
FIRST: Orders = (list(COUNTS), list(EDGES))


def permuted(number: int) -> Orders:
    node_types, edge_types = list(COUNTS), list(EDGES)
    draw = random.Random(number)
    draw.shuffle(node_types)
    draw.shuffle(edge_types)
    return node_types, edge_types


def written(path: Path, orders: Orders) -> Path:
    """The same graph with its types in an order."""
    nodes, edges = {}, {}
    for number, (node_type, count) in enumerate(COUNTS.items()):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(count, 4, generator=generator)
        y = torch.randint(3, (count,), generator=generator)
        nodes[node_type] = khop.NodeTable(
            columns={"x": x, **({"y": y} if node_type == "item" else {})},
            num_classes={"y": 3} if node_type == "item" else {},
            splits={"train": torch.arange(9), "val": torch.arange(9, 12), "test": torch.arange(12, 15)}
            if node_type == "item"
            else {},
        )
    for number, (edge_type, count) in enumerate(EDGES.items()):
        generator = torch.Generator().manual_seed(100 + number)
        ends = [torch.randint(COUNTS[edge_type[end]], (count,), generator=generator) for end in (0, 2)]
        columns = {
            "r": torch.randint(RELATIONS.get(edge_type, 1), (count,), generator=generator),
            "w": torch.randn(count, 2, generator=generator),
        }
        edges[edge_type] = khop.EdgeTable(ends[0], ends[1], columns)
    node_types, edge_types = orders
    return khop.write_graph(
        path, {t: nodes[t] for t in node_types}, {t: edges[t] for t in edge_types}, sort_by="r"
    )


class Convolution(nn.Module):
    """A user's layer of several edge types, with weights by name."""

    def __init__(self, edge_types: Iterable[EdgeType]) -> None:
        super().__init__()
        self.weights = nn.ModuleDict({"-".join(t): nn.Linear(4, 4) for t in edge_types})

    def forward(
        self, x: Mapping[str, Tensor], adjacencies: Mapping[EdgeType, khop.Adjacency]
    ) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for edge_type, adjacency in adjacencies.items():
            source, destination = adjacency.edge_index
            rows = self.weights["-".join(edge_type)](x[edge_type[0]][source])
            total = torch.zeros(adjacency.num_dst, 4, dtype=rows.dtype).index_add(0, destination, rows)
            out[edge_type[2]] = out.get(edge_type[2], 0) + total
        return out


Model = Callable[[khop.Graph], nn.Module]


def encoder(graph: khop.Graph, embedding: int = 3) -> nn.Module:
    types = dict.fromkeys(end for t in graph.schema.edge_types for end in (t[0], t[2]))
    return khop.models.SAGE.for_graph(
        graph, hidden=8, layers=2, target=list(types), outputs=4, embedding=embedding, embedded_types="all"
    )


def of_links(decoder: DecoderKind, relations: Mapping[EdgeType, int] | None = None) -> Model:
    def made(graph: khop.Graph) -> nn.Module:
        types = [t for t in graph.schema.edge_types if t in LINKS]
        return LinkPredictor.of(encoder(graph), types, decoder, 4, relations or {})

    return made


def shared(graph: khop.Graph) -> nn.Module:
    counts = {t: RELATIONS.get(t, 1) for t in graph.schema.edge_types if t in LINKS}
    decoder = khop.models.TransE(4, sum(counts.values()), norm=2)
    return LinkPredictor(encoder(graph), SharedDecoder(decoder, counts))


def of_nodes(name: str, **options: object) -> Model:
    return lambda graph: getattr(khop.models, name).for_graph(graph, hidden=8, layers=2, **options)


def edges_of(graph: khop.Graph) -> nn.Module:
    return khop.models.EdgePredictor.of(encoder(graph), graph.schema.edge_types, 4, 2)


def by_column(bases: int) -> Model:
    def made(graph: khop.Graph) -> nn.Module:
        ordered = {t: RELATIONS[t] for t in graph.schema.edge_types if t in RELATIONS}
        return khop.models.RGCN.for_graph(
            graph, hidden=8, layers=2, bases=bases, relations=RelationColumn("r", ordered)
        )

    return made


MODELS: dict[str, Model] = {
    "sage": of_nodes("SAGE"),
    "sage embeddings": of_nodes("SAGE", embedding=3, embedded_types="all", embedding_update="sparse"),
    "gcn": of_nodes("GCN"),
    "gin": of_nodes("GIN"),
    "gat": of_nodes("GAT"),
    "gat times": of_nodes("GAT", edge_times=5),
    "gatv2 edges": of_nodes("GAT", attention="gatv2", edge_column="w", norm="layer"),
    "hgt": of_nodes("HGT"),
    "rgat": of_nodes("RGAT", dropout=0.0),
    "lightgcn": of_nodes("LightGCN"),
    "mlp": of_nodes("ColumnMLP"),
    "rgcn": of_nodes("RGCN"),
    "rgcn bases": of_nodes("RGCN", bases=2),
    "rgcn column": by_column(0),
    "rgcn column bases": by_column(2),
    "sequential": lambda graph: Sequential([Convolution(graph.schema.edge_types) for _ in range(2)]),
    "edges": edges_of,
    **{f"links {kind}": of_links(kind) for kind in get_args(DecoderKind)},
    **{f"links {kind} relations": of_links(kind, RELATIONS) for kind in RELATION_DECODERS},
    "links shared": shared,
}
POSITIONAL = ["rgcn bases", "rgcn column bases", "links distmult", "links complex relations", "links shared"]


def batch_of(graph: khop.Graph, name: str) -> khop.Batch:
    rules: dict[str, khop.Rule] = {
        "gcn": khop.SymmetricSum(),
        "gin": khop.Sum(),
        "lightgcn": khop.SymmetricSum(),
    }
    rules["gat times"] = khop.Temporal("r", elapsed=True)
    times = {"item": torch.full((8,), 2)} if name == "gat times" else None
    columns = {**dict.fromkeys(COUNTS, ("x",)), **dict.fromkeys(EDGES, ("r", "w"))}
    rule = rules.get(name, khop.Uniform())
    if not name.startswith(("links", "edges")):
        sampler = khop.NeighborSampler(graph, [3, 3], rule=rule, edge_ids=True)
        loader = khop.Loader(
            sampler, {"item": torch.arange(8)}, 8, columns=columns, threads=1, seed_times=times
        )
        return loader.batch(0, 0)
    random_ = torch.Generator().manual_seed(3)
    links = {
        t: torch.stack([torch.randint(COUNTS[t[end]], (5,), generator=random_) for end in (0, 2)])
        for t in LINKS
    }
    has_relations = name.endswith(("relations", "shared"))
    relations = {t: torch.arange(5) % RELATIONS.get(t, 1) for t in LINKS} if has_relations else None
    given = khop.Links(links, relations=relations)
    sampler = khop.LinkSampler(graph, [3, 3], negatives=None, edge_ids=True)
    return khop.Loader(sampler, given, 15, columns=columns, threads=1).batch(0, 0)


def outputs(model: nn.Module, graph: khop.Graph, name: str) -> dict[object, Tensor]:
    found = model.eval()(batch_of(graph, name))
    by_type = found if isinstance(found, Mapping) else {"item": found}
    return {t: getattr(of, "pairs", of).detach() for t, of in by_type.items()}


def assert_same(found: Mapping[object, Tensor], wanted: Mapping[object, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for type_, rows in wanted.items():
        torch.testing.assert_close(found[type_], rows, rtol=1e-9, atol=1e-9)


def model_on(path: Path, name: str, seed: int) -> tuple[nn.Module, khop.Graph]:
    graph = khop.open_graph(path)
    torch.manual_seed(seed)
    return MODELS[name](graph).double(), graph


def read(folder: Path, model: nn.Module) -> Checkpoint:
    StateCopy.of(model, ModelOptimizer(model, 0.1, 0.0), {}).write(folder)
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The graph in three orders of its types; the first is as above."""
    home = tmp_path_factory.mktemp("orders")
    orders = [FIRST, (FIRST[0][::-1], FIRST[1][::-1]), permuted(1)]
    made = [written(home / str(number), each) for number, each in enumerate(orders)]
    assert len({khop.open_graph(path).schema.edge_types for path in made}) == 3
    return made


def test_every_model_and_decoder_is_tried(folders: list[Path]) -> None:
    there = {type(module) for name in MODELS for module in model_on(folders[0], name, 0)[0].modules()}
    public = {getattr(khop.models, name) for name in khop.models.__all__}
    models = {each for each in public if isinstance(each, type) and issubclass(each, nn.Module)}
    assert models - there == set()


@pytest.mark.core(1)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_do_not_depend_on_the_order_of_types(folders: list[Path], tmp_path: Path, name: str) -> None:
    model, graph = model_on(folders[0], name, 1)
    wanted = outputs(model, graph, name)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    save_model(model, str(tmp_path / "model.safetensors"))
    checkpoint = read(tmp_path / "checkpoint", model)
    for number, folder in enumerate(folders[1:]):
        other, again = model_on(folder, name, 2 + number)
        other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
        assert_same(outputs(other, again, name), wanted)
        other, again = model_on(folder, name, 12 + number)
        load_model(other, str(tmp_path / "model.safetensors"))
        assert_same(outputs(other, again, name), wanted)
        other, again = model_on(folder, name, 22 + number)
        restore_model(other, checkpoint)
        assert_same(outputs(other, again, name), wanted)
        other, again = model_on(folder, name, 27 + number)
        other.load_state_dict({key: (of + of) / 2 for key, of in model.state_dict().items()})
        assert_same(outputs(other, again, name), wanted)
        back, first = model_on(folders[0], name, 32)
        back.load_state_dict(other.state_dict(), assign=True)
        assert_same(outputs(back, first, name), wanted)


@pytest.mark.core(2)
@pytest.mark.parametrize(
    "name", [name for name in MODELS if not name.startswith(("links", "edges", "sequential", "gat times"))]
)
def test_embeddings_are_the_rows_before_the_classifier(
    folders: list[Path], tmp_path: Path, name: str
) -> None:
    model, graph = model_on(folders[0], name, 1)

    def rows(values: Values) -> Tensor:
        file = tmp_path / f"{values}.npy"
        khop.infer(model, graph, file, node_types="item", values=values)
        return torch.from_numpy(np.load(file))

    embeddings = rows("embeddings")
    assert embeddings.shape == (COUNTS["item"], 8)
    torch.testing.assert_close(model.heads[parameter_name("item")](embeddings), rows("outputs"))


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_training_continues_with_types_in_another_order(
    folders: list[Path], tmp_path: Path, name: str
) -> None:
    def update(model: nn.Module, optimizer: ModelOptimizer, graph: khop.Graph) -> None:
        optimizer.zero_grad()
        found = model.train()(batch_of(graph, name))
        rows = found.values() if isinstance(found, Mapping) else [found]
        sum((getattr(of, "pairs", of) ** 2).sum() for of in rows).backward()
        optimizer.exchange()
        optimizer.step()

    model, graph = model_on(folders[0], name, 1)
    optimizer = ModelOptimizer(model, 0.01, 0.1)
    update(model, optimizer, graph)
    update(model, optimizer, graph)
    StateCopy.of(model, optimizer, {}).write(tmp_path / "last")
    update(model, optimizer, graph)
    wanted = outputs(model, graph, name)
    for folder in folders[1:]:
        other, again = model_on(folder, name, 2)
        resumed = ModelOptimizer(other, 0.01, 0.1)
        restore_model(other, load_checkpoint(tmp_path / "last"))
        restore_optimizer(other, resumed, load_checkpoint(tmp_path / "last"))
        update(other, resumed, again)
        for type_, rows in outputs(other, again, name).items():
            torch.testing.assert_close(rows, wanted[type_], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", POSITIONAL)
def test_rows_of_other_types_are_refused(folders: list[Path], tmp_path: Path, name: str) -> None:
    model, graph = model_on(folders[0], name, 1)
    checkpoint = read(tmp_path / "last", model)
    if name.startswith("rgcn"):
        other = MODELS[name](graph.only([t for t in EDGES if t != KNOWS]))
    else:
        other = of_links("distmult", {ON: 2})(graph)
    with pytest.raises(ValueError, match=r"rows .*(knows|on).*same edge types"):
        restore_model(other.double(), checkpoint)
    with pytest.raises((ValueError, RuntimeError), match=r"rows .*(knows|on).*same edge types"):
        other.load_state_dict(model.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_names_of_rows_are_read_from_a_cast_state_dict(folders: list[Path], dtype: torch.dtype) -> None:
    state = model_on(folders[0], "rgcn bases", 1)[0].state_dict()
    averaged = {key: (of + of) / 2 for key, of in state.items()}
    cast = [{key: of.to(dtype).float() for key, of in each.items()} for each in (averaged, state)]
    found = []
    for each in cast:
        model, graph = model_on(folders[1], "rgcn bases", 2)
        model.load_state_dict(each)
        found.append(outputs(model, graph, "rgcn bases"))
    first, graph = model_on(folders[0], "rgcn bases", 3)
    first.load_state_dict(cast[0])
    for each in found:
        assert_same(each, outputs(first, graph, "rgcn bases"))


DAMAGED = [
    torch.tensor([1, 2, 3], dtype=torch.uint8),
    torch.full((9,), torch.nan),
    torch.tensor(list(b"[5]")),
    None,
]


@pytest.mark.parametrize("entry", DAMAGED)
def test_damaged_names_of_rows_are_named(folders: list[Path], tmp_path: Path, entry: Tensor | None) -> None:
    model, _ = model_on(folders[0], "rgcn bases", 1)
    state = {key: entry if "row_names" in key else of for key, of in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="names of the rows of shares are damaged; save the state dict"):
        model.load_state_dict(state)
    checkpoint = replace(read(tmp_path / "last", model), model=state)
    with pytest.raises(ValueError, match="names of the rows of shares are damaged; save the state dict"):
        restore_model(model, checkpoint)


@pytest.mark.core(2)
@pytest.mark.parametrize("name", POSITIONAL)
@pytest.mark.parametrize("is_strict", [True, False])
def test_rows_without_their_names_are_refused(folders: list[Path], name: str, is_strict: bool) -> None:
    state = dict(model_on(folders[0], name, 1)[0].named_parameters())
    other, _ = model_on(folders[1], name, 2)
    with pytest.raises(RuntimeError, match=r"has no names of its rows.*row_names\._extra_state"):
        other.load_state_dict(state, strict=is_strict)
    rows = {f"{prefix}{names.parameter}" for prefix, names in _named(other)}
    without = {key: of for key, of in state.items() if key not in rows}
    assert set(other.load_state_dict(without, strict=False).missing_keys) >= rows


def test_names_of_compiled_modules_alone_are_shortened() -> None:
    names = {
        "_orig_mod.my_orig_mod.weight": "my_orig_mod.weight",
        "a._orig_mod.b": "a.b",
        "a_orig_mod.b": "a_orig_mod.b",
    }
    assert {name: plain_name(name) for name in names} == names


def test_a_checkpoint_without_names_of_rows_is_refused(folders: list[Path], tmp_path: Path) -> None:
    model, _ = model_on(folders[0], "rgcn bases", 1)
    state = {key: of for key, of in model.state_dict().items() if not key.endswith("_extra_state")}
    with pytest.raises(ValueError, match=r"missing keys layers\.0\.weights\.row_names\._extra_state"):
        restore_model(model, replace(read(tmp_path / "last", model), model=state))


RUNS = {
    "labels": """
        task = { target = "item" }
        model = { kind = "rgcn", bases = 2, hidden = 8 }
    """,
    "links": """
        task = { kind = "link-prediction", target = "user buys item, tag on item" }
        model = { kind = "rgcn", bases = 2, hidden = 8 }
        links = { decoder = "distmult", val = 0.2, test = 0.2, eval_negatives = 5 }
    """,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", RUNS)
def test_a_run_is_evaluated_and_inferred_with_types_in_another_order(tmp_path: Path, kind: str) -> None:
    def khop_command(*arguments: str) -> str:
        command = [sys.executable, "-m", "khop", *arguments]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def measured() -> tuple[dict[str, float], Tensor]:
        scores = json.loads(khop_command("evaluate", "run", "--split", "all", "--json"))
        khop_command("infer", "run", "--node-type", "item", "--out", "rows.npy")
        rows = torch.from_numpy(np.load(tmp_path / "rows.npy"))
        for file in ("rows.npy", "rows.ids.npy"):
            (tmp_path / file).unlink()
        return {name: of for name, of in scores.items() if isinstance(of, float)}, rows

    written(tmp_path / "graph", FIRST)
    (tmp_path / "run.toml").write_text(f"""
        graph = "graph"
        compute_threads = 1
        {RUNS[kind]}
        sampler = {{ fanouts = [4, 4] }}
        training = {{ epochs = 2, batch_size = 16 }}
    """)
    khop_command("train", "run.toml", "--out", "run")
    scores, rows = measured()
    shutil.rmtree(tmp_path / "graph")
    written(tmp_path / "graph", permuted(2))
    again, rows_again = measured()
    assert again == pytest.approx(scores, rel=1e-5)
    torch.testing.assert_close(rows_again, rows, rtol=1e-4, atol=1e-5)


@pytest.mark.core(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["autocast", "half"])
def test_every_layer_computes_float16(folders: list[Path], name: str, how: str) -> None:
    """Under autocast, whose default on GPUs it is, from columns in float16; and as a model of float16."""
    graph = khop.open_graph(folders[0])
    torch.manual_seed(1)
    model = MODELS[name](graph).train()
    batch = batch_of(graph, name)
    columns = {t: {"x": of["x"].half()} for t, of in batch.columns.items()}
    exact = results(model.double()(batch))
    model = model.half() if how == "half" else model.float()
    with torch.autocast("cpu", torch.float16, enabled=how == "autocast"):
        found = results(model(replace(batch, columns=columns)))
    for wanted, rows in zip(exact, found, strict=True):
        torch.testing.assert_close(
            rows.double(), wanted, rtol=0.03, atol=0.03 * float(wanted.detach().abs().max())
        )
    sum(rows.float().square().sum() for rows in found).backward()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
    trained = [own for own in model.parameters() if own.grad is not None]
    assert trained or name == "sage embeddings"


def results(output: Tensor | Mapping[object, Any]) -> list[Tensor]:
    """The outputs of a model, or the scores of its links."""
    of_types = output.values() if isinstance(output, Mapping) else [output]
    return [getattr(of, "pairs", of) for of in of_types]
