"""Every public function refuses bad values by a ValueError with value, reason and remedy."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from inspect import isclass, isfunction
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import tensor
from torch_geometric.data import Data

import khop
from khop.loading.columns import ColumnChoice

TMP = Path(tempfile.mkdtemp())
EDGE = ("n", "to", "n")
NUMBERS = count()
META = torch.empty(3, dtype=torch.int64, device="meta")
SPARSE = torch.eye(3).to_sparse()
MASKED = np.ma.array([0, 1, 2], mask=[0, 1, 0])
ENDS = tensor([[0, 1], [1, 2]])


def written(nodes: Any = None, edges: Any = None, **settings: Any) -> Path:
    """A folder with three nodes and three edges, unless others are given."""
    whole = khop.NodeTable(
        3,
        {"x": torch.randn(3, 2), "y": tensor([0, 1, 0]), "t": tensor([1, 2, 3])},
        {"train": tensor([0, 1]), "val": tensor([2])},
        {"y": 2},
    )
    columns = {"w": tensor([1.0, 2.0, 3.0]), "t": tensor([1, 2, 3])}
    ring = khop.EdgeTable(tensor([0, 1, 2]), tensor([1, 2, 0]), columns)
    nodes = {"n": whole} if nodes is None else nodes
    edges = {EDGE: ring} if edges is None else edges
    return khop.write_graph(TMP / str(next(NUMBERS)), nodes, edges, **settings)


def nodes(*arguments: Any, **settings: Any) -> Path:
    return written(nodes={"n": khop.NodeTable(*arguments, **settings)})


def edges(*arguments: Any, **settings: Any) -> Path:
    return written(edges={EDGE: khop.EdgeTable(*arguments, **settings)})


with torch.random.fork_rng():
    GRAPH = khop.open_graph(written(sort_by="t"))
    MODEL = khop.models.SAGE.for_graph(GRAPH, 4, 1)
    PREDICTOR = khop.models.LinkPredictor.of(MODEL, [EDGE], "dot", 4)
    EDGE_PREDICTOR = khop.models.EdgePredictor.of(MODEL, [EDGE], 4, 2)
LINK_SAMPLER = khop.LinkSampler(GRAPH, [1], negatives=khop.UniformNegatives())


def sampler(**settings: Any) -> khop.NeighborSampler:
    return khop.NeighborSampler(GRAPH, [2], **settings)


def loader(**settings: Any) -> khop.Loader:
    given = {"sampler": sampler(), "seeds": [0, 1], "batch_size": 2, **settings}
    return khop.Loader(given.pop("sampler"), given.pop("seeds"), given.pop("batch_size"), **given)


def inferred(**settings: Any) -> torch.Tensor:
    given = {"nodes": tensor([0]), "columns": ColumnChoice(), **settings}
    return khop.sampled_inference(MODEL, sampler(), GRAPH.features, "n", **given)


Cases = list[tuple[str, Callable[[], object]]]
# Of each public name: how the sentence begins or what it says, and the call.
# fmt: off
REFUSED: dict[str, Cases] = {
    "builtin_folder": [
        ("built-in graph 'zz': there are debian, debian-typed", lambda: khop.builtin_folder('zz', cache=TMP)),
        ('built-in graph 5: there are debian, debian-typed', lambda: khop.builtin_folder(5, cache=TMP)),
        ('cache 5: must be a path, as text or as a pathlib.Path', lambda: khop.builtin_folder('debian', cache=5)),
    ],
    "cooccurrence": [
        ('edge type 5: give source type, relation and destination type,', lambda: khop.cooccurrence(GRAPH, 5)),
        ("cooccurrence of ('n', 'to', 'n'): through is 5, must be one of", lambda: khop.cooccurrence(GRAPH, EDGE, through=5)),
        ("min_count 'a': must be a whole number of at most 2**31 - 1", lambda: khop.cooccurrence(GRAPH, EDGE, min_count='a')),
        ('min_count 0: must be at least 1', lambda: khop.cooccurrence(GRAPH, EDGE, min_count=0)),
        ('threads 0: must be a whole number, 1 or more', lambda: khop.cooccurrence(GRAPH, EDGE, threads=0)),
        ('min_count 1.5: must be a whole number of at most 2**31 - 1', lambda: khop.cooccurrence(GRAPH, EDGE, min_count=1.5)),
        ('graph 5: must be a graph, such as khop.open_graph returns', lambda: khop.cooccurrence(5, EDGE)),
        ('min_count 9223372036854775808: must be a whole number of at', lambda: khop.cooccurrence(GRAPH, EDGE, min_count=2**63)),
    ],
    "DegreeNegatives": [
        ("power 'x': must be 0.25, 0.5, 0.75 or 1.0; for 0 take", lambda: khop.DegreeNegatives(power='x')),
        ('power [1]: must be 0.25, 0.5, 0.75 or 1.0; for 0 take', lambda: khop.DegreeNegatives(power=[1])),
    ],
    "DrawKey": [
        ("key 'a': must be a whole number", lambda: khop.DrawKey('a')),
        ("seed 'a': must be a whole number", lambda: khop.DrawKey.of('a', 1)),
    ],
    "Edges": [
        ("edges_for gave ('n', 'to', 'n'), sources: a list; give a 1-D", lambda: loader(sampler=khop.FrontierSampler(GRAPH, lambda *a: khop.Edges([0], [0]), 1)).batch(0, 0)),
        ("edges_for gave ('n', 'to', 'n'), sources: torch.float32 of", lambda: loader(sampler=khop.FrontierSampler(GRAPH, lambda *a: khop.Edges(tensor([0.0]), tensor([0])), 1)).batch(0, 0)),
    ],
    "EdgeChunks": [
        ("edge type ('n', 'to', 'n'): there are no chunks; give at least one khop.EdgeTable", lambda: written(edges={EDGE: khop.EdgeChunks([])})),
        ("edge type ('n', 'to', 'n') 5: give a khop.EdgeTable", lambda: written(edges={EDGE: khop.EdgeChunks([5])})),
    ],
    "EdgeTable": [
        ("edge type ('n', 'to', 'n'): sources is a tensor of layout", lambda: edges(SPARSE, tensor([0]))),
        ("edge type ('n', 'to', 'n'): sources is a masked array, whose", lambda: edges(MASKED, tensor([0, 1, 2]))),
        ("edge type ('n', 'to', 'n'): sources is float32 of shape (1,):", lambda: edges(tensor([0.0]), tensor([0]))),
        ("edge type ('n', 'to', 'n'): sources is a list: give a torch", lambda: edges([0], tensor([0]))),
        ('edge type 5: give source type, relation and destination type,', lambda: edges(tensor([0]), tensor([0]), reverse_of=5)),
    ],
    "connect": [
        ("addresses '10.0.0.5:7311': must be a list, as", lambda: khop.connect('10.0.0.5:7311')),
        ("encryption 'no': must be one of remote, off", lambda: khop.connect(['10.0.0.5:7311'], encryption='no')),
        ("deadline 'a': must be a number", lambda: khop.connect(['10.0.0.5:7311'], deadline='a')),
    ],
    "load_run": [
        ('run 5: must be a path, as text or as a pathlib.Path', lambda: khop.load_run(5)),
        ("allow_code 'package': must be a list, as ['package']", lambda: khop.load_run(TMP, 'package')),
        ("checkpoint 'first': must be one of best, last", lambda: khop.load_run(TMP, checkpoint='first')),
        ('not a run folder, it has no config.toml; give a folder written by khop train', lambda: khop.load_run(TMP)),
    ],
    "append": [
        ('graph 5: must be a path, as text or as a pathlib.Path', lambda: khop.append(5, {})),
        ("threads 'a': must be a whole number, 1 or more", lambda: khop.append(TMP, {}, threads='a')),
        ("delete 'u1': must be a mapping", lambda: khop.append(TMP, delete='u1')),
    ],
    "compact": [
        ('graph 5: must be a path, as text or as a pathlib.Path', lambda: khop.compact(5)),
    ],
    "import_tables": [
        ('spec 5: must be a path, as text or as a pathlib.Path', lambda: khop.import_tables(5, TMP / 'o')),
        ('nodes is missing; add it', lambda: khop.import_tables({}, TMP / 'o')),
        ("threads 'a': must be a whole number, 1 or more", lambda: khop.import_tables({}, TMP / 'o', threads='a')),
        ('encoders 5: must be a path, as text or as a pathlib.Path', lambda: khop.import_tables({}, TMP / 'o', encoders=5)),
    ],
    "evaluate": [
        ("no split 'zz'; there are ['train', 'val']", lambda: khop.evaluate(MODEL, GRAPH, split='zz')),
        ("no split 5; there are ['train', 'val']", lambda: khop.evaluate(MODEL, GRAPH, split=5)),
        ('model 5: must be a torch.nn.Module', lambda: khop.evaluate(5, GRAPH, split='val')),
        ('graph 5: must be a graph, such as khop.open_graph returns', lambda: khop.evaluate(MODEL, 5, split='val')),
        ('task 5: must be a khop.NodeClassification', lambda: khop.evaluate(MODEL, GRAPH, split='val', task=5)),
        ("fanouts 5: must be a list, as [10,", lambda: khop.evaluate(MODEL, GRAPH, split='val', fanouts=5)),
    ],
    "Several": [("observers 5: must be observers", lambda: khop.Several(5))],
    "TensorBoard": [
        ("folder 5: must be a path", lambda: khop.TensorBoard(5, "")),
        ("config 5: must be text", lambda: khop.TensorBoard("a", 5)),
    ],
    "MlflowLog": [
        ("options 5: must be a mapping", lambda: khop.MlflowLog({}, 5)),
        ("settings 5: must be a mapping", lambda: khop.MlflowLog(5)),
    ],
    "WandbLog": [
        ("options 5: must be a mapping", lambda: khop.WandbLog({}, 5)),
        ("settings 5: must be a mapping", lambda: khop.WandbLog(5)),
    ],
    "EdgeClassification": [
        ("metric 'x': must be one of accuracy", lambda: khop.EdgeClassification('n to n', 'y', 'x')),
        ('loss 5: must be a khop.ClassLoss', lambda: khop.EdgeClassification('n to n', 'y', loss=5)),
        ("'n to'", lambda: khop.EdgeClassification('n to', 'y')),
    ],
    "EdgeRegression": [
        ("metric 'x': must be one of rmse", lambda: khop.EdgeRegression('n to n', 'y', metric='x')),
        ("loss 'x': must be one of mse", lambda: khop.EdgeRegression('n to n', 'y', 'x')),
        ('scale 5: must be a khop.LabelScale', lambda: khop.EdgeRegression('n to n', 'y', scale=5)),
    ],
    "evaluate_edges": [
        ('evaluate_edges of a SAGE: must be a khop.models.EdgePredictor,', lambda: khop.evaluate_edges(MODEL, GRAPH, khop.Links(ENDS), khop.EdgeClassification('n to n', 'y'))),
        ('task 5: must be a khop.EdgeClassification', lambda: khop.evaluate_edges(EDGE_PREDICTOR, GRAPH, khop.Links(ENDS), 5)),
        ('links without labels cannot be evaluated', lambda: khop.evaluate_edges(EDGE_PREDICTOR, GRAPH, khop.Links(ENDS), khop.EdgeClassification('n to n', 'y'))),
    ],
    "evaluate_links": [
        ('evaluate_links of a SAGE: must be a khop.models.LinkPredictor,', lambda: khop.evaluate_links(MODEL, GRAPH, khop.Links(ENDS))),
        ('links [[0, 1], [1, 2]]: give khop.Links(...), or the links of a split', lambda: khop.evaluate_links(PREDICTOR, GRAPH, [[0, 1], [1, 2]])),
    ],
    "FrontierSampler": [
        ("layers 'x': must be a whole number", lambda: khop.FrontierSampler(GRAPH, lambda *a: {}, 'x')),
        ('layers 1.0: must be a whole number', lambda: khop.FrontierSampler(GRAPH, lambda *a: {}, 1.0)),
        ('edges_for 5: must be a function of (layer, graph, nodes)', lambda: khop.FrontierSampler(GRAPH, 5, 1)),
    ],
    "FrontierView": [
        ('nodes [0]: must be a mapping from node types to tensors of ids;', lambda: loader(sampler=khop.FrontierSampler(GRAPH, lambda layer, v, n: v.sample_in_edges([0], 1), 1)).batch(0, 0)),
        ("fanout 'a' for ('n', 'to', 'n'): must be 0 or more, or -1 for", lambda: loader(sampler=khop.FrontierSampler(GRAPH, lambda layer, v, n: v.sample_in_edges(n, 'a'), 1)).batch(0, 0)),
        ('rule 5: must be khop.Uniform(), Weighted(column), Temporal', lambda: loader(sampler=khop.FrontierSampler(GRAPH, lambda layer, v, n: v.sample_in_edges(n, 1, 5), 1)).batch(0, 0)),
        ("seeds of 'n': there is no node 7; ids go from 0 to 2", lambda: loader(sampler=khop.FrontierSampler(GRAPH, lambda layer, v, n: v.sample_in_edges(tensor([7]), 1), 1)).batch(0, 0)),
    ],
    "recommend": [
        ('give a khop.models.LinkPredictor', lambda: khop.recommend(MODEL, GRAPH, EDGE)),
        ("graph 5: must be a graph, such as khop.open_graph returns", lambda: khop.recommend(PREDICTOR, 5, EDGE)),
        ("edge type ('n', 'of', 'n'): the graph has [('n', 'to', 'n')]", lambda: khop.recommend(PREDICTOR, GRAPH, "n of n")),
        ("k 1.5: must be a whole number, 1 or more", lambda: khop.recommend(PREDICTOR, GRAPH, EDGE, k=1.5)),
        ("candidates 'new': must be one of unseen, all", lambda: khop.recommend(PREDICTOR, GRAPH, EDGE, candidates='new')),
        ("sources of 'n' 5: give node ids or a boolean mask", lambda: khop.recommend(PREDICTOR, GRAPH, EDGE, 5)),
        ("work_folder 5: must be a path", lambda: khop.recommend(PREDICTOR, GRAPH, EDGE, work_folder=5)),
    ],
    "triple_ranking": [
        ('decoder 5: give a decoder with relations, such as khop.models.TransE', lambda: khop.triple_ranking(5, ENDS, ENDS, ENDS)),
        ('triples torch.int64 (2, ', lambda: khop.triple_ranking(khop.models.DistMult(4), ENDS, ENDS, ENDS)),
    ],
    "TripleRanking": [],
    "full_ranking": [
        ('scores_of None: must be a function from queries to their scores', lambda: khop.full_ranking(None, None, None, 5)),
        ("at 'a': must be a list, as [10, 20]", lambda: khop.full_ranking(lambda q: torch.zeros(len(q), 5), ENDS, ENDS[:, :0], 5, at='a')),
        ("num_candidates 'a': must be a whole number, 1 or more", lambda: khop.full_ranking(lambda q: torch.zeros(len(q), 5), ENDS, ENDS[:, :0], 'a')),
        ('num_candidates 0: must be a whole number, 1 or more', lambda: khop.full_ranking(lambda q: torch.zeros(len(q), 5), ENDS, ENDS[:, :0], 0)),
        ('full ranking: scores 5: scores_of must return a tensor (queries,', lambda: khop.full_ranking(lambda q: 5, ENDS, ENDS[:, :0], 5)),
        ('full ranking: held_out is torch.float32: give ids, int64', lambda: khop.full_ranking(lambda q: torch.zeros(len(q), 5), torch.ones(2, 2), ENDS[:, :0], 5)),
    ],
    "Graph": [
        ("no edge type ('a', 'b', 'c'); there are [('n', 'to', 'n')]", lambda: GRAPH.csc(('a', 'b', 'c'))),
        ('edge type 5: give source type, relation and destination type,', lambda: GRAPH.csc(5)),
        ("no split 'zz'; there are ['train', 'val']", lambda: GRAPH.split('zz')),
        ('no split []', lambda: GRAPH.split([])),
        ("no node type 'zz'; there are ['n']", lambda: GRAPH.num_nodes('zz')),
        ("no node type 5; there are ['n']", lambda: GRAPH.num_nodes(5)),
        ("no edge type ('a', 'b', 'c'); there are [('n', 'to', 'n')]", lambda: GRAPH.only(['a b c'])),
        ('edge types 5: must be a list, as [5]', lambda: GRAPH.only(5)),
        ('edge types 5: must be a mapping from edge types to their values', lambda: GRAPH.with_edges(5)),
        ("edge type ('n', 'a', 'n'): None: give a khop.EdgeTable", lambda: GRAPH.with_edges({'n a n': None})),
        ('path 5: must be a path, as text or as a pathlib.Path', lambda: GRAPH.save(5)),
        ("no node type 'zz'; there are ['n']", lambda: GRAPH.partition_bounds('zz')),
    ],
    "infer": [
        ('graph 5: must be a graph, such as khop.open_graph returns', lambda: khop.infer(MODEL, 5, TMP / 'o')),
        ('model 5: must be a torch.nn.Module', lambda: khop.infer(5, GRAPH, TMP / 'o')),
    ],
    "initialize": [
        ('model 5: must be a torch.nn.Module', lambda: khop.initialize(5, loader())),
        ("seed 'a': must be a whole number from 0 to 2**64 - 1", lambda: khop.initialize(MODEL, loader(), seed='a')),
        ('loader 5: must be a khop.Loader', lambda: khop.initialize(MODEL, 5)),
        ('seed 18446744073709551616: must be a whole number from 0 to', lambda: khop.initialize(MODEL, loader(), seed=2 ** 64)),
    ],
    "CheckpointPolicy": [
        ("steps 'a': must be a whole number", lambda: khop.CheckpointPolicy('a')),
        ('steps 0: must be at least 1, or None', lambda: khop.CheckpointPolicy(0)),
        ("minutes 'a': must be a number", lambda: khop.CheckpointPolicy(None, 'a')),
        ("keep 'a': must be a whole number", lambda: khop.CheckpointPolicy(None, None, 'a')),
    ],
    "launch": [
        ("bind 'all': must be", lambda: khop.launch(print, procs=2, device='cpu', bind='all')),
        ("procs 'a': must be a whole number, 1 or more", lambda: khop.launch(print, procs='a', device='cpu')),
        ('procs 1.5: must be a whole number, 1 or more', lambda: khop.launch(print, procs=1.5, device='cpu')),
        ('procs True: must be a whole number, 1 or more', lambda: khop.launch(print, procs=True, device='cpu')),
        ('device \'zzz\': must be a torch device, such as "cpu", "cuda" or', lambda: khop.launch(print, procs=1, device='zzz')),
        ("device 'cuda': torch finds no CUDA device; give", lambda: khop.launch(print, procs=1, device='cuda')),
        ("deadline 'a': must be a number", lambda: khop.launch(print, procs=2, deadline='a', device='cpu')),
        ('deadline -1: must be a number of seconds above 0', lambda: khop.launch(print, procs=2, deadline=-1, device='cpu')),
        ('deadline inf: must be a number of seconds above 0, at most', lambda: khop.launch(print, procs=2, deadline=float('inf'), device='cpu')),
        ("allow 'public': must be a list, as", lambda: khop.launch(print, procs=1, allow='public', device='cpu')),
        ("allow 'all': must be one of public, oversubscribe", lambda: khop.launch(print, procs=1, allow=['all'], device='cpu')),
        ('function 5: must be a function of (rank, device, *arguments)', lambda: khop.launch(5, procs=1, device='cpu')),
        ('arguments 5: must be a list, as (folder, epochs)', lambda: khop.launch(print, procs=1, arguments=5, device='cpu')),
        ('interface 5: must be a name or an address', lambda: khop.launch(print, procs=2, interface=5, device='cpu')),
    ],
    "layerwise_inference": [
        ('int does not expose its layers: give them as modules with', lambda: khop.layerwise_inference(5, GRAPH, GRAPH.features, 'n')),
        ("no node type 'zz'; there are ['n']", lambda: khop.layerwise_inference(MODEL, GRAPH, GRAPH.features, 'zz')),
        ("chunk_size 'a': must be a whole number, 1 or more", lambda: khop.layerwise_inference(MODEL, GRAPH, GRAPH.features, 'n', chunk_size='a')),
        ('chunk_size 0: must be a whole number, 1 or more', lambda: khop.layerwise_inference(MODEL, GRAPH, GRAPH.features, 'n', chunk_size=0)),
        ("seeds of 'n' 5: give node ids or a boolean mask", lambda: khop.layerwise_inference(MODEL, GRAPH, GRAPH.features, 'n', nodes=5)),
        ("seeds of 'n': there is no node 9; ids go from 0 to 2", lambda: khop.layerwise_inference(MODEL, GRAPH, GRAPH.features, 'n', nodes=tensor([9]))),
    ],
    "ClassLoss": [
        ("loss 'x': must be one of cross-entropy, focal", lambda: khop.ClassLoss('x')),
        ("smoothing 1: must be at least 0 and below 1", lambda: khop.ClassLoss(smoothing=1)),
        ("gamma -1: must be at least 0", lambda: khop.ClassLoss(gamma=-1)),
        ("class weight -1: must be 0 or more", lambda: khop.ClassLoss(weights=(-1,))),
    ],
    "class_weights": [
        ("labels 5: give whole numbers", lambda: khop.class_weights(5, 2)),
        ("class weights [1]: give 2 numbers of 0 or more", lambda: khop.class_weights(tensor([0]), 2, [1])),
    ],
    "OptimizerSettings": [
        ("optimizer 5: must be a class of torch.optim", lambda: khop.OptimizerSettings(5)),
        ("options 5: must be a mapping from names to values", lambda: khop.OptimizerSettings(options=5)),
        ("clip_norm 0: must be above 0, or None", lambda: khop.OptimizerSettings(clip_norm=0)),
    ],
    "Plateau": [
        ("factor 2: must be above 0 and below 1", lambda: khop.Plateau(2)),
        ("patience 0: must be a whole number, 1 or more", lambda: khop.Plateau(patience=0)),
    ],
    "LabelScale": [
        ("scale with mean (0.0,) and deviation (0.0,): must have equal lengths, and deviations above 0", lambda: khop.LabelScale((0.0,), (0.0,))),
        ("labels 5: give numbers", lambda: khop.LabelScale.of(5)),
    ],
    "InfoNce": [("temperature 0: must be above 0, and finite", lambda: khop.InfoNce(0))],
    "MarginRanking": [("margin 'a': must be a number", lambda: khop.MarginRanking('a')), ("margin 0: must be above 0", lambda: khop.MarginRanking(0))],
    "LinkPrediction": [
        ("loss 'x': must be one of bce, bpr", lambda: khop.LinkPrediction('x')),
    ],
    "Links": [
        ('edges of links None: give numbers, as a tensor, an array or a list', lambda: khop.Links(None)),
        ("links of ('*', '*', '*'): float32 of shape (2, 2); give int64", lambda: khop.Links(torch.ones(2, 2))),
        ("links of ('*', '*', '*'): int64 of shape (1,); give int64 (2,", lambda: khop.Links(tensor([1]))),
        ('edges of links is a tensor of layout sparse_coo: give a dense', lambda: khop.Links(SPARSE)),
        ('edges of links is a tensor on the meta device, which has no', lambda: khop.Links(torch.empty(2, 2, dtype=torch.int64, device='meta'))),
        ('labels of links 5: give numbers, as a tensor, an array or a list', lambda: khop.Links(ENDS, 5)),
        ("times of ('*', '*', '*'): float32 of shape (2,) for 2 links;", lambda: khop.Links(ENDS, times=tensor([1.0, 2]))),
        ('edge type 5: give source type, relation and destination type,', lambda: khop.Links({5: ENDS})),
        ("labels of ('*', '*', '*'): float32 of shape (3,) for 2 links;", lambda: khop.Links(ENDS, torch.ones(3))),
        ('seeds: none given for types []; an epoch needs one or more', lambda: khop.Links({}) and loader(sampler=LINK_SAMPLER, seeds=khop.Links({}))),
    ],
    "LinkSampler": [
        ('negatives 5: must be khop.UniformNegatives(...),', lambda: khop.LinkSampler(GRAPH, [1], negatives=5)),
        ("exclude 'x': must be 'edge', 'edge+reverse' or None", lambda: khop.LinkSampler(GRAPH, [1], exclude='x')),
        ("exclude 5: must be 'edge', 'edge+reverse' or None", lambda: khop.LinkSampler(GRAPH, [1], exclude=5)),
        ("exclude []: must be 'edge', 'edge+reverse' or None", lambda: khop.LinkSampler(GRAPH, [1], exclude=[])),
    ],
    "load_checkpoint": [
        ('folder None: must be a path, as text or as a pathlib.Path', lambda: khop.load_checkpoint(None)),
        ('none: no checkpoint exists', lambda: khop.load_checkpoint(TMP / 'none')),
    ],
    "Loader": [
        ('seed 1.5: must be a whole number from 0 to 2**64 - 1', lambda: loader(seed=1.5)),
        ('seed None: must be a whole number from 0 to 2**64 - 1', lambda: loader(seed=None)),
        ('seed 18446744073709551616: must be a whole number from 0 to', lambda: loader(seed=2 ** 64)),
        ('seed True: must be a whole number from 0 to 2**64 - 1', lambda: loader(seed=True)),
        ("seed '1': must be a whole number from 0 to 2**64 - 1", lambda: loader(seed='1')),
        ('seed -1: must be a whole number from 0 to 2**64 - 1', lambda: loader(seed=-1)),
        ("epoch 'a': must be a whole number, 0 or more", lambda: loader().epoch('a')),
        ('epoch None: must be a whole number, 0 or more', lambda: loader().epoch(None)),
        ('epoch 1.0: must be a whole number, 0 or more', lambda: loader().epoch(1.0)),
        ('epoch True: must be a whole number, 0 or more', lambda: loader().epoch(True)),
        ('epoch 18446744073709551616: must be a whole number, 0 or more', lambda: list(loader().epoch(2 ** 64))),
        ("epoch 'a': must be a whole number, 0 or more", lambda: loader().batch('a', 0)),
        ("step 'a': must be a whole number", lambda: loader().batch(0, 'a')),
        ('step 0.0: must be a whole number', lambda: loader().batch(0, 0.0)),
        ('epoch -1: must be a whole number, 0 or more', lambda: loader().batch(-1, 0)),
        ("epoch 'a': must be a whole number, 0 or more", lambda: loader().whole_batch('a', 0)),
        ('loader state None: must be a mapping from names to values, as', lambda: loader().load_state_dict(None)),
        ('loader state [1]: must be a mapping from names to values, as', lambda: loader().load_state_dict([1])),
        ('loader state {}: needs numbers epoch and step, and a fingerprint', lambda: loader().load_state_dict({})),
        ("loader state {'epoch': True, 'step': 0, 'fingerprint':", lambda: (made := loader()).load_state_dict(made.state_dict() | {'epoch': True})),
        ("loader state {'epoch': 0, 'step': 0, 'fingerprint': 3}: needs", lambda: (made := loader()).load_state_dict(made.state_dict() | {'fingerprint': 3})),
        ("shuffle 'yes': must be True or False", lambda: loader(shuffle='yes')),
        ('drop_last 2: must be True or False', lambda: loader(drop_last=2)),
        ("seed_assignment 'a': must be one of owner, position", lambda: loader(seed_assignment='a')),
        ('device \'zzz\': must be a torch device, such as "cpu", "cuda" or', lambda: loader(device='zzz')),
        ("device 'cuda': torch finds no CUDA device; give", lambda: loader(device='cuda')),
        ('device []: must be a torch device, such as "cpu", "cuda" or', lambda: loader(device=[])),
        ('device 99: ', lambda: loader(device=99)),
        ('device 1.5: must be a torch device, such as "cpu", "cuda" or', lambda: loader(device=1.5)),
        ("columns 5: give a list of names, ['x']", lambda: loader(columns=5)),
        ("columns 'x': give a list of names, ['x']", lambda: loader(columns='x')),
        ("columns: no node type has a column 5; there are {'n': ['t',", lambda: loader(columns=[5])),
        ('edge type 5: give source type, relation and destination type,', lambda: loader(columns={5: ['x']})),
        ("columns 5: give a list of names, ['x']", lambda: loader(columns={'n': 5})),
        ("columns None: give a list of names, ['x']", lambda: loader(columns=None)),
        ("seed_columns: no node type has a column None; there are {'n':", lambda: loader(seed_columns=[None])),
        ("columns of 'n': []: must be names of columns", lambda: loader(columns={'n': [[]]})),
        ("narrow 'x': must be one of 'float32', 'stored'", lambda: loader(narrow='x')),
        ("narrow 5: must be one of 'float32', 'stored'", lambda: loader(narrow=5)),
        ('graph 5: must be a graph, such as khop.open_graph returns', lambda: loader(graph=5)),
        ('sampler None: must be a khop.NeighborSampler, a khop.LinkSampler, or', lambda: khop.Loader(None, [0], 1)),
        ('sampler 5: must be a khop.NeighborSampler, a khop.LinkSampler, or', lambda: list(khop.Loader(5, [0], 1, graph=GRAPH))),
        ("seed_times of 'n' 5: give numbers, as a tensor, an array or", lambda: loader(sampler=khop.NeighborSampler(GRAPH, [1], rule=khop.Temporal('t')), seed_times=5)),
        ("seed_times of 'n' is a tensor of layout sparse_coo: give a dense", lambda: loader(seed_times=SPARSE)),
        ("seed_times of 'n' is a tensor on the meta device, which has no", lambda: loader(seeds=[0, 1, 2], seed_times=META)),
        ('budget_bytes -1: must be a whole number of bytes, 0 or more', lambda: loader().cache_features(-1)),
        ('budget_bytes 1.5: must be a whole number of bytes, 0 or more', lambda: loader().cache_features(1.5)),
        ('device_cache_bytes None: must be a whole number of bytes, 0 or more', lambda: loader().cache_features(1, device_cache_bytes=None)),
        ("by 'x': must be one of 'auto', 'visits', 'counts'", lambda: loader().cache_features(1, 'x')),
        ("edge type ('n', 'to', 'n'): fanout 9223372036854775808: must be", lambda: loader(sampler=khop.NeighborSampler(GRAPH, [2**63])).batch(0, 0)),
        ("edge type ('n', 'to', 'n'): fanout 1180591620717411303424: must", lambda: loader(sampler=khop.NeighborSampler(GRAPH, [2 ** 70])).batch(0, 0)),
        ("edge type ('n', 'to', 'n'): fanout 1099511627776: must be from", lambda: loader(sampler=khop.NeighborSampler(GRAPH, [2 ** 40])).batch(0, 0)),
        ("links of ('n', 'to', 'n'), destinations: there is no node 9;", lambda: loader(sampler=LINK_SAMPLER, seeds=khop.Links(tensor([[0], [9]])))),
        ('edges_for gave 5: must be a mapping from edge types to', lambda: loader(sampler=khop.FrontierSampler(GRAPH, lambda *a: 5, 1)).batch(0, 0)),
        ('edges_for gave None: must be a mapping from edge types to', lambda: loader(sampler=khop.FrontierSampler(GRAPH, lambda *a: None, 1)).batch(0, 0)),
        ("edges_for gave ('n', 'to', 'n'): 5: give khop.Edges(sources,", lambda: loader(sampler=khop.FrontierSampler(GRAPH, lambda *a: {EDGE: 5}, 1)).batch(0, 0)),
    ],
    "models": [
        ("hidden 'a': must be a whole number of at most 16777216", lambda: khop.models.SAGE.for_graph(GRAPH, hidden='a')),
        ('hidden 0: must be at least 1', lambda: khop.models.SAGE.for_graph(GRAPH, hidden=0)),
        ('layers 0: must be at least 1', lambda: khop.models.SAGE.for_graph(GRAPH, 4, 0)),
        ('layers 1.5: must be a whole number of at most 1024', lambda: khop.models.SAGE.for_graph(GRAPH, 4, 1.5)),
        ('dropout 2: must be at least 0 and below 1', lambda: khop.models.SAGE.for_graph(GRAPH, 4, 1, dropout=2)),
        ("norm 'x': must be one of none, layer", lambda: khop.models.SAGE.for_graph(GRAPH, 4, 1, norm='x')),
        ("residual 'x': must be one of none, add", lambda: khop.models.SAGE.for_graph(GRAPH, 4, 1, residual='x')),
        ('hidden 100000000000: must be a whole number of at most 16777216', lambda: khop.models.SAGE.for_graph(GRAPH, 10 ** 11, 1)),
    ],
    "NeighborSampler": [
        ("fanouts None: must be a list, as [10,", lambda: khop.NeighborSampler(GRAPH, None)),
        ("fanouts 5: must be a list, as [10,", lambda: khop.NeighborSampler(GRAPH, 5)),
        ("fanout 'a' for ('n', 'to', 'n'): must be 0 or more, or -1 for", lambda: khop.NeighborSampler(GRAPH, ['a'])),
        ("fanout 1.5 for ('n', 'to', 'n'): must be 0 or more, or -1 for", lambda: khop.NeighborSampler(GRAPH, [1.5])),
        ("fanouts tensor([[1]]): must be a list, as [10,", lambda: khop.NeighborSampler(GRAPH, tensor([[1]]))),
        ('fanout 1 for 5: fits no edge type of "n to n"; leave it out or', lambda: khop.NeighborSampler(GRAPH, [{5: 1}])),
        ("fanout True for ('n', 'to', 'n'): must be 0 or more, or -1 for", lambda: khop.NeighborSampler(GRAPH, [True])),
        ("fanout None for ('n', 'to', 'n'): must be 0 or more, or -1 for", lambda: khop.NeighborSampler(GRAPH, [None])),
        ('rule 5: must be khop.Uniform(), Weighted(column), Temporal', lambda: sampler(rule=5)),
        ("rule <class 'khop.sampling.rules.uniform.Uniform'>: must be khop.Uniform(),", lambda: sampler(rule=khop.Uniform)),
        ("rule 'weighted': must be khop.Uniform(), Weighted(column), Temporal", lambda: sampler(rule='weighted')),
        ('rule None: must be khop.Uniform(), Weighted(column), Temporal', lambda: sampler(rule=None)),
        ("expansion 'x': must be one of ['layered', 'subgraph']", lambda: sampler(expansion='x')),
        ("output 'x': must be one of ['directional', 'bidirectional',", lambda: sampler(output='x')),
        ("output None: must be one of ['directional', 'bidirectional',", lambda: sampler(output=None)),
        ('graph None: must be a graph, such as khop.open_graph returns', lambda: khop.NeighborSampler(None, [1])),
        ('must be a graph, such as khop.open_graph returns', lambda: khop.NeighborSampler('a/folder', [1])),
        ("trees 'x': must be one of merged, disjoint", lambda: sampler(trees='x')),
        ('trees True: must be one of', lambda: sampler(trees=True)),
        ("edge_ids 'x': must be True or False", lambda: sampler(edge_ids='x')),
        ("threads 'x': must be a whole number, 1 or more", lambda: sampler().with_threads('x')),
    ],
    "Constant": [
        ("name 'x': must be one of majority, mean", lambda: khop.Constant('x', torch.ones(1))),
        ("output 5: give a tensor (outputs)", lambda: khop.Constant('mean', 5)),
        ('labels 5: give a tensor with one row per node', lambda: khop.Constant.majority(5, 2)),
        ('labels: has no rows; give a tensor with one row per node', lambda: khop.Constant.mean(tensor(1.0))),
        ('classes 0: must be a whole number, 1 or more', lambda: khop.Constant.majority(tensor([1]), 0)),
    ],
    "MultiLabelClassification": [
        ("metric 'x': must be one of f1-micro,", lambda: khop.MultiLabelClassification('n', 'y', 'x')),
    ],
    "NodeRegression": [
        ("loss 'x': must be one of mse, mae", lambda: khop.NodeRegression('n', 'y', 'x')),
        ("metric 'x': must be one of rmse, mae, r2", lambda: khop.NodeRegression('n', 'y', metric='x')),
        ("scale 5: must be a khop.LabelScale", lambda: khop.NodeRegression('n', 'y', scale=5)),
    ],
    "NodeClassification": [
        ("metric 'x': must be one of ['accuracy', 'average-precision',", lambda: khop.NodeClassification('n', 'y', metric='x')),
        ("schema 5: must be a graph's schema, such as graph.schema", lambda: khop.NodeClassification.of(5)),
    ],
    "NodeTable": [
        ("node type 'n': column 5: must be text, as it becomes a file name", lambda: nodes(3, {5: torch.ones(3)})),
        ("node type 'n': split None: must be text, as it becomes a file", lambda: nodes(3, {}, {None: tensor([0])})),
        ("node type 'n': columns [1]: must be a mapping from names to", lambda: nodes(3, [1])),
        ("node type 'n': splits [1]: must be a mapping from names to", lambda: nodes(3, {}, [1])),
        ("node type 'n': num_classes of 'y' [2]: must be a whole number,", lambda: nodes(3, {'y': tensor([0, 1, 0])}, {}, {'y': [2]})),
        ("node type 'n': num_classes of 'y' 2.5: must be a whole number,", lambda: nodes(3, {'y': tensor([0, 1, 0])}, {}, {'y': 2.5})),
        ("node type 'n': num_classes of 'y' True: must be a whole number,", lambda: nodes(3, {'y': tensor([0, 0, 0])}, {}, {'y': True})),
        ("node type 'n': num_classes of 'y' None: must be a whole number,", lambda: nodes(3, {'y': tensor([0, 0, 0])}, {}, {'y': None})),
        ("node type 'n': num_classes [1]: must be a mapping from names of", lambda: nodes(3, {'y': tensor([0, 0, 0])}, {}, [1])),
        ("node type 'n': column 'x' is a tensor of layout sparse_coo: give tensor.to_sparse_csr(), or a dense one", lambda: nodes(3, {'x': SPARSE})),
        ("node type 'n': column 'x' is a tensor on the meta device, which", lambda: nodes(3, {'x': META})),
        ("node type 'n': column 'x' is a masked array, whose mask would", lambda: nodes(3, {'x': MASKED})),
        ("node type 'n': column 'x' is a list: give a torch tensor or a", lambda: nodes(3, {'x': [1, 2, 3]})),
        ("node type 'n': column 'x' is object: convert it to one of bool,", lambda: nodes(3, {'x': np.array([None] * 3)})),
        ("node type 'n': column 'x' is str32: convert it to one of bool,", lambda: nodes(3, {'x': np.array(['a'] * 3)})),
        ("node type 'n': column 'x' is complex64: convert it to one of", lambda: nodes(3, {'x': torch.ones(3, dtype=torch.complex64)})),
        ("node type 'n': count 5.0: must be a whole number, 0 or more", lambda: nodes(5.0)),
        ("node type 'n': count True: must be a whole number, 0 or more", lambda: nodes(True)),
        ("node type 'n': count 9223372036854775808: must be a whole", lambda: nodes(2**63)),
        ("node type 'n': count '3': must be a whole number, 0 or more", lambda: nodes('3')),
        ("node type 'n': split 'train' is float32 of shape (1,): ids are", lambda: nodes(3, {}, {'train': tensor([0.5])})),
        ("node type 'n': column 'original_id'[1] is 1, and so is [0]:", lambda: nodes(3, {'original_id': tensor([1, 1, 2])})),
    ],
    "open_folder": [
        ('path None: must be a path, as text or as a pathlib.Path', lambda: khop.open_folder(None)),
    ],
    "open_graph": [
        ('path None: must be a path, as text or as a pathlib.Path', lambda: khop.open_graph(None)),
        ('path 5: must be a path, as text or as a pathlib.Path', lambda: khop.open_graph(5)),
        ("placement 'x': must be one of 'whole', 'features', 'all'", lambda: khop.open_graph(GRAPH.folder.path, placement='x')),
        ("lanes 'x': must be a whole number, 1 or more", lambda: khop.open_graph(GRAPH.folder.path, lanes='x')),
        ('lanes 0: must be a whole number, 1 or more', lambda: khop.open_graph(GRAPH.folder.path, lanes=0)),
        ("wire 'x': must be one of 'stored', 'float16', 'int8'", lambda: khop.open_graph(GRAPH.folder.path, wire='x')),
        ('nonexistent: no such folder', lambda: khop.open_graph('/nonexistent')),
    ],
    "partition_graph": [
        ("parts 'a': must be a whole number", lambda: khop.partition_graph(GRAPH.folder.path, TMP / 'p', 'a')),
        ('parts 0: must be 1 to 4096', lambda: khop.partition_graph(GRAPH.folder.path, TMP / 'p', 0)),
        ('parts 1.5: must be a whole number', lambda: khop.partition_graph(GRAPH.folder.path, TMP / 'p', 1.5)),
        ("method 'x': must be one of ldg, fennel, metis, random, range,", lambda: khop.partition_graph(GRAPH.folder.path, TMP / 'p', 2, method='x')),
        ('graph None: must be a path, as text or as a pathlib.Path', lambda: khop.partition_graph(None, TMP / 'p', 2)),
        ("seed 'a': must be a whole number from 0 to 2**64 - 1", lambda: khop.partition_graph(GRAPH.folder.path, TMP / 'p1', 2, seed='a')),
        ('seed 1.5: must be a whole number from 0 to 2**64 - 1', lambda: khop.partition_graph(GRAPH.folder.path, TMP / 'p4', 2, seed=1.5)),
        ('balance 5: must be a list, as ["nodes", "edges"]', lambda: khop.partition_graph(GRAPH.folder.path, TMP / 'p2', 2, balance=5)),
        ("slack 'a': must be a number", lambda: khop.partition_graph(GRAPH.folder.path, TMP / 'p3', 2, slack='a')),
    ],
    "quantize": [
        ('the column to quantize is a str: give a torch tensor or a NumPy', lambda: khop.quantize('a')),
        ('the column to quantize is a NoneType: give a torch tensor or a', lambda: khop.quantize(None)),
        ('the column to quantize is a list: give a torch tensor or a', lambda: khop.quantize([1.0])),
        ('the column to quantize is int64: integers are stored as they are', lambda: khop.quantize(tensor([1, 2]))),
        ('the column to quantize[0] is nan: not a finite number; replace', lambda: khop.quantize(tensor([float('nan')]))),
        ('the column to quantize is a tensor of layout sparse_coo: give a', lambda: khop.quantize(SPARSE)),
        ('the column to quantize is a masked array, whose mask would be', lambda: khop.quantize(np.ma.array([1.0, 2.0], mask=[0, 1]))),
        ('the column to quantize is a tensor on the meta device, which', lambda: khop.quantize(torch.empty(3, device='meta'))),
    ],
    "restore_model": [
        ('checkpoint 5: pass the result of khop.load_checkpoint(folder)', lambda: khop.restore_model(MODEL, 5)),
    ],
    "RowAdam": [
        ('model [5]: must be a torch.nn.Module', lambda: khop.RowAdam([5])),
        ('model []: must be a torch.nn.Module', lambda: khop.RowAdam([], lr='a')),
    ],
    "Schedule": [
        ("course 'x': must be one of constant, linear, cosine", lambda: khop.Schedule('x')),
        ("warmup 'a': must be a whole number", lambda: khop.Schedule('linear', 'a')),
        ('warmup -1: must be 0 or more updates', lambda: khop.Schedule('linear', -1)),
        ('warmup 1.5: must be a whole number', lambda: khop.Schedule('linear', 1.5)),
    ],
    "Schema": [
        ('node types 5: must be a list', lambda: khop.Schema(5, ())),
        ('edge type 5: give source type, relation and destination type,', lambda: khop.Schema(('a',), (5,))),
        ('edge type 5: give source type, relation and destination type,', lambda: GRAPH.schema.column(5, 'x')),
        ("column 5 of 'n': not in the graph; there are ['t', 'x', 'y']", lambda: GRAPH.schema.column('n', 5)),
        ('edge type []: give source type, relation and destination type,', lambda: GRAPH.schema.column([], 'x')),
    ],
    "relation_count": [
        ('graph 5: must be a graph, such as khop.open_graph returns', lambda: khop.relation_count(5, EDGE, "t")),
        ("column 'z' of ('n', 'to', 'n'): not in the graph; there are ['t',", lambda: khop.relation_count(GRAPH, EDGE, "z")),
    ],
    "split_links": [
        ('edge type 5: must be a list, as ["user buys item"]', lambda: khop.split_links(GRAPH, 5)),
        ("val 'a': must be a share from 0 to below 1, or a number of links", lambda: khop.split_links(GRAPH, EDGE, 'a')),
        ('val nan: must be a share from 0 to below 1, or a number of links', lambda: khop.split_links(GRAPH, EDGE, float('nan'))),
        ('val 2.5: must be a share from 0 to below 1, or a number of links', lambda: khop.split_links(GRAPH, EDGE, 2.5)),
        ('seed 1.5: must be a whole number from 0 to 2**64 - 1', lambda: khop.split_links(GRAPH, EDGE, seed=1.5)),
        ('negatives 1.5: must be 0 or more, for each link of validation', lambda: khop.split_links(GRAPH, EDGE, negatives=1.5)),
        ("column 5 of ('n', 'to', 'n'): not in the graph; there are ['t',", lambda: khop.split_links(GRAPH, EDGE, label=5)),
        ("disjoint_share 'a': must be a share from 0 to below 1, or a", lambda: khop.split_links(GRAPH, EDGE, disjoint_share='a')),
        ('graph 5: must be a graph, such as khop.open_graph returns', lambda: khop.split_links(5, EDGE)),
        ('val True: must be a share from 0 to below 1, or a number of', lambda: khop.split_links(GRAPH, EDGE, True)),
        ('per_positive 9223372036854775808: must be a whole number, 1 or', lambda: khop.split_links(GRAPH, EDGE, 1, 1, negatives=2**63)),
    ],
    "Temporal": [
        ('window (9223372036854775808, 0): 9223372036854775808: must be a', lambda: loader(sampler=khop.NeighborSampler(GRAPH, [1], rule=khop.Temporal('t', window=(2**63, 0))), seed_times='t').batch(0, 0)),
        ('window (1,): must be two whole numbers, (before, after)', lambda: khop.Temporal('t', window=(1,))),
        ('window 5: must be two whole numbers, (before, after)', lambda: khop.Temporal('t', window=5)),
        ('window (1.5, 0): 1.5: must be a whole number', lambda: khop.Temporal('t', window=(1.5, 0))),
        ("window ('a', 0): 'a': must be a whole number", lambda: khop.Temporal('t', window=('a', 0))),
        ('window (18446744073709551616, -9223372036854775809):', lambda: khop.Temporal('t', window=(2 ** 64, -2 ** 63 - 1))),
        ("strategy 'x': must be one of ['sample', 'latest']", lambda: khop.Temporal('t', 'x')),
        ("strategy 5: must be one of ['sample', 'latest']", lambda: khop.Temporal('t', 5)),
        ('inner 5: must be khop.Uniform(), khop.Weighted(column) or', lambda: khop.Temporal('t', inner=5)),
        ('inner of type Temporal: must be khop.Uniform(), khop.Weighted', lambda: sampler(rule=khop.Temporal('t', inner=khop.Temporal('t')))),
        ('column 5: must be the name of a column, as text', lambda: sampler(rule=khop.Temporal(5))),
    ],
    "TrainerSettings": [
        ("epochs 'a': must be a whole number", lambda: khop.TrainerSettings(epochs='a')),
        ("learning_rate 'a': must be a number", lambda: khop.TrainerSettings(3, learning_rate='a')),
        ('learning_rate nan: must be positive', lambda: khop.TrainerSettings(3, learning_rate=float('nan'))),
        ('epochs 1.5: must be a whole number', lambda: khop.TrainerSettings(epochs=1.5)),
        ('seed 1.5: must be a whole number from 0 to 2**64 - 1', lambda: khop.TrainerSettings(3, seed=1.5)),
        ('seed 18446744073709551616: must be a whole number from 0 to', lambda: khop.TrainerSettings(3, seed=2 ** 64)),
        ("precision 'x': must be one of float32, tf32, float64, bfloat16", lambda: khop.TrainerSettings(3, precision='x')),
        ('device \'zzz\': must be a torch device, such as "cpu", "cuda" or', lambda: khop.TrainerSettings(3, device='zzz')),
        ("launches 'x': must be one of auto, single, recorded", lambda: khop.TrainerSettings(3, launches='x')),
        ("precision 'tf32': only GPUs compute products in TF32", lambda: khop.TrainerSettings(3, precision='tf32')),
        ("patience 'a': must be a whole number", lambda: khop.TrainerSettings(3, patience='a')),
        ('evaluate_every 0: must be positive', lambda: khop.TrainerSettings(3, evaluate_every=0)),
        ('weight_decay -1: must not be negative', lambda: khop.TrainerSettings(3, weight_decay=-1)),
        ("device 'cuda': torch finds no CUDA device; give", lambda: khop.TrainerSettings(3, device='cuda')),
    ],
    "Uniform": [
        ("replacement 'x': must be True or False", lambda: khop.Uniform('x')),
    ],
    "UniformNegatives": [
        ('per_positive 9223372036854775808: must be a whole number, 1 or', lambda: khop.UniformNegatives(2**63)),
        ('per_positive 2.0: must be a whole number, 1 or more', lambda: khop.UniformNegatives(2.0)),
        ("mode 'x': must be one of ['binary', 'triplet']", lambda: khop.UniformNegatives(1, 'x')),
        ("mode []: must be one of ['binary', 'triplet']", lambda: khop.UniformNegatives(1, [])),
        ("exact 'x': must be True or False", lambda: khop.UniformNegatives(1, exact='x')),
    ],
    "SaintNodes": [
        ('size 0: must be a whole number from 1 to', lambda: khop.SaintNodes(0)),
        ("size 'a': must be a whole number from 1 to", lambda: khop.SaintNodes('a')),
    ],
    "SaintEdges": [
        ('size 0: must be a whole number from 1 to', lambda: khop.SaintEdges(0)),
    ],
    "SaintWalks": [
        ('roots 0: must be a whole number from 1 to', lambda: khop.SaintWalks(0, 2)),
        ('length 1.5: must be a whole number from 1 to', lambda: khop.SaintWalks(2, 1.5)),
        ('roots * (length + 1) ', lambda: khop.SaintWalks(2**30, 3)),
    ],
    "SaintSampler": [
        ('graph 5: must be a graph', lambda: khop.SaintSampler(5, khop.SaintNodes(2), layers=1)),
        ('draw 5: must be khop.SaintNodes(...)', lambda: khop.SaintSampler(GRAPH, 5, layers=1)),
        ('layers 0: must be a whole number, 1 or more', lambda: khop.SaintSampler(GRAPH, khop.SaintNodes(2), layers=0)),
        ('coverage 0: must be a whole number, 1 or more', lambda: khop.SaintSampler(GRAPH, khop.SaintNodes(2), layers=1, coverage=0)),
        ('groups_per_epoch 0: must be a whole', lambda: khop.SaintSampler(GRAPH, khop.SaintNodes(2), layers=1, groups_per_epoch=0)),
        ('rule 5: must be khop.Uniform()', lambda: khop.SaintSampler(GRAPH, khop.SaintNodes(2), layers=1, rule=5)),
        ("rule Temporal(column='t'", lambda: khop.SaintSampler(GRAPH, khop.SaintNodes(2), layers=1, rule=khop.Temporal('t'))),
        ('seed -1:', lambda: khop.SaintSampler(GRAPH, khop.SaintNodes(2), layers=1, seed=-1)),
    ],
    "ClusterSampler": [
        ('graph 5: must be a graph', lambda: khop.ClusterSampler(5, tensor([0, 1, 0]), layers=1)),
        ("clusters of 'n': 5; give whole numbers", lambda: khop.ClusterSampler(GRAPH, 5, layers=1)),
        ("clusters of 'n': of shape (2,), for 3 nodes", lambda: khop.ClusterSampler(GRAPH, tensor([0, 1]), layers=1)),
        ("clusters of 'n': node 1 has -1", lambda: khop.ClusterSampler(GRAPH, tensor([0, -1, 0]), layers=1)),
        ('per_group 0: must be a whole', lambda: khop.ClusterSampler(GRAPH, tensor([0, 1, 0]), layers=1, per_group=0)),
    ],
    "ShadowSampler": [
        ('graph 5: must be a graph', lambda: khop.ShadowSampler(5, [2], layers=1)),
        ("fanouts 'a'", lambda: khop.ShadowSampler(GRAPH, 'a', layers=1)),
        ('layers 0: must be a whole', lambda: khop.ShadowSampler(GRAPH, [2], layers=0)),
        ('per_group 0: must be a whole', lambda: khop.ShadowSampler(GRAPH, [2], layers=1, per_group=0)),
    ],
    "cluster_graph": [
        ('graph 5: must be a path', lambda: khop.cluster_graph(5, TMP / 'zz', 2)),
        ('clusters 0: must be a whole number, 1 or more', lambda: khop.cluster_graph(written(), TMP / 'zz', 0)),
        ("method 'zz'", lambda: khop.cluster_graph(written(), TMP / 'zz', 2, method='zz')),
        ("column 'x': 'n' nodes already have it", lambda: khop.cluster_graph(written(), TMP / 'zz', 2, column='x')),
    ],
    "clusters_of": [
        ('graph 5: must be a khop.Graph', lambda: khop.clusters_of(5)),
        ("column 'cluster': 'n' nodes lack it", lambda: khop.clusters_of(GRAPH)),
        ("column 'x' of 'n': float32", lambda: khop.clusters_of(GRAPH, 'x')),
    ],
    "Node2Vec": [
        ('p 0: must be from 1/1024 to 1024', lambda: khop.Node2Vec(p=0)),
        ("q 'a'", lambda: khop.Node2Vec(q='a')),
    ],
    "random_walks": [
        ('graph 5: must be a graph', lambda: khop.random_walks(5, tensor([0]), [EDGE])),
        ('starts: there is no node 9', lambda: khop.random_walks(GRAPH, tensor([9]), [EDGE])),
        ('path []: has no edge type', lambda: khop.random_walks(GRAPH, tensor([0]), [])),
        ("path: no edge type ('n', 'zz', 'n')", lambda: khop.random_walks(GRAPH, tensor([0]), [('n', 'zz', 'n')])),
        ('bias 5: must be khop.Node2Vec(p, q)', lambda: khop.random_walks(GRAPH, tensor([0]), [EDGE], bias=5)),
        ('first -1: must be', lambda: khop.random_walks(GRAPH, tensor([0]), [EDGE], first=-1)),
    ],
    "WalkCounts": [
        ('walks 0: must be a whole number from 1 to', lambda: khop.WalkCounts(walks=0)),
        ('stop 2: must be a probability', lambda: khop.WalkCounts(stop=2)),
    ],
    "walk_neighbors": [
        ('graph 5: must be a graph', lambda: khop.walk_neighbors(5, [EDGE])),
        ('counts 5: must be khop.WalkCounts(...)', lambda: khop.walk_neighbors(GRAPH, [EDGE], 5)),
        ('path []: has no edge type', lambda: khop.walk_neighbors(GRAPH, [])),
        ('bias 5: must be khop.Node2Vec(p, q)', lambda: khop.walk_neighbors(GRAPH, [EDGE], bias=5)),
    ],
    "SeedTable": [
        ("nodes 5: give node ids", lambda: khop.SeedTable(5)),
        ("nodes: a mask of shape (2,); give an id for each row", lambda: khop.SeedTable(tensor([True, False]))),
        ("times are torch.float32 of shape (1,): give a whole number", lambda: khop.SeedTable([0], times=[0.5])),
        ("labels: int64 of shape (1,) for 2 rows", lambda: khop.SeedTable([0, 1], labels=tensor([1]))),
        ("weights: bool of shape (1,) for 1 rows; give one number", lambda: khop.SeedTable([0], weights=[True])),
        ("rows of 'n': there is no node 9", lambda: loader(seeds=khop.SeedTable([9]))),
    ],
    "NodeTuples": [
        ("tuples 5: give int64 (N, M)", lambda: loader(seeds=khop.NodeTuples(5))),
        ("tuples: int64 of shape (3,); give int64", lambda: loader(seeds=khop.NodeTuples(tensor([0, 1, 2])))),
        ("tuples of 'n': there is no node 9", lambda: loader(seeds=khop.NodeTuples(tensor([[9]])))),
        ("labels: 1 for 2 tuples", lambda: loader(seeds=khop.NodeTuples(tensor([[0], [1]]), tensor([1])))),
    ],
    "hard_negatives": [
        ('sources 5: must be', lambda: khop.hard_negatives(5, torch.rand(2, 2), 1)),
        ('keep 0: must be a whole number, 1 or more', lambda: khop.hard_negatives(torch.rand(2, 2), torch.rand(2, 2), 0)),
        ('keep 3: there are 2 destinations', lambda: khop.hard_negatives(torch.rand(2, 2), torch.rand(2, 2), 3)),
        ('grid 0: must be a whole number from 1 to', lambda: khop.hard_negatives(torch.rand(2, 2), torch.rand(2, 2), 1, grid=0)),
        ("score 'l3': must be one of", lambda: khop.hard_negatives(torch.rand(2, 2), torch.rand(2, 2), 1, score='l3')),
    ],
    "TableNegatives": [
        ('table 5: must be int64 (sources, k)', lambda: khop.TableNegatives({EDGE: 5})),
        ('table {}: must be int64 (sources, k)', lambda: khop.TableNegatives({})),
        ('table 5: must be int64 (sources, k)', lambda: khop.TableNegatives(5)),
        ('table torch.float32 (2, 2): must be int64', lambda: khop.TableNegatives(torch.rand(2, 2))),
        ("mode 'zz': must be one of", lambda: khop.TableNegatives(tensor([[0]]), 'zz')),
    ],
    "SpotTarget": [
        ('below 0: must be a whole number from 1 to', lambda: khop.SpotTarget(0)),
        ("exclude 'zz': must be 'edge'", lambda: khop.SpotTarget(2, 'zz')),
    ],
    "MixedNegatives": [
        ('parts 5: must be', lambda: khop.MixedNegatives(5)),
        ('parts (): must be two or more kinds', lambda: khop.MixedNegatives(())),
        ('parts (UniformNegatives(', lambda: khop.MixedNegatives((khop.UniformNegatives(), 5))),
    ],
    "Labor": [
        ("kappa 0: must be a whole number from 1 to", lambda: khop.Labor(kappa=0)),
        ("layer_dependent 5: must be True or False", lambda: khop.Labor(layer_dependent=5)),
    ],
    "TopK": [
        ('column 5: must be the name of a column, as text', lambda: khop.TopK(5)),
    ],
    "Sum": [
        ('inner 5: must be khop.Uniform(), khop.Weighted(column) or', lambda: khop.Sum(5)),
        ("inner of type Temporal: must be khop.Uniform(), khop.Weighted(column) or another rule without time limits; give Temporal(column, inner=Sum())", lambda: khop.Sum(khop.Temporal('t'))),
    ],
    "RelationMean": [
        ("column 5: must be the name of a column, as text", lambda: khop.RelationMean(5)),
        ("inner 5: must be khop.Uniform(), khop.Labor() or another rule without time limits", lambda: khop.RelationMean("r", 5)),
    ],
    "SymmetricSum": [
        ("inner 5: must be khop.Uniform(), khop.Weighted(column) or", lambda: khop.SymmetricSum(5)),
    ],
    "Weighted": [
        ('column 5: must be the name of a column, as text', lambda: sampler(rule=khop.Weighted(5))),
        ('column None: must be the name of a column, as text', lambda: sampler(rule=khop.Weighted(None))),
        ("column ['w']: must be the name of a column, as text", lambda: sampler(rule=khop.Weighted(['w']))),
    ],
    "WeightedNegatives": [
        ('column 5: must be the name of a column, as text', lambda: khop.WeightedNegatives(5)),
    ],
    "with_negatives": [
        ('links 5: give khop.Links(...) with the links in this process', lambda: khop.with_negatives(GRAPH, 5, khop.UniformNegatives())),
        ('negatives 5: must be khop.UniformNegatives(...),', lambda: khop.with_negatives(GRAPH, khop.Links(ENDS), 5)),
        ('seed 1.5: must be a whole number from 0 to 2**64 - 1', lambda: khop.with_negatives(GRAPH, khop.Links(ENDS), khop.UniformNegatives(), seed=1.5)),
        ('time 5: the links have no times; give khop.Links(times=...)', lambda: khop.with_negatives(GRAPH, khop.Links(ENDS), khop.UniformNegatives(), time=5)),
    ],
    "open_ids": [
        ("path 5: ", lambda: khop.open_ids(5, "n")),
        ("no-graph: no such folder; khop import and write_graph make one", lambda: khop.open_ids("no-graph", "n")),
    ],
    "write_graph": [
        ("memory 0: ", lambda: khop.write_graph("g", {"n": khop.NodeTable(3)}, {}, memory=0)),
        ("node type 'n': ids[0] is 0.5: ids are text or integers of 64 bits", lambda: written(nodes={'n': khop.NodeTable(ids=[0.5, 1.5, 2.5])}, edges={})),
        ('node type 5: must be text, as it becomes a file name', lambda: written(nodes={5: khop.NodeTable(3)}, edges={})),
        ("edge type ('n', 5, 'n'): give source type, relation and", lambda: written(edges={('n', 5, 'n'): khop.EdgeTable(tensor([0]), tensor([0]))})),
        ('nodes [1]: must be a mapping from node types to khop.NodeTable', lambda: written(nodes=[1])),
        ('edges [1]: must be a mapping from edge types to khop.EdgeTable', lambda: written(edges=[1])),
        ("node type 'n' None: give a khop.NodeTable", lambda: written(nodes={'n': None})),
        ("edge type ('n', 'to', 'n') None: give a khop.EdgeTable", lambda: written(edges={EDGE: None})),
        ("node type 'n': count 1,099,511,627,776: edges ('n', 'to', 'n')", lambda: written(nodes={'n': khop.NodeTable(2 ** 40)}, edges={EDGE: khop.EdgeTable(tensor([0]), tensor([1]))})),
        ("sort_by 5: no such column of times; there are {'n': ['x', 'y',", lambda: written(sort_by=5)),
        ('threads 0: must be a whole number, 1 or more', lambda: written(threads=0)),
        ("threads '2': must be a whole number, 1 or more", lambda: written(threads='2')),
        ('path 5: must be a path, as text or as a pathlib.Path', lambda: khop.write_graph(5, {'n': khop.NodeTable(1)}, {})),
        ('path None: must be a path, as text or as a pathlib.Path', lambda: khop.write_graph(None, {'n': khop.NodeTable(1)}, {})),
    ],
    "GivenNegatives": [("mode 5: must be one of", lambda: khop.GivenNegatives(5))],
    "SparseColumn": [
        ("values [1]: must be a tensor of int32", lambda: khop.SparseColumn([1], 3)),
        ("values are torch.int64 (3,): must be int32 (rows, 2, entries)", lambda: khop.SparseColumn(tensor([1, 2, 3]), 3)),
        ("width 0: must be", lambda: khop.SparseColumn(torch.zeros(3, 2, 1, dtype=torch.int32), 0)),
        ("the sparse column is a list: give a torch.sparse_csr tensor", lambda: khop.SparseColumn.of([1])),
        ("the sparse column is a Tensor: give a torch.sparse_csr tensor", lambda: khop.SparseColumn.of(SPARSE)),
    ],
    "SparseRows": [
        ("rows are torch.float32 (3, 4): must be int32", lambda: khop.SparseRows.of(torch.zeros(3, 4), 4)),
        ("width 0: must be", lambda: khop.SparseRows.of(torch.zeros(3, 2, 1, dtype=torch.int32), 0)),
        (
            "weight (2, 5): must be (outputs, 4)",
            lambda: khop.SparseRows.of(torch.zeros(3, 2, 1, dtype=torch.int32), 4).product(torch.zeros(2, 5)),
        ),
    ],
    "Quantized": [
        ("values [1]: must be a tensor", lambda: khop.Quantized([1], tensor([1.0]))),
        ("scales 5: must be a tensor", lambda: khop.Quantized(tensor([1]), 5)),
    ],
    "graph_from_pyg": [("data 5: must be a torch_geometric Data or", lambda: khop.graph_from_pyg(5))],
    "graph_from_scipy": [("matrix 5 of", lambda: khop.graph_from_scipy(5))],
    "graph_from_networkx": [("graph 5: must be a NetworkX graph", lambda: khop.graph_from_networkx(5))],
    "graph_from_dgl": [("graph 5: must be a DGLGraph", lambda: khop.graph_from_dgl(5))],
    "graph_to_pyg": [("graph 5: must be a graph, such as khop.open_graph", lambda: khop.graph_to_pyg(5))],
    "batch_to_pyg": [("batch 5: must be a batch of a khop.Loader", lambda: khop.batch_to_pyg(5))],
    "LossWeights": [("total of loss weights 0.0: must be above 0", lambda: khop.LossWeights({}, 0.0))],
    "links_from_pyg": [("data 5: must be a torch_geometric Data or", lambda: khop.links_from_pyg(5))],
    "LinkSplit": [("path 5: must be a path", lambda: khop.LinkSplit.open(5))],
    "node_rows": [("chunk_size 0: must be a whole number, 1 or more", lambda: khop.node_rows(MODEL, GRAPH, GRAPH.features, ["n"], chunk_size=0))],
    "sampled_inference": [
        ("chunk_size 0: must be a whole number, 1 or more", lambda: inferred(chunk_size=0)),
        ("seed 1.5: must be a whole number from 0", lambda: inferred(seed=1.5)),
    ],
}
# fmt: on
# What takes no value of a user's, or holds what khop gives: outputs, protocols, enumerations and errors.
NOTHING_TO_REFUSE = {
    "Adjacency",
    "Batch",
    "Recommendations",
    "Block",
    "ColumnSpec",
    "Exclude",
    "Expansion",
    "FeatureStoreBase",
    "GraphStoreBase",
    "LinkLoss",
    "LinkRows",
    "NegativeMode",
    "Observer",
    "Unwatched",
    "Output",
    "OwnIds",
    "PeerLost",
    "Rule",
    "RuleBase",
    "Sample",
    "Sampler",
    "SamplerBase",
    "Seeds",
    "Subgraph",
    "TemporalStrategy",
    "Terminated",
    "builtin_names",
}  # fmt: skip
ELSEWHERE = {"Trainer"}  # what it is given is checked as TrainerSettings, a model, a task and a loader


@pytest.mark.parametrize(
    ("sentence", "call"),
    [
        pytest.param(sentence, call, id=f"{name}: {sentence}")
        for name, cases in REFUSED.items()
        for sentence, call in cases
    ],
)
def test_a_bad_value_is_a_sentence_with_value_reason_and_remedy(
    sentence: str, call: Callable[[], object]
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the sentence is compared as it stands
        call()
    assert sentence in str(caught.value)


def test_no_public_function_or_class_is_left_out() -> None:
    public = {name for name in khop._PUBLIC if isfunction(value := getattr(khop, name)) or isclass(value)}
    assert public - NOTHING_TO_REFUSE - ELSEWHERE - REFUSED.keys() == set()
    assert REFUSED.keys() & NOTHING_TO_REFUSE == set()


def given_to(fanouts: Any) -> object:
    return loader(sampler=khop.NeighborSampler(GRAPH, fanouts)).batch(0, 0)


def seeded(seeds: Any, **settings: Any) -> object:
    return loader(seeds=seeds, **settings).batch(0, 0)


def linked(*columns: Any, **settings: Any) -> object:
    return khop.Loader(LINK_SAMPLER, khop.Links(*columns), 2, **settings).batch(0, 0)


def walked(starts: Any, **settings: Any) -> object:
    return khop.random_walks(GRAPH, starts, [EDGE], **settings)


def rows_of(nodes: Any, **settings: Any) -> object:
    return np.load(khop.infer(MODEL, GRAPH, TMP / f"{next(NUMBERS)}.npy", nodes=nodes, **settings)["n"])


def sampled(nodes: Any, **settings: Any) -> object:
    columns = ColumnChoice.of(GRAPH.schema, ["x"], (), ("n",))
    return khop.sampled_inference(
        MODEL, sampler(), GRAPH.features, "n", nodes=nodes, columns=columns, **settings
    )


def chunks_of(chunks: Any) -> object:
    return [(chunk.sources, chunk.destinations) for chunk in chunks]


def split_of(nodes: Any) -> object:
    return khop.open_graph(written({"n": khop.NodeTable(3, splits={"train": nodes})})).split("train")


PYG = Data(x=torch.randn(3, 2), edge_index=tensor([[0, 1, 2], [1, 2, 0]]))

TYPED = PYG.to_heterogeneous(node_type_names=["n"], edge_type_names=[EDGE])


def pyg_batch(nodes: Any, data: Any = PYG) -> object:
    from khop.pyg import NeighborLoader

    batches = NeighborLoader(data, [1], nodes, batch_size=2)
    return [batch.n_id if data is PYG else batch["n"].n_id for batch in batches]


def pyg_links(weights: Any) -> object:
    from torch_geometric.sampler import NegativeSampling

    from khop.pyg import LinkNeighborLoader

    torch.manual_seed(3)
    negatives = NegativeSampling("binary", 2, src_weight=weights, dst_weight=weights)
    return [batch.n_id for batch in LinkNeighborLoader(PYG, [1], [[0, 1], [0, 1]], neg_sampling=negatives)]


def worked(rank: int, device: torch.device) -> None:
    """The function of a launch of one rank."""


def appended(threads: Any) -> object:
    folder = khop.import_tables(
        {"nodes": {"n": {"rows": pd.DataFrame({"id": ["a", "b"]}), "id": "id"}}},
        TMP / str(next(NUMBERS)),
        threads=threads,
    )
    khop.append(
        folder.path, {"nodes": {"n": {"rows": pd.DataFrame({"id": ["c"]}), "id": "id"}}}, threads=threads
    )
    return khop.open_graph(folder.path).num_nodes("n")


def restored(**position: Any) -> object:
    made = loader()
    made.load_state_dict({**made.state_dict(), **position})
    return made.state_dict()


def saved(settings: khop.TrainerSettings) -> object:
    return json.dumps(asdict(replace(settings, optimizer=khop.OptimizerSettings())), default=repr)


def recommended(sources: Any, k: Any = 2) -> object:
    return khop.recommend(PREDICTOR, GRAPH, EDGE, sources, k=k)


TIMED = khop.NeighborSampler(GRAPH, [2], rule=khop.Temporal("t"))
TWO, ONE, NONE = np.int64(2), np.int32(1), np.uint8(0)
# What NumPy and pandas give, and the call with what Python gives.
# fmt: off
TAKEN: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
    ("Loader.batch", lambda: loader().batch(NONE, np.int64(0)), lambda: loader().batch(0, 0)),
    ("Loader.batch, second", lambda: loader(batch_size=1).batch(np.int64(0), np.int64(1)), lambda: loader(batch_size=1).batch(0, 1)),
    ("batch_size", lambda: loader(batch_size=TWO).batch(0, 0), lambda: loader(batch_size=2).batch(0, 0)),
    ("seed", lambda: loader(seed=np.uint64(2**63 + 1)).batch(0, 0), lambda: loader(seed=2**63 + 1).batch(0, 0)),
    ("threads and prefetch", lambda: loader(threads=ONE, prefetch=TWO).batch(0, 0), lambda: loader(threads=1, prefetch=2).batch(0, 0)),
    ("fanouts of integers", lambda: given_to([TWO, ONE]), lambda: given_to([2, 1])),
    ("fanouts, an array", lambda: given_to(np.array([2, 1])), lambda: given_to([2, 1])),
    ("fanouts, a Series", lambda: given_to(pd.Series([2, 1])), lambda: given_to([2, 1])),
    ("fanouts, a tensor", lambda: given_to(tensor([2, 1])), lambda: given_to([2, 1])),
    ("fanouts by edge type", lambda: given_to([{EDGE: TWO}]), lambda: given_to([{EDGE: 2}])),
    ("fanouts of links", lambda: khop.Loader(khop.LinkSampler(GRAPH, np.array([1])), khop.Links(ENDS), TWO).batch(0, 0), lambda: khop.Loader(khop.LinkSampler(GRAPH, [1]), khop.Links(ENDS), 2).batch(0, 0)),
    ("seeds, a Series", lambda: seeded(pd.Series([2, 0])), lambda: seeded([2, 0])),
    ("seeds, a nullable Series", lambda: seeded(pd.Series([2, 0], dtype="Int64")), lambda: seeded([2, 0])),
    ("seeds, an Index", lambda: seeded(pd.Index([2, 0])), lambda: seeded([2, 0])),
    ("seeds, a RangeIndex", lambda: seeded(pd.RangeIndex(2)), lambda: seeded([0, 1])),
    ("seeds, a mask of a Series", lambda: seeded(pd.Series([True, False, True])), lambda: seeded([0, 2])),
    ("seeds by type", lambda: seeded({"n": pd.Index([2, 0])}), lambda: seeded({"n": [2, 0]})),
    ("UniformNegatives", lambda: khop.UniformNegatives(TWO) == khop.UniformNegatives(2), lambda: True),
    ("window", lambda: khop.Temporal("t", window=(TWO, np.int64(0))), lambda: khop.Temporal("t", window=(2, 0))),
    ("cooccurrence", lambda: khop.cooccurrence(GRAPH, EDGE, min_count=ONE, threads=TWO).sources, lambda: khop.cooccurrence(GRAPH, EDGE, min_count=1, threads=2).sources),
    ("evaluate", lambda: khop.evaluate(MODEL, GRAPH, split="val", fanouts=np.array([2])), lambda: khop.evaluate(MODEL, GRAPH, split="val", fanouts=[2])),
    ("recommend, a Series", lambda: recommended(pd.Series([2, 0]), TWO), lambda: recommended(tensor([2, 0]))),
    ("recommend, an Index", lambda: recommended(pd.Index([2, 0])), lambda: recommended(tensor([2, 0]))),
    ("DrawKey", lambda: khop.DrawKey.of(TWO, khop.draw.Purpose.HOP, ONE, TWO), lambda: khop.DrawKey.of(2, khop.draw.Purpose.HOP, 1, 2)),
    ("SeedTable, arrays", lambda: seeded(khop.SeedTable(np.array([1, 1]), labels=np.array([0, 1]), weights=pd.Series([1, 3]))), lambda: seeded(khop.SeedTable({"n": tensor([1, 1])}, labels=tensor([0, 1]), weights=tensor([1.0, 3.0]).double()))),
    ("NodeTuples, an array", lambda: seeded(khop.NodeTuples(np.array([[0, 1], [2, 0]]), np.array([0.5, 1.5]))), lambda: seeded(khop.NodeTuples(tensor([[0, 1], [2, 0]]), tensor([0.5, 1.5]).double()))),
    ("NodeTuples, lists", lambda: seeded(khop.NodeTuples([[0, 1], [2, 0]], [0.5, 1.5])), lambda: seeded(khop.NodeTuples(tensor([[0, 1], [2, 0]]), tensor([0.5, 1.5])))),
    ("NodeTuples, a DataFrame", lambda: seeded(khop.NodeTuples(pd.DataFrame([[0, 1], [2, 0]]), pd.Series([3, 4]))), lambda: seeded(khop.NodeTuples({"n": tensor([[0, 1], [2, 0]])}, tensor([3, 4])))),
    ("Links, arrays", lambda: linked(ENDS.numpy().astype(np.int32), np.array([0.5, 1.5])), lambda: linked(ENDS, tensor([0.5, 1.5]).double())),
    ("Links, lists", lambda: vars(khop.Links([[0, 1], [1, 2]], [0.5, 1.5], [7, 8], [[0], [2]], [3, 4])), lambda: vars(khop.Links(ENDS, tensor([0.5, 1.5]), tensor([7, 8]), tensor([[0], [2]]), tensor([3, 4])))),
    ("Links, Series", lambda: linked({EDGE: (pd.Series([0, 1]), pd.Series([1, 2]))}, {EDGE: pd.Series([3, 4])}), lambda: linked({EDGE: ENDS}, {EDGE: tensor([3, 4])})),
    ("Links, rows of tensors", lambda: linked([ENDS[0], ENDS[1]]), lambda: linked(ENDS)),
    ("links to evaluate", lambda: khop.evaluate_links(PREDICTOR, GRAPH, khop.Links(ENDS.numpy(), negatives=[[0, 1], [0, 1]])), lambda: khop.evaluate_links(PREDICTOR, GRAPH, khop.Links(ENDS, negatives=tensor([[0, 1], [0, 1]])))),
    ("seed_times, a list", lambda: seeded([0, 1], sampler=TIMED, seed_times=[2, 3]), lambda: seeded([0, 1], sampler=TIMED, seed_times=tensor([2, 3]))),
    ("seed_times, a Series", lambda: seeded([0, 1], sampler=TIMED, seed_times={"n": pd.Series([2, 3])}), lambda: seeded([0, 1], sampler=TIMED, seed_times=tensor([2, 3]))),
    ("times of sampled_inference", lambda: khop.sampled_inference(MODEL, TIMED, GRAPH.features, "n", nodes=[0, 1], times=np.array([2, 3]), columns=ColumnChoice.of(GRAPH.schema, ["x"], (), ("n",))), lambda: khop.sampled_inference(MODEL, TIMED, GRAPH.features, "n", nodes=[0, 1], times=tensor([2, 3]), columns=ColumnChoice.of(GRAPH.schema, ["x"], (), ("n",)))),
    ("sampled_inference", lambda: sampled([0, 1], seed=np.uint64(3), chunk_size=ONE), lambda: sampled([0, 1], seed=3, chunk_size=1)),
    ("infer", lambda: rows_of([0, 1], chunk_size=TWO, chunk_edges=np.int64(9)), lambda: rows_of([0, 1], chunk_size=2, chunk_edges=9)),
    ("random_walks", lambda: walked([0, 1], seed=np.uint8(3), epoch=TWO, first=ONE), lambda: walked([0, 1], seed=3, epoch=2, first=1)),
    ("walk_neighbors", lambda: chunks_of(khop.walk_neighbors(GRAPH, [EDGE], khop.WalkCounts(TWO, ONE, keep=TWO), seed=TWO).chunks), lambda: chunks_of(khop.walk_neighbors(GRAPH, [EDGE], khop.WalkCounts(2, 1, keep=2), seed=2).chunks)),
    ("append", lambda: appended(TWO), lambda: appended(2)),
    ("launch", lambda: khop.launch(worked, procs=np.int64(1), device="cpu", deadline=np.float32(9)), lambda: None),
    ("TrainerSettings", lambda: saved(khop.TrainerSettings(TWO, np.float32(0.5), evaluate_every=np.float32(0.25), patience=TWO, max_steps=TWO, seed=np.uint64(5), checkpoints=khop.CheckpointPolicy(TWO, np.float32(1.5), TWO, ONE))), lambda: saved(khop.TrainerSettings(2, 0.5, evaluate_every=0.25, patience=2, max_steps=2, seed=5, checkpoints=khop.CheckpointPolicy(2, 1.5, 2, 1)))),
    ("split_links, shares", lambda: khop.split_links(GRAPH, EDGE, np.float32(0.5), np.float64(0.25), negatives=ONE, seed=TWO), lambda: khop.split_links(GRAPH, EDGE, 0.5, 0.25, negatives=1, seed=2)),
    ("partition_graph", lambda: vars(khop.partition_graph(GRAPH.folder.path, TMP / str(next(NUMBERS)), TWO, slack=np.float32(0.5), fanouts=np.array([2]), seed=ONE)), lambda: vars(khop.partition_graph(GRAPH.folder.path, TMP / str(next(NUMBERS)), 2, slack=0.5, fanouts=(2,), seed=1))),
    ("num_classes", lambda: khop.open_graph(nodes(np.int64(3), {"y": np.array([0, 1, 0])}, num_classes={"y": TWO})).schema, lambda: khop.open_graph(nodes(3, {"y": np.array([0, 1, 0])}, num_classes={"y": 2})).schema),
    ("state of a loader", lambda: json.dumps(loader(batch_size=TWO, shuffle=np.bool_(True), drop_last=np.bool_(False)).state_dict()), lambda: json.dumps(loader(batch_size=2, shuffle=True, drop_last=False).state_dict())),
    ("position of a loader", lambda: restored(epoch=TWO, step=NONE), lambda: restored(epoch=2, step=0)),
    ("in_degrees", lambda: GRAPH.in_degrees(EDGE, np.array([0, 2])), lambda: GRAPH.in_degrees(EDGE, tensor([0, 2]))),
    ("Uniform", lambda: khop.Uniform(replacement=np.bool_(True)), lambda: khop.Uniform(replacement=True)),
    ("Labor", lambda: khop.Labor(kappa=TWO), lambda: khop.Labor(kappa=2)),
    ("SpotTarget", lambda: khop.SpotTarget(TWO), lambda: khop.SpotTarget(2)),
    ("SaintNodes", lambda: khop.SaintNodes(TWO), lambda: khop.SaintNodes(2)),
    ("UniformNegatives, shown", lambda: khop.UniformNegatives(TWO), lambda: khop.UniformNegatives(2)),
    ("hard_negatives", lambda: khop.hard_negatives(torch.eye(3), torch.eye(3), TWO, grid=TWO), lambda: khop.hard_negatives(torch.eye(3), torch.eye(3), 2, grid=2)),
    ("hard_negatives, arrays", lambda: khop.hard_negatives(np.eye(3), torch.eye(3).tolist(), 1, known=np.array([[0], [0]], np.int32), original_ids=[2, 0, 1]), lambda: khop.hard_negatives(torch.eye(3), torch.eye(3), 1, known=tensor([[0], [0]]), original_ids=tensor([2, 0, 1]))),
    ("full_ranking, arrays", lambda: khop.full_ranking(lambda q: torch.eye(5)[q], ENDS.numpy(), [[], []], np.int64(5), np.array([1, 2])), lambda: khop.full_ranking(lambda q: torch.eye(5)[q], ENDS, ENDS[:, :0], 5, [1, 2])),
    ("class_weights, a Series", lambda: khop.class_weights(pd.Series([0, 0, 1]), TWO, np.array([1.0, 2.0])), lambda: khop.class_weights(tensor([0, 0, 1]), 2, [1.0, 2.0])),
    ("DrawKey.plus", lambda: khop.DrawKey(np.uint64(2**64 - 1)).plus(1), lambda: khop.DrawKey(2**64 - 1).plus(1)),
    ("weights of khop.pyg, an array", lambda: pyg_links(np.array([1.0, 0, 2], np.float32)), lambda: pyg_links(tensor([1.0, 0, 2]))),
    ("weights of khop.pyg, a list", lambda: pyg_links([1.0, 0, 2]), lambda: pyg_links(tensor([1.0, 0, 2]))),
    ("weights of khop.pyg, a Series", lambda: pyg_links(pd.Series([1, 0, 2])), lambda: pyg_links(tensor([1, 0, 2]))),
    ("batch_size of khop.pyg", lambda: pyg_batch(np.array([0, 2])), lambda: pyg_batch([0, 2])),
    ("hidden and layers", lambda: str(khop.models.SAGE.for_graph(GRAPH, np.int64(4), np.int64(1))), lambda: str(khop.models.SAGE.for_graph(GRAPH, 4, 1))),
]
# fmt: on


def sample_of(made: object) -> object:
    """Return the sample of a batch, which differs from another in its times; other values as they are."""
    return getattr(made, "sample", made)


@pytest.mark.parametrize(("given", "plain"), [pytest.param(*calls, id=name) for name, *calls in TAKEN])
def test_what_numpy_and_pandas_give_is_taken_as_what_python_gives(
    given: Callable[[], object], plain: Callable[[], object]
) -> None:
    assert repr(sample_of(given())) == repr(sample_of(plain()))


# Every function that takes seed nodes, by its name.
NODE_ENTRANCES: dict[str, Callable[[Any], object]] = {
    "Loader": seeded,
    "Loader, by type": lambda nodes: seeded({"n": nodes}),
    "Loader, groups": lambda nodes: seeded(nodes, sampler=khop.ShadowSampler(GRAPH, [1], layers=1)),
    "infer": rows_of,
    "sampled_inference": sampled,
    "layerwise_inference": lambda nodes: khop.layerwise_inference(
        MODEL, GRAPH, GRAPH.features, "n", nodes=nodes
    ),
    "random_walks": walked,
    "recommend": recommended,
    "NodeTable": split_of,
    "khop.pyg": pyg_batch,
    "khop.pyg, a pair": lambda nodes: pyg_batch(("n", nodes), TYPED),
    "khop.pyg, by type": lambda nodes: pyg_batch({"n": nodes}, TYPED),
}
MARKED = [True, False, True]
NODES_OF_KINDS = {
    "an array": np.array([0, 2]),
    "an array of int32": np.array([0, 2], np.int32),
    "an array of uint16": np.array([0, 2], np.uint16),
    "an array, reversed twice": np.array([2, 0])[::-1],
    "a list": [0, 2],
    "a tuple": (0, 2),
    "integers of NumPy": [np.int64(0), np.int32(2)],
    "a Series": pd.Series([0, 2]),
    "a nullable Series": pd.Series([0, 2], dtype="Int64"),
    "an Index": pd.Index([0, 2]),
    "a mask": tensor(MARKED),
    "a mask of NumPy": np.array(MARKED),
    "a mask as a list": MARKED,
    "a mask as a tuple": tuple(MARKED),
    "a mask as a Series": pd.Series(MARKED),
    "a nullable mask": pd.Series(MARKED, dtype="boolean"),
}


@pytest.mark.parametrize("entrance", NODE_ENTRANCES)
def test_every_entrance_takes_nodes_of_every_kind(entrance: str) -> None:
    taken = NODE_ENTRANCES[entrance]
    expected = repr(sample_of(taken(tensor([0, 2]))))
    assert {kind: repr(sample_of(taken(given))) for kind, given in NODES_OF_KINDS.items()} == dict.fromkeys(
        NODES_OF_KINDS, expected
    )


@pytest.mark.parametrize("entrance", NODE_ENTRANCES)
@pytest.mark.parametrize(
    "mask", [tensor(MARKED).byte(), np.array(MARKED, np.int8), np.array([1, 0], np.uint8)], ids=str
)
def test_no_entrance_takes_bytes_as_a_mask(entrance: str, mask: Any) -> None:
    with pytest.raises(ValueError, match="with only 0 and 1 is neither ids nor a mask; give a mask by"):
        NODE_ENTRANCES[entrance](mask)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, np.int64, list])
def test_integers_of_0_and_1_for_each_node_are_not_ids(kind: Any) -> None:
    graph = khop.open_graph(written({"n": khop.NodeTable(20)}))
    marks = [0, 1] * 10
    numeric = (
        marks if kind is list else tensor(marks, dtype=kind) if kind in (torch.int64, torch.int32)
        else np.array(marks, kind)
    )  # fmt: skip
    with pytest.raises(ValueError, match="with only 0 and 1 is neither ids nor a mask; give a mask by"):
        khop.Loader(khop.NeighborSampler(graph, [1]), numeric, batch_size=2)
    khop.Loader(khop.NeighborSampler(graph, [1]), marks[:19], batch_size=2)  # not one for each node
