"""The shares of a step, and their rules.

`SharesDone`: the rules for shares of steps. They hold with and without protection, so that a script that runs under
torchrun also runs under DeadPool, and one that runs with all ranks also runs while some are carried.

`Share`, `CarriedRank` and `StepShares`: the shares of a step: this rank's own work, and that of ranks that it
carries because their nodes are lost.

Rule 30, carried ranks. `step.shares()` yields the shares of carried ranks first and the rank's own share last.
Within a share the random number generators, the objects that `protect(shares=...)` makes per rank, and the journal
are those of the share's rank. Gradients add up over the shares, and only the last backward synchronises them: the
sum over the ranks that have a process is the sum over all ranks, and frameworks divide it by the number of all ranks
as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from deadpool.errors import ConfigError
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import UsesShares
from deadpool.snapshot.record.layout import join_record, split_record
from deadpool.snapshot.record.record import decode, encode
from deadpool.snapshot.state.host_state import HostParts
from deadpool.snapshot.state.objects import sort_objects
from deadpool.snapshot.state.rng import capture_rng, restore_rng
from deadpool.trainer.capture.boundary_groups import GROUPS
from deadpool.trainer.job_journal import END_S, JOURNAL, JobJournal
from deadpool.trainer.process import torch_check
from deadpool.trainer.shares.gradient_sync import GradientSync
from deadpool.trainer.shares.layout import find_shares

if TYPE_CHECKING:
    from deadpool.trainer.job import Job


Makers = Mapping[str, Callable[[int], object]]

RESERVED = ("rank", "is_own", "entered")
"""What every share has by itself."""


def make_own(makers: Makers, objects: Mapping[str, object], rank: int) -> dict[str, object]:
    """This rank's own objects of protect(shares=...)."""
    for name in makers:
        if name in objects:
            raise ConfigError(f"protect() got {name}= and shares={{{name!r}: ...}}: give it once, in shares")
        if name in RESERVED or name.startswith("_"):
            taken = ", ".join(RESERVED)
            raise ConfigError(
                f"protect() got shares={{{name!r}: ...}}, but share.{name} is the share's own: give it another name, "
                f"not {taken} and none that begins with an underscore"
            )
    return {name: make(rank) for name, make in makers.items()}


class SharesDone:
    """Which shares of a step the script has done. A step without one of them would be another step."""

    def __init__(self) -> None:
        self._missing: list[int] | None = None  # None: the script has not asked for shares in this step
        self.step = -1

    @property
    def asked(self) -> bool:
        return self._missing is not None

    def enter_step(self, number: int) -> None:
        self.step, self._missing = number, None

    def ask(self, ranks: Iterable[int]) -> None:
        """The script begins a loop over shares. It may have several in a step, each over all shares."""
        self.require_all()
        self._missing = list(ranks)

    def left(self, rank: int) -> None:
        if self._missing and rank in self._missing:
            self._missing.remove(rank)

    def require_entered(self, rank: int, entered: bool) -> None:
        if not entered:
            raise ConfigError(
                f"the share of rank {rank} in step {self.step} was not entered: put its forward and backward into "
                "`with share:`"
            )

    def require_all(self) -> None:
        if self._missing:
            ranks = ", ".join(map(str, self._missing))
            raise ConfigError(
                f"step {self.step} ended its loop over step.shares() before the work of rank {ranks} was done: go "
                "through all shares (`for share in step.shares():`, without break or next()), since the rank's own "
                "comes last"
            )


"""Names of the parts of a boundary record that are each rank's own, whatever the script protects."""


class Share:
    """One rank's part of a step, for `with share:` around its forward and backward.

    `share.rank` is the rank whose work it is. An object that `protect(shares={"data": make})` makes per rank is
    `share.data`. `share.is_own` is False for the work of a rank that has no process at present.
    """

    def __init__(self, shares: StepShares, rank: int, objects: Mapping[str, object], *, is_own: bool) -> None:
        self._shares, self._objects = shares, objects
        self.rank, self.is_own, self.entered = rank, is_own, False

    def __getattr__(self, name: str) -> Any:
        try:
            return self._objects[name]
        except KeyError:
            known = ", ".join(sorted(self._objects)) or "none"
            raise AttributeError(f"a share has the objects of protect(shares=...): {known}, not {name!r}") from None

    def __enter__(self) -> Share:
        self.entered = True
        self._shares.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shares.leave(self, failed=error is not None)


