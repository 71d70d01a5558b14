"""Scripts are drawn from a seed: the same again for the same seed, whole, and with every feature in some of them."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from deadpool_lab.strangers.generate import FAMILIES, Script, generate
from deadpool_lab.strangers.protected import draw_injections

_MANY = 1500


@pytest.fixture(scope="module")
def many() -> list[Script]:
    return [generate(1, number) for number in range(_MANY)]


def test_the_same_seed_gives_the_same_text():
    assert generate(7, 12) == generate(7, 12)
    assert generate(7, 12).text != generate(7, 13).text != generate(8, 13).text


def test_every_feature_is_drawn(many):
    drawn = Counter(tag for script in many for tag in script.tags)
    assert [feature.name for family in FAMILIES for feature in family if not drawn[feature.name]] == []


def test_features_have_names_of_their_own():
    names = Counter(feature.name for family in FAMILIES for feature in family)
    assert [name for name, count in names.items() if count > 1] == []


def test_scripts_are_whole(many):
    for script in many:
        compile(script.text, script.title, "exec")


def test_scripts_use_what_they_import(many):
    """As a person would have it: an import that nobody uses is a feature that was left half written."""
    for script in many[:300]:
        tree = ast.parse(script.text)
        imported = {(alias.asname or alias.name).split(".")[0] for alias in _imported(tree)}
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert imported - used - {"random", "np", "nn", "dist"} == set(), script.command


def _imported(tree: ast.Module) -> list[ast.alias]:
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return [alias for node in imports for alias in node.names]


def test_some_are_refused_and_say_why(many):
    refused = [script for script in many if script.refused]
    assert 0.02 * _MANY < len(refused) < 0.1 * _MANY
    for script in refused:
        assert script.refused == "no power of two" or any(tag.startswith("REFUSED") for tag in script.tags)


def test_shapes_are_odd_and_even(many):
    assert {script.shape.world_size for script in many} == {2, 3, 4, 5, 6}


def test_injections_hit_ranks_and_nodes_that_exist(many):
    for script in many:
        injections = draw_injections(script)
        assert 1 <= len(injections) <= 3
        assert injections == draw_injections(script)
        for injection in injections:
            assert injection.rank < script.shape.world_size and injection.position < script.shape.nodes


def test_right_after_a_recovery_no_node_is_hit(many):
    """Copies may not be complete again: only what the node's own memory heals."""
    later = [injection for script in many for injection in draw_injections(script) if injection.at == "recovered"]
    assert later and not any(injection.whole_node for injection in later)
