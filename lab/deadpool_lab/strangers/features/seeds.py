"""Seeds of all generators, and the numbers that are drawn from them in every step."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block


def write_seeds(builder: ScriptBuilder) -> None:
    """All ranks make the same model; later random numbers differ by rank."""
    builder.groups.insert(0, "torch.manual_seed(args.seed)")
    builder.wrap.append(
        block("""
        random.seed(args.seed + rank)
        np.random.seed(args.seed + rank)
        torch.manual_seed(1000 * args.seed + rank)
        """)
    )
    builder.protected = {"model": "model", **builder.protected}
    builder.digested.insert(0, "model.state_dict()")
    builder.draws += ["random.random()", "float(np.random.random())", "float(torch.rand(()))"]
