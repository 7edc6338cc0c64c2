"""A graph on servers, for loaders of this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from khop.api.open_graph import Graph
from khop.arguments import check_word, list_of, path_of, real_number
from khop.servers.access import Access, Encryption, Limits
from khop.servers.description import read_description
from khop.servers.graph import RemoteFeatures, RemoteView, listed_splits, remote_graph
from khop.servers.transport import Exchange

File = str | os.PathLike[str]


def connect(
    addresses: Sequence[str],
    *,
    token_file: File | None = None,
    ca: File | None = None,
    client_cert: File | None = None,
    client_key: File | None = None,
    encryption: Encryption = "remote",
    deadline: float = 60.0,
    attempt: float = 20.0,
) -> Graph:
    """Connect to servers that `khop serve` has started, and return their graph: types, counts and splits.

    The graph has no data here. A `khop.Loader` over it asks the servers for batches, which have the same bits
    as batches of the graph's folder. Any server may make any batch: if one is lost, others are asked.

    `addresses` are "host:port"; a name may resolve to several addresses. Servers on other machines need
    `token_file`, and `ca`, the certificate that signs theirs; `client_cert` and `client_key` are for servers
    that ask for them. `encryption` is "remote", or "off" for a network that you trust: data and the token
    then travel to other machines unencrypted. An attempt ends after `attempt` seconds without a heartbeat of
    the server, and khop.PeerLost is raised after `deadline` seconds without an answer of any server.
    """
    if find_spec("pyarrow") is None:
        raise ValueError("khop.connect needs pyarrow, which is not installed: pip install pyarrow")
    found = list_of("addresses", addresses, '["10.0.0.5:7311"]')
    files = {"token_file": token_file, "ca": ca, "client_cert": client_cert, "client_key": client_key}
    paths = {name: None if file is None else path_of(name, file) for name, file in files.items()}
    check_word("encryption", encryption, Encryption)
    access = Access(**paths, encryption=encryption)
    limits = Limits(real_number("deadline", deadline), real_number("attempt", attempt))
    # Imported on use: it imports pyarrow, which is an extra.
    exchange: Exchange = import_module("khop.servers.flight_client").connected(found, access, limits)
    return graph_on(exchange)


def graph_on(exchange: Exchange) -> Graph:
    """Return the graph that the servers of an exchange have."""
    view = RemoteView(exchange, read_description(exchange.describe(), exchange.addresses[0]))
    schema = view.description.schema
    features = RemoteFeatures(schema.columns, view)
    return Graph(remote_graph(view, schema), features, splits=listed_splits(view))
