"""Waiting entries: what a record contains, what a restore keeps, and what is dropped."""

from __future__ import annotations

from deadpool.journal.entry import Entry, Undelivered


def entry(step: int, text: str = "{}") -> Entry:
    return Entry(step, 0.0, text)


def make(limit: int = 1 << 20) -> tuple[Undelivered, list[int]]:
    dropped: list[int] = []
    return Undelivered(dropped.extend, limit), dropped


def steps(waiting: Undelivered) -> list[int]:
    return [entry.step for entry in waiting.final(0, 1 << 30)]


def test_entries_are_in_records_until_they_are_delivered():
    waiting, _ = make()
    for step in range(4):
        waiting.add(entry(step))
    waiting.deliver(2)
    state = waiting.state_dict()
    assert state["delivered"] == 2 and state["entries"] == b"2 0.0 {}\n3 0.0 {}\n"
    newcomer, _ = make()
    newcomer.load_state_dict(state)
    assert steps(newcomer) == [2, 3] and newcomer.delivered == 2


def test_restore_drops_what_is_done_again_and_keeps_what_is_known_to_be_delivered():
    waiting, _ = make()
    for step in range(3):
        waiting.add(entry(step))
    record = waiting.state_dict()
    waiting.add(entry(3))
    waiting.deliver(2)
    waiting.load_state_dict(record)
    assert steps(waiting) == [2] and waiting.delivered == 2


def test_step_below_what_was_delivered_is_not_taken_again():
    waiting, _ = make()
    waiting.add(entry(4))
    waiting.deliver(5)
    waiting.add(entry(4))
    assert waiting.is_empty and not waiting.has_final(10)


def test_final_step_that_is_being_done_again_is_not_taken_for_delivered():
    """The plan goes back to a version older than the final one."""
    waiting, _ = make()
    waiting.add(entry(0))
    record = waiting.state_dict()
    waiting.add(entry(1))
    waiting.load_state_dict(record)
    assert waiting.due(0, 2) == ([entry(0)], 1), "step 1 is final, but it is not here"
    waiting.deliver(2)
    assert waiting.delivered == 1
    waiting.add(entry(1))
    assert waiting.due(1, 2) == ([entry(1)], 2)


def test_only_final_steps_are_given():
    waiting, _ = make()
    for step in (1, 3, 5):
        waiting.add(entry(step))
    assert [each.step for each in waiting.final(2, 5)] == [3]
    assert waiting.has_final(2) and not waiting.has_final(1)


def test_oldest_are_given_up_in_batches_when_too_much_waits():
    waiting, dropped = make(limit=1000)
    for step in range(20):
        waiting.add(entry(step, "x" * 90))
    assert dropped and dropped == list(range(len(dropped)))
    assert steps(waiting) == list(range(len(dropped), 20))
    assert len(dropped) < 20 and sum(100 for _ in steps(waiting)) <= 1000


def test_an_entry_larger_than_the_bound_stays_alone():
    waiting, dropped = make(limit=100)
    waiting.add(entry(0, "x" * 10))
    waiting.add(entry(1, "x" * 500))
    assert dropped == [0] and steps(waiting) == [1]


def test_values_and_times_survive_a_record():
    waiting, _ = make()
    waiting.add(Entry(7, 1 / 3, '{"a":"two words\\nand \\u2028","b":NaN}'))
    newcomer, _ = make()
    newcomer.load_state_dict(waiting.state_dict())
    assert newcomer.final(0, 8) == waiting.final(0, 8)
