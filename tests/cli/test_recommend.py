"""A shop without a line of Python: tables in, a model, and recommendations under the shop's own ids."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="pip install duckdb pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq

from cli.conftest import Ran
from cli.test_next_steps import commands_in, follow
from khop import import_tables
from support.commands import train_here
from support.small_link_folders import write_shop

Command = Callable[..., Ran]
SPEC = """
[splits]
time = { val = 2020-03-01T00:00:00Z, test = 2020-03-16T00:00:00Z }
[nodes.user]
files = ["users.csv"]
id = "user_id"
columns.city = "category"
[nodes.item]
files = ["items.csv"]
id = "item_id"
columns.genre = "category"
[edges."user buys item"]
files = ["events.parquet"]
where = "kind = 'buy'"
source = "user_id"
destination = "item_id"
time = "ts"
reverse = "bought-by"
"""
RUN = """
graph = "shop"
task = { kind = "link-prediction", target = "user buys item" }
links = { eval_negatives = 10 }
model = { hidden = 16, embedding = 8 }
sampler = { fanouts = [8, 4] }
training = { epochs = 4, batch_size = 64, learning_rate = 0.03 }
"""
TEST = datetime(2020, 3, 16, tzinfo=UTC)


def write_tables(folder: Path) -> list[tuple[str, str, str, datetime]]:
    """Users of two cities buy items of a genre each; u-late comes in the test, u-new never buys."""
    draw = random.Random(2)
    users = [(f"u-{n}", ("Rome", "Oslo")[n % 2]) for n in range(24)] + [("u-late", "Rome"), ("u-new", "Oslo")]
    items = [(f"i-{n}", ("jazz", "folk")[n % 2]) for n in range(16)] + [("i-last", "jazz")]
    begin, events = datetime(2020, 1, 1, tzinfo=UTC), []
    for _ in range(600):
        user = draw.randrange(24)
        item = draw.randrange(8) * 2 + (user % 2 if draw.random() < 0.9 else 1 - user % 2)
        kind = "buy" if draw.random() < 0.7 else "view"
        events.append((f"u-{user}", f"i-{item}", kind, begin + timedelta(hours=draw.randrange(89 * 24))))
    events += [("u-late", "i-2", "buy", TEST + timedelta(days=1)), ("u-1", "i-last", "buy", TEST)]
    for name, head, rows in (("users", "user_id,city", users), ("items", "item_id,genre", items)):
        (folder / f"{name}.csv").write_text("\n".join([head, *map(",".join, rows)]) + "\n")
    columns = dict(
        zip(("user_id", "item_id", "kind", "ts"), map(list, zip(*events, strict=True)), strict=True)
    )
    pq.write_table(pa.table(columns), folder / "events.parquet")
    return events


def trained_in(home: Path) -> list[tuple[str, ...]]:
    """Write tables, import them, and train the run `a`; return what users bought before the test."""
    events = write_tables(home)
    (home / "shop.toml").write_text(SPEC)
    (home / "run.toml").write_text(RUN)
    with chdir(home), redirect_stdout(io.StringIO()):
        import_tables("shop.toml", "shop")
        train_here("run.toml", "--out", "a")
    return [(user, item) for user, item, kind, at in events if kind == "buy" and at < TEST]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, ...]]]:
    home = tmp_path_factory.mktemp("shop")
    return home, trained_in(home)


@pytest.fixture
def trained(
    made: tuple[Path, list[tuple[str, ...]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, ...]]:
    """What users bought; the working directory has a copy of the run, whose graph tests share."""
    home, bought = made
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return bought


@pytest.mark.long
def test_from_tables_to_recommendations_under_own_ids(
    khop_command: Command, trained: list[tuple[str, str]]
) -> None:
    assert len((SPEC + RUN).strip().splitlines()) <= 25
    ran = khop_command("import", "shop.toml", "again")
    assert ran.code == 0, ran.stderr
    follow(khop_command, ran)
    measured = json.loads(khop_command("evaluate", "a", "--json").stdout)
    assert measured["test_mrr"] > measured["test_popularity_mrr"] > 0
    words = ("recommend", "a", "--user", "u-1", "--user", "u-late", "-k", "4", "--split", "test")
    ran = khop_command(*words, "--unseen", "--json")
    assert ran.code == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["nodes"], found["cold"]) == (2, 1)
    one, late = found["users"]
    bought = {item for user, item in trained if user == "u-1"}
    assert (one["id"], one["by"], len(one["recommended"])) == ("u-1", "model", min(4, 16 - len(bought)))
    assert not {item["id"] for item in one["recommended"]} & (bought | {"i-last"})
    popular = Counter(item for _, item in trained)
    scores = [item["score"] for item in late["recommended"]]
    assert late["by"] == "popularity"
    assert scores == sorted(popular.values(), reverse=True)[:4]
    assert [popular[item["id"]] for item in late["recommended"]] == scores
    ran = khop_command(*words)
    follow(khop_command, ran)
    shown = ran.stdout
    assert "u-late  (no edge before the cut-off: by popularity)" in shown
    assert shown.endswith("Next:\nkhop recommend a -k 4 --out a/recommended.parquet\n")


@pytest.mark.long
def test_the_next_day_of_users_and_items_ends_with_recommendations(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later tables of a run of links name the append and the recommendation, which run."""
    trained_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("users.csv").write_text("user_id,city\nu-next,Rome\n")
    Path("items.csv").write_text("item_id,genre\ni-next,folk\n")
    bought = {"user_id": ["u-next"], "item_id": ["i-next"], "kind": ["buy"], "ts": [TEST + timedelta(9)]}
    pq.write_table(pa.table(bought), "events.parquet")
    Path("day.toml").write_text(SPEC.partition("[nodes.user]")[1] + SPEC.partition("[nodes.user]")[2])
    ran = khop_command("import", "day.toml", "later", "--encoders", "a")
    assert ran.code == 0, ran.stderr
    assert commands_in(ran)[-1].endswith("shop day.toml && khop recommend a --user ID")
    follow(khop_command, ran, {"ID": "u-next"})


