"""Macros of the transcripts: one line for inputs that many of them share. Their effects are not shown.

running coordinator nodes=3 spares=1 has=0,1 step=1
    A coordinator, or `leadership`, whose job runs. n0, n1 and n2 have joined, then s0 as a spare; all have prepared
    and connected; versions 0 and 1 of generation 1.1 are complete everywhere; a heartbeat says
    step 1. With `late_spares=1` the spare joins after Go. Other options are the core's own.
running agent declared=100
    Agent n0 with trainer n0.0 in rank 0, after Go of 1.1. The trainer has declared 100 bytes, and segment 1 is
    allocated for them.
idle 96 n0 n2
    96 seconds pass, in which these nodes send a heartbeat every 4 seconds.
repeat 3 n0: sealed 0 v#@1.1; n1: stored 0 v#@1.1
    These inputs, three times; # counts from 0.
"""

from __future__ import annotations

from notation import options

BEAT_S = 4


def expand(line: str) -> list[str]:
    """The line as it would be without macros."""
    match line.split():
        case ["running", "agent", *words]:
            return _running_agent(*options(words))
        case ["running", kind, *words]:
            return _running_coordinator(kind, options(words)[1])
        case ["idle", seconds, *nodes]:
            beat = [f"wait {BEAT_S}", *(f"{node}: heartbeat" for node in nodes)]
            return _hidden(beat * (int(seconds) // BEAT_S))
        case ["repeat", count, *words]:
            return _hidden(
                [part.replace("#", str(i)) for i in range(int(count)) for part in " ".join(words).split("; ")]
            )
    return [line]


def _hidden(inputs: list[str]) -> list[str]:
    return [f"< {input}" for input in inputs]


def _running_coordinator(kind: str, named: dict[str, str]) -> list[str]:
    spares, late_spares = int(named.pop("spares", 0)), int(named.pop("late_spares", 0))
    versions, step = named.pop("has", ""), named.pop("step", None)
    spare_names = [f"s{index}" for index in range(spares + late_spares)]
    inputs = [f"n{index}: join" for index in range(int(named["nodes"]))]
    inputs += [f"{name}: join spare" for name in spare_names[:spares]]
    inputs += ["everybody prepared", "everybody connected"]
    inputs += [f"{name}: join spare" for name in spare_names[spares:]]
    inputs += [f"everybody has v{number}@1.1" for number in versions.split(",") if number]
    inputs += [] if step is None else [f"everybody heartbeat {step}"]
    return [_core(kind, named), *_hidden(inputs)]


def _running_agent(_: list[str], named: dict[str, str]) -> list[str]:
    declared = named.pop("declared", None)
    inputs = ["welcome", "n0.0: hello", "plan 1.1", "go 1.1"]
    inputs += [] if declared is None else [f"n0.0: declare {declared}", "allocated 1"]
    return [_core("agent", named), *_hidden(inputs)]


def _core(kind: str, named: dict[str, str]) -> str:
    return " ".join(["core", kind, *(f"{name}={value}" for name, value in named.items())])
