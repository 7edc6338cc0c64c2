"""What `khop plan` says of a run over two hosts, against what the run counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pytest

from khop.api.partition import partition_graph
from khop.run.planning.prediction import MEASURED, EdgePlacement, Prediction, predict
from khop.run.planning.workload import Cluster, GraphSize, PlannedRun
from network.hosts import two_hosts
from network.runs import ended, started
from run.planning.test_neighborhood import FANOUTS, NODES, STATED_FACTOR, write_clustered_graph
from support.commands import records

HOSTS, WIDTH, SEEDS, STEPS, HIDDEN, CLASSES = 2, 64, 60, 20, 16, 4
RUN = f"""
    graph = "parts"
    compute_threads = 1
    sampler = {{ fanouts = {list(FANOUTS)} }}
    model = {{ hidden = {HIDDEN}, dropout = 0.0 }}
    training = {{ epochs = 1, batch_size = {HOSTS * SEEDS} }}
    evaluation = {{ fanouts = [1, 1] }}
"""


@dataclass(frozen=True)
class Link:
    """What lies between the hosts."""

    megabits_s: float
    delay_s: float
    bottleneck: str

    def seconds(self, counts: dict[str, float]) -> dict[str, float]:
        """What exchanges take at least that come to these counts, by what holds them up."""
        sent = counts["row_bytes_sent"] + counts["id_bytes_sent"]
        return {"network": sent * 8e-6 / self.megabits_s, "latency": counts["collectives"] * self.delay_s}


LINKS = {"10 Mbit/s": Link(10, 2e-5, "network"), "5 ms": Link(20_000, 5e-3, "latency")}


def counted(out: str) -> dict[str, float]:
    """Of a rank's batch, the mean over steps and ranks."""
    steps = [record["traffic"] for record in records(out, "steps")]
    assert len(steps) == STEPS
    return {name: mean(value for step in steps for value in step[name]) for name in steps[0]}  # type: ignore[index, attr-defined]


def planned(edges: int, remote_share: float | None, link: Link, cache_share: float) -> dict[str, Prediction]:
    """By placement, as `--placement` names it."""
    size = GraphSize(NODES, edges, 4 * WIDTH)
    run = PlannedRun(FANOUTS, HOSTS * SEEDS, HIDDEN, CLASSES, remote_share)
    cluster = Cluster(HOSTS, 1, link.megabits_s / 1000, link.delay_s, cache_share)
    found = {each.placement: each for each in predict(size, run, cluster, MEASURED)}
    return {"features": found[EdgePlacement.REPLICATED], "all": found[EdgePlacement.PARTITIONED]}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "placement", "cache_share"), [("10 Mbit/s", "features", 0.2), ("5 ms", "all", 0.0)]
)
def test_a_plan_says_what_a_run_counts(
    name: str, placement: str, cache_share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_clustered_graph(tmp_path / "graph", WIDTH, HOSTS * SEEDS * STEPS)
    book = partition_graph(source, "parts", HOSTS, fanouts=FANOUTS, batch_size=HOSTS * SEEDS)
    edges = sum(offsets[-1] for offsets in book.edge_offsets.values())
    link = LINKS[name]
    plan = planned(edges, book.quality.remote_share, link, cache_share)[placement]
    cache_bytes = round(cache_share * NODES / HOSTS) * 4 * WIDTH + NODES if cache_share else 0
    Path("run.toml").write_text(RUN)
    given = ("--placement", placement, "--cache-bytes", str(cache_bytes), "--out", "run")
    with two_hosts(delay_s=0.0 if name == "10 Mbit/s" else link.delay_s) as hosts:
        for host in hosts if name == "10 Mbit/s" else ():
            host.limit(10)
        outcomes = ended(started(hosts, "run.toml", *given))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    counts, traffic = counted("run"), plan.traffic
    assert counts["collectives"] == traffic.collectives
    sent = counts["row_bytes_sent"] + counts["id_bytes_sent"]
    for predicted, found in (
        (traffic.nodes, counts["needed_rows"]),
        (traffic.remote_rows, counts["remote_rows"]),
        (traffic.fetched_rows, counts["requested_rows"]),
        (traffic.row_bytes + traffic.hop_bytes, sent),
    ):
        assert 1 / STATED_FACTOR < predicted / found < STATED_FACTOR, (traffic, counts)
    seconds = link.seconds(counts)
    assert plan.times.bottleneck == link.bottleneck == max(seconds, key=lambda kind: seconds[kind])
