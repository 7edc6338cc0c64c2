"""What the docs show is true: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from khop.cli.main import app

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import build_docs  # noqa: E402

TUTORIALS = "tutorials"  # run with their commands by test_tutorials.py
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"\b(?:benchmarks|csrc|docs|examples|scripts|src|tests)/[\w./<>*-]*[\w/>*]")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    line: int  # of the page, where its text begins
    text: str


@dataclass(frozen=True)
class Command:
    """One `$ ...` line of a console block."""

    page: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """The fenced blocks of a page in these languages, in order."""
    text = page.read_text()
    for match in BLOCK.finditer(text):
        if match[1] in languages:
            yield Block(match[1], text.count("\n", 0, match.start(2)) + 1, match[2])


def commands() -> Iterator[Command]:
    """Every command that a page tells its reader to type, but those that test_tutorials.py runs."""
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            is_run = page.parent.name == TUTORIALS and not line.startswith(" ")
            if line.removeprefix("    ").startswith("$ ") and not is_run:
                words = shlex.split(line.partition("$ ")[2], comments=True)
                yield Command(page, number, tuple(words))


COMMANDS = list(commands())


def small_reddit(root: str) -> list[object]:
    """What torch_geometric's Reddit is, without fetching it: one Data with masks."""
    from torch_geometric.data import Data

    part = torch.arange(200) % 3
    masks = {f"{name}_mask": part == number for number, name in enumerate(("train", "val", "test"))}
    edge_index = torch.randint(200, (2, 3000))
    return [Data(x=torch.randn(200, 602), y=torch.randint(41, (200,)), edge_index=edge_index, **masks)]


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent.name != TUTORIALS and any(blocks(page, "python"))],
    ids=lambda page: page.name,
)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks in order, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "cache"))
    if "torch_geometric.datasets import Reddit" in page.read_text():
        monkeypatch.setattr("torch_geometric.datasets.Reddit", small_reddit)
    namespace = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        padding = "\n" * (block.line - 1)  # a traceback then names the line of the page
        exec(compile(padding + block.text, page, "exec"), namespace)


@pytest.mark.core(6)
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.words[0] == "khop"], ids=str)
def test_a_khop_command_of_the_docs_exists(command: Command) -> None:
    """Its subcommand and options are ones that the program takes: of others it complains before it helps."""
    answer = CliRunner().invoke(app, [*command.words[1:], "--help"])
    assert answer.exit_code == 0, answer.output


def test_make_targets_of_the_docs_exist() -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {word for c in COMMANDS if c.words[0] == "make" for word in c.words[1:] if "=" not in word}
    assert named <= set(targets)


def test_files_that_pages_name_and_link_to_are_there() -> None:
    missing = []
    for page in PAGES:
        text = page.read_text()
        named = [ROOT / name for name in PATH.findall(text) if "<" not in name and "*" not in name]
        linked = [page.parent / target for target in LINK.findall(text) if "://" not in target]
        missing += [(page.name, str(path)) for path in (*named, *linked) if not path.exists()]
    assert missing == []


def test_the_index_or_a_section_knows_every_page() -> None:
    lists = [ROOT / "docs" / name for name in build_docs.SECTIONS]
    linked = {
        (ROOT / "docs" / target).resolve() for page in lists for target in LINK.findall(page.read_text())
    }
    assert set(PAGES) - {ROOT / "docs/index.md"} <= linked


def test_code_blocks_end_on_a_separate_line() -> None:
    """A fence at the end of a line of code would make the rest of the page code."""
    broken = [
        f"{page.name}:{number}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if line.endswith("```") and line.strip("` ")
    ]
    assert broken == []


LONGER = {
    "CHANGELOG.md": "a list",
    "CONTRIBUTING.md": "for developers of khop",
    "decisions.md": "for developers of khop",
    "run-file.md": "reference that scripts/command-page generates",
}


def test_pages_have_at_most_1500_words() -> None:
    words = {page.name: len(page.read_text().split()) for page in PAGES if page.name not in LONGER}
    assert {name: count for name, count in words.items() if count > 1500} == {}


def test_the_changelog_has_at_most_120_lines() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 120


LISTS = build_docs.SECTIONS  # of links to pages
PURPOSE = re.compile(r"# .+\n\n(?:After reading this page (?:.+?\) )?you (?:can|know)|In this tutorial you) ")


def test_the_first_sentence_of_a_page_says_what_its_reader_can_do_afterward() -> None:
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.name not in LISTS]
    assert [page.name for page in pages if not PURPOSE.match(page.read_text())] == []


SEARCHED = re.findall(
    r"\S+",
    """
NodeDataLoader EdgeDataLoader prepare_mp create_formats_ thread_wrapped_func use_ddp use_uva dgl.nn
DistGraph node_split MultiLayerNeighborSampler sample_frontier DistNeighborLoader
MpDistSamplingWorkerOptions worker_devices worker_concurrency share_memory_ partition_ogbn_dataset
graph_mode whole_node_label_file init_worker_group init_server RpcOptions FrequencyPartitioner FSDP
fully_shard HGTLoader ImbalancedSampler to_hetero trim_to_layer RandomLinkSplit ToUndirected
ShaDowKHopSampler ClusterLoader GraphSAINTRandomWalkSampler PinSAGESampler BasicGNN.inference
DistributedSampler num_workers pin_memory weight_attr time_attr temporal_strategy neg_sampling
srcdata n_id e_id torch.manual_seed
    """,
)


def test_names_of_other_libraries_have_an_answer() -> None:
    """A row of a table whose second cell says something."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", (ROOT / "docs/where-is.md").read_text(), re.MULTILINE)
    answered = " ".join(names for names, answer in rows if len(answer) > 5)
    searched = [*SEARCHED, "Cannot re-initialize CUDA", "if rank == 0"]
    assert [name for name in searched if name not in answered] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700


def test_there_is_something_to_check() -> None:
    assert any(blocks(ROOT / "README.md", "python"))
    assert any(command.words[0] == "khop" for command in COMMANDS)
