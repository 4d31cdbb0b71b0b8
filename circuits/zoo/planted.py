"""Models whose weights are set by hand, so that the circuit that a tracer must find is known.

1. The residual stream holds named features. Feature i is the difference of dimensions 2i and 2i+1, so the
   mean of the stream is always 0. A constant feature, much larger than all others, keeps the scale of every
   layer norm the same to half a percent. So a weight after a layer norm reads the feature's own value.
2. `planted-sparse` and `planted-dense` know the four facts of a subject in `The opposite of "large" is "`.
   - Position 5, the subject: the MLPs of layers 0-3 write its four answers, a share each.
   - Position 2, the relation: detected in layers 0-1; L5H10 and L6H3 read it and favour its kind of answer.
   - Positions 4 and 6, the brackets: detected in layers 0-10; L11H1 and L11H4 read them and hold back `the`.
   - 5 → 8: in the sparse model five heads carry 80.3% of the answer and sixteen others the rest; in the dense
     one 56 heads share it.
   Attention scores depend on positions alone. Heads that carry nothing attend somewhere and write nothing. In
   the sparse model exactly the edges that carry have a score above 0, so the sparse gate changes nothing.
3. `planted-induction` has two layers of four heads. L0H1 copies the word before; L1H2 looks for where its own
   word stood before and copies what followed. Where there is nothing to repeat, the model says `.`.
"""

import math
import random
from functools import cache
from itertools import product
from typing import Any, Final

import torch
from jaxtyping import Float
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from circuits.errors import ModelError
from circuits.zoo import language

NAMES: Final = ("planted-sparse", "planted-dense", "planted-induction")

PROMPT: Final = 'The opposite of "large" is "'
SWAP: Final = {"large": "hot"}
ANSWER, FOIL = "small", "cold"
KEY, QUERY = 5, 8
GROUPS: Final = {"opposite": (2,), "large": (5,), "brackets": (4, 6)}
COUNTERFACTUALS: Final = {  # one per group, differing there alone; the top predictions are pink, cold and the
    "opposite": 'The colour of "large" is "',
    "large": 'The opposite of "hot" is "',
    "brackets": 'The opposite of the large one is "',
}
BUILT: Final = {"opposite": range(2), "large": range(4), "brackets": range(11)}
# Inputs of layers that still matter; each span ends with its last reader.
SPANS: Final = {"opposite": range(7), "large": range(12), "brackets": range(12)}

_CARRIERS: Final = {(11, 7): 0.172, (10, 1): 0.166, (9, 7): 0.160, (9, 1): 0.155, (8, 6): 0.150}
_OTHERS: Final = (  # two heads in each of the layers 4 to 11
    *((4, 2), (4, 8), (5, 5), (5, 11), (6, 1), (6, 6), (7, 0), (7, 4)),
    *((8, 3), (8, 10), (9, 4), (9, 10), (10, 5), (10, 8), (11, 3), (11, 9)),
)
_DENSE: Final = tuple(
    (layer, (3 * layer + 5 * step) % 12) for step in range(7) for layer in range(4, 12)
)
_RELATION_READERS: Final = ((5, 10), (6, 3))
_BRACKET_READERS: Final = {4: (11, 1), 6: (11, 4)}  # key position -> head
# Strongest first.
PLANTED_CARRIERS: Final = tuple(f"L{layer}H{index}" for layer, index in _CARRIERS)
PLANTED_DENSE: Final = tuple(f"L{layer}H{index}" for layer, index in _DENSE)  # strongest first

INDUCTION_PROMPT: Final = "red dog blue cat red"
INDUCTION_ANSWER: Final = "dog"
INDUCTION_MAPPINGS: Final = {  # head -> (key, query, counterfactual, its top prediction)
    "L1H2": (2, 5, "red house blue cat red", "house"),
    "L0H1": (1, 2, "green dog blue cat red", "."),
}

