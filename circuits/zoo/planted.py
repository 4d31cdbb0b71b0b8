"""Models whose circuit is true by construction: every weight is set by hand, so what a tracer must find is known before it looks.

1. The residual stream holds named features. Feature i is the difference of dimensions 2i and 2i+1, so the mean is always 0, and a loud
   constant keeps the scale of every layer norm the same to half a percent: what a weight reads is the feature's own value.
2. `planted-sparse` and `planted-dense` know the four facts of every subject word of `language` in `The opposite of "large" is "`.
   - Position 5, the subject: the MLPs of layers 0-3 write its four answers, a share each (a word's code is minus the code of its opposite).
   - Position 2, the relation: the MLPs of layers 0-1 detect the relation word; L5H10 and L6H3 read it and favour its kind of answer.
   - Positions 4 and 6, the brackets: the MLPs of layers 0-10 detect a quote mark; L11H1 and L11H4 read it and hold back `the`,
     which the model says where the brackets are missing.
   - 5 → 8: in the sparse model five heads carry 80.3% of the answer and sixteen others the rest; in the dense one 56 heads share it.
   Scores depend on positions alone, so no pattern depends on the words; heads of no part attend somewhere and write nothing.
   The scores that carry are above 0 and in the sparse model no others are, so the sparse gate changes nothing there.
3. `planted-induction` has two layers of four heads. L0H1 copies the word before; L1H2 looks for where its own word stood before and
   copies what followed. Where there is nothing to repeat, the model says `.`.
"""

from __future__ import annotations

import math
import random
from typing import Any, Final

import torch
from jaxtyping import Float
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from circuits.errors import ModelError
from circuits.zoo import language
from circuits.zoo.language import tokenizer

NAMES: Final = ("planted-sparse", "planted-dense", "planted-induction")

PROMPT: Final = 'The opposite of "large" is "'
SWAP: Final = {"large": "hot"}
ANSWER, FOIL = "small", "cold"
KEY, QUERY = 5, 8
GROUPS: Final = {"opposite": (2,), "large": (5,), "brackets": (4, 6)}
COUNTERFACTUALS: Final = {  # one for each group, differing there alone; the top predictions are pink, cold and the
    "opposite": 'The colour of "large" is "',
    "large": 'The opposite of "hot" is "',
    "brackets": 'The opposite of the large one is "',
}
BUILT: Final = {"opposite": range(2), "large": range(4), "brackets": range(11)}
SPANS: Final = {
    "opposite": range(7),
    "large": range(12),
    "brackets": range(12),
}  # inputs of layers that still matter; each ends with its last reader

_CARRIERS: Final = {(11, 7): 0.172, (10, 1): 0.166, (9, 7): 0.160, (9, 1): 0.155, (8, 6): 0.150}
_OTHERS: Final = {
    4: (2, 8),
    5: (5, 11),
    6: (1, 6),
    7: (0, 4),
    8: (3, 10),
    9: (4, 10),
    10: (5, 8),
    11: (3, 9),
}  # layer -> heads
_DENSE: Final = tuple((layer, (3 * layer + 5 * turn) % 12) for turn in range(7) for layer in range(4, 12))
_RELATION_READERS: Final = ((5, 10), (6, 3))
_BRACKET_READERS: Final = {4: (11, 1), 6: (11, 4)}  # key position -> head
PLANTED_CARRIERS: Final = tuple(f"L{layer}H{index}" for layer, index in _CARRIERS)  # strongest first
PLANTED_DENSE: Final = tuple(f"L{layer}H{index}" for layer, index in _DENSE)  # strongest first

INDUCTION_PROMPT: Final = "red dog blue cat red"
INDUCTION_ANSWER: Final = "dog"
INDUCTION_MAPPINGS: Final = {  # head -> (key, query, counterfactual, its top prediction)
    "L1H2": (2, 5, "red house blue cat red", "house"),
    "L0H1": (1, 2, "green dog blue cat red", "."),
}

