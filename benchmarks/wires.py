"""What wires cost: all component edges of a pair, and all wires into one head, beside one forward for each.

1. Ours is the exact effect of each wire. (a) is one hooked forward a wire: the reader's query, key or value,
   computed beforehand from the stream that it would see, is set in a run of the model. Of (a) eight are run.
2. (c) is edge attribution patching: an estimate of all component edges from one forward and one backward.
3. "from nothing" counts the clean and the counterfactual run on our side and in (c); (a) has none to count.
4. With `--part 8` an eighth of the readers is measured, evenly over the layers, in five turns, and the time
   scaled to all.
5. Ours and (a) must agree to 1e-4 of the gap on what both ran, or the run ends.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import torch
from engine import TOLERANCE, Question, gpt2_small, gradient, random_question
from measure import CLOCKS, Aim, Clock, Line, interleave, seconds, show, show_header

from circuits.components import SIDES, Reader, Wire, component_edges, components
from circuits.engine import prepare
from circuits.engine.attribution import attribution
from circuits.engine.kept import KeptRuns
from circuits.engine.wires import projections, stream_of, wire_effects, writes_of

KEY, QUERY = 5, 8


def effects(asked: Question, wires: Sequence[Wire]) -> torch.Tensor:
    """Ours, from nothing."""
    return wire_effects(prepare(asked.model, [asked.pair]), wires)[0][:, 0]


def estimate(asked: Question) -> torch.Tensor:
    """(c), from nothing."""
    runs = prepare(asked.model, [asked.pair])
    return attribution(KeptRuns.everywhere([(runs, [0])]))


def new_sides(asked: Question, wires: Sequence[Wire]) -> list[torch.Tensor]:
    """What each wire's reader computes, (pos, d_head): where the wire does not hold, what it is anyway."""
    runs = prepare(asked.model, [asked.pair])
    clean, other = runs.clean.cache, runs.counterfactual.cache
    sides = []
    with torch.inference_mode():
        for wire in wires:
            reader = wire.reader
            first = runs.first_difference
            positions = range(first, runs.length) if wire.position is None else [wire.position]
            where = torch.tensor(list(positions))
            new = writes_of(runs, other, [wire.writer], where)[:, 0]
            own = writes_of(runs, clean, [wire.writer], where)[:, 0]
            seen = (
                stream_of(clean, reader, parallel=runs.blocks[0].parallel)[:, where] + new - own
            )
            projected = runs.blocks[reader.layer].project(seen, where)[SIDES.index(reader.kind)]  # type: ignore[arg-type]
            whole = projections(runs, clean, reader.layer)[reader.kind][
                0, :, reader.index
            ].clone()  # type: ignore[index]
            whole[where] = projected[0, :, reader.index]
            sides.append(whole)
    return sides


def by_forwards(
    asked: Question, wires: Sequence[Wire], sides: Sequence[torch.Tensor]
) -> torch.Tensor:
    """(a): the metric of each wire. A query, key or value that holds at one query only is put there by the
    last position being the only one that reads it."""
    values = []
    for wire, side in zip(wires, sides, strict=True):

        def put(
            now: torch.Tensor, hook: object, wire: Wire = wire, side: torch.Tensor = side
        ) -> torch.Tensor:
            changed = now.clone()
            changed[0, :, wire.reader.index] = side
            return changed

        name = f"blocks.{wire.reader.layer}.attn.hook_{wire.reader.kind[0]}"
        with asked.model.hooked([(name, put)]), torch.inference_mode():
            values.append(asked.metric(asked.model.forward(asked.tokens()[0])))
    return torch.stack(values)


def check(asked: Question, wires: Sequence[Wire], sides: Sequence[torch.Tensor]) -> None:
    clean, other = (
        float(asked.metric(asked.model.logits(tokens))) for tokens in asked.tokens()
    )
    hooked = (clean - by_forwards(asked, wires, sides)) / (clean - other)
    worst = float((effects(asked, wires) - hooked).abs().max())
    if not worst <= TOLERANCE:
        raise SystemExit(
            f"the ways disagree by {worst:.2g} of the gap: no time is worth printing"
        )


