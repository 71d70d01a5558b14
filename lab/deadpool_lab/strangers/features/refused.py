"""What cannot be exact, and is refused: each says with which words."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder

_LOADER = "from torchdata.stateful_dataloader import StatefulDataLoader"
_TABLE = "table = torch.utils.data.TensorDataset(torch.randn(64, WIDTH), torch.randn(64, WIDTH))"


def _plain_loader(builder: ScriptBuilder) -> None:
    builder.extras.append(f"{_TABLE}\nrows = iter(torch.utils.data.DataLoader(table, batch_size=BATCH))")
    builder.protected["rows"] = "rows"
    builder.refused = "got the iterator of a DataLoader, pass the loader itself"


def _random_sampler(builder: ScriptBuilder) -> None:
    builder.need(_LOADER)
    builder.extras.append(
        f"{_TABLE}\nrows = StatefulDataLoader(table, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 64, 64))"
    )
    builder.protected["rows"] = "rows"
    builder.refused = "cannot be saved or restored: use"


def _out_of_order(builder: ScriptBuilder) -> None:
    builder.need(_LOADER)
    builder.extras.append(f"{_TABLE}\nrows = StatefulDataLoader(table, num_workers=2, in_order=False)")
    builder.protected["rows"] = "rows"
    builder.refused = "in_order=False cannot be used"


def _iterator(builder: ScriptBuilder) -> None:
    builder.need(_LOADER)
    builder.extras.append(f"{_TABLE}\nrows = iter(StatefulDataLoader(table))")
    builder.protected["rows"] = "rows"
    builder.refused = "pass the loader itself"


def _list(builder: ScriptBuilder) -> None:
    builder.protected["optimizer"] = "[optimizer]"
    builder.refused = "pass several objects under a keyword each"


def _class(builder: ScriptBuilder) -> None:
    builder.protected["schedule"] = "torch.optim.lr_scheduler.StepLR"
    builder.refused = "pass an instance of it"


def _twice(builder: ScriptBuilder) -> None:
    builder.before_loop.append("job = pool.protect(again=model)")
    builder.refused = "protect() was called twice"


def _unknown_backend(builder: ScriptBuilder) -> None:
    builder.backend = "mpi"
    builder.refused = "backend='mpi' cannot be used"


def _detail(builder: ScriptBuilder) -> None:
    builder.opening.append('os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"\ndist.set_debug_level_from_env()')
    builder.refused = "TORCH_DISTRIBUTED_DEBUG='DETAIL' cannot be used"


def _unknown_claim(builder: ScriptBuilder) -> None:
    builder.claims["modle"] = "None"
    builder.refused = "names no object of this call"


def _not_storable(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Settings:
            def state_dict(self):
                return {"scale": lambda value: 2 * value}

            def load_state_dict(self, state):
                pass
    """)
    builder.extras.append("settings_of_mine = Settings()")
    builder.protected["settings"] = "settings_of_mine"
    builder.refused = "object of type function cannot be stored"


def _lazy(builder: ScriptBuilder) -> None:
    builder.extras.append("head = nn.LazyLinear(WIDTH)")
    builder.protected["head"] = "head"
    builder.refused = "is not initialised yet (lazy module): run one forward pass before protect()"


def _inference_state(builder: ScriptBuilder) -> None:
    builder.extras.append("with torch.inference_mode():\n    kept = {'mean': torch.zeros(WIDTH)}")
    builder.protected["kept"] = "kept"
    builder.refused = "was made in torch.inference_mode()"


def _quantized_buffer(builder: ScriptBuilder) -> None:
    builder.extras.append(
        "levels = nn.Module()\n"
        'levels.register_buffer("low", torch.quantize_per_tensor(torch.zeros(WIDTH), 0.05, 0, torch.qint8))'
    )
    builder.protected["levels"] = "levels"
    builder.refused = "quantized tensor (torch.qint8) cannot be stored"


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
    Feature("REFUSED: tensors of inference mode", _inference_state),
    Feature("REFUSED: a quantized buffer", _quantized_buffer),
]
