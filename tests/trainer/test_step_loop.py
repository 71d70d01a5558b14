"""Steps for a loop that a library owns: where its frames stand, and where they have to be entered again."""

from __future__ import annotations

import pytest

from deadpool.errors import ConfigError
from deadpool.trainer.loop import Moved, StepLoop


class FakeStep:
    def __init__(self, number, said, *, dry=False):
        self.number, self.dry, self._said = number, dry, said

    def __enter__(self):
        self._said.append(f"begin {self.number}")

    def __exit__(self, kind, error, trace):
        self._said.append(f"end {self.number}" if error is None else f"cut {self.number}")
        return isinstance(error, OSError)  # the exception of a fault, here


class Script:
    """A job whose steps are listed; what a library does with them is written down."""

    def __init__(self, *steps, generations=None):
        self.said: list[str] = []
        self.generation = 1
        self._steps, self._generations = steps, generations or {}
        self.loop = StepLoop(self._yield(), lambda: self.generation)

    def _yield(self):
        for index, (number, *dry) in enumerate(self._steps):
            self.generation = self._generations.get(index, self.generation)
            try:
                yield FakeStep(number, self.said, dry=bool(dry))
            except GeneratorExit:
                self.said.append("left")
                return


def test_steps_one_after_the_other_in_the_same_frames():
    script = Script((0,), (1,), (2,))
    assert script.loop.enter() == 0
    assert [script.loop.next_step().number for _ in range(3)] == [0, 1, 2]
    assert script.loop.enter() is None
    assert script.said == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"]


def test_library_that_enters_its_loop_for_each_epoch():
    script = Script((0,), (1,))
    for number in (0, 1):
        assert script.loop.enter() == number
        assert script.loop.next_step().number == number
    assert script.loop.enter() is None


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(Script((0,), (0,)), id="the same step again"),
        pytest.param(Script((0,), (7,)), id="a later step"),
        pytest.param(Script((0, "dry"), (1,)), id="after a rehearsal"),
        pytest.param(Script((0,), (1,), generations={1: 2}), id="a recovery came in between"),
    ],
)
def test_frames_that_stand_elsewhere_are_left(script):
    script.loop.enter()
    script.loop.next_step()
    with pytest.raises(Moved) as caught:
        script.loop.next_step()
    assert script.loop.came_back(caught.value)
    due = script.loop.enter()
    assert script.loop.next_step().number == due, "now the frames stand there"


def test_fault_in_a_step():
    script = Script((0,), (0,))
    script.loop.enter()
    script.loop.next_step()
    assert script.loop.step is not None
    assert script.loop.came_back(OSError("a peer is gone"))
    assert script.loop.step is None and script.loop.enter() == 0
    assert script.loop.next_step().number == 0
    assert script.said == ["begin 0", "cut 0", "begin 0"]


def test_error_of_the_script_is_its_own():
    script = Script((0,), (1,))
    script.loop.enter()
    script.loop.next_step()
    assert not script.loop.came_back(ValueError("a bug"))
    assert not script.loop.came_back(ValueError("outside of a step"))


def test_library_that_stops_early():
    script = Script((0,), (1,), (2,))
    script.loop.enter()
    script.loop.next_step()
    script.loop.leave()
    assert script.said == ["begin 0", "end 0", "left"]


def test_library_that_wants_more_steps_than_there_are():
    script = Script((0,))
    script.loop.enter()
    script.loop.next_step()
    with pytest.raises(ConfigError, match="one more step"):
        script.loop.next_step()
