"""Keys of earlier versions get their new names, once, in every file that has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from khop.config.fields import run_fields
from khop.config.read import checked, read_toml
from khop.migrations import RENAMED, with_new_names, with_new_paths
from khop.training.run_log import RunLog
from khop.training.step_clock import STAGES

SETTINGS = [entry for entry in RENAMED if entry.new.partition(".")[0] not in ("seconds", "traffic")]


def test_new_names_of_settings_are_fields_and_old_ones_are_not() -> None:
    paths = {field.path for field in run_fields()}
    assert {entry.new for entry in SETTINGS} <= paths
    assert not {entry.old for entry in RENAMED} & paths


def test_new_names_of_stages_are_stages() -> None:
    renamed = {entry.new.partition(".")[2] for entry in RENAMED if entry.new.startswith("seconds.")}
    assert renamed <= set(STAGES)


def test_no_name_is_both_old_and_new() -> None:
    old, new = ({getattr(entry, name) for entry in RENAMED} for name in ("old", "new"))
    assert len(old) == len(new) == len(RENAMED)
    assert not old & new


def test_tables_keep_their_order_and_all_else() -> None:
    content = {"graph": "a", "links": {"loss": "bce", "rivals": 3, "val": 0.1}, "sampler": {"keep": "any"}}
    renamed = with_new_names(content)
    assert renamed == {
        "graph": "a",
        "links": {"loss": "bce", "eval_negatives": 3, "val": 0.1},
        "sampler": {"temporal_strategy": "sample"},
    }
    assert list(renamed["links"]) == ["loss", "eval_negatives", "val"]  # type: ignore[call-overload]
    assert with_new_names(renamed) == renamed


def test_values_without_a_new_name_stay() -> None:
    assert with_new_paths({"sampler.keep": "latest", "seed": "0"}) == {
        "sampler.temporal_strategy": "latest",
        "seed": "0",
    }
    assert with_new_names({"sampler": {"keep": ["latest"]}}) == {"sampler": {"temporal_strategy": ["latest"]}}


def test_a_file_with_both_names_of_a_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('graph = "a"\nlinks = { rivals = 3, eval_negatives = 3 }\n')
    with pytest.raises(ValueError, match=r"links\.rivals: no such field"):
        checked(read_toml(file))


def test_lines_of_logs_are_read_with_new_names_and_others_byte_for_byte(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "steps.jsonl")
    new = '{"epoch":  1, "seconds": {"saving": 0.5}}'
    log.path.write_text(
        '{"epoch": 0, "seconds": {"keeping": 0.25}, "traffic": {"kept_rows": 2}}\n' + new + "\n"
    )
    first, second = log.lines()
    assert json.loads(first) == {"epoch": 0, "seconds": {"saving": 0.25}, "traffic": {"host_cache_rows": 2}}
    assert second == new.encode()


def test_a_key_may_move_to_another_table() -> None:
    old = {"parts": {"lanes": 2, "device_bytes": 1000}, "gpu": {"topology": "host"}}
    new = {"parts": {"lanes": 2}, "gpu": {"topology": "host", "cache": 1000}}
    assert with_new_names(old) == new
    assert with_new_names({"parts": {"device_bytes": 1000}}) == {"parts": {}, "gpu": {"cache": 1000}}
    assert with_new_names({"gpu": {"cache": "1%"}, "parts": {"device_bytes": 3}}) == {
        "gpu": {"cache": "1%"},
        "parts": {"device_bytes": 3},
    }
