"""`logit_attribution` and `logit_lens`: readings of one run, which stand beside effects and never replace them.

1. Direct logit attribution splits the difference of two logits into what each head, each MLP and the
   embedding write in its direction at the last position, with the final norm's scale held. It adds up.
2. The logit lens reads the stream below every layer as if it were the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from circuits.components import components
from circuits.engine.cache import Cache
from circuits.engine.layout import Layout
from circuits.engine.prepare import known_layout
from circuits.engine.readout import direct_parts, lens_of
from circuits.engine.whole import whole_run
from circuits.errors import ModelError, PromptError, as_listed, names_its_keywords
from circuits.instruments.grids import Axis, position_labels
from circuits.instruments.reading_records import LogitAttribution, LogitLens
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Answer, Pair, Prompt, Swap, answer_token, to_pair, to_prompt
from circuits.prompts.answer import given_answers
from circuits.results import sha256_of


@names_its_keywords
@torch.inference_mode()
def logit_attribution(
    model: Any,
    text: str | Pair | Sequence[str] | Sequence[Pair],
    *,
    answer: Answer | None = None,
    foil: Answer | None = None,
    swap: Swap | None = None,
    counterfactual: str | None = None,
) -> LogitAttribution:
    """What each component writes in the direction of the answer: a reading of the clean run, not an effect.

    The parts add up to logit(answer) − logit(foil), before a soft cap where the model has one; of several
    answers or foils, to their means. The foil is
    by default the prediction on the counterfactual, where one is given; without any foil the answer's logit
    is compared with the mean of all tokens. Of several prompts the mean is shown.

        >>> read = circuits.logit_attribution(model, TEXT, answer="small", foil="cold")
        >>> f"{read.values.sum():.2f} = {read.totals[0]:.2f}"
        '13.85 = 13.85'
    """
    model = as_model(model)
    given = as_listed(text)
    if not given:
        raise PromptError("there is no prompt to read; give a text, a pair, or a list of them")
    named = {"answer": answer, "foil": foil, "swap": swap, "counterfactual": counterfactual}
    parts, totals = [], []
    prompts, answer_texts, foil_texts = [], [], []
    for each in given:
        prompt, answers, foils = _prompt_and_tokens(model, each, **named)
        layout, cache = run_prompt(model, prompt)
        own, total = direct_parts(layout, cache, answers, foils)
        parts.append(own.double().cpu().numpy())
        totals.append(total)
        prompts.append(prompt)
        answer_texts.append(_spelled(model, answers))
        foil_texts.append(_spelled(model, foils))
    writers = components(layers=model.n_layers, heads=model.n_heads)
    arrays = {"values": np.stack(parts)}
    return LogitAttribution(
        model=model.name,
        fingerprint=model.fingerprint,
        layers=model.n_layers,
        heads=model.n_heads,
        prompts=tuple(prompts),
        answers=tuple(answer_texts),
        foils=tuple(foil_texts),
        totals=tuple(totals),
        axes=(Axis("component", (*map(str, writers), "biases")),),
        arrays_sha256=sha256_of(arrays),
        arrays=arrays,
    )


@names_its_keywords
@torch.inference_mode()
def logit_lens(model: Any, text: str | Pair, *, answer: Answer | None = None) -> LogitLens:
    """What every layer would predict at every position if it were the last: a reading, not an effect.

    `values` are probabilities of the answer, by default what the model says at the end, (layer, position);
    the last row is the model's own prediction. `top` are the words that each layer would say.

        >>> lens = circuits.logit_lens(model, TEXT)
        >>> lens.answer, lens.top[-1][-1], f"{lens.values[-1, -1]:.2f}"
        ('small', 'small', '1.00')
    """
    model = as_model(model)
    prompt = text.clean if isinstance(text, Pair) else to_prompt(model, text)
    layout, cache = run_prompt(model, prompt)
    if isinstance(text, Pair) and answer is None:
        token = text.metric.answer
    else:
        last = layout.logits(cache.final[0, -1])
        token = _tokens(model, answer, last)[0] if answer is not None else int(last.argmax())
    values, ranks, tops, words = [], [], [], []
    for layer in lens_of(layout, cache, token):
        values.append(layer.probability.double().cpu().numpy())
        ranks.append(layer.rank.cpu().numpy())
        tops.append(layer.top_probability.double().cpu().numpy())
        words.append(tuple(model.spell(token) for token in layer.top_token.tolist()))
    arrays = {
        "values": np.stack(values)[None],  # (pair, layer, position), of one pair
        "ranks": np.stack(ranks),
        "top": np.stack(tops),
    }
    layers = Axis("layer", tuple(map(str, range(model.n_layers + 1))))
    labels = position_labels([prompt], range(len(prompt)))
    return LogitLens(
        model=model.name,
        fingerprint=model.fingerprint,
        prompt=prompt,
        answer=model.spell(token),
        top=tuple(words),
        axes=(layers, Axis("position", labels)),
        arrays_sha256=sha256_of(arrays),
        arrays=arrays,
    )


def run_prompt(model: Model, prompt: Prompt) -> tuple[Layout, Cache]:
    """One run of a prompt, with everything kept."""
    tokens = torch.tensor([prompt.tokens], device=model.device)
    layout = known_layout(model, tokens)
    if layout is None:
        unknown = f"the fast path does not know the layout of {model.name}"
        raise ModelError(f"{unknown}, so its output cannot be read part by part")
    return layout, whole_run(layout, layout.embed(tokens))


def _prompt_and_tokens(
    model: Model,
    asked: str | Pair,
    *,
    answer: Answer | None,
    foil: Answer | None,
    swap: Swap | None,
    counterfactual: str | None,
) -> tuple[Prompt, tuple[int, ...], tuple[int, ...]]:
    """The prompt, and the tokens of its answers and foils."""
    if isinstance(asked, str) and (swap or counterfactual):
        asked = to_pair(
            model, asked, swap=swap, counterfactual=counterfactual, answer=answer, foil=foil
        )
    if isinstance(asked, Pair):
        metric = asked.metric
        answers = metric.answers or (metric.answer,)
        foils = metric.foils or (() if metric.foil is None else (metric.foil,))
        return asked.clean, answers, foils
    prompt = to_prompt(model, asked)
    layout, cache = run_prompt(model, prompt)
    last = layout.logits(cache.final[0, -1])
    answers = (int(last.argmax()),) if answer is None else _tokens(model, answer, last)
    foils = () if foil is None else _tokens(model, foil, last)
    return prompt, answers, foils


def _tokens(model: Model, answer: Answer, logits: torch.Tensor) -> tuple[int, ...]:
    tokens = [answer_token(model, text, logits) for text in given_answers(answer)]
    return tuple(dict.fromkeys(tokens))


def _spelled(model: Model, tokens: Sequence[int]) -> str:
    return " or ".join(model.spell(token) for token in tokens)
