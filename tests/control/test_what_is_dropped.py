"""What is lost because a disk or a coordinator took nothing for too long is counted and told."""

from __future__ import annotations

from deadpool.control.agent import coordinator_client
from deadpool.control.agent.coordinator_client import UnsentReports
from deadpool.control.coordinator.other_coordinators import StandbyWatch
from deadpool.control.coordinator.progress import StorageWatch
from deadpool.events.log import Trouble
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Report
from deadpool.wire.credentials import Credentials


def test_disk_that_is_back_says_what_was_dropped_and_status_keeps_it():
    told, trouble, dropped = [], [None], [0]
    watch = StorageWatch("events", lambda: trouble[0], told.append, dropped=lambda: dropped[0])
    for lost in (3, 5):
        trouble[0] = Trouble("full", 10, dropped[0])
        watch.look()
        dropped[0], trouble[0] = lost, None
        watch.look()
        assert watch.losses() == {"what": "events", "node": None, "dropped": lost} and watch.facts() is None
    assert [event.detail["dropped"] for event in told if event.what == "storage_back"] == [3, 2]


def test_events_that_no_coordinator_took_are_counted(monkeypatch):
    monkeypatch.setattr(coordinator_client, "LIMIT", 2)
    unsent, sent, told = UnsentReports("n1"), [], []
    for number in range(5):
        unsent.add(Report(records=({"what": "x", "number": number},)))
    unsent.send(sent.append, told.append)
    unsent.send(sent.append, told.append)
    assert [each.records[0]["number"] for each in sent] == [3, 4]
    (event,) = told
    assert (event.what, event.node, event.detail) == ("events_dropped", "n1", {"count": 3})


def test_standbys_that_do_not_answer_are_not_counted():
    told, places = [], [Address(host="h", port=port) for port in (1, 2)]
    watch = StandbyWatch(places, Credentials(b"s" * 32), is_leader=lambda: True, tell=told.append)
    assert watch.facts() == {"left": 2, "of": 2}
    for place in places:
        watch._note(place, False)
        watch._note(place, False)
    assert watch.left == 0 and [event.what for event in told] == ["standby_lost", "standby_lost", "no_standby"]
    watch._note(places[0], True)
    assert watch.facts() == {"left": 1, "of": 2}
    assert StandbyWatch([], Credentials(b"s" * 32), is_leader=lambda: True, tell=told.append).facts() is None
