"""The lists of what integrations rely on: true for the library that is installed, and complete as far as names show."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import deadpool.integrations
from deadpool.errors import ConfigError
from deadpool.integrations import library_check
from deadpool.integrations.library_check import Library

ROOT = Path(__file__).parents[2]
FOLDER = Path(deadpool.integrations.__file__).parent
INTEGRATIONS = {
    "accelerate": "accelerate",
    "transformers": "transformers",
    "lightning": "lightning",
    "torchtitan": "torchtitan",
    "deepspeed": "deepspeed",
    "megatron": "megatron.core",
}
"""Each with the module that its library is imported by."""


def load(integration: str) -> Any:
    """Without the package around it, which imports the library."""
    path = FOLDER / integration / "relies_on.py"
    spec = importlib.util.spec_from_file_location(f"{integration}_relies_on", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def libraries_of(integration: str) -> tuple[Library, ...]:
    return (
        tuple(each for each in vars(load(integration)).values() if isinstance(each, Library))
        or load(integration).LIBRARIES
    )


@pytest.fixture(scope="module", autouse=True)
def import_libraries() -> None:
    """Before tests, since some keep files open from then on."""
    sys.path.insert(0, str(ROOT / "examples"))
    if importlib.util.find_spec("torchtitan") is not None:
        importlib.import_module("torchtitan_cpu")  # before torchtitan's trainer
    for library in [each for integration in INTEGRATIONS for each in libraries_of(integration)]:
        for module in {uses.where.partition(":")[0] for uses in library.relies_on}:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_installed_library_has_all_of_it(integration):
    pytest.importorskip(INTEGRATIONS[integration])
    for library in load(integration).LIBRARIES:
        assert library.problem() is None
        assert [text for uses in library.relies_on for text in uses.missing()] == []
        assert library.is_tested, version(library.package)


def test_installed_trl_has_all_of_it():
    pytest.importorskip("trl")
    trl = load("transformers").TRL
    assert [text for uses in trl.relies_on for text in uses.missing()] == []
    assert trl.is_tested


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_integration_can_be_imported_with_the_installed_library(integration):
    pytest.importorskip(INTEGRATIONS[integration])
    assert importlib.import_module(f"deadpool.integrations.{integration}").protect


# --- one place names the versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_page_names_the_versions_that_were_tested(integration):
    page = (ROOT / "docs/howto" / f"{integration}.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"the versions that were tested: (.+?)\. `", page)
    tested = [f"{library.package} {' and '.join(library.tested)}" for library in libraries_of(integration)]
    assert named.lower() == ", ".join(tested)


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_extra_has_a_lower_bound_and_excludes_only_what_is_known_to_fail(integration):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds = {found.name: found.specifier for found in map(Requirement, extras[integration])}
    for library in load(integration).LIBRARIES:
        excluded = [each.version.removesuffix(".*") for each in bounds[library.package] if each.operator == "!="]
        assert sorted(excluded) == sorted(library.known_to_fail)
        assert [each.operator for each in bounds[library.package] if each.operator != "!="] == [">="]


def test_ray_of_which_only_public_names_are_used_has_a_lower_bound_only():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (bound,) = map(Requirement, extras["ray"])
    assert [each.operator for each in bound.specifier] == [">="]
    for path in (ROOT / "src/deadpool/clusters/ray").glob("*.py"):
        assert re.findall(r"\bray(?:\.\w+)*\._[a-z]\w*", path.read_text(encoding="utf-8")) == [], path.name


# --- changed in one place ------------------------------------------------------------------------------------------


def refusal(integration: str) -> str:
    with pytest.raises(ConfigError) as refused:
        library_check.require_suitable(load(integration).LIBRARIES, force=False)
    return str(refused.value)


def test_trainer_whose_epoch_is_run_elsewhere_is_refused(monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.delattr(transformers.Trainer, "_run_epoch")
    found = f"transformers {transformers.__version__} cannot be used with this integration: "
    assert refusal("transformers").startswith(f"{found}transformers.Trainer._run_epoch is gone")


def test_trainer_whose_frame_has_other_names_is_refused(monkeypatch):
    transformers = pytest.importorskip("transformers")

    def run_epoch(self, model, epoch, train_dataloader, updates_per_epoch, resume_from_checkpoint, epochs_trained):
        pass

    monkeypatch.setattr(transformers.Trainer, "_run_epoch", run_epoch)
    assert "_run_epoch has no parameter num_update_steps_per_epoch" in refusal("transformers")


def test_trainer_that_prepares_with_one_more_argument_is_refused(monkeypatch):
    transformers = pytest.importorskip("transformers")

    def prepare(self, max_steps, train_dataloader, resume_from_checkpoint, trial): ...

    monkeypatch.setattr(transformers.Trainer, "_prepare_for_training", prepare)
    assert "_prepare_for_training has a further parameter trial" in refusal("transformers")


def test_accelerator_without_its_list_of_loaders_is_refused(monkeypatch):
    state = pytest.importorskip("accelerate.state")
    kind = type("GradientState", (), {})
    monkeypatch.setattr(state, "GradientState", kind)
    assert "accelerate.state.GradientState has no dataloader_references" in refusal("transformers")


def test_loop_of_lightning_that_takes_no_batches_is_refused(monkeypatch):
    loop = pytest.importorskip("lightning.pytorch.loops.training_epoch_loop")
    monkeypatch.setattr(loop._TrainingEpochLoop, "advance", lambda self, batches: None)
    assert "_TrainingEpochLoop.advance does not begin with (data_fetcher)" in refusal("lightning")


def test_lightning_without_a_private_class_is_refused(monkeypatch):
    progress = pytest.importorskip("lightning.pytorch.loops.progress")
    monkeypatch.delattr(progress, "_ProcessedTracker")
    assert "there is no lightning.pytorch.loops.progress._ProcessedTracker" in refusal("lightning")


# --- complete --------------------------------------------------------------------------------------------------------


def trees(integration: str) -> Iterator[ast.Module]:
    for path in sorted((FOLDER / integration).glob("*.py")):
        if path.name != "relies_on.py":
            yield ast.parse(path.read_text(encoding="utf-8"))


def declared(integration: str) -> tuple[set[str], set[str]]:
    """Where, and which names there."""
    uses = [each for library in libraries_of(integration) for each in library.relies_on]
    names = {name for each in uses for name in (*each.has, *each.calls, *each.overrides)}
    owners = {each.name for each in uses}
    return owners | {f"{each.name}.{name}" for each in uses for name in (*each.has, *each.calls)}, names


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_everything_that_is_imported_is_declared(integration):
    where, _ = declared(integration)
    root = INTEGRATIONS[integration].partition(".")[0]
    imported = {
        f"{node.module}.{name.name}"
        for tree in trees(integration)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in (root, "accelerate", "trl")
        for name in node.names
    }
    assert imported and {each for each in imported if each not in where} == set()


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_private_names_that_are_used_are_declared(integration):
    """Attributes of other objects that begin with an underscore, and names of such in strings."""
    _, names = declared(integration)
    used, own = set[str](), {"_deadpool"}
    for tree in trees(integration):
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=attr, ctx=ast.Store()):
                    own.add(attr)
                case ast.FunctionDef(name=attr) if f"super().{attr}(" not in ast.unparse(node):
                    own.add(attr)
                case ast.Assign(targets=[ast.Name(id=attr)]):
                    own.add(attr)
                case ast.Attribute(attr=attr) | ast.Constant(value=str(attr)) if re.fullmatch(r"_[a-zA-Z]\w+", attr):
                    used.add(attr)
    of_torch = {"_optimizer_step_post_hooks", "_optimizer_step_pre_hooks", "_parameters", "_buffers", "_modules"}
    of_torch |= {"_get_iterator"}  # of DataLoader
    assert used - own - names - of_torch == set()
