"""URLs of object stores: what is one, its mirror, and errors before and without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conftest import Ran, khop_command  # noqa: F401
from khop.graph.remote import Location, StoreError, _checked_index, is_url, staged, with_urls

NAMES = st.text("abcXYZ019-_.@ ", min_size=1, max_size=8).filter(lambda name: name.strip(".") == name)


@given(
    scheme=st.sampled_from(["s3", "gs"]), bucket=st.text("abc-", min_size=1), keys=st.lists(NAMES, min_size=1)
)
def test_a_mirror_names_its_url(scheme: str, bucket: str, keys: list[str]) -> None:
    url = f"{scheme}://{bucket}/{'/'.join(keys)}"
    location = Location.of(url)
    assert location.url == url
    assert Location.at(location.mirror) == location
    assert with_urls(f"results in {location.mirror}; done") == f"results in {url}; done"
    assert Location.at(Path("graphs/g")) is None


def test_azure_has_its_account_in_the_container() -> None:
    location = Location.of("az://shop@account/graphs/g")
    assert (location.bucket, location.key) == ("shop", "graphs/g")
    with pytest.raises(
        ValueError, match=r"az://shop/g: the storage account is missing; give az://CONTAINER@"
    ):
        Location.of("az://shop/g")


@pytest.mark.parametrize(
    ("url", "near"), [("s4://b/g", "s3"), ("S3://b/g", "s3"), ("s3a://b/g", "s3"), ("gcs://b/g", "gs"),
                      ("abfs://b/g", "az")],
)  # fmt: skip
def test_a_misspelled_scheme_is_answered_with_the_right_one(url: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown scheme; did you mean {near}://\?"):
        is_url(url)


@pytest.mark.parametrize("text", ["graphs/g", "s3:/b/g", "https://host/x", "postgresql://a/b", "", 3])
def test_other_texts_are_no_urls(text: object) -> None:
    assert not is_url(text)


def test_credentials_in_a_url_are_refused_and_not_printed() -> None:
    for url in ("s3://someone:verysecret@bucket/g", "gs://verysecret@bucket/g", "az://a:verysecret@b/g"):
        with pytest.raises(ValueError, match="the URL has credentials; leave them out and set") as refused:
            Location.of(url)
        assert "verysecret" not in str(refused.value)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/../g", "s3://b/g?scheme=http"])
def test_a_url_without_a_plain_path_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"give s3://BUCKET/PATH, without options"):
        Location.of(url)


def test_a_store_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ValueError, match=r"s3://b/g: the store cannot be reached \(NETWORK_CONN"):
        staged("s3://b/g")


def test_credentials_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    says = r"gs://b/g: the store refuses access \(\w+\); set GOOGLE_APPLICATION_CREDENTIALS$"
    with pytest.raises(ValueError, match=says):
        staged("gs://b/g")


def test_the_command_refuses_stores_where_it_changes_folders(
    khop_command: Callable[..., Ran],  # noqa: F811
) -> None:
    ran = khop_command("append", "s3://b/g", "spec.toml")
    assert ran.code == 2
    assert ran.stderr.startswith("khop: khop append s3://b/g: reads and writes local folders alone; copy")
    ran = khop_command("train", "s4://b/run.toml")
    assert ran.code == 2
    assert (
        ran.stderr == "khop: s4://: unknown scheme; did you mean s3://? khop reads s3://, gs:// and az://\n"
    )


def test_credentials_are_not_printed_by_commands_that_refuse_stores(
    khop_command: Callable[..., Ran],  # noqa: F811
) -> None:
    ran = khop_command("append", "s3://someone:verysecret@b/g", "spec.toml")
    assert ran.code == 2
    assert ran.stderr.startswith("khop: s3://...: the URL has credentials")
    assert "verysecret" not in ran.stderr
    ran = khop_command("s3://b/g")
    assert (
        ran.stderr
        == "khop: khop s3://b/g: is not a command; to train on a graph: khop train --graph s3://b/g\n"
    )


def test_mirrors_in_json_are_urls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "josé"))
    text = json.dumps({"run": str(Location.of("s3://b/runs/a").mirror)})
    assert json.loads(with_urls(text)) == {"run": "s3://b/runs/a"}


def test_a_bucket_that_cannot_be_one_is_named() -> None:
    with pytest.raises(ValueError, match=r"^s3://my bucket: is not the name of a bucket; correct the URL$"):
        Location.of("s3://my bucket/g")


@pytest.mark.parametrize(
    "index", [{"../../x": "checkpoints/at-0123456789abcdef"}, {"checkpoints/../../x": "at-0123456789abcdef"},
              {"/x": "/at-0123456789abcdef"}, {"a/.ssh": "a/at-0123456789abcdef"}, {"a/b": "a/b"},
              {"a/b": "c/at-0123456789abcdef"}, {"a/b": None}, ["a/b"], "a/b", None],
)  # fmt: skip
def test_an_index_of_checkpoints_names_folders_of_its_run(index: object) -> None:
    known = {"checkpoints/last": "checkpoints/at-0123456789abcdef"}
    assert _checked_index(Location.of("s3://b/run"), json.dumps(known).encode()) == known
    with pytest.raises(StoreError, match=r"^s3://b/run: checkpoints.json is not what khop writes"):
        _checked_index(Location.of("s3://b/run"), json.dumps(index).encode())
