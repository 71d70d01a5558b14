"""Compiled code comes from the nodes of live ranks to spares, a chunk at a time, through the coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field

from benches import job_state

from deadpool.events.event import Event
from deadpool.protocol.agent.seams import AgentCore
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.trainers import Trainer, TrainerState
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.effects import Emit, FindMissingCode, IndexCode, ReadCode, ToAgent, ToCoordinator, WriteCode
from deadpool.protocol.features.compilation.agent import ATTEMPTS, SILENT_BEATS, NodeCode
from deadpool.protocol.features.compilation.coordinator import LOOK_EVERY_S, CodeOffers
from deadpool.protocol.identity import Address, Layout
from deadpool.protocol.inputs import CodeIndexed, CodeMissing, CodeRead, CodeWritten
from deadpool.protocol.messages import CodeChunk, CodeFile, CodeOffered, UsesCode

CHUNK = 4


@dataclass
class Node:
    """An agent's part whose files lie in memory."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    damaged: bool = False

    def __post_init__(self) -> None:
        self.state = AgentState(self.name)
        self.part = NodeCode(AgentCore(state=self.state, seating=None, recordings=None))  # type: ignore[arg-type]
        self.told: list = []

    def uses(self, *names: str, state: TrainerState = TrainerState.SEATED) -> None:
        self.part.on_trainer_message(Trainer(f"{self.name}.0", state), UsesCode(names=names))
        self.settle()

    def settle(self) -> None:
        while effects := self.state.take_effects():
            for effect in effects:
                self._perform(effect)

    def _perform(self, effect: object) -> None:
        match effect:
            case IndexCode(names=names):
                files = tuple(
                    CodeFile(name=name, size=len(self.files[name]), digest=b"") for name in names if name in self.files
                )
                digest = repr([(file.name, file.size) for file in files]).encode()
                self.part.on_input(CodeIndexed(digest=digest, machine="arm", files=files), 0.0)
            case FindMissingCode(digest=digest, files=files):
                missing = tuple(file for file in files if file.name not in self.files)
                self.part.on_input(CodeMissing(digest=digest, files=missing), 0.0)
            case ReadCode(ask=ask):
                data = self.files.get(ask.name, b"")[ask.offset : ask.offset + CHUNK]
                self.part.on_input(CodeRead(ask=ask, data=data), 0.0)
            case WriteCode(file=file, offset=offset, data=data):
                if self.damaged:
                    end, failure = offset, "damaged"
                else:
                    self.files[file.name] = self.files.get(file.name, b"")[:offset] + data
                    end, failure = offset + len(data), ""
                written = CodeWritten(digest=effect.digest, name=file.name, end=end, failure=failure)
                self.part.on_input(written, 0.0)
            case ToCoordinator(message=message):
                self.told.append(message)
            case Emit(event=event):
                self.events.append(event)


class Job:
    """Nodes n0 and n1 have ranks, others are spares."""

    def __init__(self, *nodes: Node) -> None:
        self.job = job_state(Layout(positions=2, per_node=1, holders=1))
        self.coordinator()
        self.nodes = {node.name: node for node in nodes}
        for node in nodes:
            self.join(node)
        self.passed: list = []

    def coordinator(self) -> None:
        self.part = CodeOffers(_Core(self.job))  # type: ignore[arg-type]

    def join(self, node: Node) -> None:
        member = Member(node.name, "i", Address(host="h", port=1), node.name not in ("n0", "n1"), heard=0.0)
        member.position = int(node.name[1]) if node.name in ("n0", "n1") else None
        self.nodes[node.name] = node
        self.job.add(member)

    def lose(self, name: str) -> None:
        self.job.remove(name)
        del self.nodes[name]

    def run(self, until: int = 1000) -> None:
        """Until nothing is said any more, or so many messages were passed on."""
        for _ in range(until):
            if not self.step():
                return

    def step(self) -> bool:
        for name, node in self.nodes.items():
            if node.told:
                self.part.on_message(self.job.members[name], node.told.pop(0), 0.0)
                break
        else:
            return False
        for effect in self.job.out.take():
            assert isinstance(effect, ToAgent)
            self.passed.append(effect.message)
            if effect.node in self.nodes:
                self.nodes[effect.node].part.on_order(effect.message)  # type: ignore[arg-type]
                self.nodes[effect.node].settle()
        return True

    def look(self, now: float) -> None:
        self.part.look(now)
        for effect in self.job.out.take():
            assert isinstance(effect, ToAgent)
            self.nodes[effect.node].part.on_order(effect.message)  # type: ignore[arg-type]
            self.nodes[effect.node].settle()


