"""Which checkpoints stay: the newest `keep_last`, and every one whose step is a multiple of `keep_every`. No torch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from deadpool.durable.manifest import Manifest, complete_ones
from deadpool.durable.store import Store

PREFIX = "step-"


def superfluous(manifests: Sequence[Manifest], keep_last: int, keep_every: int) -> list[str]:
    """`manifests` are newest first. The newest one always stays. keep_last 0: all stay."""
    if keep_last == 0:
        return []
    older = manifests[max(1, keep_last) :]
    return [each.name for each in older if not (keep_every and each.step % keep_every == 0)]


def torn(store: Store, manifests: Sequence[Manifest]) -> list[str]:
    """Folders of writes that were cut off, or are under way."""
    complete = {manifest.name for manifest in manifests}
    return [name for name in store.folders() if step_of(name) is not None and name not in complete]


def step_of(name: str) -> int | None:
    """None: this is no folder of a checkpoint, and not ours to touch."""
    digits = name.removeprefix(PREFIX).partition("-")[0]
    return int(digits) if name.startswith(PREFIX) and digits.isdigit() else None


def discard_old(store: Store, keep_last: int, keep_every: int, *, newest: Manifest) -> list[str]:
    """What cannot be deleted now is tried again the next time: it is in nobody's way."""
    manifests = complete_ones(store)
    cut_off = [name for name in torn(store, manifests) if (step_of(name) or 0) < newest.step]
    names = [*superfluous(manifests, keep_last, keep_every), *cut_off]
    gone = []
    for name in names:
        if name != newest.name:
            with contextlib.suppress(OSError):
                store.delete(name)
                gone.append(name)
    return gone