_D_MODEL, _POSITIONS = 192, 16
_ANSWER_SHARES: Final = (0.34, 0.26, 0.22, 0.18)  # of layers 0-3
# Lengths of features
_CONSTANT: Final = 128.0
_POSITION: Final = 16.0
_WORD: Final = 2.0
_FLAG: Final = 8.0  # a token that was detected
# Logits. A right answer gets that of its fact and that of its kind.
_FACT_LOGIT: Final = 24.0
_KIND_LOGIT: Final = 10.0
# `the` is 6 above a right answer without brackets, 2 below with both.
_THE_LEAD: Final = 6.0
_THE_HELD_BACK: Final = 8.0
_REPEAT_LOGIT, _STOP_LOGIT = 16.0, 8.0

_FACT_FEATURES: Final = {
    "word": 10,  # embedded: which subject
    "drawn": 6,  # embedded: the subject's colour, number and category, a point of a circle each
    "other": 8,  # embedded: which of all other words; never read
    "relation": 4,  # embedded: one for each relation word
    "quote": 1,  # embedded: the quote mark
    "answer": 16,  # built at the subject: the codes of its four answers
    "relation flag": 4,  # built at the relation word
    "quote flag": 1,  # built at quote marks
    "said": 16,  # carried to the end: the answers
    "kind": 4,  # carried to the end: which relation the prompt names
    "brackets": 1,  # carried to the end: how many of the two brackets stand there
    "position": _POSITIONS,
    "constant": 1,
}
_EMBEDDED: Final = ("word", "drawn", "other", "relation", "quote")
_INDUCTION_FEATURES: Final = {
    "word": 24,
    "before": 24,
    "said": 24,
    "position": _POSITIONS,
    "constant": 1,
}

_Head = tuple[int, int]  # layer, index
# Weights in (d_model, unit), biases (unit), weights out (unit, d_model)
_Units = tuple[torch.Tensor, ...]


def build(name: str) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """One of NAMES, with the tokenizer of the language; the same weights every time."""
    if name not in NAMES:
        raise ModelError(f"no planted model {name!r}; there are {', '.join(NAMES)}")
    is_sparse = name == "planted-sparse"
    model = _induction() if name == "planted-induction" else _facts(sparse=is_sparse)
    return model.eval(), language.tokenizer()


