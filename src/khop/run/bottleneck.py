"""Rules that find the bottleneck of a profiled run, and the setting to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from khop.kernels.linear_choice import has_bfloat16_instructions
from khop.process_tuning import usable_cores
from khop.run.profile import RankSummary, Summary
from khop.run.values import RunConfig
from khop.servers.access import parsed_addresses
from khop.training.step_clock import BESIDE


@dataclass(frozen=True)
class Machine:
    """Properties of the machine of a run."""

    cores_per_rank: int
    has_fast_bfloat16: bool  # the device has instructions to multiply bfloat16


def this_machine(device: str, ranks_here: int) -> Machine:
    """Return the properties of this machine, shared by `ranks_here` ranks."""
    return Machine(max(1, usable_cores() // ranks_here), has_fast_bfloat16(device))


def has_fast_bfloat16(device: str) -> bool:
    """Return whether a device has instructions to multiply bfloat16; False if unknown."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return has_bfloat16_instructions()


HOLDS_UP = 0.1  # share of the time: a smaller loss is not worth a change
BUSY = 0.7  # share of the time: threads above it count as fully used
FULL = 0.9  # share of the cores
CROWDED = 0.7  # busy cores per process while it computes: below it, other programs use the cores
LATE = 3  # times the wait for other servers: above it, one server is the cause
ONE_RANKS = 2 / 3  # share of all waits between ranks: above it, a single rank is the cause


class Kind(StrEnum):
    """Kind of a bottleneck."""

    SAMPLING = "sampling"
    GATHERING = "gathering"
    SERVERS = "servers"
    PREFETCH = "prefetch"
    FIRST_BATCHES = "first batches"
    TRANSFER = "transfer"
    COMMUNICATION = "communication"
    SLOW_RANK = "slow rank"
    UNEVEN_RANKS = "uneven ranks"
    SAVING = "saving"
    CROWDED = "crowded machine"
    COMPUTE = "compute"


@dataclass(frozen=True)
class Bottleneck:
    """The bottleneck of a run, with advice."""

    kind: Kind
    finding: str  # a sentence without the full stop
    advice: str  # the same; reports add the setting, and the value if there is a better one
    setting: str  # dotted path of the setting to change
    value: str | None = None  # value to try; None: no single value is better


def bottleneck(summary: Summary, config: RunConfig, machine: Machine) -> Bottleneck:
    """Return the most important bottleneck."""
    if (crowded := _crowded(summary, config)) is not None:
        return crowded
    if (of_ranks := _of_ranks(summary, config, machine)) is not None:
        return of_ranks
    costs = {
        "waiting": summary.share("waiting"),
        "moving": summary.share("moving"),
        "communicating": summary.share("communicating"),
        "saving": summary.share("saving"),
    }
    largest = max(costs, key=lambda stage: costs[stage])
    if costs[largest] < HOLDS_UP:
        return _computing(summary, config, machine)
    if largest == "waiting":
        return _waiting(summary, config, machine)
    if largest == "moving":
        return _moving(summary, config)
    if largest == "communicating":
        return _communicating(summary, config)
    return Bottleneck(
        Kind.SAVING,
        f"Writing logs takes {_percent(costs['saving'])} of the time",
        "move the run folder to a faster disk",
        "out",
    )


def _crowded(summary: Summary, config: RunConfig) -> Bottleneck | None:
    """Detect other programs on the cores, which make the measurements unreliable."""
    busy = _busy_cores(summary)
    if config.device != "cpu" or busy is None or busy >= CROWDED * summary.share("computing"):
        return None
    computing = _percent(summary.share("computing"))
    return Bottleneck(
        Kind.CROWDED,
        f"A process had {busy:.1f} of a core, with {computing} of its time spent computing: other programs "
        "use the cores",
        "measure again without them",
        "compute_threads",
    )


