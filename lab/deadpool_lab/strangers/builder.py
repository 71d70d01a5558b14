"""A training script that is being written, the features that write it, and its text.

A `Feature` is a name, and a function that writes into a `ScriptBuilder`. Features add lines to its parts, which are
those of a script as people write it: imports, helpers, set-up, the loop over steps, what comes after. The contract
between features: a batch is `x, y` of shape (BATCH, WIDTH), the model is `model`, its loss `loss`. `script_text` puts
the parts together.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

INDENT = "    "

_IMPORTS = ["import argparse", "import hashlib", "import json", "import os", "import random", "import time"]
_PACKAGES = ["import numpy as np", "import torch", "import torch.distributed as dist", "from torch import nn"]


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
    start: str = "main()"
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


_RECORD = block('''
    def note(path, **entries):
        """One line of JSON, written at once."""
        with open(path, "a") as file:
            file.write(json.dumps(entries) + "\\n")


    def digest(*values):
        """Of tensors, numbers, lists and dicts, to the last bit."""
        hasher = hashlib.sha256()

        def feed(value):
            if hasattr(value, "to_local"):
                value = value.to_local()
            if isinstance(value, torch.Tensor):
                hasher.update(f"{value.dtype} {tuple(value.shape)}".encode())
                hasher.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            elif isinstance(value, np.ndarray):
                hasher.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
            elif isinstance(value, dict):
                for key in sorted(value, key=repr):
                    hasher.update(repr(key).encode())
                    feed(value[key])
            elif isinstance(value, (list, tuple)):
                for each in value:
                    feed(each)
            else:
                hasher.update(repr(value).encode())

        for value in values:
            feed(value)
        return hasher.hexdigest()[:24]
''')


def script_text(builder: ScriptBuilder, title: str) -> str:
    """The whole script."""
    body = _body(builder)
    if builder.flat:
        main = "\n".join(indented(body, 0))
    else:
        start = "\n".join(indented([builder.start]))
        main = "def main():\n" + "\n".join(indented(body)) + f'\n\n\nif __name__ == "__main__":\n{start}'
    sections = [_head(builder, title), _constants(builder), *builder.helpers, _RECORD, main]
    return "\n\n\n".join(section for section in sections if section) + "\n"


def _head(builder: ScriptBuilder, title: str) -> str:
    standard = [each for each in builder.imports if _is_standard(each)]
    others = [each for each in builder.imports if not _is_standard(each)]
    imports = sorted({*_IMPORTS, *standard}, key=_module)
    packages = sorted({*_PACKAGES, *others}, key=_module)
    return "\n".join([f'"""{title}"""', "", *imports, "", *packages, "", "import deadpool"])


def _module(line: str) -> tuple[str, str]:
    return line.split()[1], line


def _is_standard(line: str) -> bool:
    return _module(line)[0].split(".")[0] not in ("torch", "torchdata", "numpy")


def _constants(builder: ScriptBuilder) -> str:
    values = {
        "WIDTH": str(builder.width),
        "BATCH": str(builder.batch),
        "STEPS": str(builder.steps),
        **builder.constants,
    }
    if builder.micro_batches > 1:
        values["ACCUMULATE"] = str(builder.micro_batches)
    return "\n".join(f"{name} = {value}" for name, value in values.items())


def _body(builder: ScriptBuilder) -> list[str]:
    return [
        _ARGUMENTS,
        *builder.opening,
        f'pool = deadpool.join(backend="{builder.backend}")',
        "rank, world_size = pool.rank, pool.world_size",
        'path = os.path.join(args.out, f"rank{rank}.jsonl")',
        *builder.groups,
        *builder.model,
        *builder.wrap,
        *builder.data,
        *builder.optimizers,
        *builder.extras,
        _protection(builder),
        *builder.before_loop,
        builder.loop,
        *indented(_loop(builder), _depth(builder.loop)),
        *builder.after,
        f"note(path, digest=digest({', '.join(builder.digested)}))",
        *builder.farewell,
    ]


_ARGUMENTS = block("""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=os.path.abspath, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
""")


def _protection(builder: ScriptBuilder) -> str:
    words = [f"{name}={expression}" for name, expression in builder.protected.items()]
    if builder.claims:
        claims = ", ".join(f'"{name}": {group}' for name, group in builder.claims.items())
        words.append(f"replicated={{{claims}}}")
    if builder.spread:
        words.append(f"**{builder.spread}")
    if sum(map(len, words)) < 80:
        return f"job = pool.protect({', '.join(words)})"
    return "\n".join(["job = pool.protect(", *(f"    {word}," for word in words), ")"])


def _depth(loop: str) -> int:
    """How far the lines of a loop's body are indented: the last line of the loop opens it."""
    last = loop.splitlines()[-1]
    return 1 + (len(last) - len(last.lstrip())) // len(INDENT)


def _loop(builder: ScriptBuilder) -> list[str]:
    step = ["time.sleep(args.pace)", *builder.begin, *_guarded(builder), *builder.finish, *_noting(builder)]
    return [*builder.loop_head, "with step:", *indented(step), *builder.between]


def _noting(builder: ScriptBuilder) -> list[str]:
    return [
        f"draws = [{', '.join(builder.draws)}]",
        "if not step.dry:",
        "    note(path, step=step.number, loss=float(loss).hex(), draws=[repr(each) for each in draws], batch=seen)",
    ]


def _guarded(builder: ScriptBuilder) -> list[str]:
    """A script that skips a batch on any exception."""
    lines = builder.train or _train(builder)
    if not builder.guard:
        return lines
    refusal = [f"if {builder.guard}:", '    raise ValueError(f"bad batch in step {step.number}")']
    return ["try:", *indented([*refusal, *lines]), *_SKIPPED]


_SKIPPED = [
    block("""
        except Exception as error:
            optimizer.zero_grad()
            tally.skipped += 1
            loss, seen = torch.tensor(float(tally.skipped)), type(error).__name__
    """)
]


def _train(builder: ScriptBuilder) -> list[str]:
    micro = [*builder.fetch, "seen = digest(seen, x, y)", *_forward(builder), builder.backward]
    if builder.micro_batches > 1:
        inner = [f"with {builder.sync}:", *indented(micro)] if builder.sync else micro
        micro = ["for micro in range(ACCUMULATE):", *indented(inner)]
    lines = [*micro, *builder.reduce, *builder.clip, *builder.update, *builder.zero]
    if builder.rounds:
        lines = [f"for _ in range({builder.rounds}):", *indented(lines)]
    if builder.around:
        lines = [f"with {builder.around}:", *indented(lines)]
    return ['seen = ""', *lines, "loss = loss.detach()"]


def _forward(builder: ScriptBuilder) -> list[str]:
    loss = [f"loss = {builder.loss}"]
    if builder.micro_batches > 1:
        loss = [f"loss = {builder.loss} / ACCUMULATE"]
    return [f"with {', '.join(builder.contexts)}:", *indented(loss)] if builder.contexts else loss
