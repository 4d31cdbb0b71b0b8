"""The classic patching maps beside TransformerLens: the same numbers, and how long each takes.

1. Ours is both runs and the map (`prepare` and the rows of `circuits.patch`). The other is TransformerLens:
   `run_with_cache` of the clean prompt, then `patching.get_act_patch_…`, one hooked forward a cell. Both put
   clean values into the run of the counterfactual (`restore`). The whole call of `circuits.patch`, which also
   judges the question, is timed beside it (`ours with the verdict`).
2. TransformerLens gives the metric of each patched run. As a share of the gap it must be our effect to 1e-4,
   in every cell, or the run ends.
3. Models: the shapes of GPT-2 small, and of a Llama and a GPT-NeoX of six layers, with random weights; `mini`;
   and `stories15m` where it can be fetched; on 12 to 15 tokens.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from engine import COUNTERFACTUAL, PROMPT, gpt2_small, random_question
from layouts import layout_model
from measure import CLOCKS, Aim, Clock, Line, interleave, seconds, show, show_header
from transformer_lens import patching

import circuits
from circuits.engine import Ablation
from circuits.engine.sites import PATCH_SITES, PatchSite
from circuits.errors import CircuitsError
from circuits.instruments.patch import measure
from circuits.models.model import Model
from circuits.prompts import Pair, Prompt

TOLERANCE = 1e-4
AIM = Aim("≥", 20)
THEIRS = {
    "residual": "resid_pre",
    "attention": "attn_out",
    "mlp": "mlp_out",
    "head": "attn_head_out_all_pos",
    "query": "attn_head_q_all_pos",
    "key": "attn_head_k_all_pos",
    "value": "attn_head_v_all_pos",
    "pattern": "attn_head_pattern_all_pos",
}  # behind `get_act_patch_`
STORY = "Once upon a time, there was a little girl named"


def models(names: list[str]) -> Iterator[tuple[Model, Pair]]:
    """Each model with a pair of about 14 tokens."""
    if "gpt2" in names:
        for key in (10, 5):  # where the pair differs: positions before it cost nothing
            asked = random_question(gpt2_small(), 14, key=key, query=13)
            yield asked.model, asked.pair
    for name in ("llama", "neox"):
        if name in names:
            asked = random_question(layout_model(name), 14, key=5, query=13)
            yield asked.model, asked.pair
    if "mini" in names:
        mini = circuits.load("mini")
        yield mini, circuits.to_pair(mini, PROMPT, counterfactual=COUNTERFACTUAL)
    if "stories15m" in names:
        try:
            stories = circuits.load("stories15m")
        except CircuitsError as error:
            print(f"stories15m is left out: {error}")
            return
        yield stories, circuits.to_pair(stories, STORY, swap={"girl": "boy"})


def tokens_of(pair: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(pair.counterfactual, Prompt)
    return torch.tensor([pair.clean.tokens]), torch.tensor([pair.counterfactual.tokens])


@torch.inference_mode()
def theirs(model: Model, pair: Pair, site: PatchSite) -> torch.Tensor:
    """TransformerLens's map of the metric, from nothing."""
    clean, other = tokens_of(pair)
    _, cache = model.bridge.run_with_cache(clean)

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return pair.metric.read(logits[:, -1:])[0]

    by_hooks = getattr(patching, f"get_act_patch_{THEIRS[site]}")
    return by_hooks(model.bridge, other, cache, metric)


def compare(
    model: Model, pair: Pair, site: PatchSite, *, repeats: int, clock: Clock
) -> list[Line]:
    """One map both ways: the numbers agree, or the run ends."""
    kept: dict[str, torch.Tensor] = {}

    def the_map() -> None:
        runs = circuits.prepare(model, [pair], ablation=Ablation("restore"))
        measure(runs, site, tuple(range(runs.length)), each_position=False)

    def whole_call() -> None:
        patched = circuits.patch(model, pair, site, ablation="restore")
        kept["ours"] = torch.from_numpy(patched.values)

    def other() -> None:
        kept["theirs"] = theirs(model, pair, site).double()

    whole_call()  # reads the layout, and the fingerprint of the weights, once
    mine, whole, its = interleave([the_map, whole_call, other], repeats=repeats, clock=clock)
    clean, counterfactual = (float(model_value(model, pair, each)) for each in tokens_of(pair))
    expected = (kept["theirs"] - counterfactual) / (clean - counterfactual)
    apart = float((kept["ours"][: len(expected)] - expected).abs().max())
    if not apart < TOLERANCE:
        raise SystemExit(f"{model.name} {site}: the two maps differ by {apart:.2g} of the gap")
    cells = expected.numel()
    where = f"pair differs at {pair.differs_at[0]}"
    named = f"{model.name} {len(pair)} tokens, {where}: {site}, {cells} cells (equal to {apart:.0e})"
    against = f"get_act_patch_{THEIRS[site]}"
    aim = AIM if site == "residual" else None
    lines = []
    for words, spent, wanted in (("", mine, aim), (", ours with the verdict", whole, None)):
        ratio = its.of(spent)
        times = (seconds(spent.median), seconds(its.median))
        lines.append(Line(named + words, against, *times, ratio, wanted))
    return lines


@torch.inference_mode()
def model_value(model: Model, pair: Pair, tokens: torch.Tensor) -> torch.Tensor:
    return pair.metric.read(model.logits(tokens)[:, -1:])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--models", default="gpt2,llama,neox,mini,stories15m")
    parser.add_argument("--sites", default=",".join(PATCH_SITES))
    chosen = parser.parse_args()
    show_header()
    for model, pair in models(chosen.models.split(",")):
        for site in chosen.sites.split(","):
            clock = CLOCKS[chosen.clock]
            for line in compare(model, pair, site, repeats=chosen.repeats, clock=clock):
                show(line.cells())


if __name__ == "__main__":
    main()