def _of_ranks(summary: Summary, config: RunConfig, machine: Machine) -> Bottleneck | None:
    """Detect ranks that wait for each other: either all wait for one slow rank, or each waits in turn."""
    lost = {rank.rank: summary.lost_to(rank.rank) for rank in summary.ranks}
    slowest = max(summary.ranks, key=lambda rank: lost[rank.rank])
    if lost[slowest.rank] >= max(HOLDS_UP, ONE_RANKS * sum(lost.values())):
        return _slow_rank(slowest, summary, config)
    if summary.waited < HOLDS_UP:
        return None
    finding = f"Ranks wait for each other {_percent(summary.waited)} of the time, each rank in turn"
    if _are_cores_full(summary, machine) and config.threads > 1:
        return Bottleneck(
            Kind.UNEVEN_RANKS,
            f"{finding}, and the cores are full",
            "use fewer threads to make batches",
            "threads",
            str(config.threads // 2),
        )
    return Bottleneck(
        Kind.UNEVEN_RANKS,
        finding,
        "use larger batches, because their shares differ less",
        "training.batch_size",
        str(2 * config.training.batch_size),
    )


def _slow_rank(slowest: RankSummary, summary: Summary, config: RunConfig) -> Bottleneck:
    lost = summary.lost_to(slowest.rank)
    others = [rank for rank in summary.ranks if rank is not slowest]
    more = {
        stage: slowest.share(stage) - sum(other.share(stage) for other in others) / len(others)
        for stage in ("waiting", "moving", "computing", "saving")
    }
    stage = max(more, key=lambda name: more[name])
    more_makers = ("use more threads to make them", "threads")
    if config.servers.addresses:
        more_makers = ("check its connection to the servers", "servers.addresses")
    doing, advice, setting = {
        "waiting": ("waits longer for its batches", *more_makers),
        "moving": ("takes longer to move its batches", "check for other programs on its device", "device"),
        "computing": (
            "computes longer",
            "check for other programs there, or divide the cores by hand",
            "compute_threads",
        ),
        "saving": ("writes longer", "move the run folder to a faster disk", "out"),
    }[stage]
    return Bottleneck(
        Kind.SLOW_RANK,
        f"Rank {slowest.rank} (host {slowest.host}) is slower than the others, which wait for it "
        f"{_percent(lost)} of the time: it {doing}, {_percent(slowest.share(stage))} of its time and "
        f"{_percent(slowest.share(stage) - more[stage])} of theirs",
        advice,
        setting,
    )


def _waiting(summary: Summary, config: RunConfig, machine: Machine) -> Bottleneck:
    waits = f"Training waits for batches {_percent(summary.share('waiting'))} of the time"
    if 2 * summary.first_waits_s >= summary.decided_by["waiting"]:
        return Bottleneck(
            Kind.FIRST_BATCHES,
            f"{waits}, mostly for the first batch of an epoch",
            "use smaller batches, because the first ones are ready sooner",
            "training.batch_size",
            str(max(1, config.training.batch_size // 2)),
        )
    if config.servers.addresses:
        return _served(summary, config, waits)
    busy = sum(rank.workers_busy for rank in summary.ranks) / len(summary.ranks)
    if busy < BUSY:
        return _held_back(summary, config, waits, busy)
    stage = max(BESIDE, key=lambda name: sum(rank.of_stage[name] for rank in summary.ranks))
    kind = Kind.SAMPLING if stage == "sampling" else Kind.GATHERING
    finding = (
        f"{waits}, and the threads that make them are busy {_percent(busy)} of it: {stage} is the bottleneck"
    )
    if config.threads < machine.cores_per_rank and not _are_cores_full(summary, machine):
        more = min(2 * config.threads, machine.cores_per_rank)
        return Bottleneck(kind, finding, "use more threads to make batches", "threads", str(more))
    full = "all cores are busy"
    if kind is Kind.SAMPLING:
        return Bottleneck(kind, finding, f"{full}: draw fewer neighbors", "sampler.fanouts")
    return Bottleneck(kind, finding, f"{full}: store the input column in a smaller dtype", "model.column")


def _served(summary: Summary, config: RunConfig, waits: str) -> Bottleneck:
    """Describe a wait for batches that servers make: too few are requested ahead, or the servers are slow."""
    made = sum(rank.share(stage) for rank in summary.ranks for stage in BESIDE) / len(summary.ranks)
    if made >= BUSY * config.prefetch:
        finding = f"{waits}, while servers make all {config.prefetch} batches that a process requests at once"
        return Bottleneck(
            Kind.PREFETCH, finding, "request more batches ahead", "prefetch", str(2 * config.prefetch)
        )
    if (of_servers := _uneven_servers(summary, config, waits)) is not None:
        return of_servers
    addresses = ", ".join(config.servers.addresses)
    finding = (
        f"{waits}: the servers {addresses} make {made:.1f} of the {config.prefetch} batches that a process "
        "requests at once; the others wait for their turn or for the network"
    )
    return Bottleneck(
        Kind.SERVERS, finding, "use more servers, or servers with more cores", "servers.addresses"
    )


def _uneven_servers(summary: Summary, config: RunConfig, waits: str) -> Bottleneck | None:
    """Detect requests that are sent again and again, and a server that answers later than the others."""
    retries = sum(server.retries for server in summary.servers.values())
    batches = sum(server.batches for server in summary.servers.values())
    if retries > HOLDS_UP * batches:
        return Bottleneck(
            Kind.SERVERS,
            f"{waits}, and requests for {batches} batches were retried {retries} times: servers of "
            f"{', '.join(config.servers.addresses)} are down or busy",
            f"check them with `khop servers status {config.servers.addresses[0]}`",
            "servers.addresses",
        )
    if len(summary.servers) < 2:
        return None
    late = max(summary.servers, key=lambda number: summary.servers[number].mean_wait_s)
    others = [server for number, server in summary.servers.items() if number != late]
    usual = sum(server.wait_s for server in others) / sum(server.batches for server in others)
    if summary.servers[late].mean_wait_s < LATE * usual:
        return None
    address = _address(late, config)
    return Bottleneck(
        Kind.SERVERS,
        f"{waits}, and the server {address} begins its answers after "
        f"{summary.servers[late].mean_wait_s:.2f} s, where the others take {usual:.2f} s",
        f"check this server (`khop servers status {address}`) and its connection",
        "servers.addresses",
    )


def _address(number: int, config: RunConfig) -> str:
    """Return the address of a server by its number; the number if a run was resumed with fewer servers."""
    addresses = parsed_addresses(config.servers.addresses)
    return str(addresses[number]) if number < len(addresses) else f"number {number}"


def _held_back(summary: Summary, config: RunConfig, waits: str, busy: float) -> Bottleneck:
    """Describe a wait for batches while the sampler threads are idle: the prefetch limit stops them."""
    batch_bytes = max(rank.batch_bytes for rank in summary.ranks)
    finding = f"{waits}, while the threads that make them are busy {_percent(busy)} of it only"
    if config.prefetch * batch_bytes > config.prefetch_bytes:
        enough = str(2 * config.prefetch * round(batch_bytes))
        advice = "allow more memory for prefetched batches"
        return Bottleneck(Kind.PREFETCH, finding, advice, "prefetch_bytes", enough)
    advice = "prefetch more batches"
    return Bottleneck(Kind.PREFETCH, finding, advice, "prefetch", str(2 * config.prefetch))


def _moving(summary: Summary, config: RunConfig) -> Bottleneck:
    finding = f"Moving batches to the model takes {_percent(summary.share('moving'))} of the time"
    if config.precision == "float64":
        return Bottleneck(
            Kind.TRANSFER,
            finding,
            "columns are converted to float64: compute in float32",
            "precision",
            "float32",
        )
    advice = (
        "store the input column in the dtype of the weights"
        if config.device == "cpu"
        else ("store the input column in a smaller dtype")
    )
    return Bottleneck(Kind.TRANSFER, finding, advice, "model.column")


def _communicating(summary: Summary, config: RunConfig) -> Bottleneck:
    share = _percent(summary.share("communicating"))
    return Bottleneck(
        Kind.COMMUNICATION,
        f"Exchanging gradients takes {share} of the time, without the wait for other ranks: communication "
        "is the bottleneck",
        "use larger batches, for fewer exchanges",
        "training.batch_size",
        str(2 * config.training.batch_size),
    )


def _computing(summary: Summary, config: RunConfig, machine: Machine) -> Bottleneck:
    finding = (
        f"Computing takes {_percent(summary.share('computing'))} of the time: the model is the bottleneck, "
        "not the loader"
    )
    if config.precision == "float64":
        return Bottleneck(Kind.COMPUTE, finding, "compute in float32", "precision", "float32")
    if config.device == "cpu" and config.compute_threads < machine.cores_per_rank:
        cores = str(machine.cores_per_rank)
        return Bottleneck(Kind.COMPUTE, finding, "use all cores", "compute_threads", cores)
    busy = _busy_cores(summary)
    if config.device == "cpu" and busy is not None and busy < BUSY * config.compute_threads:
        threads = config.compute_threads
        return Bottleneck(
            Kind.COMPUTE,
            f"{finding}. It keeps {busy:.1f} of {threads} cores busy",
            f"use several processes with fewer threads (--procs {threads})",
            "compute_threads",
            "1",
        )
    if config.precision == "float32" and machine.has_fast_bfloat16:
        return Bottleneck(Kind.COMPUTE, finding, "compute in a smaller dtype", "precision", "bfloat16")
    return Bottleneck(Kind.COMPUTE, finding, "use a narrower model", "model.hidden")


def _busy_cores(summary: Summary) -> float | None:
    """Return the mean number of busy cores per process; None if unknown."""
    known = [rank.busy_cores for rank in summary.ranks if rank.busy_cores is not None]
    return sum(known) / len(known) if known else None


def _are_cores_full(summary: Summary, machine: Machine) -> bool:
    """Return whether the ranks use nearly all cores."""
    return (_busy_cores(summary) or 0.0) >= FULL * machine.cores_per_rank


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
