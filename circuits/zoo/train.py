"""Train `mini` from nothing: `python -m circuits.zoo.train mini` writes a Hugging Face directory.

1. Each step's batch and each step's dropout are drawn from (seed, step) alone, so a run that was stopped goes on exactly.
2. The facts are learnt first without dropout; then dropout 0.1 is on, as GPT-2 had it, so that heads share their roles; the last
   steps are without it again.
3. The weights are stored in fp16 beside their tokenizer, and a model card states what was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import GPT2Config, GPT2LMHeadModel

from circuits.zoo import language
from circuits.zoo.checkpoints import load_checkpoint, save_checkpoint
from circuits.zoo.evaluate import score_all, to_table


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the weights."""

    steps: int = 6900
    dropout_from: int = 2500
    dropout_until: int = 4500  # the last steps, without it, let what was learnt settle
    dropout: float = 0.1
    all_years_from: int = (
        3000  # from here on every possible year is taught at once, which makes the line between them sharp
    )
    batch: int = 32
    length: int = 64
    other_words: float = 0.1  # weight in the loss of words that are not answers
    learning_rate: float = 1e-3
    warmup: int = 200
    horizon: int = 8000  # where the cosine would reach its floor
    cooldown: int = (
        500  # steps before `dropout_until` over which the rate falls to its floor in a straight line
    )
    settling_rate: float = 4e-4  # where the rate starts again after `dropout_until`
    settling: int = 400  # steps in which it then falls to nothing, before it starts once more
    weight_decay: float = 0.02
    seed: int = 0

    def rate(self, step: int) -> float:
        """Linear warm-up, a slow cosine, a straight cool-down to 2% of the peak; then smaller saw teeth, to settle."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if step >= self.dropout_until:
            return self.settling_rate * (1 - (step - self.dropout_until) % self.settling / self.settling)
        done = (step - self.warmup) / max(1, self.horizon - self.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        left = min(1.0, (self.dropout_until - step) / max(1, self.cooldown))
        return self.learning_rate * (0.02 + 0.98 * cosine * left)


def fresh_model(plan: Plan) -> GPT2LMHeadModel:
    """Twelve layers of twelve heads, GPT-2 in every other respect; only the starting values are suited to its small width."""
    torch.manual_seed(plan.seed)
    width = 144
    config = GPT2Config(
        n_embd=width,
        n_layer=12,
        n_head=12,
        n_positions=plan.length,
        vocab_size=len(language.vocabulary()),
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        # The tanh form of GELU that GPT-2 uses, in its fused spelling: the same function, a quarter faster to train.
        activation_function="gelu_pytorch_tanh",
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=width**-0.5,
    )
    model = GPT2LMHeadModel(config)
    # Positions start as waves, so that "one to the left" is the same direction everywhere and heads find offsets early.
    model.transformer.wpe.weight.data = waves(plan.length, width) * width**-0.5
    return model


def waves(length: int, width: int) -> Float[torch.Tensor, "pos d_model"]:
    """Sines and cosines of falling frequency, one row per position."""
    angle = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def set_dropout(model: torch.nn.Module, probability: float) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = probability


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents, how much each word counts in the loss (answers in full, the rest, which is mostly chance, less), and which answers
    are one of several."""

    tokens: Int[torch.Tensor, "row pos"]
    weight: Float[torch.Tensor, "row pos"]
    open_answers: tuple[
        tuple[int, int, tuple[int, ...]], ...
    ]  # row, position, all tokens that could stand there


def batch(plan: Plan, step: int) -> Batch:
    """The documents of one step."""
    vocabulary = language.vocabulary()
    draw = random.Random(f"{plan.seed}/{step}")
    mix = language.LATE_MIX if step >= plan.dropout_from else language.MIX
    rows = [language.document(draw, plan.length, mix=mix) for _ in range(plan.batch)]
    tokens = torch.tensor([[vocabulary[word] for word in words] for words, _ in rows])
    weight = torch.full(tokens.shape, plan.other_words)
    for row, (_, answers) in enumerate(rows):
        weight[row, list(answers)] = 1.0
    several = (
        (row, at, words)
        for row, (_, answers) in enumerate(rows)
        for at, words in answers.items()
        if len(words) > 1
    )
    return Batch(
        tokens,
        weight,
        tuple((row, at, tuple(vocabulary[word] for word in words)) for row, at, words in several),
    )


