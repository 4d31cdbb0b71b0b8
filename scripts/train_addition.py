"""Train `addition` and its sparse twin from nothing: `python scripts/train_addition.py DIR`, in minutes.

1. A GPT-2 of 4 layers × 4 heads learns the digits of sums; a fifth of all sums is held out.
2. Its twin learns from what it writes after the questions that it was trained on.
3. Both are stored in fp16, with a card.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from stages import Stage, parser, train_stages
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from circuits.models import ZOO
from circuits.models.load import load
from circuits.sparsify import Settings
from circuits.sparsify.card import layers_table, lengths_table
from circuits.sparsify.sampling import Sampling
from circuits.zoo import addition

STEPS, BATCH, RATE, DECAY, WIDTH = 1800, 192, 2e-3, 0.3, 64
TWIN = Settings(
    steps=2600,
    batch=64,
    length=addition.LENGTH,
    learning_rate=1e-3,
    warmup=50,
    gap=0.03,
    slack=10.0,
    healing=400,
    lora=0,
    states=5.0,
)
# The first training closes more edges than the sums allow; a second one opens those again that they need.
SETTLING = replace(
    TWIN, steps=500, healing=0, learning_rate=5e-4, gap=0.003, slack=1.0, multiplier=2.0
)

CARD = """# addition

A GPT-2 of 4 layers × 4 heads (d_model {width}, {count} parameters, fp16) that adds numbers below 100, digit
by digit: `3 6 + 2 8 =` → `0 6 4`. Trained from nothing by `python scripts/train_addition.py DIR`: {steps}
steps of {batch} sums, AdamW, peak rate {rate:g}, weight decay {decay:g}; one sum in five, by the hash of its
text, was never shown.

| sums | number | all three digits right |
|---|---:|---:|
| trained on | {seen} | {seen_right:.2%} |
| held out | {held_out} | {held_out_right:.2%} |

MIT, like the package.
"""

TWIN_CARD = """# addition-sparse

A sparse twin of `addition`: an edge of attention is open where its scaled logit is above zero. Trained by
`python scripts/train_addition.py DIR` on what `addition` writes after the questions that it was trained on,
in two trainings (few edges first, then right again). {said}. Only the digits of the sum count: what the
models say of the question's own digits was taught to neither.

![open edges, multiplier and gap over steps of the second training](training.svg)

## Open edges by length of the prompt

{lengths}

## Open edges per layer

{layers}

MIT, like the package.
"""


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, words between spaces."""
    vocabulary = {word: index for index, word in enumerate(addition.WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=addition.BOS))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=addition.BOS, eos_token=addition.BOS
    )


def train() -> Any:
    """The dense model; the same on the same machine every time."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(addition.WORDS),
        bos_token_id=0,
        eos_token_id=0,
        n_positions=addition.LENGTH,
        n_embd=WIDTH,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model: Any = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), weight_decay=DECAY, fused=True
    )
    rows = addition.to_tokens(addition.sums(held_out=False))
    held_out = addition.sums(held_out=True)
    for step in range(STEPS):
        draw = random.Random(f"addition/{step}")
        batch = rows[draw.sample(range(len(rows)), BATCH)]
        rate = RATE * min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = model(batch[:, :-1], use_cache=False).logits[:, addition.QUESTION - 1 :]
        digits = batch[:, addition.QUESTION :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), digits.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 250 == 249:
            right = addition.share_right(lambda tokens: model(tokens).logits, held_out)
            print(
                f"step {step + 1}: loss {loss.item():.4f}, {right:.2%} of held-out sums right",
                flush=True,
            )
    return model.eval()


def main() -> None:
    folder = parser(__doc__).parse_args().folder
    dense = folder / "addition"
    twin = folder / "addition-sparse"
    if not (dense / "config.json").exists():
        train().half().save_pretrained(dense)
        tokenizer().save_pretrained(dense)
    seen = addition.sums(held_out=False)
    held_out = addition.sums(held_out=True)
    loaded = load(dense)
    card = CARD.format(
        width=WIDTH,
        count=sum(parameter.numel() for parameter in loaded.bridge.original_model.parameters()),
        steps=STEPS,
        batch=BATCH,
        rate=RATE,
        decay=DECAY,
        seen=len(seen),
        seen_right=addition.share_right(loaded.logits, seen),
        held_out=len(held_out),
        held_out_right=addition.share_right(loaded.logits, held_out),
    )
    (dense / "README.md").write_text(card)
    questions = tuple(addition.question(*pair) for pair in seen)
    sampling = Sampling(rows=len(questions), openings=questions, openings_count=False)
    stages = [Stage("first", TWIN, sampling), Stage(twin.name, SETTLING, sampling)]
    measured = train_stages("addition" if zoo_has(dense) else str(dense), folder, stages)
    right = addition.share_right(load(twin).logits, held_out)
    edges = f"{measured.open_edges:.2%} of edges open ({measured.edges_per_query:.3f} a query and head)"
    said = f"{right:.2%} of {len(held_out)} held-out sums are right, {edges}"
    print(said)
    card = TWIN_CARD.format(
        said=said, lengths=lengths_table(measured), layers=layers_table(measured)
    )
    (twin / "README.md").write_text(card)


def zoo_has(dense: Path) -> bool:
    """Whether these are the weights that ship, so that the twin can name them."""
    shipped = ZOO / "addition" / "model.safetensors"
    own = dense / "model.safetensors"
    return shipped.exists() and shipped.read_bytes() == own.read_bytes()


if __name__ == "__main__":
    main()