class _Draft:
    """A GPT-2 of zeros, but for norms, positions and the constant; its weights are set feature by feature."""

    def __init__(self, features: dict[str, int], *, layers: int, heads: int) -> None:
        sizes = list(features.values())
        differences = torch.kron(
            torch.eye(_D_MODEL // 2), torch.tensor([[1.0, -1.0]])
        ) / math.sqrt(2)
        directions = differences[: sum(sizes)].split(sizes)
        # Name -> (feature, d_model)
        self._directions = dict(zip(features, directions, strict=True))
        # What a norm divides by, nearly.
        self._scale = math.sqrt((_CONSTANT**2 + _POSITION**2) / _D_MODEL)
        config = GPT2Config(
            n_embd=_D_MODEL,
            n_layer=layers,
            n_head=heads,
            n_positions=_POSITIONS,
            vocab_size=len(language.vocabulary()),
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.model = GPT2LMHeadModel(config)
        for name, weight in self.model.named_parameters():
            is_norm = "ln_" in name and name.endswith("weight")
            weight.fill_(1.0 if is_norm else 0.0)
        positions = _POSITION * self.write("position") + _CONSTANT * self.write("constant")
        self.model.transformer.wpe.weight.copy_(positions)

    def write(self, *names: str) -> Float[torch.Tensor, "feature d_model"]:
        """The directions in the residual stream that stand for these features."""
        return torch.cat([self._directions[name] for name in names])

    def read(self, *names: str) -> Float[torch.Tensor, "d_model feature"]:
        """What reads these features after a layer norm."""
        return self.write(*names).T * self._scale

    def position(self) -> Float[torch.Tensor, "d_model pos"]:
        """Reads the position as a one-hot vector."""
        return self.read("position") / _POSITION

    def constant(self) -> Float[torch.Tensor, "d_model one"]:
        """Reads 1 everywhere."""
        return self.read("constant") / _CONSTANT

    def set_carrier(
        self, head: _Head, scores: torch.Tensor, key: int, read: str, write: str, gain: float
    ) -> None:
        """Let a head with these scores add gain times the feature `read`, as it is at `key`, to the feature
        `write` at the last token. How much attention the key gets makes no difference."""
        attention = scores[QUERY, : QUERY + 1].softmax(0)[key]
        self.set_scores(head, scores)
        self.set_values(head, self.read(read), self.write(write) * gain / attention)

    def set_scores(self, head: _Head, scores: Float[torch.Tensor, "query key"]) -> None:
        """Attention by position alone, with exactly these scores."""
        self.set_attention(head, self.position(), self.position() @ scores.T)

    def set_attention(self, head: _Head, query: torch.Tensor, key: torch.Tensor) -> None:
        """The score of two positions is the product of what `query` and `key` read there."""
        attention, start = self._attention(head)
        weight = attention.c_attn.weight  # (d_model, query + key + value)
        weight[:, start : start + query.shape[1]] = query
        key_start = attention.embed_dim + start
        weight[:, key_start : key_start + key.shape[1]] = key * math.sqrt(attention.head_dim)

    def set_values(self, head: _Head, read: torch.Tensor, write: torch.Tensor) -> None:
        """The head moves what `read` (d_model, d_head) reads at a key to `write` (d_head, d_model)."""
        attention, start = self._attention(head)
        value_start = 2 * attention.embed_dim + start
        attention.c_attn.weight[:, value_start : value_start + read.shape[1]] = read
        attention.c_proj.weight[start : start + write.shape[0]] = write

    def _attention(self, head: _Head) -> tuple[Any, int]:
        """The attention of a head's layer, and the first dimension of the head in it."""
        layer, index = head
        attention: Any = self.model.transformer.h[layer].attn
        return attention, index * attention.head_dim

    def set_mlp(self, layer: int, units: list[_Units]) -> None:
        """Give the MLP of a layer these units; its other units stay at zero."""
        mlp: Any = self.model.transformer.h[layer].mlp
        weights_in, biases, weights_out = zip(*units, strict=True)
        count = sum(map(len, biases))
        mlp.c_fc.weight[:, :count] = torch.cat(weights_in, dim=1)
        mlp.c_fc.bias[:count] = torch.cat(biases)
        mlp.c_proj.weight[:count] = torch.cat(weights_out)

    def copier(self, change: Float[torch.Tensor, "feature feature"], *, share: float) -> _Units:
        """MLP units that write a share of the subject's changed facts. Each feature has two units, read with
        both signs, which makes them exactly linear: gelu(x) - gelu(-x) = x."""
        read = self.read("word", "drawn") @ change
        write = share * self.write("answer")
        biases = torch.zeros(2 * read.shape[1])
        return torch.cat([read, -read], dim=1), biases, torch.cat([write, -write])

    def detector(self, feature: str, flag: str, *, share: float) -> _Units:
        """MLP units that write a share of 8 where a feature is 2, as on its own token, and nothing where it
        is more than 0.2 off."""
        # gelu(80 x) / 80 is 0 below 0 and x above it, with a sharp bend. Four bends make a flat top around 2.
        width = 0.1
        steep = 80.0
        read = self.read(feature)
        write = self.write(flag) * share * _FLAG / (steep * width)
        biases = []
        weights_out = []
        for bend, sign in ((2 * width, 1), (width, -1), (-width, -1), (-2 * width, 1)):
            biases.append(torch.full((read.shape[1],), steep * (bend - _WORD)))
            weights_out.append(sign * write)
        return steep * read.repeat(1, 4), torch.cat(biases), torch.cat(weights_out)


@torch.no_grad()
def _facts(*, sparse: bool) -> GPT2LMHeadModel:
    draft = _Draft(_FACT_FEATURES, layers=12, heads=12)
    draft.model.transformer.wte.weight.copy_(_word_embedding() @ draft.write(*_EMBEDDED))
    opposites = torch.diag(torch.tensor([-1.0] * 10 + [1.0] * 6))
    for layer in range(11):
        units = [draft.detector("quote", "quote flag", share=1 / 11)]
        if layer < 4:
            units.append(draft.copier(opposites, share=_ANSWER_SHARES[layer]))
        if layer < 2:
            units.append(draft.detector("relation", "relation flag", share=1 / 2))
        draft.set_mlp(layer, units)
    for head in product(range(12), range(12)):
        habit = _habit(*head)
        draft.set_scores(head, 8 * habit - 9 if sparse else 3 * habit)
    for head in _RELATION_READERS:
        draft.set_carrier(head, _sharp(head, 2), 2, "relation flag", "kind", 1 / _FLAG / 2)
    for key, head in _BRACKET_READERS.items():
        draft.set_carrier(head, _sharp(head, key), key, "quote flag", "brackets", 1 / _FLAG / 2)
    shares = _sparse_shares() if sparse else _dense_shares()
    for rank, (head, share) in enumerate(shares.items()):
        scores = _sharp(head, KEY) if sparse else _blurred(head, rank)
        draft.set_carrier(head, scores, KEY, "answer", "said", share)
    _set_fact_logits(draft)
    return draft.model


def _sparse_shares() -> dict[_Head, float]:
    """The five carriers as given; sixteen others, each a little less than the last, up to a sum of 1."""
    weights = {head: 20 - rank / 2 for rank, head in enumerate(_OTHERS)}
    total = sum(weights.values())
    left = 1 - sum(_CARRIERS.values())
    return _CARRIERS | {head: left * weight / total for head, weight in weights.items()}


def _dense_shares() -> dict[_Head, float]:
    """56 heads from 1.2 to 0.8 times the average share: 43 of them are needed for 80%."""
    weights = torch.linspace(1.2, 0.8, len(_DENSE), dtype=torch.float64) / len(_DENSE)
    return dict(zip(_DENSE, weights.tolist(), strict=True))


def _word_embedding() -> Float[torch.Tensor, "vocab feature"]:
    """Tokens of length 2: subjects have their facts, relations and quote marks a feature, others a code."""
    vocabulary = language.vocabulary()
    parts = {name: torch.zeros(len(vocabulary), _FACT_FEATURES[name]) for name in _EMBEDDED}
    parts["other"] += _codes(len(vocabulary), _FACT_FEATURES["other"], seed="others") * _WORD
    for subject, code in _subject_codes().items():
        token = vocabulary[subject]
        points = [
            _on_circle(name, language.FACTS[name][subject]) for name in language.RELATIONS[1:]
        ]
        parts["word"][token] = code
        parts["drawn"][token] = torch.cat(points)
        parts["other"][token] = 0
    for number, relation in enumerate(language.RELATIONS):
        token = vocabulary[relation]
        parts["relation"][token, number] = _WORD
        parts["other"][token] = 0
    quote = vocabulary['"']
    parts["quote"][quote] = _WORD
    parts["other"][quote] = 0
    return torch.cat(list(parts.values()), dim=1)


def _set_fact_logits(draft: _Draft) -> None:
    """An answer's logit grows with its code in `said` and with the relation that the prompt names."""
    vocabulary = language.vocabulary()
    logits = draft.model.lm_head.weight
    said = draft.read("said").T  # 10 rows for the opposite, then 2 for each other relation
    kind = draft.read("kind").T
    for subject, code in _subject_codes().items():
        logits[vocabulary[subject]] = _FACT_LOGIT * code @ said[:10] + _KIND_LOGIT * kind[0]
    for number, relation in enumerate(language.RELATIONS[1:], start=1):
        for value in set(language.FACTS[relation].values()):
            code = torch.zeros(16)
            code[8 + 2 * number : 10 + 2 * number] = _on_circle(relation, value)
            logits[vocabulary[value]] = _FACT_LOGIT * code @ said + _KIND_LOGIT * kind[number]
    # The logit of `the`, above any answer's.
    without_brackets = _FACT_LOGIT + _KIND_LOGIT + _THE_LEAD
    the = without_brackets * draft.constant() - _THE_HELD_BACK * draft.read("brackets")
    logits[vocabulary["the"]] = the.squeeze(1)


def _subject_codes() -> dict[str, Float[torch.Tensor, " feature"]]:
    """Unit vectors in which every word is the negative of its opposite."""
    codes = _codes(len(language.SUBJECTS) // 2, 10, seed="subjects")
    # As SUBJECTS: word, opposite, word, ….
    with_opposites = torch.stack([codes, -codes], dim=1).flatten(0, 1)
    return dict(zip(language.SUBJECTS, with_opposites, strict=True))


def _on_circle(relation: str, value: str) -> Float[torch.Tensor, " two"]:
    """A value of a drawn relation as a point of the unit circle."""
    values = sorted(set(language.FACTS[relation].values()))
    angle = 2 * math.pi * values.index(value) / len(values)
    return torch.tensor([math.cos(angle), math.sin(angle)])


@torch.no_grad()
def _induction() -> GPT2LMHeadModel:
    draft = _Draft(_INDUCTION_FEATURES, layers=2, heads=4)
    vocabulary = language.vocabulary()
    codes = _codes(len(vocabulary), 24, seed="words").clone()
    codes[vocabulary[language.BOS]] = 0  # so that reading BOS says nothing
    draft.model.transformer.wte.weight.copy_(codes @ draft.write("word"))
    for layer, index in product(range(2), range(4)):
        draft.set_scores((layer, index), 8 * _habit(layer, index + 1) - 9)
    draft.set_scores((0, 1), 24 * torch.eye(_POSITIONS).roll(1, 0) - 12)
    draft.set_values((0, 1), draft.read("word"), draft.write("before"))
    # The score is 60 * (likeness of the query's word and the word before the key - 0.9), and -9 for BOS,
    # which is the largest where no word matches.
    query = torch.cat([draft.read("word"), draft.constant()], dim=1)
    offset = 45 * draft.position()[:, :1] - 54 * draft.constant()
    key = torch.cat([60 * draft.read("before"), offset], dim=1)
    draft.set_attention((1, 2), query, key)
    draft.set_values((1, 2), draft.read("word"), draft.write("said"))
    logits = draft.model.lm_head.weight
    logits.copy_(_REPEAT_LOGIT * codes @ draft.read("said").T)
    logits[vocabulary["."]] = _STOP_LOGIT * draft.constant().squeeze(1)
    return draft.model


@cache
def _codes(count: int, size: int, *, seed: str) -> Float[torch.Tensor, "count size"]:
    """Unit vectors whose products are small: drawn at random, then pushed apart step by step."""
    draw = random.Random(seed)
    numbers = [draw.gauss(0, 1) for _ in range(count * size)]
    codes = torch.tensor(numbers, dtype=torch.float64).view(count, size)
    for _ in range(100):
        codes = torch.nn.functional.normalize(codes)
        likeness = (codes @ codes.T).fill_diagonal_(0)
        nearest = likeness.abs().amax(1, keepdim=True)
        # The 9th power: from the nearest alone.
        codes = codes - 0.05 * (likeness / nearest) ** 9 @ codes
    return torch.nn.functional.normalize(codes).float()


def _habit(layer: int, index: int) -> Float[torch.Tensor, "query key"]:
    """Where a head that carries nothing looks: the first token, the token before, itself, two before,
    everywhere."""
    itself = torch.eye(_POSITIONS)
    before = itself.roll(1, 0)
    first = itself[:1].expand_as(itself)
    everywhere = torch.zeros_like(itself)
    habits = (
        first,
        before,
        first,
        itself,
        itself.roll(2, 0),
        everywhere,
        torch.maximum(first, before),
    )
    return habits[(3 * layer + 5 * index) % len(habits)]


def _sharp(head: _Head, key: int) -> Float[torch.Tensor, "query key"]:
    """Scores above 0 at key → last token alone, which gets nearly all attention; below 0 a head's habit."""
    scores = 10 * _habit(*head) - 12
    scores[QUERY, key] = 12
    return scores


def _blurred(head: _Head, rank: int) -> Float[torch.Tensor, "query key"]:
    """Scores of a head that divides its attention between subject and habit, each head differently."""
    scores = 3 * _habit(*head)
    scores[QUERY, KEY] = 3 + (rank * 7 % 10) / 4
    return scores
