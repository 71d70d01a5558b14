"""A small training with TRL, whose trainers are transformers.Trainer underneath.

Nothing is downloaded: a tokenizer of eleven words, and text of them. Each rank notes the sum of losses after every
update and what was generated for it, and in the end a digest of its model and of the logs.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer

from deadpool.integrations.transformers import protect

WORDS = ["the", "spare", "node", "takes", "over", "and", "no", "step", "is", "lost"]
SPECIAL = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "[EOS]"}
ROWS = 40
TIMES = ("runtime", "per_second", "step_time")


class Notes(TrainerCallback):
    def __init__(self, out: Path) -> None:
        self._out = out
        self.trainer: Trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        generated = [
            batch["completion_ids"].tolist() for batch in getattr(self.trainer, "_buffered_inputs", None) or []
        ]
        loss = f"{self.trainer._tr_loss.item().hex()} {generated}"
        line = {"step": state.global_step - 1, "loss": loss, "ended": 0.0, "cpu_s": 0.0}
        with (self._out / f"rank{args.process_index}.jsonl").open("a") as file:
            print(json.dumps(line), file=file, flush=True)


def make_tokenizer() -> PreTrainedTokenizerFast:
    known = {word: index for index, word in enumerate([*SPECIAL.values(), *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token=SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


def make_rows(fields: tuple[str, ...]) -> Dataset:
    """The texts of a row begin alike."""
    generator = torch.Generator().manual_seed(1)

    def text() -> str:
        return " ".join(WORDS[word] for word in torch.randint(len(WORDS), (8,), generator=generator))

    begins = [text() for _ in range(ROWS)]
    return Dataset.from_list([{field: f"{begin} {text()}" for field in fields} for begin in begins])


def make_trainer(args: argparse.Namespace, notes: Notes) -> Trainer:
    settings: dict[str, Any] = {
        "output_dir": str(args.out / "checkpoints"),
        "num_train_epochs": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "logging_steps": 2,
        "save_steps": 4,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "ddp_backend": "gloo",
        "seed": 3,
        "max_length": 32,
        "gradient_checkpointing": False,
        "bf16": args.bf16,
    }
    more: dict[str, Any] = {"processing_class": make_tokenizer(), "callbacks": [notes]}
    if args.lora:
        more["peft_config"] = LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM")
    torch.manual_seed(3)
    size = {"vocab_size": 16, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=2, eos_token_id=2, pad_token_id=1))
    if args.kind in ("grpo", "rloo"):
        return make_generating_trainer(args, model, settings, more)
    if args.kind == "sft":
        return SFTTrainer(model=model, args=SFTConfig(**settings), train_dataset=make_rows(("text",)), **more)
    reference = None if args.lora else copy.deepcopy(model)
    if args.sync_ref:
        settings |= {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5}
    rows = make_rows(("chosen", "rejected"))
    return DPOTrainer(model=model, ref_model=reference, args=DPOConfig(**settings), train_dataset=rows, **more)


def make_generating_trainer(args: argparse.Namespace, model: Any, settings: Any, more: Any) -> Trainer:
    kind, config = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}[args.kind]
    del settings["max_length"]
    settings |= {
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 8,
        "steps_per_generation": args.steps_per_generation,
        "num_iterations": args.iterations,
        "gradient_checkpointing": args.checkpointing,
        "beta": args.beta,
        "shuffle_dataset": True,
    }
    if args.paged:
        settings["use_transformers_continuous_batching"] = True
    rows = make_rows(("prompt",)).select(range(args.rows))

    def reward(completions: list[str], **_: Any) -> list[float]:
        kill_if_asked(args, "reward", trainer.state.global_step)
        return [each.count("spare") - 0.1 * each.count("lost") + 0.01 * len(each) for each in completions]

    trainer = kind(model=model, reward_funcs=reward, args=config(**settings), train_dataset=rows, **more)
    generating = trainer.model.get_base_model() if args.lora else trainer.model
    generating.register_forward_pre_hook(Generating(args, trainer))
    return trainer


class Generating:
    """In the middle of a generation, which runs without gradients."""

    def __init__(self, args: argparse.Namespace, trainer: Trainer) -> None:
        self._args, self._trainer = args, trainer
        self._last, self._tokens = -1, 0

    def __call__(self, *_: Any) -> None:
        step = self._trainer.state.global_step
        if torch.is_grad_enabled():
            return
        self._tokens = self._tokens + 1 if step == self._last else 1
        self._last = step
        if self._tokens == 3:
            kill_if_asked(self._args, "generation", step)


def kill_if_asked(args: argparse.Namespace, moment: str, step: int) -> None:
    """--kill MOMENT:STEP:RANK, once in the whole job."""
    if args.kill != f"{moment}:{step}:{torch.distributed.get_rank()}":
        return
    with contextlib.suppress(FileExistsError):
        (args.out / "killed").touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)


def digest(trainer: Trainer) -> str:
    hasher = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        hasher.update(name.encode() + tensor.detach().float().contiguous().numpy().tobytes())
    history = [
        {key: value for key, value in logs.items() if not any(each in key for each in TIMES)}
        for logs in trainer.state.log_history
    ]
    hasher.update(json.dumps(history).encode())
    return hasher.hexdigest()


def main() -> None:
    """Inside of a function, because datasets hashes the script's globals."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=["sft", "dpo", "grpo", "rloo"], default="sft")
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--steps-per-generation", type=int)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--kill", default="")
    for flag in ("--bf16", "--lora", "--checkpointing", "--paged", "--sync-ref", "--forget-ref"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    notes = Notes(args.out)
    trainer = notes.trainer = make_trainer(args, notes)
    protect(trainer, **{"reference": trainer.ref_model} if args.sync_ref and not args.forget_ref else {})
    trainer.train()
    with (args.out / f"rank{trainer.args.process_index}.jsonl").open("a") as file:
        print(json.dumps({"digest": digest(trainer)}), file=file, flush=True)


if __name__ == "__main__":
    main()
