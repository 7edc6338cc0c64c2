"""GraphLearn-for-PyTorch's servers and client, each in a process of its own, for benchmarks/servers_glt.py.

usage: glt_servers.py cut GRAPH FOLDER SERVERS | server FOLDER SERVERS RANK PORT
       glt_servers.py client FOLDER SERVERS PORT BATCHES BATCH_SIZE FANOUT,FANOUT,...
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import graphlearn_torch as glt
import numpy as np
import torch

HOST = "127.0.0.1"
CPU = torch.device("cpu")
WORKERS = 1  # processes of a server that sample: with 2 of them, two cores made no more batches


def cut(graph: str, folder: str, servers: str) -> None:
    """Write a part of the graph for each server, and the seeds that each is given."""
    indptr, indices, x, train = (
        torch.from_numpy(np.load(f"{graph}/{name}.npy")) for name in ("indptr", "indices", "x", "train")
    )
    nodes = indptr.numel() - 1
    ends = torch.arange(nodes).repeat_interleave(indptr.diff())
    edges = torch.stack([ends, indices.long()])
    glt.partition.RandomPartitioner(
        output_dir=folder, num_parts=int(servers), num_nodes=nodes, edge_index=edges, node_feat=x
    ).partition()
    for rank, seeds in enumerate(train.long().chunk(int(servers))):
        torch.save(seeds, seeds_of(folder, rank))


def seeds_of(folder: str, rank: int) -> str:
    return str(Path(folder, f"seeds-{rank}.pt"))


def server(folder: str, servers: str, rank: str, port: str) -> None:
    """Hold a part until the client has ended."""
    torch.multiprocessing.set_start_method("spawn")  # else its semaphores cannot be passed to its workers
    dataset = glt.distributed.DistDataset()
    dataset.load(folder, int(rank), graph_mode="CPU", feature_with_gpu=False)
    glt.distributed.init_server(
        num_servers=int(servers),
        server_rank=int(rank),
        dataset=dataset,
        master_addr=HOST,
        master_port=int(port),
        num_clients=1,
    )
    glt.distributed.wait_and_shutdown_server()


def client(folder: str, servers: str, port: str, batches: str, batch_size: str, fanouts: str) -> None:
    """Print a line for each batch of an epoch, with its bytes."""
    count = int(servers)
    glt.distributed.init_client(
        num_servers=count, num_clients=1, client_rank=0, master_addr=HOST, master_port=int(port)
    )
    loader = glt.distributed.DistNeighborLoader(
        None,
        [int(fanout) for fanout in fanouts.split(",")],
        [seeds_of(folder, rank) for rank in range(count)],
        batch_size=int(batch_size),
        shuffle=True,
        collect_features=True,
        to_device=CPU,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(
            server_rank=list(range(count)),
            num_workers=WORKERS,
            worker_devices=[CPU] * WORKERS,
            master_addr=HOST,
            master_port=int(port) + 1,
            buffer_size="1GB",
            prefetch_size=4,
        ),
    )
    for number, batch in zip(range(int(batches)), loader, strict=False):
        size = batch.x.nbytes + batch.edge_index.nbytes + batch.node.nbytes
        line = {"batch": number, "at": time.monotonic(), "bytes": size, "nodes": batch.x.shape[0]}
        print(json.dumps(line), flush=True)
    print(json.dumps({"ended": True}), flush=True)


if __name__ == "__main__":
    {"cut": cut, "server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
