"""What cannot be exact, and is refused: each says with which words."""

from __future__ import annotations

from deadpool_lab.strangers.draft import Draft
from deadpool_lab.strangers.feature import Feature

_LOADER = "from torchdata.stateful_dataloader import StatefulDataLoader"
_TABLE = "table = torch.utils.data.TensorDataset(torch.randn(64, WIDTH), torch.randn(64, WIDTH))"


def _plain_loader(draft: Draft) -> None:
    draft.extras.append(f"{_TABLE}\nrows = iter(torch.utils.data.DataLoader(table, batch_size=BATCH))")
    draft.protected["rows"] = "rows"
    draft.refused = "its position cannot be saved or restored"


def _random_sampler(draft: Draft) -> None:
    draft.need(_LOADER)
    draft.extras.append(
        f"{_TABLE}\nrows = StatefulDataLoader(table, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 64, 64))"
    )
    draft.protected["rows"] = "rows"
    draft.refused = "cannot be saved or restored: use"


def _out_of_order(draft: Draft) -> None:
    draft.need(_LOADER)
    draft.extras.append(f"{_TABLE}\nrows = StatefulDataLoader(table, num_workers=2, in_order=False)")
    draft.protected["rows"] = "rows"
    draft.refused = "in_order=False cannot be used"


def _iterator(draft: Draft) -> None:
    draft.need(_LOADER)
    draft.extras.append(f"{_TABLE}\nrows = iter(StatefulDataLoader(table))")
    draft.protected["rows"] = "rows"
    draft.refused = "pass the loader itself"


def _list(draft: Draft) -> None:
    draft.protected["optimizer"] = "[optimizer]"
    draft.refused = "pass several objects under a keyword each"


def _class(draft: Draft) -> None:
    draft.protected["schedule"] = "torch.optim.lr_scheduler.StepLR"
    draft.refused = "pass an instance of it"


def _twice(draft: Draft) -> None:
    draft.before_loop.append("job = pool.protect(again=model)")
    draft.refused = "protect() was called twice"


def _unknown_backend(draft: Draft) -> None:
    draft.backend = "mpi"
    draft.refused = "backend='mpi' cannot be used"


def _detail(draft: Draft) -> None:
    draft.opening.append('os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"\ndist.set_debug_level_from_env()')
    draft.refused = "TORCH_DISTRIBUTED_DEBUG='DETAIL' cannot be used"


def _unknown_claim(draft: Draft) -> None:
    draft.claims["modle"] = "None"
    draft.refused = "names no object of this call"


def _not_storable(draft: Draft) -> None:
    draft.helper("""
        class Settings:
            def state_dict(self):
                return {"scale": lambda value: 2 * value}

            def load_state_dict(self, state):
                pass
    """)
    draft.extras.append("settings_of_mine = Settings()")
    draft.protected["settings"] = "settings_of_mine"
    draft.refused = "object of type function cannot be stored"


def _lazy(draft: Draft) -> None:
    draft.extras.append("head = nn.LazyLinear(WIDTH)")
    draft.protected["head"] = "head"
    draft.refused = "is not initialised yet (lazy module): run one forward pass before protect()"


REFUSED = [
    Feature("REFUSED: a lazy module that was not run", _lazy),
    Feature("REFUSED: a plain DataLoader's iterator", _plain_loader),
    Feature("REFUSED: WeightedRandomSampler", _random_sampler),
    Feature("REFUSED: in_order=False", _out_of_order),
    Feature("REFUSED: a StatefulDataLoader's iterator", _iterator),
    Feature("REFUSED: a list of optimizers", _list),
    Feature("REFUSED: a class", _class),
    Feature("REFUSED: protect twice", _twice),
    Feature("REFUSED: an unknown backend", _unknown_backend),
    Feature("REFUSED: debug level DETAIL", _detail),
    Feature("REFUSED: a claim for nobody", _unknown_claim),
    Feature("REFUSED: a state that is code", _not_storable),
]
