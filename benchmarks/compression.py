"""Measures how far copies of a training state can be compressed without loss, and what that costs a core.

    pip install zstandard lz4 blosc2 isal zlib-ng      # those that are not there are left out, and said so
    python benchmarks/compression.py --json out/compression.json
    python benchmarks/compression.py --device cuda --layers 12 --width 768 --sequences 32     # 86 M parameters

A GPT is trained on real text, the sources of Python's own standard library, byte by byte, in bf16 with master weights
and moments in fp32. After each of --stages steps the state is looked at by kind: bf16 parameters, master weights,
exp_avg, exp_avg_sq. `entropy` are bits per byte of each byte plane, the lowest byte of a number first: no codec that
treats bytes one by one gets below. `delta` is the version XOR the version
--delta-steps before. `from_master` says whether
the parameters are the rounded master weights: then a receiver could compute them.

Ratios are compressed bytes / raw bytes; rates are raw bytes per second of one core, everything included that turns raw
bytes into compressed ones (byte planes, XOR). `pays_below` is the speed of a link in GB/s below which one core that
compresses makes a copy arrive sooner, and `times_faster` by how much it does then.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from codecs_for_copies import CODECS, Codec, missing_packages
from output import give_out

from deadpool.demo.gpt import GPT, Size, mean_loss
from deadpool_lab.workload.master_weights import MasterAdamW

KINDS = ("parameter", "master", "exp_avg", "exp_avg_sq")
TEXT_BYTES = 16 << 20
LINKS = {"1 GbE": 0.125, "10 GbE": 1.25, "25 GbE": 3.1, "100 GbE": 12.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="0,100,2000", help="steps after which the state is looked at")
    parser.add_argument("--delta-steps", type=int, default=1, help="from the version before to the one looked at")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--sequences", type=int, default=4, help="of 128 bytes each, in a step")
    parser.add_argument("--sample-mb", type=float, default=4.0, help="bytes of each kind that codecs are measured with")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement: the fastest counts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--limit-s", type=float, default=420.0, help="training ends then, at whatever step")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    give_out(measure(args), args.json)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    training = Training(args)
    stages = [int(each) for each in args.stages.split(",")]
    found, losses = [], {}
    for stage in stages:
        reached, before, now = training.run_to(stage, time.monotonic() + args.limit_s / len(stages))
        losses[reached] = training.loss
        found += look_at(reached, before, now, args)
    return {
        "parameters": training.count,
        "losses": losses,
        "left_out": missing_packages(),
        "kinds": found,
        "whole_state": whole_state(found),
    }


class Training:
    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        size = Size(layers=args.layers, width=args.width, heads=args.width // 64, sequence=128, vocabulary=256)
        self._device, self._sequences, self._length = torch.device(args.device), args.sequences, size.sequence
        # Few CPUs have fast arithmetic in bf16: there parameters are numbers of bf16 that are computed with in fp32.
        self._model = GPT(size).bfloat16().to(self._device, torch.bfloat16 if args.device == "cuda" else torch.float32)
        self._optimizer = MasterAdamW(self._model.parameters(), lr=1e-3)
        self._text = real_text()
        self._chance = np.random.default_rng(0)
        self.count = sum(each.numel() for each in self._model.parameters())
        self.step, self.loss, self._delta_steps = 0, math.nan, args.delta_steps

    def run_to(self, stage: int, deadline: float) -> tuple[int, dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns the step that was reached, the version before it and the version itself."""
        before = self.state()
        while self.step < stage - self._delta_steps and time.monotonic() < deadline:
            self._train()
        for number in range(min(self._delta_steps, stage - self.step)):
            before = self.state() if number == 0 else before
            self._train()
        return self.step, before, self.state()

    def _train(self) -> None:
        starts = self._chance.integers(0, len(self._text) - self._length - 1, self._sequences)
        rows = np.stack([self._text[start : start + self._length + 1] for start in starts])
        tokens = torch.from_numpy(rows.astype(np.int64)).to(self._device)
        loss = mean_loss(self._model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.copy_(parameter.bfloat16())
        self.step += 1
        if self.step % 50 == 0 or self.step == 1:
            self.loss = loss.item()

    def state(self) -> dict[str, np.ndarray]:
        parameters = list(self._model.parameters())
        states = [self._optimizer.state[each] for each in parameters]
        kinds = {"parameter": [each.bfloat16() for each in parameters]} | {
            kind: [state[kind] for state in states] for kind in KINDS[1:]
        }
        return {kind: joined(tensors) for kind, tensors in kinds.items()}


def joined(tensors: list[torch.Tensor]) -> np.ndarray:
    integers = {2: torch.int16, 4: torch.int32}[tensors[0].element_size()]
    flat = torch.cat([each.detach().reshape(-1).view(integers) for each in tensors])
    return flat.cpu().numpy().copy()


def real_text() -> np.ndarray:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")) + sorted(
        Path(sysconfig.get_path("stdlib")).glob("[a-r]*/*.py")
    )
    data = bytearray()
    for file in files:
        data += file.read_bytes()
        if len(data) > TEXT_BYTES:
            break
    return np.frombuffer(bytes(data), np.uint8)


