"""`khop train --start-from`: the weights of another run, with embeddings by the ids of nodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

import khop
from cli.conftest import Ran, khop_command
from khop.api.serve import service_of
from khop.servers.access import Address, ServerSecurity
from khop.servers.flight_server import served
from khop.servers.request_handler import QueueLimits, RequestHandler
from support.later_shops import later_spec, later_tables, shop_spec, shop_tables

__all__ = ["khop_command"]
Command = Callable[..., Ran]
RUN = """
    graph = "shop"
    precision = "float64"
    compute_threads = 1
    task = { kind = "link-prediction", target = "user buys item" }
    links = { eval_negatives = 5, hard_negatives = 2 }
    sampler = { fanouts = [4] }
    model = { hidden = 8, embedding = 4, embedded_types = "all" }
    training = { epochs = 1, batch_size = 64 }
"""


@pytest.fixture
def yesterday(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command) -> Path:
    """A run on a shop in the working directory."""
    monkeypatch.chdir(tmp_path)
    khop.import_tables(shop_spec(shop_tables()), "shop")
    Path("run.toml").write_text(RUN)
    train(khop_command, "--out", "yesterday")
    return tmp_path


def train(khop_command: Command, *words: str) -> Ran:
    ran = khop_command("train", "run.toml", *words)
    assert ran.code == 0, ran.stderr
    return ran


def tables_of(run: str) -> dict[str, torch.Tensor]:
    """The embeddings of a run's best checkpoint."""
    model = khop.load_checkpoint(Path(run) / "checkpoints" / "best").model
    return {name: tensor for name, tensor in model.items() if ".tables." in name}


def user_rows(run: str, graph: str, ids: list[str]) -> torch.Tensor:
    (name,) = [name for name in tables_of(run) if name.endswith("node:user.weight")]
    return tables_of(run)[name][torch.from_numpy(khop.open_ids(graph, "user").rows(ids))]


def still(name: str) -> tuple[str, ...]:
    """Options of a run with a learning rate too small to change a weight."""
    return ("--learning-rate", "1e-300", "--start-from", "yesterday", "--out", name)


