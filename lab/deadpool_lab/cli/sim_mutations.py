"""`deadpool lab sim --mutations`: break the rules of the protocol one by one, and count the seeds until one notices."""

from __future__ import annotations

import json as json_format
import time
from dataclasses import asdict
from pathlib import Path

from deadpool.cli.given_path import write_output


def catch_all(jobs: int, out: Path | None) -> None:
    """Exits with code 1 if a mutation went unnoticed."""
    from deadpool_lab.sim.mutations import ALL
    from deadpool_lab.sim.mutations.catching import catch_each

    began = time.monotonic()
    found = {}
    for catch in catch_each(ALL, jobs):  # printed as they come, since some take long
        found[catch.mutation] = catch
        told = f"caught in seed {catch.seeds}" if catch.violation else f"NOT CAUGHT in {catch.seeds} seeds"
        reason = (catch.violation or "")[:60]
        print(f"{len(found):3} {catch.mutation:45} {told:24} of {catch.profile:12} {reason}", flush=True)
    catches = [found[mutation.name] for mutation in ALL]
    missed = [catch.mutation for catch in catches if not catch.violation]
    print(f"{len(catches)} mutations, {len(missed)} not caught, {time.monotonic() - began:.1f} s")
    if out is not None:
        report = {"mutations": [asdict(catch) for catch in catches], "not_caught": missed}
        write_output(out, json_format.dumps(report, indent=1))
    if missed:
        raise SystemExit(1)
