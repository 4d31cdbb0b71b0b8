"""Train `mini` from nothing: `python scripts/train_mini.py` writes a Hugging Face directory.

1. Each step's documents and dropout are drawn from (seed, step) alone, so a run that was stopped goes on
   exactly where it was.
2. The facts are learnt first without dropout; then dropout 0.1 is on, as GPT-2 had it, so that heads share
   their roles; the last steps are without it again.
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
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from transformers import GPT2Config, GPT2LMHeadModel

from circuits.sparsify.training import load_checkpoint, save_checkpoint
from circuits.zoo import language
from circuits.zoo.evaluate import score_all, to_table


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the weights."""

    steps: int = 6900
    dropout_from: int = 2500
    dropout_until: int = 4500  # the last steps, without it, let what was learnt settle
    dropout: float = 0.1
    all_years_from: int = (
        3000  # from here on every possible year is taught at once, for a sharp edge
    )
    batch: int = 32
    length: int = 64
    other_words: float = 0.1  # weight in the loss of words that are not answers
    learning_rate: float = 1e-3
    warmup: int = 200
    horizon: int = 8000  # where the cosine would reach its floor
    cooldown: int = (
        500  # steps before `dropout_until` over which the rate falls straight to its floor
    )
    settling_rate: float = 4e-4  # where the rate starts again after `dropout_until`
    settling: int = 400  # steps in which it then falls to nothing, before it starts once more
    weight_decay: float = 0.02
    seed: int = 0

    def rate(self, step: int) -> float:
        """Linear warm-up, slow cosine, straight cool-down to 2% of the peak; then smaller saw teeth."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        if step >= self.dropout_until:
            return self.settling_rate * (
                1 - (step - self.dropout_until) % self.settling / self.settling
            )
        done = (step - self.warmup) / max(1, self.horizon - self.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        left = min(1.0, (self.dropout_until - step) / max(1, self.cooldown))
        return self.learning_rate * (0.02 + 0.98 * cosine * left)


def fresh_model(plan: Plan) -> GPT2LMHeadModel:
    """A GPT-2 of twelve layers of twelve heads, whose starting values suit its small width."""
    torch.manual_seed(plan.seed)
    width = 144
    config = GPT2Config(
        n_embd=width,
        n_layer=12,
        n_head=12,
        n_positions=plan.length,
        vocab_size=len(language.vocabulary()),
        bos_token_id=0,
        eos_token_id=0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        initializer_range=width**-0.5,
        activation_function="gelu_pytorch_tanh",  # GPT-2's GELU as one kernel: a quarter faster to train
    )
    model = GPT2LMHeadModel(config)
    # Positions start as waves: "one to the left" is the same direction everywhere, and heads find it early.
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
class Documents:
    """The documents of one step, how much each word counts in the loss, and which answers are one of several.

    Answers count in full; the other words, which are mostly chance, count less.
    """

    tokens: Int[torch.Tensor, "row pos"]
    weight: Float[torch.Tensor, "row pos"]
    # Row, position, all tokens that could stand there.
    open_answers: list[tuple[int, int, list[int]]]


def documents(plan: Plan, step: int) -> Documents:
    """The documents of one step."""
    vocabulary = language.vocabulary()
    draw = random.Random(f"{plan.seed}/{step}")
    mix = language.LATE_MIX if step >= plan.dropout_from else language.MIX
    tokens = torch.empty(plan.batch, plan.length, dtype=torch.int64)
    weight = torch.full(tokens.shape, plan.other_words)
    open_answers = []
    for row in range(plan.batch):
        words, answers = language.document(draw, plan.length, mix=mix)
        tokens[row] = torch.tensor([vocabulary[word] for word in words])
        weight[row, list(answers)] = 1.0
        for position, possible in answers.items():
            if len(possible) > 1:
                open_answers.append((row, position, [vocabulary[word] for word in possible]))
    return Documents(tokens, weight, open_answers)


def train(
    plan: Plan, folder: Path, *, save_every: int = 250, stop_at: int | None = None
) -> GPT2LMHeadModel:
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
            hint = "choose another folder or delete it"
            raise SystemExit(f"{checkpoint} belongs to another plan: {stored['plan']}; {hint}")
        start = stored["step"]
    columns = (TextColumn("mini"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, TextColumn("{task.fields[note]}"), disable=not sys.stderr.isatty())
    end = plan.steps if stop_at is None else stop_at
    with bar, (folder / "log.jsonl").open("a") as log:
        task = bar.add_task("mini", total=plan.steps, completed=start, note="")
        for step in range(start, end):
            loss = _step(model, optimizer, plan, step)
            bar.update(task, advance=1, note=f"loss {loss:.3f}")
            if (step + 1) % 25 == 0:
                log.write(
                    json.dumps({"step": step + 1, "loss": loss, "time": time.time()}) + "\n"
                )
                log.flush()
            if (step + 1) % save_every == 0 or step + 1 == plan.steps:
                save_checkpoint(
                    checkpoint, parameters, optimizer, step=step + 1, plan=asdict(plan)
                )
    return model.eval()


def _step(
    model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, plan: Plan, step: int
) -> float:
    """Train on the documents of one step; returns their loss."""
    torch.manual_seed(plan.seed * 1_000_003 + step)
    with_dropout = plan.dropout_from <= step < plan.dropout_until
    set_dropout(model, plan.dropout if with_dropout else 0.0)
    drawn = documents(plan, step)
    logprobs = model(drawn.tokens, use_cache=False).logits[:, :-1].log_softmax(-1)
    losses = -logprobs.gather(-1, drawn.tokens[:, 1:, None])[..., 0]  # (row, pos)
    if step >= plan.all_years_from:
        losses = _with_all_answers(losses, logprobs, drawn)
    weight = drawn.weight[:, 1:]
    loss = (losses * weight).sum() / weight.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = plan.rate(step)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def _with_all_answers(
    losses: torch.Tensor, logprobs: torch.Tensor, drawn: Documents
) -> torch.Tensor:
    """The losses, with the mean over all answers that are right in place of the one that was drawn."""
    rows = torch.tensor([row for row, _, _ in drawn.open_answers], dtype=torch.long)
    before = torch.tensor(
        [position - 1 for _, position, _ in drawn.open_answers], dtype=torch.long
    )
    right = torch.zeros(len(rows), logprobs.shape[-1])  # (answer, vocab)
    for index, (_, _, possible) in enumerate(drawn.open_answers):
        right[index, possible] = 1 / len(possible)
    return losses.index_put((rows, before), -(logprobs[rows, before] * right).sum(-1))


def publish(model: GPT2LMHeadModel, plan: Plan, folder: Path, log: Path) -> str:
    """Store the weights in fp16 with their tokenizer, measure what was stored, and write the model card."""
    model.half().save_pretrained(folder)
    language.tokenizer().save_pretrained(folder)
    stored = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    table = to_table(score_all(lambda tokens: stored(tokens).logits))
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    last = max(logged, key=lambda line: line["step"])
    template = Path(__file__).with_name("card.md").read_text()
    card = template.format(
        plan=plan,
        table=table,
        loss=last["loss"],
        parameters=sum(parameter.numel() for parameter in stored.parameters()) / 1e6,
        size=(folder / "model.safetensors").stat().st_size / 1e6,
        subjects=len(language.SUBJECTS),
        words=len(language.vocabulary()),
    )
    (folder / "README.md").write_text(card)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model that ships with the package.")
    results = "folder for the checkpoint, the log and the result"
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/mini"), help=results)
    parser.add_argument("--steps", type=int, default=Plan().steps)
    parser.add_argument("--seed", type=int, default=Plan().seed)
    arguments = parser.parse_args()
    plan = Plan(steps=arguments.steps, seed=arguments.seed)
    folder = arguments.output
    model = train(plan, folder)
    print(publish(model, plan, folder / "model", folder / "log.jsonl"))
    print(f"The model is in {folder / 'model'}.")


if __name__ == "__main__":
    main()
