"""A run is read from TOML and options; what is wrong with it is said in one sentence.

Every preset is a run over a built-in graph.

Settings that decide the course of a run, and those that do not.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from khop.data.builtin import builtin_names
from khop.run.build import notes_of
from khop.run.check import checked, facts_of, to_toml
from khop.run.read import (
    DIGEST,
    RawRun,
    digest_of,
    is_run_folder,
    notes_on,
    preset,
    preset_names,
    read_toml,
    saved_run,
    with_options,
)
from khop.run.run_type import value_at
from khop.run.values import RunConfig
from khop.schema import Schema
from support.typed_runs import prepared, write_tagged_shop


def run_of(**values: object) -> RunConfig:
    return checked(RawRun({"graph": "g", **values}, "run.toml"))


def complaint(values: dict[str, object], options: dict[str, object] | None = None) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        checked(with_options(RawRun(values, "run.toml"), options or {}))
    return str(caught.value)


def test_the_example_of_the_documentation_is_a_run(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "command.md"
    written = tmp_path / "run.toml"
    written.write_text(page.read_text().partition("```toml\n")[2].partition("```")[0])
    run = checked(read_toml(written))
    assert (run.graph, run.task.target, run.sampler.fanouts) == ("graphs/shop", "item", (15, 10, 5))
    assert (run.training.epochs, run.training.learning_rate) == (20, 1e-3)


def test_a_model_gets_the_rule_that_it_needs_and_a_note_says_so() -> None:
    for kind, rule in (("gcn", "symmetric-sum"), ("gin", "sum"), ("lightgcn", "symmetric-sum")):
        raw = RawRun({"graph": "g", "model": {"kind": kind}}, "run.toml")
        made = checked(raw).sampler.rule
        assert made is not None
        assert made.kind == rule
        (note,) = notes_on(raw)
        assert note.startswith(f"sampler.rule.kind is {rule}: the model {kind} needs this rule")
    assert run_of(model={"kind": "sage"}).sampler.rule is None


def test_such_a_rule_draws_by_the_weights_of_the_run() -> None:
    sampler = run_of(model={"kind": "gin"}, sampler={"weight": "w", "replacement": True}).sampler
    assert sampler.rule is not None
    assert sampler.rule.model_dump(include={"kind", "column", "replacement"}) == {
        "kind": "sum", "column": "w", "replacement": True,
    }  # fmt: skip
    assert (sampler.weight, sampler.replacement) == (None, False)


def test_a_rule_that_a_run_names_stays() -> None:
    raw = RawRun({"graph": "g", "model": {"kind": "gcn"}, "sampler": {"rule": {"kind": "labor"}}}, "run.toml")
    made = checked(raw).sampler.rule
    assert made is not None
    assert made.kind == "labor"
    assert notes_on(raw) == []


def test_gatv2_is_gat_with_its_attention() -> None:
    raw = RawRun({"graph": "g", "model": {"kind": "gatv2", "heads": 2}}, "run.toml")
    assert checked(raw).model.model_dump(include={"kind", "attention", "heads"}) == {
        "kind": "gat", "attention": "gatv2", "heads": 2,
    }  # fmt: skip
    assert notes_on(raw) == ['model gatv2 is gat with attention = "gatv2"']


def test_an_option_that_names_another_component_leaves_out_settings_of_the_one_before() -> None:
    raw = RawRun({"graph": "g", "model": {"hidden": 8, "dropout": 0.1}}, "run.toml")
    light = with_options(raw, {"model.kind": "lightgcn"})
    assert checked(light).model.hidden == 8
    assert notes_on(light)[0] == "model.dropout of run.toml is ignored: lightgcn has no such setting"
    with pytest.raises(ValueError, match=r"model\.dropout: no such field"):
        checked(RawRun({"graph": "g", "model": {"kind": "lightgcn", "dropout": 0.1}}, "run.toml"))


def test_evaluation_draws_as_training_does_if_there_is_a_time() -> None:
    raw = RawRun({"graph": "g", "sampler": {"time": "day", "fanouts": [4, 3]}}, "run.toml")
    assert checked(raw).evaluation.fanouts == (4, 3)
    assert notes_on(raw)[0].startswith("evaluation.fanouts is [4, 3], as in training")


def test_links_train_without_dropout_unless_a_run_says_otherwise() -> None:
    links = {"kind": "link-prediction"}
    assert run_of(task=links).model.model_dump()["dropout"] == 0
    assert run_of(task=links, model={"dropout": 0.2}).model.model_dump()["dropout"] == 0.2
    assert run_of().model.model_dump()["dropout"] == 0.2
    assert "dropout" not in run_of(task=links, model={"kind": "lightgcn"}).model.model_dump()


@pytest.mark.parametrize(
    ("values", "options", "path", "chosen", "note"),
    [
        ({}, {"model.kind": "GraphSAGE"}, "model.kind", "sage", "model.kind 'GraphSAGE' is sage"),
        ({"optimizer": {"kind": "AdamW"}}, {}, "optimizer.kind", "adamw", "'AdamW' is adamw"),
        ({}, {"task.kind": "link_prediction"}, "task.kind", "link-prediction", "is link-prediction"),
        ({}, {"model.layers": 3}, "sampler.fanouts", (15, 10, 10), "[15, 10, 10]: one for each of 3 layers"),
        (
            {"sampler": {"fanouts": [7]}, "model": {"layers": 2}},
            {},
            "sampler.fanouts",
            (7, 7),
            "sampler.fanouts is [7, 7]",
        ),
        ({"sampler": {"fanouts": [7, 5]}}, {"model.layers": 3}, "sampler.fanouts", (7, 5, 5), "[7, 5, 5]"),
        (
            {"sampler": {"fanouts": [7, 5]}, "model": {"layers": 2}},
            {"sampler.fanouts": [4, 4, 4]},
            "model.layers",
            3,
            "model.layers is 3: one layer per fanout of --fanouts",
        ),
        ({"sampler": {"window": [3, 0]}}, {}, "sampler.time", "time", "sampler.window needs times"),
        (
            {"sampler": {"window": [3, 0], "time": "day"}, "evaluation": {"fanouts": [2, 2]}},
            {"sampler.time": ""},
            "sampler.window",
            None,
            "sampler.window of run.toml is ignored",
        ),
        ({"model": {"unknown": 0.1}}, {}, "model.embedding", 32, "model.embedding is 32"),
        (
            {"model": {"embedding_update": "sparse"}},
            {},
            "model.embedding",
            32,
            "the default width with model.embedding_update",
        ),
        ({"links": {"filtered": True}}, {}, "links.decoder", "distmult", "links.decoder is distmult"),
        ({"links": {"shared_negatives": 3}}, {}, "links.negatives_group", 64, "links.negatives_group is 64"),
        (
            {"sampler": {"rule": {"kind": "relation-mean"}}, "model": {"kind": "rgcn", "relation": "r"}},
            {},
            "sampler.rule.column",
            "r",
            "sampler.rule.column is 'r'",
        ),
        (
            {"precision": "tf32", "gpu": {"launches": "recorded"}},
            {"device": "cpu"},
            "precision",
            "float32",
            "gpu.launches of run.toml is ignored: the device is the CPU",
        ),
        (
            {"task": {"target": "user", "metric": "accuracy"}},
            {"task.kind": "link-prediction"},
            "task.target",
            None,
            "task.target of run.toml is ignored: it is a setting of the task node-classification",
        ),
        (
            {"model": {"kind": "rgcn", "bases": 3}},
            {"model.kind": "sage"},
            "model.bases",
            0,
            "model.bases of run.toml is ignored",
        ),
    ],
)
def test_settings_that_follow_from_others_are_chosen_and_named(
    values: dict[str, object], options: dict[str, object], path: str, chosen: object, note: str
) -> None:
    raw = with_options(RawRun({"graph": "g", **values}, "run.toml"), options)
    assert value_at(checked(raw), path) == chosen
    assert note in " ".join(notes_on(raw))


def test_a_rule_that_a_run_names_draws_by_its_weights() -> None:
    run = run_of(sampler={"rule": {"kind": "weighted"}, "weight": "w", "replacement": True})
    assert run.sampler.rule is not None
    assert run.sampler.rule.model_dump() == {"kind": "weighted", "column": "w", "replacement": True}
    assert "it replaces sampler.weight" in complaint(
        {"graph": "g", "sampler": {"rule": {"kind": "labor"}, "weight": "w"}}
    )


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"sampler": {"fanouts": [7, 5]}, "model": {"layers": 3}}, "give one fanout per layer"),
        ({"model": {"unknown": 0.1, "embedding": 0}}, "has no embeddings"),
        ({"links": {"filtered": True, "decoder": "dot"}}, "needs a relational decoder"),
        ({"links": {"shared_negatives": 3, "negatives_group": 1}}, "give the number of links"),
        ({"model": {"kind": "sage", "bases": 3}}, "only rgcn has bases"),
    ],
)
def test_settings_that_contradict_each_other_stay_an_error(values: dict[str, object], problem: str) -> None:
    assert problem in complaint({"graph": "g", **values})


def test_an_empty_option_leaves_a_setting_out() -> None:
    raw = RawRun({"graph": "g", "sampler": {"time": "day"}, "evaluation": {"fanouts": [2, 2]}}, "run.toml")
    run = checked(with_options(raw, {"sampler.time": ""}))
    assert (run.sampler.time, run.evaluation.fanouts) == (None, (2, 2))
    assert "graph is ''" in complaint({"graph": "g"}, {"graph": ""})


@pytest.mark.parametrize(
    ("values", "gpus", "device"),
    [
        ({}, 0, "cpu"),
        ({}, 2, "cuda"),
        ({"device": "auto"}, 1, "cuda"),
        ({"device": "cpu"}, 1, "cpu"),
        ({"links": {"hard_negatives": 3}, "task": {"kind": "link-prediction"}}, 1, "cpu"),
    ],
)
def test_the_device_is_a_gpu_if_there_is_one_and_a_note_says_so(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, object], gpus: int, device: str
) -> None:
    monkeypatch.setattr("khop.loading.device.streams.num_gpus", lambda: gpus)
    raw = RawRun({"graph": "g", **values}, "run.toml")
    config = checked(raw)
    assert config.device == device
    notes = [note for note in notes_of(config, Schema(("n",), ()), raw) if note.startswith("device is")]
    is_chosen = device == "cuda"
    assert notes == ["device is cuda: torch finds a GPU; --device cpu computes on the CPU"] * is_chosen


FANOUTS_ALLOWED = (
    "a list of whole numbers, one per hop: neighbors per node, -1 for all, 0 for none, at most "
    '2147483647; or, for a hop, a table of them by edge type, as {"user buys item" = 5, "*" = 2}'
)


@pytest.mark.core(9)
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"graph": ""}, "graph is '': must be text that is not empty"),
        ({"graph": 3}, "graph is 3: must be text that is not empty"),
        ({"task": "sage"}, "task is 'sage': must be a table of fields"),
        (
            {"task": {"kind": "links"}},
            "task.kind is 'links': must be one of node-classification, node-regression, multi-label, "
            "edge-classification, edge-regression, link-prediction, or package.module:Class",
        ),
        ({"task": {"label": ""}}, "task.label is '': must be text that is not empty"),
        ({"precision": "half"}, "precision is 'half': must be one of float32, tf32, float64, bfloat16"),
        ({"device": "gpu"}, "device is 'gpu': must be auto, cpu, cuda or cuda:<number>"),
        (
            {"gpu": {"topology": "mapped"}},
            "gpu.topology is 'mapped': must be one of auto, device, sharded, pinned, host",
        ),
        (
            {"gpu": {"cache": "much"}},
            "gpu.cache is 'much': must be bytes, as \"4GB\", or a share of the input columns, "
            'as "20%"; 0 for none',
        ),
        ({"threads": -1}, "threads is -1: must be a whole number of at least 0 and at most 1024"),
        ({"training": {"epochs": "3"}}, "training.epochs is '3': must be a whole number of at least 1"),
        ({"training": {"epochs": 3.0}}, "training.epochs is 3.0: must be a whole number of at least 1"),
        ({"training": {"epochs": True}}, "training.epochs is true: must be a whole number of at least 1"),
        (
            {"training": {"seed": 1 << 63}},
            "training.seed is 9223372036854775808: must be a whole number from 0 to 2^63 - 1",
        ),
        (
            {"training": {"learning_rate": float("nan")}},
            "training.learning_rate is nan: must be a number above 0",
        ),
        ({"model": {"dropout": 1.0}}, "model.dropout is 1.0: must be a number of at least 0 and below 1"),
        ({"model": {"layers": 0}}, "model.layers is 0: must be a whole number of at least 1"),
        ({"model": {"residual": "yes"}}, "model.residual is 'yes': must be true or false"),
        ({"sampler": {"fanouts": [15, 2.5]}}, f"sampler.fanouts is [15, 2.5]: must be {FANOUTS_ALLOWED}"),
        ({"sampler": {"fanouts": [-2]}}, f"sampler.fanouts is [-2]: must be {FANOUTS_ALLOWED}"),
        ({"sampler": {"fanouts": []}}, f"sampler.fanouts is []: must be {FANOUTS_ALLOWED}"),
        (
            {"sampler": {"fanouts": [{"*": -2}]}},
            f"sampler.fanouts is [{{'*': -2}}]: must be {FANOUTS_ALLOWED}",
        ),
        (
            {"sampler": {"fanouts": [{"*": "many"}]}},
            f"sampler.fanouts is [{{'*': 'many'}}]: must be {FANOUTS_ALLOWED}",
        ),
        ({"sampler": {"fanouts": 15}}, f"sampler.fanouts is 15: must be {FANOUTS_ALLOWED}"),
        (
            {"model": {"bases": 4}},
            "model.bases is 4: only rgcn has bases; leave it out",
        ),
        (
            {"sampler": {"fanouts": [15, 10]}, "model": {"layers": 3}},
            "sampler.fanouts has 2 entries, model.layers is 3: give one fanout per layer",
        ),
        (
            {"sampler": {"fanouts": [15, 10]}, "evaluation": {"fanouts": [5]}},
            "evaluation.fanouts has 1 entry, sampler.fanouts make 2 layers: give one fanout per layer",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed_and_where_it_stands(
    values: dict[str, object], sentence: str
) -> None:
    assert complaint({"graph": "g", **values}) == f"{sentence} (run.toml)"


def test_a_run_without_a_graph_says_how_to_name_one() -> None:
    assert complaint({}) == "graph is missing: give --graph, or graph = ... in the file (run.toml)"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"training": {"epoch": 3}}, "training.epoch: no such field; did you mean training.epochs?"),
        ({"epochs": 3}, "epochs: no such field; did you mean training.epochs?"),
        ({"modle": {}}, "modle: no such field; did you mean model?"),
        (
            {"evaluation": {"zzz": 1}},
            "evaluation.zzz: no such field; there are fanouts, batch_size, batch_edges, every, every_steps",
        ),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_field(values: dict[str, object], sentence: str) -> None:
    assert complaint({"graph": "g", **values}) == f"{sentence} (run.toml)"


def test_an_option_overrides_the_file_and_is_named_when_it_is_wrong() -> None:
    raw = RawRun({"graph": "g", "training": {"epochs": 3, "seed": 7}}, "run.toml")
    run = checked(with_options(raw, {"training.epochs": 5, "model.hidden": 8, "threads": 2}))
    assert (run.training.epochs, run.training.seed, run.model.hidden, run.threads) == (5, 7, 8, 2)
    assert raw.values == {"graph": "g", "training": {"epochs": 3, "seed": 7}}
    assert complaint({"graph": "g"}, {"training.epochs": "x"}) == (
        "training.epochs is 'x': must be a whole number of at least 1 (--epochs)"
    )
    hops = {"model.layers": 3, "sampler.fanouts": [5, 5]}
    assert complaint({"graph": "g"}, hops) == (
        "sampler.fanouts has 2 entries, model.layers is 3: give one fanout per layer (run.toml, --layers, "
        "--fanouts)"
    )
    assert complaint({"graph": "g", "model": 3}, {"model.layers": 3}) == (
        "model is 3: must be a table of fields (run.toml)"
    )


def test_a_file_that_is_no_toml_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("graph = \n")
    with pytest.raises(ValueError, match=r"run\.toml: not TOML: .*line 1"):
        read_toml(path)
    path.write_bytes(b"graph = '\xff'")
    with pytest.raises(ValueError, match=r"run\.toml: not TOML: line 1 is not UTF-8"):
        read_toml(path)


numbers = st.integers(-1, 100)
printable = st.text(min_size=1).filter(lambda text: text.isprintable())
fanouts = st.lists(numbers | st.dictionaries(printable, numbers, max_size=3), min_size=1, max_size=4)


@given(
    fanouts,
    st.booleans(),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 2**63 - 1),
    st.sampled_from(["float32", "float64", "bfloat16"]),
    st.text(min_size=1).filter(lambda text: text.isprintable()),
    st.none() | st.text(min_size=1).filter(lambda text: text.isprintable()),
)
def test_a_run_written_as_toml_reads_back_as_the_same_run(
    fanouts: list[int | dict[str, int]],
    flag: bool,
    dropout: float,
    seed: int,
    precision: str,
    graph: str,
    label: str | None,
) -> None:
    task = {} if label is None else {"label": label}
    run = run_of(
        graph=graph,
        task=task,
        precision=precision,
        sampler={"fanouts": fanouts, "replacement": flag},
        model={"dropout": dropout, "layers": len(fanouts)},
        training={"seed": seed},
    )
    assert checked(RawRun(tomllib.loads(to_toml(run)), "again")) == run


@dataclass(frozen=True)
class Mine:
    """A component outside khop, which is its own options."""

    width: int = 3
    """Width"""


class Even:
    """A component with validators of its own."""

    class Options(BaseModel):
        """Two numbers."""

        width: int = 4
        depth: int = 1

        @field_validator("width")
        @classmethod
        def _is_even(cls, width: int) -> int:
            if width % 2:
                raise ValueError("give an even width")
            return width

    @staticmethod
    def build(options: Options, context: object) -> None:
        """Make nothing."""


def test_the_message_of_a_validator_outside_khop_is_kept() -> None:
    raw = RawRun({"graph": "g", "model": {"width": 3}}, "run.toml")
    kind = {"model.kind": f"{__name__}:Even"}
    for options, place in ((kind, "run.toml"), ({**kind, "model.width": 3}, "--width")):
        with pytest.raises(ValueError, match=r"\w") as caught:
            checked(with_options(raw, options))
        assert str(caught.value) == f"model.width is 3: give an even width ({place})"


def test_an_option_may_name_any_component_but_a_file_only_permitted_ones() -> None:
    kind = f"{__name__}:Mine"
    typed = {"model.width": 5, "model.kind": kind}
    run = checked(with_options(RawRun({"graph": "g"}, "runs/a/config.toml"), typed))
    assert run.model.model_dump()["width"] == 5
    written = RawRun({"graph": "g", "model": {"kind": kind}}, "runs/a/config.toml")
    for raw in (written, with_options(written, {"training.epochs": 1})):
        with pytest.raises(
            ValueError,
            match=r"code named by a run folder is not imported without permission; .*\(runs/a/config",
        ):
            checked(raw)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_run(name: str) -> None:
    assert checked(preset(name)).graph in builtin_names()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagged_shop(tmp_path_factory.mktemp("graphs") / "shop")


def test_more_epochs_are_another_run_where_the_learning_rate_falls_to_the_last(shop: Path) -> None:
    def facts(**training: object) -> Mapping[str, str]:
        run = prepared(shop, model={"hidden": 8, "embedding": 0, "encoder": "linear"}, training=training)
        return facts_of(run.config, run.fingerprint)

    assert facts(epochs=3) == facts(epochs=4)
    falling = facts(epochs=3, schedule="linear")
    assert falling["training.epochs"] == "3"
    assert falling != facts(epochs=4, schedule="linear")


BODY = b'graph = "debian"\n'


def test_a_changed_file_is_used_and_named(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "config.toml"
    file.write_bytes(DIGEST + digest_of(BODY) + b"\n" + BODY)
    assert saved_run(tmp_path, (), said.append).values == {"graph": "debian"}
    assert said == []
    file.write_bytes(file.read_bytes().replace(b"debian", b"toys"))
    assert saved_run(tmp_path, ["package"], said.append).values == {"graph": "toys"}
    assert said == [
        f"{file}: was changed or damaged after khop train wrote it; its current settings are used"
    ]


def test_another_folder_is_refused(tmp_path: Path) -> None:
    assert not is_run_folder(tmp_path)
    with pytest.raises(ValueError, match=r"not a run folder, it has no config.toml"):
        saved_run(tmp_path, (), print)