def spread(wires: Sequence[Wire], count: int = 8) -> list[Wire]:
    """Some wires into heads, evenly over all."""
    into_heads = [wire for wire in wires if wire.reader.kind in SIDES]
    return [into_heads[(2 * at + 1) * len(into_heads) // (2 * count)] for at in range(count)]


def all_edges(asked: Question, part: int, clock: Clock) -> None:
    every = component_edges(layers=asked.model.n_layers, heads=asked.model.n_heads)
    readers = list(dict.fromkeys(wire.reader for wire in every))[::part]
    chosen, hooked = [wire for wire in every if wire.reader in set(readers)], spread(every)
    sides = new_sides(asked, hooked)
    check(asked, hooked, sides)
    acts = (
        partial(effects, asked, chosen),
        partial(by_forwards, asked, hooked, sides),
        partial(estimate, asked),
        partial(gradient, asked),
    )
    ours, forwards, eap, backward = interleave(acts, repeats=1 if part == 1 else 5, clock=clock)
    ours, forwards = (
        ours.scaled(len(every) / len(chosen)),
        forwards.scaled(len(every) / len(hooked)),
    )
    run = "" if part == 1 else f", {len(chosen):,} run"
    measured = f"gpt2 9 tokens, pair differs at {KEY}: all {len(every):,} component edges{run}; from nothing"
    said = seconds(ours.median)
    # Fmt: skip.
    lines = (
        Line(
            measured,
            "(a) one hooked forward an edge, 8 run",
            said,
            seconds(forwards.median),
            forwards.of(ours),
            Aim("≥", 50),
        ),
        Line(
            measured,
            "(c) EAP: an estimate of all (ours / other)",
            said,
            seconds(eap.median),
            ours.of(eap),
        ),
        Line(
            measured,
            "one forward and backward (ours / other)",
            said,
            seconds(backward.median),
            ours.of(backward),
        ),
    )
    for line in lines:
        show(line.cells())


def one_head(asked: Question, clock: Clock, repeats: int) -> None:
    layers, heads = asked.model.n_layers, asked.model.n_heads
    layer = layers - 2
    wires = [
        Wire(
            writer,
            Reader(layer, side, 0),
            *((QUERY, None) if side == "query" else (KEY, QUERY)),
        )
        for side in SIDES
        for writer in components(layers=layers, heads=heads)
        if writer.layer < layer
    ]
    hooked = spread(component_edges(layers=layers, heads=heads))
    sides = new_sides(asked, hooked)
    acts = (partial(effects, asked, wires), partial(by_forwards, asked, hooked, sides))
    ours, forwards = interleave(acts, repeats=repeats, clock=clock)
    forwards = forwards.scaled(len(wires) / len(hooked))
    measured = (
        f"gpt2 9 tokens: all {len(wires)} wires into L{layer}H0 at {KEY}→{QUERY}; from nothing"
    )
    line = Line(measured, "(a) one hooked forward a wire, 8 run", seconds(ours.median),
                seconds(forwards.median), forwards.of(ours), Aim("≥", 60))  # fmt: skip
    show(line.cells())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--part", type=int, default=1, help="measure one of so many readers, and scale"
    )
    parser.add_argument("--layers", type=int, default=12, help="fewer, to see that it works")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: processor time, one thread"
    )
    options = parser.parse_args()
    asked = random_question(gpt2_small(options.layers), 9, key=KEY, query=QUERY)
    print(
        f"{torch.get_num_threads()} threads; ratios are medians, in brackets least and most.\n"
    )
    show_header()
    one_head(asked, CLOCKS[options.clock], repeats=3)
    all_edges(asked, options.part, CLOCKS[options.clock])


if __name__ == "__main__":
    main()
