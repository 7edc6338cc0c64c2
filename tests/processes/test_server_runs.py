"""A run over servers that are killed, by trainers that change in number: the losses of a local run."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

import pyarrow.parquet

from khop.api.partition import partition_graph
from khop.servers.access import Role, secret_of, write_token
from support.certificates import Authority
from support.commands import ENVIRONMENT, KHOP, TORCHRUN, children, free_port, train
from support.gate import WAIT_S
from support.named_shop import CLASSES, write_named_shop
from support.server_processes import servers
from support.small_folders import write_hub_graph, write_learnable_graph

RUN = """
    graph = "toy"
    compute_threads = 1
    sampler = { fanouts = [4, 3] }
    model = { hidden = 16, dropout = 0.0 }
    training = { epochs = 6, batch_size = 32, learning_rate = 0.03 }
    checkpoint = { steps = 2 }
"""


def losses(folder: str) -> list[tuple[int, int, float]]:
    """Epoch, step and loss of each step of a run."""
    lines = map(json.loads, Path(folder, "steps.jsonl").read_text().splitlines())
    return [(line["epoch"], line["step"], line["loss"]) for line in lines]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_servers_are_killed_and_the_world_size_changes_within_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trainer is stopped by Ctrl-C, three continue and are stopped, two end; a server is killed."""
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "toy", nodes=450)
    Path("run.toml").write_text(RUN)
    train("run.toml", "--out", "local")
    with servers() as start:
        running = [start("toy"), start("toy")]
        addresses = ",".join(each.address for each in running)
        stopped = 0
        for number, words in (
            ("1", ["run.toml", "--out", "far", "--servers", addresses]),
            ("3", ["--resume", "far"]),
        ):
            words = [*KHOP, *words, "--procs", number]
            with subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as trainers:
                _await_steps("far", stopped + 4, trainers)
                trainers.send_signal(signal.SIGINT)
            before, stopped = stopped, len(losses("far"))
            assert before + 4 <= stopped < len(losses("local"))
        running[0].kill()
        train("--resume", "far", "--procs", "2")
    found, expected = losses("far"), losses("local")
    assert [step[:2] for step in found] == [step[:2] for step in expected]
    # Without dropout, which is drawn for each rank, only the order of float32 sums depends on their number.
    apart = max(abs(one[2] - other[2]) / other[2] for one, other in zip(found, expected, strict=True))
    print(f"losses differ by at most {apart:.1e}")
    assert apart < 1e-4


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_servers_gone_ends_a_run_with_a_sentence_and_resume_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "toy", nodes=450)
    Path("run.toml").write_text(RUN)
    train("run.toml", "--out", "local", "--procs", "2")
    with servers() as start:
        server = start("toy")
        limits = ["--servers-deadline", "8", "--servers-attempt", "4"]
        words = [*KHOP, "run.toml", "--out", "far", "--servers", server.address, "--procs", "2", *limits]
        with subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE) as trainers:
            _await_steps("far", 7, trainers)
            assert (ranks := children(trainers.pid))
            server.kill()
            said = trainers.communicate(timeout=WAIT_S)[1].decode()
        assert trainers.returncode == 1
        assert len(losses("far")) < len(losses("local"))
        (sentence,) = (line for line in said.splitlines() if "--resume" in line)
        for part in (server.address, "no server has answered for 8 s", "khop train --resume far"):
            assert part in sentence
        assert "Traceback" not in said
        assert [pid for pid in ranks if Path(f"/proc/{pid}").exists()] == []
        start("toy", listen=server.address)
        train("--resume", "far", "--procs", "2")
    assert losses("far") == losses("local")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_its_servers_of_parts_and_their_status_use_tls_with_certificates_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers of parts ask each other, and a run asks them, by certificates and tokens of their own."""
    monkeypatch.chdir(tmp_path)
    home = Authority.of(tmp_path / "ca")
    own, client = home.signed("server"), home.signed("client")
    partition_graph(write_learnable_graph(tmp_path / "toy"), tmp_path / "toy-2", 2)
    write_token(tmp_path / "between", role=Role.SERVER)
    write_token(tmp_path / "alice")
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    files = "ca = 'ca/ca.pem'\nclient_cert = 'ca/client.pem'\nclient_key = 'ca/client.key'\n"
    Path("owners.toml").write_text(
        f"parts = {[[each] for each in addresses]}\ntoken_file = 'between'\n{files}"
    )
    run = RUN.replace('"toy"', '"toy-2"').replace("epochs = 6", "epochs = 2")
    Path("local.toml").write_text(run)
    Path("far.toml").write_text(f"{run}\n[servers]\naddresses = {addresses}\ntoken_file = 'alice'\n{files}")
    tls = ("--tls-cert", own.cert, "--tls-key", own.key, "--client-ca", home.pair.cert)
    tokens = ("--token-file", "between", "--token-file", "alice")
    with servers() as start:
        running = [
            start("toy-2", "--part", str(part), "--owners", "owners.toml", *tls, *tokens, listen=address)
            for part, address in enumerate(addresses)
        ]
        for out in ("local", "far"):
            train(f"{out}.toml", "--out", out)
        mine = ("--token-file", "alice", "--ca", home.pair.cert)
        with_certificate = ("--client-cert", client.cert, "--client-key", client.key)
        for server in running:
            counts = server.status(*mine, *with_certificate)
            assert int(str(counts["service_hop"])) > 0
            assert int(str(counts["service_batches"])) > 0
        with pytest.raises(subprocess.CalledProcessError) as refused:
            running[0].status(*mine)
    assert "client_cert" in refused.value.stderr
    assert losses("far") == losses("local")
    secrets = [secret_of(tmp_path / name) for name in ("alice", "between")]
    for path in Path("far").rglob("*"):
        assert not (path.is_file() and any(each.encode() in path.read_bytes() for each in secrets)), path


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ranks_of_torchrun_on_servers_have_the_losses_of_local_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "toy")
    Path("run.toml").write_text(RUN)
    train("run.toml", "--out", "local", "--procs", "2")
    with servers() as start:
        addresses = ",".join(start("toy").address for _ in range(2))
        words = [*TORCHRUN, "2", "-m", "khop", "train", "run.toml", "--out", "far", "--servers", addresses]
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert losses("far") == losses("local")
    lines = [json.loads(line) for line in Path("far", "steps.jsonl").read_text().splitlines()]
    assert {len(line["traffic"]["server"]) for line in lines} == {2}  # one number for each rank
    assert {place for line in lines for place in line["traffic"]["server"]} == {0, 1}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_each_step_of_a_run_has_the_traffic_of_its_batch_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_learnable_graph(tmp_path / "toy", nodes=2000)
    Path("run.toml").write_text(RUN)
    train("run.toml", "--out", "local")
    with servers() as start:
        running = [start("toy"), start("toy")]
        addresses = ",".join(each.address for each in running)
        words = [*KHOP, "run.toml", "--out", "far", "--servers", addresses]
        with subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as trainer:
            _await_steps("far", 20, trainer)
            running[0].kill()
            assert trainer.wait(300) == 0
    assert losses("far") == losses("local")
    lines = [json.loads(line) for line in Path("far", "steps.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["traffic"]["server"][0] in (0, 1)
        assert line["traffic"]["server_bytes"][0] > 0
        assert line["seconds"]["exchanging"][0] > 0
    assert {line["traffic"]["server"][0] for line in lines[:20]} == {0, 1}
    assert {line["traffic"]["server"][0] for line in lines[-20:]} == {1}
    assert sum(line["traffic"]["server_retries"][0] for line in lines) > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_is_evaluated_and_its_rows_are_inferred_over_servers_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact scores and rows over two servers of a part each are those of the folder of both parts."""
    monkeypatch.chdir(tmp_path)
    partition_graph(write_hub_graph(tmp_path / "toy"), tmp_path / "toy-2", 2)
    train("--graph", "toy-2", "--fanouts", "4,3", "--hidden", "16", "--epochs", "2", "--out", "local")
    write_token(tmp_path / "between", role=Role.SERVER)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    Path("owners.toml").write_text(f"parts = {[[each] for each in addresses]}\ntoken_file = 'between'\n")
    far = ["--servers", ",".join(addresses), "--token-file", "between"]
    small = ["--evaluation-batch-edges", "300"]
    with servers() as start:
        for part, address in enumerate(addresses):
            options = ("--part", str(part), "--owners", "owners.toml", "--token-file", "between")
            start("toy-2", *options, "--max-batch-bytes", "60000", listen=address)
        scores = [_khop("evaluate", "local", "--json", *small, *options) for options in ((), far)]
        for out, options in (("local", []), ("far", far)):
            _khop("infer", "local", "--out", f"{out}.parquet", *small, *options)
            _khop("evaluate", "local", "--predictions", f"{out}.predictions.parquet", *small, *options)
        refused = subprocess.run(
            [*KHOP[:-1], "infer", "local", "--out", "refused.npy", *far], env=ENVIRONMENT, capture_output=True
        )
    here, there = ({k: v for k, v in json.loads(each).items() if k != "seconds"} for each in scores)
    assert there == here
    for name in ("parquet", "predictions.parquet"):
        assert Path(f"far.{name}").read_bytes() == Path(f"local.{name}").read_bytes()
    columns = pyarrow.parquet.read_table("far.parquet").column_names
    assert columns == ["node", "original_id", "embedding"]
    assert refused.returncode != 0
    assert b"--evaluation-batch-edges" in refused.stderr
    assert b"Traceback" not in refused.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_files_over_servers_of_parts_have_the_users_ids_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of text, class names and original ids come from servers that limit their answers."""
    monkeypatch.chdir(tmp_path)
    partition_graph(write_named_shop(tmp_path / "shop"), tmp_path / "shop-2", 2, method="random")
    run = ("--task", "node-classification", "--target", "item", "--fanouts", "3,2", "--hidden", "8")
    train("--graph", "shop-2", *run, "--epochs", "1", "--out", "local")
    write_token(tmp_path / "between", role=Role.SERVER)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    Path("owners.toml").write_text(f"parts = {[[each] for each in addresses]}\ntoken_file = 'between'\n")
    far = ["--servers", ",".join(addresses), "--token-file", "between"]
    with servers() as start:
        for part, address in enumerate(addresses):
            options = ("--part", str(part), "--owners", "owners.toml", "--token-file", "between")
            start("shop-2", *options, "--max-batch-bytes", "400000", listen=address)
        for out, options in (("local", []), ("far", far)):
            _khop("infer", "local", "--out", f"{out}.parquet", *options)
            _khop("evaluate", "local", "--predictions", f"{out}.predictions.parquet", *options)
    for name in ("parquet", "predictions.parquet"):
        assert Path(f"far.{name}").read_bytes() == Path(f"local.{name}").read_bytes()
    rows = pyarrow.parquet.read_table("far.parquet")
    assert rows["id"].to_pylist() == [7 * node - 100 for node in rows["original_id"].to_pylist()]
    predicted = pyarrow.parquet.read_table("far.predictions.parquet")
    assert set(predicted["prediction"].to_pylist()) <= set(CLASSES)


def _khop(*words: str) -> str:
    """Run a command in a process of its own; return stdout."""
    done = subprocess.run(
        [*KHOP[:-1], *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _await_steps(folder: str, steps: int, trainers: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while not Path(folder, "steps.jsonl").exists() or len(losses(folder)) < steps:
        assert trainers.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < end
        time.sleep(0.01)
