"""A model's sizes come from the graph's types, and what does not fit together is named."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from khop.models.sizes import ModelSizes
from khop.schema import ColumnSpec, NodeType, Schema

X = ColumnSpec("float32", (3,))
LABEL = ColumnSpec("int64", (), num_classes=4)


@dataclass(frozen=True)
class Types:
    """A graph of which only types and counts are known."""

    schema: Schema

    def num_nodes(self, node_type: NodeType) -> int:
        return 10 + self.schema.node_types.index(node_type)

    def original_ids(self, node_type: NodeType) -> None:
        """The nodes were never renumbered."""


TWO = Schema(("a", "b"), (), columns={"a": {"x": X}, "b": {"x": X, "kind": LABEL}})
BARE = Schema(("a", "b"), (), columns={"b": {"x": X}})


def test_the_target_is_the_one_node_type_with_labels() -> None:
    assert ModelSizes.of(Types(TWO)) == ModelSizes({"a": 3, "b": 3}, (), "b", 4)
    both = Types(replace(TWO, columns={"a": {"x": X, "kind": LABEL}, "b": {"x": X, "kind": LABEL}}))
    assert ModelSizes.of(both, target="a").targets == "a"
    with pytest.raises(ValueError, match=r"node type with labels: name one of \['a', 'b'\]"):
        ModelSizes.of(both)
    with pytest.raises(ValueError, match=r"node type with labels is 'a': must be one of \['b'\]"):
        ModelSizes.of(Types(TWO), target="a")
    none = Types(replace(TWO, columns={"a": {"x": X}, "b": {"x": X}}))
    with pytest.raises(
        ValueError, match=r"node type with labels: the graph has none, 'a' included; give its"
    ):
        ModelSizes.of(none, target="a")


def test_the_label_is_the_one_column_with_classes() -> None:
    columns = {"x": X, "kind": LABEL, "age": ColumnSpec("int64", (), num_classes=9)}
    graph = Types(Schema(("node",), (), columns={"node": columns}))
    assert ModelSizes.of(graph, label="age").outputs == 9
    with pytest.raises(ValueError, match=r"label column of 'node': name one of \['kind', 'age'\]"):
        ModelSizes.of(graph)
    with pytest.raises(ValueError, match="label column of 'node' is 'x': must be one of"):
        ModelSizes.of(graph, label="x")


def test_a_column_that_no_type_has_is_named() -> None:
    with pytest.raises(ValueError, match=r"column 'z': no node type has it; there are \{'a': \['x'\]"):
        ModelSizes.of(Types(TWO), column="z")


def test_scalar_and_matrix_columns_are_rows_of_numbers() -> None:
    for shape, width in (((), 1), ((2, 3), 6)):
        schema = Schema(("node",), (), columns={"node": {"x": ColumnSpec("float32", shape), "y": LABEL}})
        assert ModelSizes.of(Types(schema)).inputs == {"node": width}


def test_several_targets_need_no_labels_but_a_width() -> None:
    sizes = ModelSizes.of(Types(BARE), ["a", "b"], outputs=16)
    assert (sizes.targets, sizes.target_types, sizes.outputs) == (("a", "b"), ("a", "b"), 16)
    assert ModelSizes.of(Types(BARE), ("b",), outputs=16).targets == ("b",)


def test_types_without_the_column_may_have_embeddings() -> None:
    sizes = ModelSizes.of(Types(BARE), ["b"], outputs=2, embedding=5)
    assert (sizes.inputs, sizes.embedded, sizes.embedding) == ({"b": 3}, {"a": 10}, 5)
    for none in (0, None):
        assert ModelSizes.of(Types(BARE), ["b"], outputs=2, embedding=none).embedded == {}


def test_a_target_that_is_named_may_have_outputs_of_any_width() -> None:
    sizes = ModelSizes.of(Types(TWO), "b", outputs=1)
    assert (sizes.targets, sizes.outputs) == ("b", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": ["a"]}, r"outputs None: an encoder of \['a'\] needs the width of its rows"),
        ({"target": ["a"], "outputs": 0}, r"outputs 0: an encoder of \['a'\] needs the width"),
        ({"target": ["a", "c"], "outputs": 2}, r"target \['a', 'c'\]: must be different node types of"),
        ({"target": ["a", "a"], "outputs": 2}, r"target \['a', 'a'\]: must be different node types"),
        ({"target": [], "outputs": 2}, r"target \[\]: must be different node types"),
        ({"target": ["b"], "label": "kind", "outputs": 2}, "label 'kind': an encoder of .* has none"),
        ({"outputs": 2}, "outputs 2: a classifier has as many as its label has classes; name the target"),
        ({"target": "b", "label": "kind", "outputs": 2}, "label 'kind': an encoder of .* without outputs"),
        ({"embedding": -1}, "embedding -1: must be a width of at least 1, or 0 for none"),
    ],
)
def test_arguments_that_do_not_fit_together_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSizes.of(Types(TWO), **arguments)  # type: ignore[arg-type]
