"""How transcripts are written: values as short words, effects as one line each.

A generation is 1.2, a version v4@1.1, a slot segment/index, a copy rank:version.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from deadpool.protocol import effects as fx
from deadpool.protocol import messages as msg
from deadpool.protocol.identity import Address, Generation, Schedule, Value, Version
from deadpool.protocol.quorum import Footing, Promise
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal

# --- reading ---------------------------------------------------------------------------------------------------------


def generation(word: str) -> Generation:
    term, n = word.split(".")
    return Generation(int(term), int(n))


def version(word: str) -> Version:
    number, made_in = word.removeprefix("v").split("@")
    return Version(generation(made_in), int(number))


def slot(word: str) -> msg.SlotRef:
    segment, index = word.split("/")
    return msg.SlotRef(segment=int(segment), index=int(index))


def geometry(size: int) -> Geometry:
    return Geometry(record_capacity=64, unique_bytes=size, replica_bytes=0)


def copy(word: str, size: int = 100) -> msg.Copy:
    """0:v4@1.1, with #7/0+1 behind it if ranks 0 and 1 hold a part alike whose digest is 7."""
    if "#" in word:
        plain, _, said = word.partition("#")
        digest, _, peers = said.partition("/")
        return replicated(plain, int(digest), tuple(int(peer) for peer in peers.split("+")))
    rank, name = word.split(":")
    extent = Extent(record_bytes=8, unique_bytes=size, replica_bytes=0)
    digest = Digest(record=0, unique=0, replica=0)
    seal = Seal(rank=int(rank), version=version(name), extent=extent, digest=digest, full=True)
    return msg.Copy(seal=seal, geometry=geometry(size))


def replicated(word: str, digest: int, peers: tuple[int, ...]) -> msg.Copy:
    """A copy of which `peers` hold 50 bytes too."""
    plain = copy(word)
    extent = replace(plain.seal.extent, replica_bytes=50)
    seal = replace(plain.seal, extent=extent, digest=replace(plain.seal.digest, replica=digest))
    return replace(plain, seal=seal, geometry=replace(plain.geometry, replica_bytes=50), peers=peers)


def copies(words: str) -> tuple[msg.Copy, ...]:
    return tuple(copy(word) for word in words.split(",") if word)


def lives(words: str) -> tuple[msg.Live, ...]:
    """0:v4@1.1, with a ~ behind it if it is not clean."""
    found = []
    for word in (word for word in words.split(",") if word):
        rank, name = word.rstrip("~").split(":")
        found.append(msg.Live(rank=int(rank), version=version(name), clean=not word.endswith("~")))
    return tuple(found)


def address(node: str) -> Address:
    return Address(host=node, port=1)


def options(words: list[str]) -> tuple[list[str], dict[str, str]]:
    plain = [word for word in words if "=" not in word]
    named = dict(word.split("=", 1) for word in words if "=" in word)
    return plain, named


# --- writing ---------------------------------------------------------------------------------------------------------


def render(effects: list[Any]) -> list[str]:
    """One line per effect; the same message to several nodes in a row is one line."""
    lines: list[str] = []
    previous: tuple[str, str] | None = None  # what was said last, and to whom
    for effect in effects:
        if isinstance(effect, fx.ToAgent):
            text = _message(effect.message)
            if previous is not None and previous[0] == text:
                previous = (text, f"{previous[1]},{effect.node}")
                lines[-1] = f"-> {previous[1]}  {text}"
                continue
            previous = (text, effect.node)
            lines.append(f"-> {effect.node}  {text}")
        else:
            previous = None
            lines.append(_effect(effect))
    return lines


def _effect(effect: Any) -> str:
    match effect:
        case fx.Emit(event=event):
            facts = {"node": event.node, "rank": event.rank, "step": event.step, **event.detail}
            return "event " + _named(event.what, facts)
        case fx.Finish(failed=failed, reason=reason):
            return f"finish {'FAILED' if failed else 'well'}: {reason}"
        case fx.ToCoordinator(message=message):
            return f"-> coordinator  {_message(message)}"
        case fx.ToTrainer(trainer=trainer, message=message):
            return f"-> {trainer}  {_message(message)}"
        case _:
            return _message(effect)


def _message(message: Any) -> str:
    match message:
        case msg.Plan():
            return _plan(message)
        case msg.Permit():
            return f"Permit {_permit(message)}"
        case msg.Settings():
            return type(message).__name__
        case msg.Welcome(term=term):
            return "Welcome" if term == 1 else f"Welcome to term {term}"
        case _:
            return _named(type(message).__name__, _told(message))