class CarriedRank:
    """What is a carried rank's own: generators, objects that are made per rank, journal, marked groups."""

    def __init__(self, job: Job, rank: int, record: bytes, makers: Makers) -> None:
        self.rank = rank
        _, host = split_record(record)
        self._groups = host["stateful"][GROUPS]
        self.journal = JobJournal(job.session, rank)
        self.journal.load_state_dict(decode(host["stateful"][JOURNAL], JOURNAL))
        self.objects = {name: make(rank) for name, make in makers.items()}
        self.stateful = sort_objects(self.objects).stateful if self.objects else {}
        for name, value in self.stateful.items():
            value.load_state_dict(decode(host["stateful"][name], f"{name}.state_dict()"))
        self.rng = decode(host["rng"]["rng"], "rng")

    def record(self, layout: bytes, carrier: HostParts) -> bytes:
        """Returns its boundary record: model, optimizer and schedulers are its carrier's, which are its own too."""
        own = {name: encode(value.state_dict(), f"{name}.state_dict()") for name, value in self.stateful.items()}
        journal = encode(self.journal.state_dict(), JOURNAL)
        stateful = {**carrier["stateful"], **own, GROUPS: self._groups, JOURNAL: journal}
        return join_record(layout, {**carrier, "stateful": stateful, "rng": {"rng": encode(self.rng, "rng")}})


class StepShares:
    """The ranks whose work this process does. Main thread only."""

    def __init__(self, job: Job, makers: Makers, own: Mapping[str, object]) -> None:
        self._job, self._makers, self._own = job, makers, own
        self._carried: list[CarriedRank] = []
        self._current: CarriedRank | None = None
        self._own_rng: dict[str, Any] | None = None
        self._done = SharesDone()
        self._was_used = False
        self._sent: object = None
        self._reported: Generation | None = None
        self.sync = GradientSync(job.state.modules, job.session.rank)

    # --- the script's side -------------------------------------------------------------------------------------------

    def of_step(self) -> Iterator[Share]:
        if not self._was_used:
            self._was_used = True
            self.sync.watch_first_step()
        own = self._job.session.rank
        self._done.ask([*(carried.rank for carried in self._carried), own])
        for carried in self._carried:
            yield from self._checked(Share(self, carried.rank, carried.objects, is_own=False))
        yield from self._checked(Share(self, own, self._own, is_own=True))

    def _checked(self, share: Share) -> Iterator[Share]:
        yield share
        self._done.require_entered(share.rank, share.entered)

    def enter(self, share: Share) -> None:
        if share.is_own:
            return
        self._current = next(each for each in self._carried if each.rank == share.rank)
        self._own_rng = capture_rng()
        restore_rng(self._current.rng)
        self.sync.hold_back(share.rank)

    def leave(self, share: Share, *, failed: bool) -> None:
        """A share that ends by an exception which the script handles is done: what to skip is the script's decision."""
        if self._current is not None and self._own_rng is not None:
            self._current.rng = capture_rng()
            restore_rng(self._own_rng)
            self._current = self._own_rng = None
            self.sync.release(share.rank, failed=failed)
        self._done.left(share.rank)

    # --- steps and boundaries ----------------------------------------------------------------------------------------

    def carried_objects(self) -> Iterator[object]:
        """Yields the objects of protect(shares=...) that were made for carried ranks."""
        for carried in self._carried:
            yield from carried.stateful.values()

    @property
    def journals(self) -> list[JobJournal]:
        return [carried.journal for carried in self._carried]

    @property
    def journal(self) -> JobJournal | None:
        """The one of the share that the script is in. None: the rank's own."""
        return self._current.journal if self._current is not None else None

    def enter_step(self, number: int) -> None:
        self._done.enter_step(number)
        self.sync.repeated.enter_step()
        self._current = self._own_rng = None

    def require_done(self) -> None:
        """A step without the work of some rank would be another step."""
        self._done.require_all()
        if self._carried and not self._done.asked:
            ranks = ", ".join(str(carried.rank) for carried in self._carried)
            raise ConfigError(f"rank {self._job.session.rank} carries rank {ranks}: take the work from step.shares()")

    def records(self, own: bytes) -> dict[int, bytes]:
        """The boundary records of the carried ranks, at the version of this rank's own."""
        if not self._carried:
            return {}
        layout, host = split_record(own)
        return {carried.rank: carried.record(layout, host) for carried in self._carried}

    def report(self) -> None:
        """Reports, at a boundary, what the job may count on if a node is lost and no spare is left. It does so once per
        generation, because all parameters are looked at."""
        generation = self._job.session.core.generation
        if not self._was_used or generation == self._reported or torch_check.is_plain():
            return
        self._reported = generation
        self.sync.first_step_seen()
        shares = find_shares(self._job)
        if shares != self._sent:
            self._sent = shares
            self._job.session.send(UsesShares(shares=shares))

    def carry(self, records: Mapping[int, bytes]) -> None:
        """From here on, and no other ranks. Another process delivers the journal of a rank that is carried no more."""
        for carried in self._carried:
            carried.journal.close(END_S)
        rng = capture_rng()  # making an object may draw numbers
        self._carried = [CarriedRank(self._job, rank, data, self._makers) for rank, data in records.items()]
        restore_rng(rng)
