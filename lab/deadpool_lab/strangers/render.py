"""A builder as the text of a script."""

from __future__ import annotations

from deadpool_lab.strangers.builder import INDENT, ScriptBuilder, block, indented

_IMPORTS = ["import argparse", "import hashlib", "import json", "import os", "import random", "import time"]
_PACKAGES = ["import numpy as np", "import torch", "import torch.distributed as dist", "from torch import nn"]

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


def text(builder: ScriptBuilder, title: str) -> str:
    """The whole script."""
    body = _body(builder)
    if builder.flat:
        main = "\n".join(indented(body, 0))
    else:
        main = "def main():\n" + "\n".join(indented(body)) + '\n\n\nif __name__ == "__main__":\n    main()'
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