def test_all_users_go_into_a_file(khop_command: Command, trained: list[tuple[str, str]]) -> None:
    ran = khop_command("recommend", "a", "--out", "all.parquet", "-k", "3", "--json")
    assert ran.code == 0, ran.stderr
    outcome, table = json.loads(ran.stdout), pq.read_table("all.parquet")
    names = ["source_id", "source", "rank", "destination_id", "destination", "score", "by"]
    assert table.column_names == names
    assert outcome["rows"] == len(table) == 26 * 3
    assert (outcome["nodes"], outcome["cold"]) == (26, 1)
    by_user = {row["source_id"]: row["by"] for row in table.to_pylist()}
    assert [user for user, by in by_user.items() if by == "popularity"] == ["u-new"]
    assert not [path for path in Path().iterdir() if path.name.startswith(".recommend")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--user", "u-l8te"), "--user 'u-l8te': no 'user' has this id; the nearest are u-late"),
        (("--user", "u-1", "--user", "u-1"), "some are given twice"),
        (("--user", "u-1", "-k", "0"), "-k 0: must be at least 1"),
        ((), "use --user ID, or --out FILE.parquet"),
        (("--out", "a.csv"), "--out a.csv: give a name that ends in .parquet"),
    ],
)
def test_bad_values_are_one_sentence(
    khop_command: Command, trained: list[tuple[str, str]], words: tuple[str, ...], sentence: str
) -> None:
    ran = khop_command("recommend", "a", *words)
    assert ran.code != 0
    assert sentence in " ".join(ran.stderr.split())


def test_a_run_about_nodes_is_refused(khop_command: Command, trained_run: None) -> None:
    ran = khop_command("recommend", "a", "--user", "1")
    assert "only link-prediction runs recommend" in " ".join(ran.stderr.split())


@pytest.mark.long
def test_without_stored_ids_users_are_numbers(
    khop_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path / "shop", users=40, items=30)
    Path("run.toml").write_text(
        RUN.replace("embedding = 8", "embedding = 0").replace("epochs = 4", "epochs = 1")
    )
    assert khop_command("train", "run.toml", "--out", "a").code == 0
    found = json.loads(khop_command("recommend", "a", "--user", "7", "-k", "2", "--json").stdout)
    assert [type(item["id"]) for item in found["users"][0]["recommended"]] == [int, int]
    for user in ("ann", "9" * 20):
        ran = khop_command("recommend", "a", "--user", user)
        assert "the graph stores no ids of 'user', so give numbers of nodes" in " ".join(ran.stderr.split())
