"""Seeds of all generators, and the numbers that are drawn from them in every step."""

from __future__ import annotations

from deadpool_lab.strangers.draft import Draft, block


def write_seeds(draft: Draft) -> None:
    """All ranks make the same model; later random numbers differ by rank."""
    draft.groups.insert(0, "torch.manual_seed(args.seed)")
    draft.wrap.append(
        block("""
        random.seed(args.seed + rank)
        np.random.seed(args.seed + rank)
        torch.manual_seed(1000 * args.seed + rank)
        """)
    )
    draft.protected = {"model": "model", **draft.protected}
    draft.digested.insert(0, "model.state_dict()")
    draft.draws += ["random.random()", "float(np.random.random())", "float(torch.rand(()))"]