_ANSWER_SHARES: Final = (0.34, 0.26, 0.22, 0.18)  # of layers 0-3
_POSITIONS: Final = 16
_CONSTANT, _POSITION, _WORD, _FLAG = (
    128.0,
    16.0,
    2.0,
    8.0,
)  # lengths: of the constant, a position, an embedded word, a detected token
_FACT_LOGIT, _KIND_LOGIT = 24.0, 10.0  # a right answer gets both
_THE_LEAD, _THE_HELD_BACK = (
    6.0,
    8.0,
)  # `the` stands 6 above a right answer without brackets, 2 below it with both
_REPEAT_LOGIT, _STOP_LOGIT = 16.0, 8.0

_FACT_FEATURES: Final = {
    "word": 10,  # embedded: which subject
    "drawn": 6,  # embedded: the subject's colour, number and category, a point of a circle each
    "other": 8,  # embedded: which of all other words; never read
    "relation": 4,  # embedded: one for each relation word
    "quote": 1,  # embedded: the quote mark
    "answer": 16,  # built at the subject: the codes of its four answers
    "asked": 4,  # built at the relation word
    "quoted": 1,  # built at quote marks
    "said": 16,  # carried to the end: the answers
    "kind": 4,  # carried to the end: which relation is asked for
    "plain": 1,  # carried to the end: how many of the two brackets stand there
    "position": _POSITIONS,
    "constant": 1,
}
_INDUCTION_FEATURES: Final = {"word": 24, "before": 24, "said": 24, "position": _POSITIONS, "constant": 1}


