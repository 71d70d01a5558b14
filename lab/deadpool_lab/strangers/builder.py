"""A training script that is being written, and the features that write it.

`Feature`: what a feature is: a name, and a function that writes it into a builder.

`Shape` and `ScriptBuilder`: a training script that is being written. Features add lines to its parts; `text()` puts
them together.

The parts are those of a script as people write it: imports, helpers, set-up, the loop over steps, what comes after.
The contract between features: a batch is `x, y` of shape (BATCH, WIDTH), the model is `model`, its loss `loss`.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

INDENT = "    "


@dataclass(slots=True, kw_only=True)
class Shape:
    """Number of nodes, and of ranks on each."""

    nodes: int
    per_node: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.per_node


@dataclass(slots=True)
class ScriptBuilder:
    rng: random.Random
    shape: Shape
    steps: int
    width: int = 16
    batch: int = 4
    traits: set[str] = field(default_factory=set)  # what other features have to know, e.g. "ddp", "sharded"
    tags: list[str] = field(default_factory=list)  # what was drawn, for people
    files: dict[str, str] = field(default_factory=dict)  # beside the script, by name
    environment: dict[str, str] = field(default_factory=dict)  # in which DeadPool runs it
    refused: str = ""  # what DeadPool is to say of it; empty: it is exact
    skips_errors: bool = False  # an error of a fault may be taken for one of a batch, and told as such

    flat: bool = False  # no main(): everything at the top level
    backend: str = "gloo"
    imports: list[str] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)
    helpers: list[str] = field(default_factory=list)
    opening: list[str] = field(default_factory=list)  # before join()
    groups: list[str] = field(default_factory=list)
    model: list[str] = field(default_factory=list)
    wrap: list[str] = field(default_factory=list)  # the model becomes a distributed one
    data: list[str] = field(default_factory=list)
    optimizers: list[str] = field(default_factory=list)
    extras: list[str] = field(default_factory=list)
    protected: dict[str, str] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)  # of protect(replicated=...)
    spread: str = ""  # an expression: more objects to protect, by name
    before_loop: list[str] = field(default_factory=list)
    loop: str = "for step in job.steps(STEPS):"  # several lines where loops are nested
    loop_head: list[str] = field(default_factory=list)  # in the loop, before the step
    begin: list[str] = field(default_factory=list)
    fetch: list[str] = field(default_factory=list)  # makes x and y
    contexts: list[str] = field(default_factory=list)  # of the forward pass
    loss: str = "nn.functional.mse_loss(model(x), y)"
    micro_batches: int = 1
    sync: str = ""  # context of a micro batch, e.g. no_sync
    backward: str = "loss.backward()"
    reduce: list[str] = field(default_factory=list)
    clip: list[str] = field(default_factory=list)
    update: list[str] = field(default_factory=list)
    zero: list[str] = field(default_factory=list)
    around: str = ""  # context of all rounds of a step
    rounds: str = ""  # how many times a step fetches, computes and updates; empty: once
    train: list[str] = field(default_factory=list)  # instead of everything from fetch to zero
    guard: str = ""  # an expression by step: raise ValueError for this batch, and skip it
    finish: list[str] = field(default_factory=list)  # in the step, after the update
    draws: list[str] = field(default_factory=list)  # numbers that are written down in every step
    between: list[str] = field(default_factory=list)  # after the step
    after: list[str] = field(default_factory=list)
    farewell: list[str] = field(default_factory=list)  # the last lines
    digested: list[str] = field(default_factory=list)  # what the digest of the final state is made of

    def need(self, *imports: str) -> None:
        self.imports += [each for each in imports if each not in self.imports]

    def helper(self, text: str) -> None:
        text = block(text)
        if text not in self.helpers:
            self.helpers.append(text)

    def protect(self, **objects: str) -> None:
        """Under a name each, and part of the digest by its state_dict."""
        for name, expression in objects.items():
            self.protected[name] = expression
            self.digested.append(f"{expression}.state_dict()")

    def tag(self, *words: str) -> None:
        self.tags += words


def block(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def indented(lines: list[str], depth: int = 1) -> list[str]:
    """Each entry may have several lines."""
    return [textwrap.indent(line, INDENT * depth) for line in lines]


Write = Callable[[ScriptBuilder], None]
Fits = Callable[[ScriptBuilder], bool]


def always(builder: ScriptBuilder) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Feature:
    """`weight` is relative among features of which one is chosen; of an option it is the chance that it is taken."""

    name: str
    write: Write
    weight: float = 1.0
    fits: Fits = always

    def into(self, builder: ScriptBuilder) -> None:
        builder.tag(self.name)
        self.write(builder)


def has(*traits: str) -> Fits:
    return lambda builder: set(traits) <= builder.traits


def lacks(*traits: str) -> Fits:
    return lambda builder: not set(traits) & builder.traits


def pick(features: Sequence[Feature], *names: str) -> list[Feature]:
    """Returns the features of these names."""
    found = [feature for feature in features if feature.name in names]
    assert len(found) == len(names), f"{names} are not all features of one family"
    return found


def choose(builder: ScriptBuilder, features: Sequence[Feature]) -> None:
    """One of those that fit."""
    fitting = [feature for feature in features if feature.fits(builder)]
    builder.rng.choices(fitting, [feature.weight for feature in fitting])[0].into(builder)


def sprinkle(builder: ScriptBuilder, features: Sequence[Feature]) -> None:
    """Each that fits, with its chance. A draw for each, so that one more feature changes no other's."""
    for feature in features:
        chance = builder.rng.random()
        if chance < feature.weight and feature.fits(builder):
            feature.into(builder)