@pytest.mark.long
@pytest.mark.parametrize("unknown", [False, True])
def test_appended_nodes_get_the_row_unknown_or_a_new_one(
    yesterday: Path, khop_command: Command, unknown: bool
) -> None:
    options = ("--unknown", "0.2") if unknown else ()
    if unknown:
        shutil.rmtree("yesterday")
        train(khop_command, "--out", "yesterday", *options)
    later = later_tables()
    prices = later["item"].schema.get_field_index("price")
    later["item"] = later["item"].set_column(prices, "price", pa.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    khop.append("shop", later_spec(later))
    ran = train(khop_command, *still("today"), *options)
    said = " ".join(ran.stdout.split())
    assert "yesterday/checkpoints/best; new nodes: 3 of 33 user, 5 of 45 item" in said
    known, new = [f"u{i}" for i in range(30)], ["u30", "u31", "u32"]
    before = user_rows("yesterday", "shop", known)  # an append keeps the numbers
    assert torch.equal(user_rows("today", "shop", known), before)
    rows = user_rows("today", "shop", new)
    if unknown:
        model = khop.load_checkpoint(Path("yesterday/checkpoints/best")).model
        (row,) = [tensor for name, tensor in model.items() if name.endswith("unknown.node:user.weight")]
        assert torch.equal(rows, row.expand(3, 4))
    else:
        assert rows.std() > 0.1


def test_nodes_are_found_by_their_own_ids_in_another_graph(yesterday: Path, khop_command: Command) -> None:
    """A graph of the same tables in another order, without some users and items."""
    tables = shop_tables()
    kept = {"user": list(range(29, 4, -1)), "item": list(range(39, -1, -1))}
    turned = {name: tables[name].take(pa.array(rows)) for name, rows in kept.items()}
    users = {f"u{i}" for i in kept["user"]}
    events = tables["event"]
    is_known = pa.array([user in users for user in events["user_id"].to_pylist()])
    khop.import_tables(shop_spec({**turned, "event": events.filter(is_known)}), "other")
    train(khop_command, *still("today"), "--graph", "other")
    ids = [f"u{i}" for i in range(5, 30)]
    assert torch.equal(user_rows("today", "other", ids), user_rows("yesterday", "shop", ids))
    assert khop.open_ids("other", "user").ids([0]) == ["u29"]


@pytest.mark.long
def test_deleted_nodes_leave_and_the_others_keep_their_rows(yesterday: Path, khop_command: Command) -> None:
    kept = [f"u{i}" for i in range(3, 30)]
    before = user_rows("yesterday", "shop", kept)
    khop.append("shop", delete={"user": ["u0", "u1", "u2"]})
    train(khop_command, *still("today"))
    assert torch.equal(user_rows("today", "shop", kept), before)


@pytest.mark.long
def test_a_started_run_is_resumed_evaluated_and_started_from_without_the_first_one(
    yesterday: Path, khop_command: Command
) -> None:
    options = ("--start-from", "yesterday", "--start-optimizer", "--epochs", "2")
    train(khop_command, *options, "--out", "whole")
    train(khop_command, *options, "--out", "today", "--max-steps", "3")
    shutil.rmtree("yesterday")
    ran = khop_command("train", "--resume", "today", "--max-steps", "0")
    assert ran.code == 0, ran.stderr
    scores = [
        [{**json.loads(line), "seconds": 0} for line in Path(run, "metrics.jsonl").read_text().splitlines()]
        for run in ("today", "whole")
    ]
    assert scores[0] == scores[1]
    assert khop_command("evaluate", "today").code == 0
    ran = khop_command("train", "run.toml", "--start-from", "today/checkpoints/last", "--out", "tomorrow")
    assert ran.code == 0, ran.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--start-from", "nowhere"), "nowhere: no checkpoint exists"),
        (("--start-optimizer",), "start_optimizer is true, but start_from is not set"),
        (("--start-from", "yesterday", "--hidden", "16"), "different shapes"),
        (("--start-from", "yesterday", "--start-optimizer", "--optimizer", "sgd"), "another optimizer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(
    yesterday: Path, khop_command: Command, words: tuple[str, ...], message: str
) -> None:
    ran = khop_command("train", "run.toml", "--out", "today", *words)
    assert ran.code == 2
    assert message in " ".join(ran.stderr.split())
    assert not Path("today").exists()


CLASSES = """
    graph = "shop"
    task = { kind = "node-classification", target = "item" }
    sampler = { fanouts = [4] }
    model = { hidden = 8, embedding = 0 }
    training = { epochs = 1 }
"""


def test_other_classes_of_the_same_label_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command
) -> None:
    """The rows of the last layer are in the order of the classes, so equal shapes do not suffice."""
    monkeypatch.chdir(tmp_path)
    tables = shop_tables()
    kinds = pa.array([{"hat": "boot", "shoe": "sock"}[kind] for kind in tables["item"]["kind"].to_pylist()])
    renamed = tables["item"].set_column(tables["item"].schema.get_field_index("kind"), "kind", kinds)
    khop.import_tables(shop_spec(tables), "shop")
    khop.import_tables(shop_spec({**tables, "item": renamed}), "other")
    Path("run.toml").write_text(CLASSES)
    train(khop_command, "--out", "yesterday")
    ran = khop_command("train", "run.toml", "--graph", "other", "--start-from", "yesterday", "--out", "today")
    assert ran.code == 2
    words = "its classes of item are hat, shoe, and those of this run are boot, sock"
    assert words in " ".join(ran.stderr.split())
    server = served(
        RequestHandler(service_of(Path("other")), QueueLimits()), Address("127.0.0.1", 0), ServerSecurity()
    )
    far = ("--graph", "other", "--servers", f"127.0.0.1:{server.port}")
    ran = khop_command("train", "run.toml", *far, "--start-from", "yesterday", "--out", "today")
    server.shutdown()
    assert ran.code == 2
    assert words in " ".join(ran.stderr.split())
    train(khop_command, "--start-from", "yesterday", "--out", "today")
    shutil.rmtree("shop")
    khop.import_tables(shop_spec({**tables, "item": renamed}), "shop")  # with the name of yesterday's graph
    ran = khop_command("train", "run.toml", "--start-from", "yesterday", "--out", "tomorrow")
    assert ran.code == 2
    assert words in " ".join(ran.stderr.split())


@pytest.mark.long
def test_embeddings_of_a_graph_that_is_gone_are_refused(yesterday: Path, khop_command: Command) -> None:
    khop.append("shop", delete={"user": ["u0"]})
    khop.compact("shop")
    ran = khop_command("train", "run.toml", "--start-from", "yesterday", "--out", "today")
    assert ran.code == 2
    assert "which has changed since and has no snapshot of that state" in " ".join(ran.stderr.split())