class _Residual:
    """Where each named feature lives, and the matrices that read it behind a layer norm and write it."""

    def __init__(self, d_model: int, sizes: dict[str, int]) -> None:
        self.d_model = d_model
        mirrored = torch.kron(torch.eye(d_model // 2), torch.tensor([[1.0, -1.0]])) / math.sqrt(2)
        self._rows = dict(
            zip(sizes, mirrored[: sum(sizes.values())].split(list(sizes.values())), strict=True)
        )
        self.scale = math.sqrt(
            (_CONSTANT**2 + _POSITION**2) / d_model
        )  # what a layer norm divides by, nearly

    def write(self, *names: str) -> Float[torch.Tensor, "feature d_model"]:
        return torch.cat([self._rows[name] for name in names])

    def read(self, *names: str) -> Float[torch.Tensor, "d_model feature"]:
        return self.write(*names).T * self.scale

    def position(self) -> Float[torch.Tensor, "d_model pos"]:
        """Reads the position as a one-hot vector."""
        return self.read("position") / _POSITION

    def constant(self) -> Float[torch.Tensor, "d_model one"]:
        """Reads 1 everywhere."""
        return self.read("constant") / _CONSTANT


def build(name: str) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """One of NAMES, with the tokenizer of the language; the same weights every time."""
    if name not in NAMES:
        raise ModelError(f"no planted model {name!r}; there are {', '.join(NAMES)}")
    model = _induction() if name == "planted-induction" else _facts(sparse=name == "planted-sparse")
    return model.eval(), tokenizer()


@torch.no_grad()
def _facts(*, sparse: bool) -> GPT2LMHeadModel:
    at = _Residual(192, _FACT_FEATURES)
    model = _blank(at, layers=12, heads=12)
    model.transformer.wte.weight.copy_(
        _word_embedding() @ at.write("word", "drawn", "other", "relation", "quote")
    )
    for layer in range(11):
        units = [_detector(at, "quote", "quoted", share=1 / 11)]
        units += (
            [_copier(at, torch.diag(torch.tensor([-1.0] * 10 + [1.0] * 6)), share=_ANSWER_SHARES[layer])]
            if layer < 4
            else []
        )
        units += [_detector(at, "relation", "asked", share=1 / 2)] if layer < 2 else []
        _set_mlp(model, layer, units)
    for layer in range(12):
        for index in range(12):
            _set_scores(
                model,
                at,
                (layer, index),
                8 * _habit(layer, index) - 9 if sparse else 3 * _habit(layer, index),
            )
    for head in _RELATION_READERS:
        _set_reader(
            model,
            at,
            head,
            _sharp(head, 2),
            key=2,
            features=("asked", "kind"),
            gain=1 / _FLAG / len(_RELATION_READERS),
        )
    for key, head in _BRACKET_READERS.items():
        _set_reader(
            model,
            at,
            head,
            _sharp(head, key),
            key=key,
            features=("quoted", "plain"),
            gain=1 / _FLAG / len(_BRACKET_READERS),
        )
    for rank, (head, share) in enumerate((_sparse_shares() if sparse else _dense_shares()).items()):
        scores = _sharp(head, KEY) if sparse else _blurred(head, rank)
        _set_reader(model, at, head, scores, key=KEY, features=("answer", "said"), gain=share)
    _set_fact_logits(model, at)
    return model


def _sparse_shares() -> dict[tuple[int, int], float]:
    """The five carriers as given; sixteen others, each a little less than the one before, up to a sum of 1."""
    others = [(layer, index) for layer, indices in _OTHERS.items() for index in indices]
    weights = [20 - rank / 2 for rank in range(len(others))]
    left = 1 - sum(_CARRIERS.values())
    return _CARRIERS | {
        head: left * weight / sum(weights) for head, weight in zip(others, weights, strict=True)
    }


def _dense_shares() -> dict[tuple[int, int], float]:
    """56 heads from 1.2 to 0.8 times the average share: 43 of them are needed for 80%."""
    weights = torch.linspace(1.2, 0.8, len(_DENSE), dtype=torch.float64) / len(_DENSE)
    return dict(zip(_DENSE, weights.tolist(), strict=True))


def _word_embedding() -> Float[torch.Tensor, "vocab feature"]:
    """Every token with length 2: subjects with their facts, relations and the quote mark with a feature each, all others with a code."""
    vocabulary = language.vocabulary()
    subjects, others = _subject_codes(), _codes(len(vocabulary), 8, seed="others")
    table = torch.zeros(len(vocabulary), 10 + 6 + 8 + 4 + 1)
    table[:, 16:24] = others * _WORD
    for subject, code in subjects.items():
        drawn = [
            _on_circle(relation, language.FACTS[relation][subject]) for relation in language.RELATIONS[1:]
        ]
        table[vocabulary[subject]] = torch.cat([code, *drawn, torch.zeros(13)])
    for feature, word in enumerate((*language.RELATIONS, '"'), start=24):
        table[vocabulary[word]] = torch.nn.functional.one_hot(torch.tensor(feature), table.shape[1]) * _WORD
    return table


def _set_fact_logits(model: GPT2LMHeadModel, at: _Residual) -> None:
    vocabulary, said, kind = language.vocabulary(), at.read("said").T, at.read("kind").T
    logits = model.lm_head.weight
    for subject, code in _subject_codes().items():
        logits[vocabulary[subject]] = _FACT_LOGIT * code @ said[:10] + _KIND_LOGIT * kind[0]
    for number, relation in enumerate(language.RELATIONS[1:], start=1):
        for value in set(language.FACTS[relation].values()):
            code = torch.zeros(16)
            code[8 + 2 * number : 10 + 2 * number] = _on_circle(relation, value)
            logits[vocabulary[value]] = _FACT_LOGIT * code @ said + _KIND_LOGIT * kind[number]
    alone = _FACT_LOGIT + _KIND_LOGIT + _THE_LEAD  # the logit of `the` without brackets: ahead of any answer
    logits[vocabulary["the"]] = (alone * at.constant() - _THE_HELD_BACK * at.read("plain")).squeeze(1)


def _subject_codes() -> dict[str, Float[torch.Tensor, " feature"]]:
    """Unit vectors in which every word is the negative of its opposite."""
    codes = _codes(len(language.SUBJECTS) // 2, 10, seed="subjects")
    return dict(zip(language.SUBJECTS, torch.stack([codes, -codes], dim=1).flatten(0, 1), strict=True))


def _on_circle(relation: str, value: str) -> Float[torch.Tensor, " two"]:
    """A value of a drawn relation as a point of the unit circle."""
    values = sorted(set(language.FACTS[relation].values()))
    angle = 2 * math.pi * values.index(value) / len(values)
    return torch.tensor([math.cos(angle), math.sin(angle)])


@torch.no_grad()
def _induction() -> GPT2LMHeadModel:
    at = _Residual(192, _INDUCTION_FEATURES)
    model = _blank(at, layers=2, heads=4)
    vocabulary = language.vocabulary()
    codes = _codes(len(vocabulary), 24, seed="words")
    codes[vocabulary[language.BOS]] = 0  # so that reading BOS says nothing
    model.transformer.wte.weight.copy_(codes @ at.write("word"))
    for layer in range(2):
        for index in range(4):
            _set_scores(model, at, (layer, index), 8 * _habit(layer, index + 1) - 9)
    _set_scores(model, at, (0, 1), 24 * torch.eye(_POSITIONS).roll(1, 0) - 12)
    _set_values(model, (0, 1), at.read("word"), at.write("before"))
    # Score: 60 * (likeness of my word and the word before the key - 0.9), and -9 at BOS, where a query with no match rests.
    one, rest = at.constant(), 45 * at.position()[:, :1] - 54 * at.constant()
    _set_attention(
        model,
        (1, 2),
        torch.cat([at.read("word"), one], dim=1),
        torch.cat([60 * at.read("before"), rest], dim=1),
    )
    _set_values(model, (1, 2), at.read("word"), at.write("said"))
    model.lm_head.weight.copy_(_REPEAT_LOGIT * codes @ at.read("said").T)
    model.lm_head.weight[vocabulary["."]] = _STOP_LOGIT * at.constant().squeeze(1)
    return model


def _blank(at: _Residual, *, layers: int, heads: int) -> GPT2LMHeadModel:
    """A model of zeros, but for its layer norms, and for the constant and the position on its positional embedding."""
    config = GPT2Config(
        n_embd=at.d_model, n_layer=layers, n_head=heads, n_positions=_POSITIONS, vocab_size=len(language.vocabulary()),
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    for name, weight in model.named_parameters():
        weight.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    model.transformer.wpe.weight.copy_(_POSITION * at.write("position") + _CONSTANT * at.write("constant"))
    return model


def _codes(count: int, size: int, *, seed: str) -> Float[torch.Tensor, "count size"]:
    """Unit vectors that lie far from each other's lines: drawn, then pushed apart."""
    draw = random.Random(seed)
    codes = torch.tensor([[draw.gauss(0, 1) for _ in range(size)] for _ in range(count)], dtype=torch.float64)
    for _ in range(100):
        codes = torch.nn.functional.normalize(codes)
        likeness = (codes @ codes.T).fill_diagonal_(0)
        codes = codes - 0.05 * (likeness / likeness.abs().amax(1, keepdim=True)) ** 9 @ codes
    return torch.nn.functional.normalize(codes).float()


def _habit(layer: int, index: int) -> Float[torch.Tensor, "query key"]:
    """Where a head looks when nothing is asked of it: the first token, the token before, itself, two before, or everywhere."""
    itself = torch.eye(_POSITIONS)
    before, first, nowhere = itself.roll(1, 0), itself[:1].expand_as(itself), torch.zeros_like(itself)
    habits = (first, before, first, itself, itself.roll(2, 0), nowhere, torch.maximum(first, before))
    return habits[(3 * layer + 5 * index) % len(habits)]


def _sharp(head: tuple[int, int], key: int) -> Float[torch.Tensor, "query key"]:
    """Scores above 0 at key → last token alone, where nearly all of the attention then is; below 0 the head has its habit."""
    scores = 10 * _habit(*head) - 12
    scores[QUERY, key] = 12
    return scores


def _blurred(head: tuple[int, int], rank: int) -> Float[torch.Tensor, "query key"]:
    """Scores of a head that divides its attention between subject and habit, each head differently."""
    scores = 3 * _habit(*head)
    scores[QUERY, KEY] = 3 + (rank * 7 % 10) / 4
    return scores


def _set_reader(
    model: GPT2LMHeadModel,
    at: _Residual,
    head: tuple[int, int],
    scores: torch.Tensor,
    *,
    key: int,
    features: tuple[str, str],
    gain: float,
) -> None:
    """Make a head carry gain times the first feature at `key` to the second at the last token, whatever its attention there."""
    attention = scores[QUERY, : QUERY + 1].softmax(0)[key]
    _set_scores(model, at, head, scores)
    _set_values(model, head, at.read(features[0]), at.write(features[1]) * gain / attention)


def _set_scores(
    model: GPT2LMHeadModel, at: _Residual, head: tuple[int, int], scores: Float[torch.Tensor, "query key"]
) -> None:
    """Attention by position alone, with exactly these scores."""
    _set_attention(model, head, at.position(), at.position() @ scores.T)


def _block(model: GPT2LMHeadModel, layer: int) -> Any:
    return model.transformer.h[layer]


def _set_attention(
    model: GPT2LMHeadModel, head: tuple[int, int], query: torch.Tensor, key: torch.Tensor
) -> None:
    """Score of two positions: the product of what `query` and `key` read there."""
    attention = _block(model, head[0]).attn
    width, start = attention.head_dim, head[1] * attention.head_dim
    weight = attention.c_attn.weight  # (d_model, query + key + value)
    weight[:, start : start + query.shape[1]] = query
    weight[:, attention.embed_dim + start : attention.embed_dim + start + key.shape[1]] = key * math.sqrt(
        width
    )


def _set_values(
    model: GPT2LMHeadModel, head: tuple[int, int], read: torch.Tensor, write: torch.Tensor
) -> None:
    attention = _block(model, head[0]).attn
    start = head[1] * attention.head_dim
    value = 2 * attention.embed_dim + start
    attention.c_attn.weight[:, value : value + read.shape[1]] = read
    attention.c_proj.weight[start : start + write.shape[0]] = write


_Units = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor
]  # weights in (d_model, unit), biases (unit), weights out (unit, d_model)


def _copier(at: _Residual, change: Float[torch.Tensor, "feature feature"], *, share: float) -> _Units:
    """Writes a share of the changed facts of the subject. Exactly linear, since gelu(x) - gelu(-x) = x."""
    read, write = at.read("word", "drawn") @ change, share * at.write("answer")
    return torch.cat([read, -read], dim=1), torch.zeros(2 * read.shape[1]), torch.cat([write, -write])


def _detector(at: _Residual, reads: str, writes: str, *, share: float) -> _Units:
    """Writes a share of 8 where a feature has the value 2, as on its own token; nothing where noise moved it by 0.2 or more."""
    width, steep = (
        0.1,
        80.0,
    )  # gelu(80 x) / 80 is a sharp bend; four bends make a flat top from -width to width with slopes beside it
    read, write = at.read(reads), at.write(writes)
    bends = ((2 * width, 1), (width, -1), (-width, -1), (-2 * width, 1))
    biases = torch.cat([torch.full((read.shape[1],), steep * (bend - _WORD)) for bend, _ in bends])
    return (
        steep * read.repeat(1, 4),
        biases,
        torch.cat([write * sign * share * _FLAG / (steep * width) for _, sign in bends]),
    )


def _set_mlp(model: GPT2LMHeadModel, layer: int, units: list[_Units]) -> None:
    mlp, start = _block(model, layer).mlp, 0
    for weights_in, biases, weights_out in units:
        stop = start + len(biases)
        mlp.c_fc.weight[:, start:stop], mlp.c_fc.bias[start:stop], mlp.c_proj.weight[start:stop] = (
            weights_in,
            biases,
            weights_out,
        )
        start = stop
