"""The flat list of fields is what options, errors and the documentation are made from."""

from __future__ import annotations

from khop.config.fields import field_at, run_fields, sections, value_at
from khop.config.read import RawRun, checked


def test_every_field_has_an_option_of_its_own_and_a_description() -> None:
    options = [entry.option for entry in run_fields()]
    assert len(set(options)) == len(options)
    assert all(entry.description and entry.allowed for entry in run_fields())


def test_every_leaf_of_every_table_is_listed_once() -> None:
    leaves = [f"{name}.{key}".lstrip(".") for name, table in sections().items() for key in table.model_fields]
    assert sorted(entry.path for entry in run_fields()) == sorted(set(leaves) - set(sections()))


def test_options_carry_the_bare_name_unless_their_table_shares_it() -> None:
    names = {entry.path: entry.option for entry in run_fields()}
    assert names["training.epochs"] == "--epochs"
    assert names["compute_threads"] == "--compute-threads"
    assert (names["model.kind"], names["task.kind"]) == ("--model", "--task")
    assert (names["sampler.fanouts"], names["evaluation.fanouts"]) == ("--fanouts", "--evaluation-fanouts")
    assert field_at("training.epoch") is None


def test_a_default_in_the_list_is_what_an_empty_run_has() -> None:
    run = checked(RawRun({"graph": "g"}, "run.toml"))
    assert all(value_at(run, entry.path) == entry.default for entry in run_fields() if not entry.required)