def look_at(
    step: int, before: dict[str, np.ndarray], now: dict[str, np.ndarray], args: argparse.Namespace
) -> list[dict[str, Any]]:
    found = []
    for kind in KINDS:
        raw, last = now[kind], before[kind]
        record: dict[str, Any] = {"step": step, "kind": kind, "bytes": raw.nbytes}
        record |= {"entropy": plane_entropies(raw), "delta_entropy": plane_entropies(raw ^ last)}
        if kind == "parameter":
            record["from_master"] = bool(np.array_equal(raw, rounded(now["master"])))
        sample = slice(0, int(args.sample_mb * (1 << 20)) // raw.itemsize)
        middle = slice(raw.size // 4, raw.size // 4 + sample.stop)
        record["codecs"] = [try_codec(codec, raw[middle], last[middle], args.repeats) for codec in CODECS]
        found.append(record)
    return found


def rounded(master: np.ndarray) -> np.ndarray:
    return torch.from_numpy(master).view(torch.float32).to(torch.bfloat16).view(torch.int16).numpy()


def plane_entropies(numbers: np.ndarray) -> list[float]:
    planes = numbers.view(np.uint8).reshape(-1, numbers.itemsize)
    return [round(entropy(planes[:, index]), 3) for index in range(numbers.itemsize)]


def entropy(plane: np.ndarray) -> float:
    shares = np.bincount(plane, minlength=256) / plane.size
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def try_codec(codec: Codec, raw: np.ndarray, last: np.ndarray, repeats: int) -> dict[str, Any]:
    raw, last = np.ascontiguousarray(raw), np.ascontiguousarray(last)
    packed, packing_s = timed(lambda: codec.compress(raw, last), repeats)
    unpacked, unpacking_s = timed(lambda: codec.decompress(packed, raw, last), repeats)
    assert np.array_equal(unpacked.view(raw.dtype), raw), f"{codec.name} gave other bytes back"
    size = codec.size(packed)
    return {
        "codec": codec.name,
        "ratio": round(size / raw.nbytes, 4),
        "compress_gb_s": round(raw.nbytes / packing_s / 1e9, 3),
        "decompress_gb_s": round(raw.nbytes / unpacking_s / 1e9, 3),
    }


def timed(work: Any, repeats: int) -> tuple[Any, float]:
    best, result = math.inf, None
    for _ in range(repeats):
        began = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - began)
    return result, best


def whole_state(kinds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins the kinds of one stage: 2 bytes of parameter and 12 of optimizer state, each at its own ratio and rate."""
    found = []
    for step in sorted({each["step"] for each in kinds}):
        here = [each for each in kinds if each["step"] == step]
        total = sum(each["bytes"] for each in here)
        entropy_bits = sum(np.mean(each["entropy"]) * each["bytes"] for each in here) / total
        delta_bits = sum(np.mean(each["delta_entropy"]) * each["bytes"] for each in here) / total
        found.append(
            {"step": step, "entropy_ratio": round(entropy_bits / 8, 4), "delta_entropy_ratio": round(delta_bits / 8, 4)}
            | {"codecs": [joined_codec(index, here, total) for index in range(len(here[0]["codecs"]))]}
        )
    return found


def joined_codec(index: int, kinds: list[dict[str, Any]], total: int) -> dict[str, Any]:
    rows = [(each["bytes"], each["codecs"][index]) for each in kinds]
    ratio = sum(size * row["ratio"] for size, row in rows) / total
    packing, unpacking = (
        total / sum(size / row[key] for size, row in rows) for key in ("compress_gb_s", "decompress_gb_s")
    )
    rate = min(packing, unpacking)
    return {
        "codec": rows[0][1]["codec"],
        "ratio": round(ratio, 4),
        "compress_gb_s": round(packing, 3),
        "decompress_gb_s": round(unpacking, 3),
        "pays_below_gb_s": round(rate, 3) if ratio < 1 else 0.0,
        "times_faster": {name: times_faster(ratio, rate / link) for name, link in LINKS.items()},
    }


def times_faster(ratio: float, headroom: float) -> float:
    """`headroom` is how much faster the codec is than the link."""
    return round(max(1.0, min(1 / max(ratio, 1e-3), headroom)), 3)


if __name__ == "__main__":
    main()
