"""Are the published circuits of GPT-2 found by their mappings? For users who have GPT-2: the weights come
from the hub.

Finding: none is claimed. The script needs a network or a local copy of GPT-2, and has been tried only on
models of another shape; it prints how many of the published heads lie among the carriers of the mapping that
the papers give them.
"""

import sys

import circuits
from circuits.tasks.task import to_task

# Heads and mappings of arXiv 2211.00593 (indirect object, 26 heads) and arXiv 2305.00586 (greater-than, the
# agreed core).
PUBLISHED = {
    "indirect_object": (
        ("previous token", "S1", "S1+1", "2.2 4.11"),
        ("duplicate token", "S1", "S2", "0.1 0.10 3.0"),
        ("induction", "S1+1", "S2", "5.5 5.8 5.9 6.9"),
        ("S-inhibition", "S2", "END", "7.3 7.9 8.6 8.10"),
        ("name movers", "IO", "END", "9.9 10.0 9.6 10.10 10.6 10.2 10.1 11.2 9.7 9.0 11.9"),
        ("negative name movers", "IO", "END", "10.7 11.10"),
    ),
    "greater_than": (("core", "YY", "END", "5.5 6.9 7.10 8.11 9.1"),),
}
SHARE = 0.95
NAMES = ("Anna", "Paul", "Emma", "Mark", "Laura")


def three_names(model: circuits.Model, pair: circuits.Pair) -> circuits.Pair:
    """The pair with the papers' counterfactual: all names replaced and none repeated, so that no head can
    tell who gets the thing."""
    indirect = pair.metric.answer_text.strip()
    subject = str(pair.metric.foil_text).strip()
    first, second, third = [name for name in NAMES if name not in (indirect, subject)][:3]
    other = (
        pair.clean.text.replace(indirect, first)
        .replace(subject, second, 1)
        .replace(subject, third)
    )
    return circuits.to_pair(
        model, pair.clean.text, counterfactual=other, answer=indirect, foil=subject
    )


def main(name: str = "gpt2", count: int = 64) -> None:
    model = circuits.load(name)
    for task, groups in PUBLISHED.items():
        alike = to_task(model, task, count=count).alike
        pairs = [
            three_names(model, item.pair) if task == "indirect_object" else item.pair
            for item in alike
        ]
        print(f"{task} on {name}, {len(alike)} pairs; carriers of {SHARE:.0%} of each mapping")
        for label, key, query, heads in groups:
            ends = {"key": alike[0].position(key), "query": alike[0].position(query)}
            found = circuits.trace(model, pairs, share=SHARE, **ends)
            wanted = [circuits.Head.parse(head) for head in heads.split()]
            recalled = [head for head in wanted if head in found.carriers()]
            mapping = f"{label:20} {key:>4} → {query:4} total {found.total.mean:.2f}"
            recall = f"{len(recalled)} of {len(wanted)} published heads"
            names = " ".join(map(str, recalled)) or "none"
            print(f"  {mapping}: {recall} among {len(found.carriers())} carriers: {names}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
