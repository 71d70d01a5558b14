"""Trains a small GPT-2 on generated text with transformers.Trainer, protected by two lines.

deadpool run --nodes 2 --spares 1 examples/train_trainer.py
torchrun --nproc-per-node 2 examples/train_trainer.py      # unprotected
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from deadpool.integrations.transformers import protect

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"


class Sentences(Dataset[dict[str, Tensor]]):
    """Rhymes of a few words in another order each time; the tokens are letters."""

    WORDS = ("the", "spare", "node", "takes", "over", "and", "no", "step", "is", "lost")

    def __init__(self, count: int, length: int) -> None:
        self._count, self._length = count, length

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        order = torch.randint(len(self.WORDS), (self._length,), generator=torch.Generator().manual_seed(index))
        text = " ".join(self.WORDS[word] for word in order)[: self._length]
        tokens = torch.tensor([LETTERS.index(letter) for letter in text])
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out/trainer", help="folder for checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=256)
    args = parser.parse_args()
    set_seed(1)
    settings = TrainingArguments(
        output_dir=args.out,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        logging_steps=5,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    config = GPT2Config(vocab_size=len(LETTERS), n_positions=64, n_embd=64, n_layer=2, n_head=4)
    config.bos_token_id = config.eos_token_id = 0
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=settings,
        train_dataset=Sentences(args.sentences, 64),
        eval_dataset=Sentences(16, 64),
    )
    protect(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
