"""Implementation of `khop graph propagate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import typer

from khop.cli.commands.shared import RankOptions
from khop.cli.lines import shell_word, tell
from khop.cli.ranks import as_ranks
from khop.cli.terminal import bytes_bar, counting_bar, tell_next
from khop.distributed.processes.group import Group, this_group
from khop.errors import told
from khop.graph.atomic import in_bytes
from khop.inference.propagation import THREAD_BYTES, Norm, Propagation, hop_column
from khop.kernels.memory import free_memory_bytes, resident_bytes
from khop.loading.device.device_placement import byte_size
from khop.loading.ordered_map import InFlight
from khop.process_tuning import cores_of_rank
from khop.run.values import RunConfig
from khop.training.trainer import terminations_raised


@dataclass(frozen=True)
class PropagateRequest:
    """Arguments of the command."""

    graph: Path
    out: Path
    columns: tuple[str, ...]
    hops: int
    norm: Norm
    memory: str  # "": half of the free memory

    def plan(self, group: Group, threads: int) -> Propagation:
        """Make the plan of one rank; ValueError if the arguments do not fit the graph."""
        memory = byte_size(self.memory, "memory") if self.memory else free_memory_bytes() // 2
        others = resident_bytes() + (threads + 2) * THREAD_BYTES
        rooms = group.gather(torch.tensor([memory // group.local_world_size - others]))
        room = int(rooms.min())  # ranks share blocks, so that all have equal ones
        if room <= 0:
            least = in_bytes((others + THREAD_BYTES) * group.local_world_size)
            raise ValueError(
                f"memory {in_bytes(memory)}: Python, torch and the threads of the processes on this machine "
                f"take {in_bytes(others * group.local_world_size)}; allow {least} at least"
            )
        return Propagation.of(self.graph, self.out, self.columns, self.hops, self.norm, room)


def run_propagate(request: PropagateRequest, ranks: RankOptions) -> None:
    """Write a graph with propagated columns, as all ranks."""
    as_ranks(propagate_rank, request, RunConfig(graph=str(request.graph), device="cpu"), ranks)


def propagate_rank(rank: int, device: torch.device, request: PropagateRequest) -> None:
    """Compute the columns as one rank; rank 0 writes the folder and prints."""
    group = this_group()
    threads = cores_of_rank(group.local_world_size)
    torch.set_num_threads(1)  # each thread computes its own chunks
    plan = request.plan(group, threads)
    if rank == 0:
        tell(
            f"blocks of {max(plan.widths)} numbers per node: {len(plan.blocks)}; up to "
            f"{in_bytes(plan.disk_bytes)} of disk while it runs, {in_bytes(plan.result_bytes)} in "
            f"{request.out}"
        )
    try:
        with (
            terminations_raised(),
            bytes_bar() as notice,
            counting_bar("computing rows of all hops", rank) as progress,
        ):
            plan.run(group, InFlight(threads, threads + 1), progress, notice if rank == 0 else None)
    except KeyboardInterrupt as stop:
        if rank == 0:
            tell(f"stopped; finished rows are in {plan.work_folder}; run the same command again to continue")
            told(stop)
        raise
    if rank == 0:
        columns = [
            hop_column(column, hop) for column in request.columns for hop in range(1, request.hops + 1)
        ]
        info = f"khop info {shell_word(str(request.out))}"
        typer.echo(f"{request.out}: columns {', '.join(columns)}. Show it: {info}")
        train = ("khop", "train", "--graph", str(request.out), "--model", "mlp")
        tell_next((*train, "--column", columns[-1]), (*train, "--concat", ",".join(columns)))