@dataclass
class _Core:
    job: object


def test_a_spare_fetches_what_it_lacks_and_says_so_once() -> None:
    code = {"0/a/x": b"0123456789", "0/a/y": b"abc"}
    spare = Node("n2", {"0/a/y": b"abc"})
    job = Job(Node("n0", dict(code)), Node("n1", dict(code)), spare)
    job.nodes["n0"].uses(*code)
    job.nodes["n1"].uses(*code)
    job.run()
    assert spare.files == code
    assert [event.detail for event in spare.events] == [{"source": "n0", "files": 1, "bytes": 10, "skipped": ""}]
    assert sum(isinstance(each, CodeOffered) for each in job.passed) == 1, "both have the same"
    assert [len(each.data) for each in job.passed if isinstance(each, CodeChunk)] == [4, 4, 2]
    assert spare.part.facts() == {"compiled_code": {"used_bytes": 0, "fetched_files": 1, "fetched": 10}}


def test_what_rehearsals_use_is_not_offered() -> None:
    node = Node("n2", {"0/a/x": b"x"})
    node.uses("0/a/x", state=TrainerState.REHEARSING)
    assert node.told == []


def test_code_that_differs_by_rank_comes_from_each() -> None:
    spare = Node("n2")
    job = Job(Node("n0", {"0/a/x": b"x"}), Node("n1", {"0/a/y": b"yy"}), spare)
    job.nodes["n0"].uses("0/a/x")
    job.nodes["n1"].uses("0/a/y")
    job.run()
    assert spare.files == {"0/a/x": b"x", "0/a/y": b"yy"} and len(spare.events) == 2


def test_what_is_compiled_later_is_offered_again() -> None:
    spare = Node("n2")
    job = Job(Node("n0", {"0/a/x": b"x", "0/a/y": b"y"}), Node("n1"), spare)
    for name in ("0/a/x", "0/a/y"):
        job.nodes["n0"].uses(name)
        job.run()
    assert spare.files == {"0/a/x": b"x", "0/a/y": b"y"}


def test_a_spare_that_joins_later_is_told() -> None:
    job = Job(Node("n0", {"0/a/x": b"x"}), Node("n1"))
    job.nodes["n0"].uses("0/a/x")
    job.run()
    spare = Node("n3")
    job.join(spare)
    job.look(LOOK_EVERY_S)
    job.run()
    assert spare.files == {"0/a/x": b"x"}


def test_a_damaged_file_is_left_out_and_the_others_come() -> None:
    spare = Node("n2", damaged=True)
    job = Job(Node("n0", {"0/a/x": b"x", "0/a/y": b"y"}), Node("n1"), spare)
    job.nodes["n0"].uses("0/a/x", "0/a/y")
    job.run()
    assert spare.files == {} and spare.events[0].detail["skipped"] == "damaged; damaged"


def test_another_node_with_the_same_code_goes_on_for_one_that_is_lost() -> None:
    code = {"0/a/x": b"0123456789"}
    spare = Node("n2")
    job = Job(Node("n0", dict(code)), Node("n1", dict(code)), spare)
    job.nodes["n0"].uses(*code)
    job.nodes["n1"].uses(*code)
    job.run(until=6)
    assert spare.files != code
    job.lose("n0")
    for _ in range(ATTEMPTS * SILENT_BEATS):
        spare.part.on_heartbeat(0.0)
        spare.settle()
        job.run()
    assert spare.files == code


def test_a_coordinator_that_takes_over_is_told_again() -> None:
    job = Job(Node("n0", {"0/a/x": b"x"}), Node("n1"))
    job.nodes["n0"].uses("0/a/x")
    job.run()
    job.coordinator()
    spare = Node("n2")
    job.join(spare)
    job.nodes["n0"].part.on_welcome()
    job.nodes["n0"].settle()
    job.run()
    assert spare.files == {"0/a/x": b"x"}


def test_a_spare_without_an_answer_tries_again_and_gives_up() -> None:
    spare = Node("n2")
    offer = CodeOffered(node="n0", digest=b"d", machine="arm", count=1, size=1)
    spare.part.on_order(offer)
    spare.settle()
    for _ in range(ATTEMPTS * (SILENT_BEATS + 2)):
        spare.part.on_heartbeat(0.0)
        spare.settle()
    assert len(spare.told) == ATTEMPTS and spare.events == []
