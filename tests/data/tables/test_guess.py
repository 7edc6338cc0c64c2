"""Specs proposed from files: they import as they are, and claim only what all rows say."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from data.tables.shop import events, items, users
from khop import import_tables
from khop.cli.start import run
from khop.data.tables.guess import guess_spec

EXAMPLES = Path(__file__).parents[3] / "examples" / "import"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(users(), tmp_path / "users.parquet")
    (tmp_path / "items").mkdir()
    for part in range(2):
        csv.write_csv(items().slice(2 * part, 2), tmp_path / "items" / f"{part}.csv")
    pq.write_table(events(), tmp_path / "events.parquet")
    return tmp_path


ALL = ["users.parquet", "items/*.csv", "events.parquet"]


def test_a_proposal_names_keys_links_times_and_kinds(folder: Path) -> None:
    text = guess_spec(ALL, folder)
    spec = tomllib.loads(text)
    assert {name: (node["id"], node["files"]) for name, node in spec["nodes"].items()} == {
        "user": ("user_id", ["users.parquet"]),
        "item": ("item_id", ["items/*.csv"]),
    }
    assert (
        spec["nodes"]["item"]["columns"]
        == {"price": "number", "title": "text", "category": "category"} | (spec["nodes"]["item"]["columns"])
    )
    assert spec["edges"]["user event item"]["source"] == "user_id"
    assert spec["edges"]["user event item"]["time"] == "ts"
    assert "# 8 of 8 values are ids of item" in text
    assert "val = 2020-09-21T00:00:00Z, test = 2020-09-23T00:00:00Z" in text


def test_a_proposal_imports_as_it_is(folder: Path) -> None:
    (folder / "spec.toml").write_text(guess_spec(ALL, folder))
    done = import_tables(folder / "spec.toml", folder / "out")
    assert done.nodes == {"item": 4, "user": 3}
    assert done.edges["user event item"] == 8


@pytest.mark.long
def test_a_header_alone_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,age\n")
    with pytest.raises(
        ValueError, match="--guess: a.csv: has no rows after its names, id, age; add rows, or pass"
    ):
        guess_spec(["a.csv"], tmp_path)


def test_one_row_beyond_the_first_ones_takes_a_claim_back(folder: Path) -> None:
    """The last of many rows is no number, names a user twice, and is no time."""
    many = 140_000  # more rows than a piece has
    ids = [f"u{number}" for number in range(many)]
    table = pa.table({
        "user_id": [*ids, "u5"], "age": ["7"] * many + ["old"], "born": ["2020-01-01"] * many + ["once"],
    })  # fmt: skip
    csv.write_csv(table, folder / "people.csv")
    with pytest.raises(ValueError, match=r"--guess: people.csv: no unique column, .* of user_id, age, born;"):
        guess_spec(["people.csv"], folder)
    csv.write_csv(table.slice(0, many), folder / "people.csv")
    spec = tomllib.loads(guess_spec(["people.csv"], folder))
    assert spec["nodes"]["people"] == {
        "files": ["people.csv"], "id": "user_id",
        "columns": {"age": "number", "born": {"kind": "date", "timezone": "UTC"}},
    }  # fmt: skip


def test_values_without_a_node_and_nulls_are_counted(folder: Path) -> None:
    table = pa.table({"user_id": ["u1", "u9", "u2"], "item_id": ["a", "b", None]})
    pq.write_table(table, folder / "likes.parquet")
    text = guess_spec([*ALL[:2], "likes.parquet"], folder)
    assert "# 2 of 3 values are ids of user" in text
    likes = tomllib.loads(text)["edges"]["user like item"]
    assert (likes["orphans"], likes["nulls"]) == ("drop", "drop")


def test_a_table_of_edges_alone_gives_types_without_tables(folder: Path) -> None:
    (folder / "spec.toml").write_text(guess_spec(["events.parquet"], folder))
    done = import_tables(folder / "spec.toml", folder / "out")
    assert done.nodes == {"user": 3, "item": 4}


def test_a_table_with_a_key_and_links_gives_several_edge_types(folder: Path) -> None:
    table = pa.table({"review_id": [1, 2, 3], "user_id": ["u1", "u2", "u3"], "note": ["ok", "bad", "ok"]})
    pq.write_table(table, folder / "reviews.parquet")
    (folder / "spec.toml").write_text(guess_spec(["users.parquet", "reviews.parquet"], folder))
    done = import_tables(folder / "spec.toml", folder / "out")
    assert done.edges == {"review user_id user": 3, "user user_id-of review": 3}


def test_integers_within_a_range_of_ids_are_no_link_by_themselves(folder: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3, 4]}), folder / "shops.parquet")
    pq.write_table(pa.table({"id": [1, 2], "floors": [3, 4]}), folder / "houses.parquet")
    text = guess_spec(["shops.parquet", "houses.parquet"], folder)
    assert "edges" not in tomllib.loads(text)
    assert tomllib.loads(text)["nodes"]["house"]["columns"] == {"floors": "number"}


@pytest.mark.long
@pytest.mark.parametrize("name", ["shop", "citations"])
def test_tables_of_the_examples_are_understood(name: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, EXAMPLES / "make_tables.py", name, tmp_path], check=True, timeout=120)
    files = {"shop": ["users.parquet", "items/*.csv.gz", "events/*.parquet"], "citations": ["papers.parquet"]}
    (tmp_path / "spec.toml").write_text(guess_spec(files[name], tmp_path))
    done = import_tables(tmp_path / "spec.toml", tmp_path / "out")
    assert done.nodes == {"shop": {"item": 80, "user": 300}, "citations": {"paper": 400}}[name]


def test_a_table_may_link_to_its_own_rows(folder: Path) -> None:
    table = pa.table({"part_id": ["p1", "p2", "p3"], "part_of": [None, "p1", "p1"]})
    pq.write_table(table, folder / "parts.parquet")
    (folder / "spec.toml").write_text(guess_spec(["parts.parquet"], folder))
    done = import_tables(folder / "spec.toml", folder / "out")
    assert done.edges["part part_of part"] == 2


def test_many_categories_are_proposed_as_embeddings(folder: Path) -> None:
    count = 600
    table = pa.table(
        {
            "item_id": [f"i{n}" for n in range(count)],
            "shop": [f"shop{n % 290}" for n in range(count)],
            "name": [f"name{n}" for n in range(count)],
        }
    )
    pq.write_table(table, folder / "goods.parquet")
    text = guess_spec(["goods.parquet"], folder)
    columns = tomllib.loads(text)["nodes"]["good"]["columns"]
    assert columns == {"shop": {"kind": "category", "encoding": "embedding"}}
    assert "# 290 different values" in text


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("header", "label"),
    [
        ("id,country,fraud", "fraud"),
        ("id,class,country", "class"),
        ("id,country,city", "city"),
        ("id,isFraud,age", "isFraud"),
    ],
)
def test_a_label_is_found_by_its_name_or_is_the_last_category(
    header: str, label: str, tmp_path: Path
) -> None:
    words = {"country": ["DE", "FR"], "city": ["A", "B"], "class": ["x", "y"], "age": ["30", "31"]}
    names = header.split(",")
    rows = [[f"u{n}", *(words.get(name, ["0", "1"])[n % 2] for name in names[1:])] for n in range(8)]
    (tmp_path / "users.csv").write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    assert f'# label = "{label}"' in guess_spec(["users.csv"], tmp_path)


@pytest.mark.long
def test_joined_tables_have_names_and_columns_that_are_told_apart(tmp_path: Path) -> None:
    """Two pairs of tables with one common beginning, and a third table with a column of a joined one."""
    for kind in ("x", "y"):
        for part, columns in (("one", ["age"]), ("three", ["size", "depth"]), ("two", ["size"])):
            header = ",".join(["id", *(f"{column}{kind}" for column in columns)])
            rows = [f"{kind}{n}{f',{n}.5' * len(columns)}" for n in range(4)]
            (tmp_path / f"my_{part}_{kind}.csv").write_text("\n".join([header, *rows]) + "\n")
    names = sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / "spec.toml").write_text(guess_spec(names, tmp_path))
    nodes = tomllib.loads((tmp_path / "spec.toml").read_text())["nodes"]
    assert {name: len(table.get("also", ())) for name, table in nodes.items()} == {
        "my": 1, "my_one_y": 1, "my_two_x": 0, "my_two_y": 0,
    }  # fmt: skip
    assert sum(import_tables(tmp_path / "spec.toml", tmp_path / "out").nodes.values()) == 16


# Headers of published tables, each with rows of our own: files; nodes; edges; source, destination.
FORMS: dict[str, tuple[dict[str, str], dict[str, int], dict[str, int], tuple[str, str]]] = {
    "movielens": ({"movies.csv": "movieId,title\n1,a b\n2,c d\n3,e f",
                   "ratings.csv": "userId,movieId,rating,timestamp\n1,1,4.0,964982703\n1,2,3,964982704\n2,3,3,964982705"},
                  {"movie": 3, "user": 2}, {"user rating movie": 3}, ("userId", "movieId")),
    "person second": ({"views.csv": "movieId,userId\n1,7\n2,7\n2,8"}, {"user": 2, "movie": 2},
                      {"user view movie": 3}, ("userId", "movieId")),
    "elliptic": ({"edges.csv": "txId1,txId2\n10,11\n11,12\n12,13"}, {"tx": 4}, {"tx edge tx": 3}, ("txId1", "txId2")),
    "elliptic, three files": (
        {"elliptic_txs_features.csv": "230425980,1,-0.17\n5530458,1,0.4\n232022460,2,0.1\n67,2,0.5",
         "elliptic_txs_classes.csv": "txId,class\n67,unknown\n230425980,2\n5530458,1\n232022460,2",
         "elliptic_txs_edgelist.csv": "txId1,txId2\n230425980,5530458\n232022460,67"},
        {"elliptic_tx": 4}, {"elliptic_tx elliptic_txs_edgelist elliptic_tx": 2}, ("txId1", "txId2")),
    "two counts from 1": (
        {"users.csv": "id,age\n1,30\n2,40", "items.csv": "id,price\n1,2.5\n2,3.5",
         "buys.csv": "user_id,item_id\n1,2\n2,2"},
        {"user": 2, "item": 2}, {"user buy item": 2}, ("user_id", "item_id")),
    "gephi": ({"edges.csv": "Source,Target\na,b\nb,c"}, {"node": 3}, {"node edge node": 2}, ("Source", "Target")),
    "lower": ({"links.csv": "source,target,weight\n1,2,0.5\n2,3,0.25"}, {"node": 3}, {"node link node": 2},
              ("source", "target")),
    "snap git": ({"edges.csv": "id_1,id_2\n0,1\n1,2"}, {"node": 3}, {"node edge node": 2}, ("id_1", "id_2")),
    "snap git nodes": ({"musae_git_target.csv": "id,name,ml_target\n0,ab,0\n1,bc,1\n2,cd,0", "edges.csv": "id_1,id_2\n0,1\n1,2"},
                       {"musae_git_target": 3}, {"musae_git_target edge musae_git_target": 2}, ("id_1", "id_2")),
    "snap otc": ({"otc.csv": "6,2,4,1289241911.72836\n6,5,2,1289241941.53378\n2,6,1,1289241951.5"}, {"node": 3}, {"node otc node": 3},
                 ("0", "1")),
    "paysim": ({"log.csv": "step,type,amount,nameOrig,oldbalanceOrg,nameDest,isFraud\n1,PAY,9.6,C1,17.3,M1,0\n"
                           "1,PAY,1.5,C2,21.2,M1,0\n2,CASH,3.5,C1,2.1,C9,1"}, {"node": 4}, {"node log node": 3},
               ("nameOrig", "nameDest")),
    "amazon": ({"ratings.csv": "reviewerID,asin,overall,unixReviewTime\nA1,B1,5.0,1393545600\nA2,B1,3.0,1393545601"},
               {"reviewer": 2, "asin": 1}, {"reviewer rating asin": 2}, ("reviewerID", "asin")),
    "openflights": ({"routes.csv": "Airline,Source airport ID,Destination airport ID\n2B,2965,2990\n2B,2966,2990"},
                    {"airport": 3}, {"airport route airport": 2}, ("Source airport ID", "Destination airport ID")),
    "kkbox": ({"train.csv": "msno,song_id,target\nx=,s1,1\nx=,s2,0\ny=,s1,1"}, {"msno": 2, "song": 2},
              {"msno train song": 3}, ("msno", "song_id")),
    "yelp": ({"review.json": '{"review": 1, "user_id": "u1", "business_id": "b1", "stars": 4.0}\n'
                             '{"review": 1, "user_id": "u2", "business_id": "b1", "stars": 2.0}'},
             {"user": 2, "business": 1}, {"user review business": 2}, ("user_id", "business_id")),
    "steam": ({"plays.csv": "user_id,game_id,hours\n5,77,1.5\n5,78,2\n6,77,1"}, {"user": 2, "game": 2},
              {"user play game": 3}, ("user_id", "game_id")),
    "cora": ({"cora.cites": "35\t1033\n35\t1034\n40\t35"}, {"node": 4}, {"node cora node": 3}, ("0", "1")),
    "semicolon": ({"buys.csv": "customer_id;product_id;price\n1;7;2.5\n1;8;3.5"}, {"customer": 1, "product": 2},
                  {"customer buy product": 2}, ("customer_id", "product_id")),
    "pipe": ({"buys.txt": "customer_id|product_id\n1|7\n1|8"}, {"customer": 1, "product": 2},
             {"customer buy product": 2}, ("customer_id", "product_id")),
    "tab": ({"buys.csv": "customer_id\tproduct_id\n1\t7\n1\t8"}, {"customer": 1, "product": 2},
            {"customer buy product": 2}, ("customer_id", "product_id")),
    "snap web": ({"web.tsv": "FromNodeId\tToNodeId\n0\t11\n0\t12"}, {"node": 3}, {"node web node": 2},
                 ("FromNodeId", "ToNodeId")),
    "followers": ({"follows.csv": "follower_id,followee_id\n1,2\n2,3\n1,3"}, {"node": 3}, {"node follow node": 3},
                  ("follower_id", "followee_id")),
    "wikidata": ({"kg.csv": "head,relation,tail\nQ1,P1,Q2\nQ2,P1,Q3"}, {"node": 3}, {"node kg node": 2},
                 ("head", "tail")),
    "taobao": ({"log.csv": "user_id,item_id,category_id,behavior,ts\n1,9,4,pv,1511544070\n2,9,4,buy,1511561733"},
               {"user": 2, "item": 1}, {"user log item": 2}, ("user_id", "item_id")),
    "dblp": ({"wrote.csv": "paper_id,author_id\np1,a1\np1,a2\np2,a1"}, {"author": 2, "paper": 2},
             {"author wrote paper": 3}, ("author_id", "paper_id")),
    "non-ascii": ({"käufe.csv": "customer_id,product_id,größe\n1,7,2\n1,8,3"}, {"customer": 1, "product": 2},
                  {"customer kaufe product": 2}, ("customer_id", "product_id")),
    "blanks": ({"my buys.csv": "customer id,product id,unit price\n1,7,2\n1,8,3"}, {"customer": 1, "product": 2},
               {"customer my-buy product": 2}, ("customer id", "product id")),
    "underscore": ({"_buys.csv": "_user_id,_item_id,_price__x\n1,7,2\n1,8,3"}, {"user": 1, "item": 2},
                   {"user buy item": 2}, ("_user_id", "_item_id")),
    "counts": ({"shops.csv": "shop_id,item_count\ns1,1\ns2,2", "items.csv": "item_id,name\n1,ab\n2,cd",
                "stocks.csv": "shop_id,item_id\ns1,1\ns1,2\ns2,2"}, {"shop": 2, "item": 2},
               {"shop stock item": 3}, ("shop_id", "item_id")),
    "lastfm": ({"plays.csv": "userID,artistID,weight\n2,51,13883\n2,52,11690\n3,51,2"}, {"user": 2, "artist": 2},
               {"user play artist": 3}, ("userID", "artistID")),
    "milliseconds": ({"log.csv": "user_id,item_id,created_at\n1,9,1511544070123\n1,8,1511561733456"},
                     {"user": 1, "item": 2}, {"user log item": 2}, ("user_id", "item_id")),
    "ml-1m": ({"ratings.dat": "".join(f"{u}::{(u * k) % 7 + 1}::5::{978300760 + k}\n" for u in range(1, 8) for k in (1, 3, 5))[:-1]},
              {"source": 7, "destination": 7}, {"source rating destination": 21}, ("0", "1")),
    "kg triples": ({"kg.tsv": "Q1\tP1\t5\nQ2\tP1\t6\nQ1\tP2\t7\nP1\tQ2\t5"}, {"node": 4}, {"node kg node": 4}, ("0", "1")),
    "years": ({"gdp.csv": "country,2019,2020\nDE,3.8,3.7\nFR,2.7,2.6"}, {"gdp": 2}, {}, ("", "")),
    "trips": ({"trips.csv": "ride_id,started_at,ended_at,start_station_id,end_station_id\n"
                            "A1,2021-01-01 00:02:05,2021-01-01 00:12:05,13,15\nA2,2021-01-01 00:02:06,2021-01-01 00:22:06,15,13"},
              {"station": 2}, {"station trip station": 2}, ("start_station_id", "end_station_id")),
    "taxi": ({"taxi.csv": "VendorID,PULocationID,DOLocationID,fare\n1,151,239,7\n2,239,246,14"}, {"location": 3},
             {"location taxi location": 2}, ("PULocationID", "DOLocationID")),
    "hyperlinks": ({"links.tsv": "SOURCE_SUBREDDIT\tTARGET_SUBREDDIT\tPOST_ID\tTIMESTAMP\nlol\tteam\tp1\t2013-12-31 16:39:58\n"
                                 "soccer\tlol\tp2\t2013-12-31 18:18:37"}, {"subreddit": 3}, {"subreddit link subreddit": 2},
                   ("SOURCE_SUBREDDIT", "TARGET_SUBREDDIT")),
    "email": ({"email.txt": "0 1\n2 3\n2 4\n4 0\n1 2"}, {"node": 5}, {"node email node": 5}, ("0", "1")),
    "airports": ({"airports.dat": '2965,"Sochi","Sochi","Russia",43.4\n2966,"Astrakhan","Astrakhan","Russia",46.2\n2990,"Kazan","Kazan","Russia",55.6'},
                 {"airport": 3}, {}, ("", "")),
    "other letters": ({"e.csv": "用户ID,商品ID,weight\n1,1,2\n1,2,3\n2,1,5"}, {"column": 2, "column1": 2},
                      {"column e column1": 3}, ("用户ID", "商品ID")),
    "a short name": ({"u.csv": "user_id,age\n1,30\n2,31\n3,32", "e.csv": "user_id,item_id,size\n1,5,2\n2,6,1\n2,5,3"},
                     {"u": 3, "item": 2}, {"u e item": 3}, ("user_id", "item_id")),
    "measurements": ({"points.csv": "id,x1,x2,a,b\n7,1,2,3,4\n8,2,3,4,5\n9,1,3,5,5"}, {"point": 3}, {}, ("", "")),
    "books": ({"ratings.csv": "User-ID;ISBN;Book-Rating\n276725;034545104X;0\n276726;0155061224;5"},
              {"user": 2, "ISBN": 2}, {"user rating ISBN": 2}, ("User-ID", "ISBN")),
    "ml-100k": ({"u.user": "1|24|M|technician|85711\n2|53|F|other|94043\n24|1|M|writer|32067"}, {"u": 3}, {}, ("", "")),
    "counts of rows": ({"users.csv": "id,posts\n1,1\n2,2", "posts.csv": "id,score\n1,2\n2,4\n3,6"},
                       {"post": 3, "user": 2}, {}, ("", "")),
    "words without a header": ({"likes.csv": "a1,b1\na1,b2\na2,b1\na3,b1"}, {"source": 3, "destination": 2},
                               {"source like destination": 4}, ("0", "1")),
    "index of pandas": ({"pays.csv": ",src,dst,w\n0,a,b,0.5\n1,b,c,1.5"}, {"node": 3}, {"node pay node": 2}, ("src", "dst")),
}  # fmt: skip


@pytest.mark.core(4)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_published_tables_are_guessed_and_imported(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, nodes, edges, ends = FORMS[form]
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run(["import", "--guess", *files])
    text = capsys.readouterr().out
    is_bare = form in (
        "cora",
        "snap otc",
        "ml-1m",
        "kg triples",
        "email",
        "airports",
        "elliptic, three files",
        "ml-100k",
        "words without a header",
    )
    assert ('header = "no"  # the first line of' in text) == is_bare
    assert "columns.0" not in text  # numbers of rows
    (tmp_path / "spec.toml").write_text(text)
    done = import_tables(tmp_path / "spec.toml", tmp_path / "out")
    assert (done.nodes, {n: c for n, c in done.edges.items() if not n.split()[1].endswith("-by")}) == (
        nodes,
        edges,
    )
    if not edges:
        return
    edge = next(iter(tomllib.loads(text)["edges"].values()))
    assert (edge["source"], edge["destination"]) == ends
    if form in ("movielens", "ml-1m", "amazon", "taobao", "milliseconds"):
        assert edge["unit"] == ("ms" if form == "milliseconds" else "s")


def test_hive_partitions_are_one_table(tmp_path: Path) -> None:
    rows = pa.table(
        {"id": [f"u{i}" for i in range(40)], "x": list(range(40)), "year": [i % 3 for i in range(40)]}
    )
    pq.write_to_dataset(
        rows.append_column("c", pa.array(["a", None] * 20)), tmp_path / "users", ["c", "year"]
    )
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    assert len(files) == 6
    spec = guess_spec(files, tmp_path)
    assert '[nodes.user]  # 40 rows\nfiles = ["users/**/*.parquet"]' in spec
    assert "# c, year: columns in the names of folders, as text" in spec
    assert guess_spec(["users"], tmp_path) == spec
    (tmp_path / "tables.toml").write_text(spec)
    assert import_tables(tmp_path / "tables.toml", tmp_path / "out").nodes == {"user": 40}
