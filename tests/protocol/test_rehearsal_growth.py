"""How many ranks a spare rehearses, by what its processes take of the memory that there is."""

from __future__ import annotations

from dataclasses import dataclass, field

from deadpool.protocol.agent.copies.slot_growth import NodeMemory
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.rehearsal_growth import AT_MOST, RehearsalGrowth
from deadpool.protocol.agent.trainers.trainers import TrainerState
from deadpool.protocol.effects import KillTrainer, StartTrainer
from deadpool.protocol.identity import Layout
from deadpool.protocol.messages import Settings

GB = 1 << 30


@dataclass
class Spare:
    """One whose processes are parked as soon as they are started, unless `parks` says otherwise."""

    per_node: int = 1
    positions: int = 8
    each_bytes: int = GB
    total_bytes: int = 100 * GB
    available_bytes: int = 90 * GB
    grows: bool = True
    device_bytes: int = 0
    parks: bool = True
    killed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = AgentState("s0")
        layout = Layout(positions=self.positions, per_node=self.per_node, holders=1)
        self.state.settings = Settings(layout=layout, slots=0, heartbeat_s=1.0, unwind_s=1.0)
        self.growth = RehearsalGrowth(self.state, grows=self.grows)
        for _ in range(self.per_node):
            self.state.trainers.start()
        self.settle()

    def settle(self) -> None:
        for effect in self.state.take_effects():
            if isinstance(effect, StartTrainer) and self.parks:
                trainer = self.state.trainers.by_name[effect.trainer]
                trainer.state, trainer.rank = TrainerState.PARKED, int(effect.trainer.partition(".")[2])
                trainer.device_bytes = self.device_bytes
                self.available_bytes -= self.each_bytes
                self.growth.on_measured(effect.trainer, self.each_bytes)
            if isinstance(effect, KillTrainer):
                self.killed.append(effect.trainer)

    def look(self, times: int = 20) -> int:
        """Returns how many processes there are then."""
        for _ in range(times):
            self.growth.on_memory(NodeMemory(total_bytes=self.total_bytes, available_bytes=self.available_bytes))
            self.settle()
        return len(self.state.trainers.by_name)


def test_as_many_as_are_useful_where_memory_is_plenty() -> None:
    assert Spare().look() == AT_MOST
    assert Spare(per_node=2).look() == 2 * AT_MOST
    assert Spare(positions=2).look() == 2, "there are no further ranks"


def test_one_set_at_a_time_and_none_before_the_last_is_measured() -> None:
    spare = Spare()
    assert spare.look(times=1) == 2
    spare.parks = False
    assert spare.look() == 3, "the third is not parked"


def test_further_ones_take_a_quarter_of_the_memory_at_most_and_leave_half() -> None:
    assert Spare(each_bytes=12 * GB).look() == 3, "two further ones of 12 GB, and no third"
    assert Spare(each_bytes=26 * GB).look() == 1
    assert Spare(each_bytes=10 * GB, available_bytes=75 * GB).look() == 2
    assert Spare(each_bytes=10 * GB, available_bytes=60 * GB).look() == 1


def test_none_where_a_device_is_used_or_a_user_says_how_many_or_a_rehearsal_fails() -> None:
    assert Spare(device_bytes=GB).look() == 1
    assert Spare(grows=False).look() == 1
    spare = Spare()
    spare.state.trainers.by_name["s0.0"].state = TrainerState.COLD
    assert spare.look() == 1


def test_none_while_it_trains() -> None:
    spare = Spare()
    spare.state.trainers.by_name["s0.0"].state = TrainerState.SEATED
    assert spare.look() == 1


def test_they_end_where_memory_becomes_short_and_do_not_come_back() -> None:
    spare = Spare(per_node=2)
    assert spare.look() == 2 * AT_MOST
    spare.available_bytes = GB
    assert spare.look() == 2 and len(spare.killed) == 2 * AT_MOST - 2
    spare.available_bytes = 90 * GB
    assert spare.look() == 2