def _told(message: Any) -> dict[str, Any]:
    """What is as always is left out."""
    fields = structs.fields(message) if isinstance(message, Value) else dataclasses.fields(message)
    values = {field.name: (getattr(message, field.name), field.default) for field in fields}
    return {name: value for name, (value, default) in values.items() if value != default}


def _permit(permit: msg.Permit) -> str:
    schedule = f" schedule={_value(permit.schedule)}" if permit.schedule != Schedule() else ""
    return f"watermark={_value(permit.watermark)} keep_from={permit.keep_from}{schedule}"


def _plan(plan: msg.Plan) -> str:
    head = f"Plan {plan.generation} resume={_value(plan.resume)} {_permit(plan.permit)}"
    words = [] if plan.as_of is None else [f"as of {plan.as_of}"]
    return " ".join([head, *words, *(_order(order) for order in plan.orders)])


def _order(order: msg.RankOrder) -> str:
    words = ["keep"] if order.keep else []
    for fetch in order.fetch:
        sources = fetch.fallback or "|".join(source.node for source in fetch.groups[0])
        words.append(f"fetch {fetch.copy.seal.version} from {sources}")
    words += [f"push {name} to {node}" for node, name in order.pushes]
    return f"[rank {order.rank}: {', '.join(words) or 'restore'}]"


SHOWN_AS = {"joint": "parity"}
"""A joint copy is a parity in all transcripts, because no other feature makes joint copies."""


def _named(name: str, facts: dict[str, Any]) -> str:
    shown = {SHOWN_AS.get(key, key): value for key, value in facts.items() if value is not None and value != ()}
    return " ".join([name, *(f"{key}={_value(value)}" for key, value in shown.items())])


def _sizes(geometries: tuple[Geometry, ...]) -> str:
    """Bytes that the parity has room for, of each other member."""
    return ",".join(str(geometry.unique_bytes) for geometry in geometries)


def _value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case msg.SlotRef(segment=segment, index=index):
            return f"{segment}/{index}"
        case msg.Copy(seal=seal) | (Seal() as seal):
            return f"{seal.rank}:{seal.version}"
        case msg.Live(rank=rank, version=name, clean=clean):
            return f"{rank}:{name}{'' if clean else '~'}"
        case Geometry(unique_bytes=size):
            return f"{size}B"
        case msg.Holder(node=node):
            return node
        case msg.Fetch(copy=wanted, groups=groups):
            return f"{_value(wanted)}<{'|'.join(source.node for source in groups[0])}"
        case Promise(term=term, to=to):
            return f"{term}:{to}"
        case Footing():
            return f"({_named('', _told(value)).strip()})"
        case msg.Permit():
            return f"({_permit(value)})"
        case msg.TrainerLost(rank=rank, reason=reason):
            return f"{rank},{_value(reason)}"
        case msg.TrainerInfo(trainer=trainer, state=state, rank=rank):
            return f"{trainer}:{state}" + ("" if rank is None else f":{rank}")
        case msg.Inventory(live=live, own=own, held=held, joint=parities):
            coded = f"; parity {_value(parities)}" if parities else ""
            return f"(live {_value(live)}; own {_value(own)}; held {_value(held)}{coded})"
        case msg.JointCopy(version=made_of, copies=coded) | fx.JointTarget(version=made_of, geometries=coded):
            of = ",".join(str(copy.seal.rank) for copy in coded) if isinstance(value, msg.JointCopy) else _sizes(coded)
            several = f"/{value.group.parities}" if value.group.parities > 1 else ""
            return f"{value.member}:{_value(made_of)}({of}){several}"
        case RankGroup(ranks=ranks, parities=parities):
            return f"{','.join(map(str, ranks))}/{parities}"
        case msg.CaptureCostReport():
            told = {f.name: getattr(value, f.name) for f in structs.fields(value) if f.name != "rank"}
            return f"{value.rank}:({_named('', told).strip()})"
        case float():
            return f"{value:.3g}"
        case Enum():
            return _value(value.value)
        case tuple() | list() | msg.NodeCopies() | msg.Lives():
            return ",".join(_value(item) for item in value) or "-"
        case str() if " " in value:
            return f"'{value}'"
        case Schedule():
            return f"every-{value.every}" + (f"-from-{value.start}" if value.start else "")
        case _:
            return str(value)