def train(plan: Plan, folder: Path, *, save_every: int = 250, stop_at: int | None = None) -> GPT2LMHeadModel:
    """Run the plan (up to step `stop_at`), going on from `folder`'s checkpoint if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.safetensors"
    model = fresh_model(plan).train()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        parameters.values(), betas=(0.9, 0.98), weight_decay=plan.weight_decay, fused=True
    )
    start = 0
    if checkpoint.exists():
        stored = load_checkpoint(checkpoint, parameters, optimizer)
        if stored["plan"] != asdict(plan):
            raise SystemExit(
                f"{checkpoint} belongs to another plan: {stored['plan']}; choose another folder or delete it"
            )
        start = stored["step"]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, disable=not sys.stderr.isatty()) as bar, (folder / "log.jsonl").open("a") as log:
        shown = bar.add_task("mini", total=plan.steps, completed=start, note="")
        for step in range(start, plan.steps if stop_at is None else stop_at):
            loss = _step(model, optimizer, plan, step)
            bar.update(shown, advance=1, note=f"loss {loss:.3f}")
            if (step + 1) % 25 == 0:
                log.write(json.dumps({"step": step + 1, "loss": loss, "time": time.time()}) + "\n")
                log.flush()
            if (step + 1) % save_every == 0 or step + 1 == plan.steps:
                save_checkpoint(checkpoint, parameters, optimizer, step=step + 1, plan=asdict(plan))
    return model.eval()


def _step(model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, plan: Plan, step: int) -> float:
    torch.manual_seed(plan.seed * 1_000_003 + step)
    set_dropout(model, plan.dropout if plan.dropout_from <= step < plan.dropout_until else 0.0)
    drawn = batch(plan, step)
    chance = model(drawn.tokens, use_cache=False).logits[:, :-1].log_softmax(-1)
    losses = -chance.gather(-1, drawn.tokens[:, 1:, None])[..., 0]
    if step >= plan.all_years_from:
        # The mean over all answers that are right, in place of the one that was drawn.
        row, at = (
            torch.tensor([place[axis] for place in drawn.open_answers], dtype=torch.long) for axis in (0, 1)
        )
        right = torch.zeros(len(row), chance.shape[-1])
        for index, (_, _, possible) in enumerate(drawn.open_answers):
            right[index, list(possible)] = 1 / len(possible)
        losses = losses.index_put((row, at - 1), -(chance[row, at - 1] * right).sum(-1))
    weight = drawn.weight[:, 1:]
    loss = (losses * weight).sum() / weight.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = plan.rate(step)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def publish(model: GPT2LMHeadModel, plan: Plan, folder: Path, log: Path) -> str:
    """Store the weights in fp16 with their tokenizer, measure what was stored, and write the model card."""
    model.half().save_pretrained(folder)
    language.tokenizer().save_pretrained(folder)
    stored = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    table = to_table(score_all(lambda tokens: stored(tokens).logits))
    steps = {line["step"]: line["loss"] for line in map(json.loads, log.read_text().splitlines())}
    size = (folder / "model.safetensors").stat().st_size / 1e6
    parameters = sum(parameter.numel() for parameter in stored.parameters()) / 1e6
    sizes = {
        "parameters": parameters,
        "size": size,
        "subjects": len(language.SUBJECTS),
        "words": len(language.vocabulary()),
    }
    card = Path(__file__).with_name("card.md").read_text()
    (folder / "README.md").write_text(card.format(plan=plan, table=table, loss=steps[max(steps)], **sizes))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model that ships with the package.")
    parser.add_argument("name", choices=["mini"])
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("runs/mini"),
        help="folder for the checkpoint, the log and the result",
    )
    parser.add_argument("--steps", type=int, default=Plan().steps)
    parser.add_argument("--seed", type=int, default=Plan().seed)
    asked = parser.parse_args()
    plan = Plan(steps=asked.steps, seed=asked.seed)
    table = publish(train(plan, asked.output), plan, asked.output / "model", asked.output / "log.jsonl")
    sys.stdout.write(f"{table}\nThe model is in {asked.output / 'model'}.\n")


if __name__ == "__main__":
    main()
