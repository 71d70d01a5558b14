"""Which nodes fail together: those below one leaf switch, or those with the same feature that names a rack."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

_RACK_FEATURE = re.compile(r"rack[-_:=]?\w+", re.IGNORECASE)


def racks_of_switches(topology: str, expand: Callable[[str], list[str]]) -> dict[str, str]:
    """Reads racks from what `scontrol show topology` prints. Only leaf switches count; a single one says nothing."""
    racks: dict[str, str] = {}
    for line in topology.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if fields.get("Level") == "0" and fields.get("Nodes"):
            racks |= dict.fromkeys(expand(fields["Nodes"]), fields["SwitchName"])
    return racks if len(set(racks.values())) > 1 else {}


def racks_of_features(features: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Reads racks from features such as rack7 or rack:b2."""
    found = {node: [each for each in names if _RACK_FEATURE.fullmatch(each)] for node, names in features.items()}
    return {node: names[0] for node, names in found.items() if names}
