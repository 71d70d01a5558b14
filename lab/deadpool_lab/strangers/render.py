"""A draft as the text of a script."""

from __future__ import annotations

from deadpool_lab.strangers.draft import INDENT, Draft, block, indented

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


def text(draft: Draft, title: str) -> str:
    """The whole script."""
    body = _body(draft)
    if draft.flat:
        main = "\n".join(indented(body, 0))
    else:
        main = "def main():\n" + "\n".join(indented(body)) + '\n\n\nif __name__ == "__main__":\n    main()'
    sections = [_head(draft, title), _constants(draft), *draft.helpers, _RECORD, main]
    return "\n\n\n".join(section for section in sections if section) + "\n"


def _head(draft: Draft, title: str) -> str:
    standard = [each for each in draft.imports if _is_standard(each)]
    others = [each for each in draft.imports if not _is_standard(each)]
    imports = sorted({*_IMPORTS, *standard}, key=_module)
    packages = sorted({*_PACKAGES, *others}, key=_module)
    return "\n".join([f'"""{title}"""', "", *imports, "", *packages, "", "import deadpool"])


def _module(line: str) -> tuple[str, str]:
    return line.split()[1], line


def _is_standard(line: str) -> bool:
    return _module(line)[0].split(".")[0] not in ("torch", "torchdata", "numpy")


def _constants(draft: Draft) -> str:
    values = {"WIDTH": str(draft.width), "BATCH": str(draft.batch), "STEPS": str(draft.steps), **draft.constants}
    if draft.micro_batches > 1:
        values["ACCUMULATE"] = str(draft.micro_batches)
    return "\n".join(f"{name} = {value}" for name, value in values.items())


def _body(draft: Draft) -> list[str]:
    return [
        _ARGUMENTS,
        *draft.opening,
        f'pool = deadpool.join(backend="{draft.backend}")',
        "rank, world_size = pool.rank, pool.world_size",
        'path = os.path.join(args.out, f"rank{rank}.jsonl")',
        *draft.groups,
        *draft.model,
        *draft.wrap,
        *draft.data,
        *draft.optimizers,
        *draft.extras,
        _protection(draft),
        *draft.before_loop,
        draft.loop,
        *indented(_loop(draft), _depth(draft.loop)),
        *draft.after,
        f"note(path, digest=digest({', '.join(draft.digested)}))",
        *draft.farewell,
    ]


_ARGUMENTS = block("""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=os.path.abspath, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
""")


def _protection(draft: Draft) -> str:
    words = [f"{name}={expression}" for name, expression in draft.protected.items()]
    if draft.claims:
        claims = ", ".join(f'"{name}": {group}' for name, group in draft.claims.items())
        words.append(f"replicated={{{claims}}}")
    if draft.spread:
        words.append(f"**{draft.spread}")
    if sum(map(len, words)) < 80:
        return f"job = pool.protect({', '.join(words)})"
    return "\n".join(["job = pool.protect(", *(f"    {word}," for word in words), ")"])


def _depth(loop: str) -> int:
    """How far the lines of a loop's body are indented: the last line of the loop opens it."""
    last = loop.splitlines()[-1]
    return 1 + (len(last) - len(last.lstrip())) // len(INDENT)


def _loop(draft: Draft) -> list[str]:
    step = ["time.sleep(args.pace)", *draft.begin, *_guarded(draft), *draft.finish, *_noting(draft)]
    return [*draft.loop_head, "with step:", *indented(step), *draft.between]


def _noting(draft: Draft) -> list[str]:
    return [
        f"draws = [{', '.join(draft.draws)}]",
        "if not step.dry:",
        "    note(path, step=step.number, loss=float(loss).hex(), draws=[repr(each) for each in draws], batch=seen)",
    ]


def _guarded(draft: Draft) -> list[str]:
    """A script that skips a batch on any exception."""
    lines = draft.train or _train(draft)
    if not draft.guard:
        return lines
    refusal = [f"if {draft.guard}:", '    raise ValueError(f"bad batch in step {step.number}")']
    return ["try:", *indented([*refusal, *lines]), *_SKIPPED]


_SKIPPED = [
    block("""
        except Exception as error:
            optimizer.zero_grad()
            tally.skipped += 1
            loss, seen = torch.tensor(float(tally.skipped)), type(error).__name__
    """)
]


def _train(draft: Draft) -> list[str]:
    micro = [*draft.fetch, "seen = digest(seen, x, y)", *_forward(draft), draft.backward]
    if draft.micro_batches > 1:
        inner = [f"with {draft.sync}:", *indented(micro)] if draft.sync else micro
        micro = ["for micro in range(ACCUMULATE):", *indented(inner)]
    lines = [*micro, *draft.reduce, *draft.clip, *draft.update, *draft.zero]
    if draft.rounds:
        lines = [f"for _ in range({draft.rounds}):", *indented(lines)]
    if draft.around:
        lines = [f"with {draft.around}:", *indented(lines)]
    return ['seen = ""', *lines, "loss = loss.detach()"]


def _forward(draft: Draft) -> list[str]:
    loss = [f"loss = {draft.loss}"]
    if draft.micro_batches > 1:
        loss = [f"loss = {draft.loss} / ACCUMULATE"]
    return [f"with {', '.join(draft.contexts)}:", *indented(loss)] if draft.contexts else loss
