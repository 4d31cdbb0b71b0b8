// One thing, large: a head with its map, its effect beside random heads and its three sides; or a box, an arrow, …

function buildInspector(column) {
  const inspector = {
    title: element("h3", {}),
    role: element("span", { class: "role" }),
    pin: element("button", { type: "button", class: "tool pin", onclick: () => pin(column.circuit, thingOf(column)) }),
    words: element("p", { class: "said" }),
    drawn: mapOf({ role: "img" }),
    keys: element("div", { class: "labels keys", "aria-hidden": "true" }),
    queries: element("div", { class: "labels queries", "aria-hidden": "true" }),
    reading: element("p", { class: "reading" }),
    missing: element("p", { class: "missing", text: "This head's map was left out to keep the page small." }),
    facts: element("dl", { class: "facts" }),
    chance: element("div", { class: "chance" }),
    sides: element("div", { class: "sides" }),
  };
  const corner = element("span", { class: "corner", "aria-hidden": "true", text: AXES });
  inspector.map = element("div", { class: "large" }, inspector.queries, element("div", { class: "frame" }, inspector.drawn), corner, inspector.keys);
  const heading = element("div", { class: "titles" }, inspector.title, inspector.role, inspector.pin);
  inspector.root = element("div", { class: "card inspector", role: "region", "aria-label": "What is chosen" }, heading, inspector.words, inspector.map, inspector.missing, inspector.reading, inspector.facts, inspector.chance, inspector.sides);
  inspector.drawn.addEventListener("mousemove", (event) => {
    const { left, top, width, height } = inspector.drawn.getBoundingClientRect();
    const length = column.circuit.words.length;
    const cell = (at, size) => Math.min(length - 1, Math.max(0, Math.floor((at / size) * length)));
    readOut(column, length - 1 - cell(event.clientY - top, height), cell(event.clientX - left, width));
  });
  inspector.drawn.addEventListener("mouseleave", () => readOut(column, ...pairOf(column.circuit).slice().reverse()));
  return inspector;
}

function renderInspector(column) {
  const { circuit, inspector } = column;
  const thing = thingOf(column);
  const isHead = kindOf(thing) === "head";
  const pinned = isPinned(circuit, thing);
  inspector.root.classList.toggle("is-pinned", pinned);
  inspector.pin.textContent = pinned ? "Free (Esc)" : "Pin";
  inspector.pin.setAttribute("aria-pressed", String(pinned));
  for (const part of ["map", "missing", "reading", "chance", "sides"]) inspector[part].hidden = !isHead;
  inspector.words.hidden = isHead;
  column.inspected = isHead ? idOf(thing) : null;
  if (isHead) return renderHead(column, idOf(thing));
  const [title, ...rest] = sayThing(circuit, thing).split(/(?<=^[^,:]*)[,:] /);
  inspector.title.textContent = title;
  inspector.role.textContent = kindOf(thing);
  inspector.role.classList.remove("carrier");
  inspector.words.textContent = rest.join(", ");
  return fillFacts(inspector.facts, factsOf(circuit, thing));
}

// The numbers behind a thing that is no head, one a line.
function factsOf(circuit, thing) {
  const place = placeOf(thing);
  if (kindOf(thing) === "arrow") {
    const mapping = mappingOf(circuit, place.split("-").map(Number));
    const steps = carriersOf(mapping, state.share).map(([head, joint]) => [nameOf(circuit, head), number(joint), `joint effect up to here, ${percent(joint / mapping.total)} of the total`]);
    return [["Total", number(mapping.total), "all heads of this mapping at once"], ["Restore", number(mapping.restore), "the total in the other direction"], ...steps];
  }
  if (kindOf(thing) !== "box") return [];
  const span = circuit.spans.find((each) => each.name === place);
  const held = span.residual.map((effect, layer) => [`Into ${layer === circuit.layers ? "output" : `layer ${layer}`}`, number(effect), layer < circuit.layers ? `held; what layer ${layer} writes there: ${number(span.writes[layer])}` : "held at the end"]);
  return [["Largest", number(span.effect), `put in its place: ${span.counterfactual}`], ...held];
}

function renderHead(column, head) {
  const { circuit, inspector } = column;
  const { mapping, carriers } = measured(circuit);
  const place = carriers.findIndex(([index]) => index === head);
  inspector.title.textContent = nameOf(circuit, head);
  inspector.role.textContent = place >= 0 ? `carrier ${place + 1} of ${carriers.length}` : "not a carrier at this share";
  inspector.role.classList.toggle("carrier", place >= 0);
  const stored = circuit.slots.has(head);
  inspector.map.hidden = !stored;
  inspector.reading.hidden = !stored;
  inspector.missing.hidden = stored;
  if (stored) renderLargeMap(column, head);
  const told = effectOf(mapping, head) || {};
  const pair = pairOf(circuit);
  const weight = told.weight === undefined ? weightAt(circuit, head, pair[1], pair[0]) / 255 : told.weight;
  const counterfactual = told.counterfactualWeight === undefined ? "" : ` → ${number(told.counterfactualWeight)}`;
  fillFacts(inspector.facts, [
    ["Effect", number(told.effect), "its message replaced by the counterfactual's"],
    ["Restore", number(told.restore), "its clean message put back"],
    ["Loading", told.loading === null ? "not measured" : number(told.loading), "the linear share, patterns frozen"],
    ["Weight", stored || told.weight !== undefined ? `${number(weight)}${counterfactual}` : "–", "attention on this edge, clean → counterfactual"],
  ]);
  renderChance(column, mapping, told.effect);
  renderSides(column, mapping, head);
}

function renderLargeMap(column, head) {
  const { circuit, inspector } = column;
  const [key, query] = pairOf(circuit);
  const length = circuit.words.length;
  paintMap(inspector.drawn, circuit, head);
  inspector.drawn.firstChild.setAttribute("aria-label", `Attention map of ${nameOf(circuit, head)}: query up, key to the right`);
  const labelled = length <= 48 ? Array.from({ length }, (_, at) => at) : [...new Set([key, query])].sort((a, b) => a - b);
  inspector.map.classList.toggle("dense", length > 24 && length <= 48);
  const labels = (axis) =>
    labelled.map((at) => {
      const chosen = axis === "key" ? at === key : at === query;
      const label = element("span", { class: chosen ? "chosen" : "", dir: "auto", text: circuit.spelled[at], title: tokenAt(circuit, at) });
      label.style[axis === "key" ? "left" : "bottom"] = `${(100 * (at + 0.5)) / length}%`;
      return label;
    });
  inspector.keys.replaceChildren(...labels("key"));
  inspector.queries.replaceChildren(...labels("query"));
  readOut(column, query, key);
}

function readOut(column, query, key) {
  const { circuit, inspector, inspected } = column;
  if (inspected === null) return;
  const weight = weightAt(circuit, inspected, query, key);
  inspector.reading.textContent = `${tokenAt(circuit, key)} → ${tokenAt(circuit, query)}: weight ${number(weight === null ? null : weight / 255)}`;
}

// The head's own effect on one line with what as many random heads as there are carriers do.
function renderChance(column, mapping, effect) {
  const { chance } = column.inspector;
  const told = mapping && mapping.controls;
  chance.hidden = !told || effect === undefined || !told.random_draws;
  if (chance.hidden) return;
  const low = Math.min(0, effect, told.random_mean);
  const high = Math.max(effect, told.random_p95, mapping.total, 0.01);
  const x = (value) => 8 + (304 * (value - low)) / (high - low);
  const words = `effect ${number(effect)}; random heads, as many as carry ${percent(told.share)}: mean ${number(told.random_mean)}, 95th percentile ${number(told.random_p95)} of ${told.random_draws} draws`;
  const strip = shape("svg", { class: "strip", viewBox: "0 0 320 34", role: "img", "aria-label": `Beside chance: ${words}` });
  const random = [Math.min(told.random_mean, told.random_p95), Math.max(told.random_mean, told.random_p95)];
  strip.append(shape("line", { class: "rule", x1: x(low), x2: x(high), y1: 14, y2: 14 }));
  strip.append(shape("rect", { class: "random", x: x(random[0]) - 1, y: 8, width: Math.max(3, x(random[1]) - x(random[0]) + 2), height: 12, rx: 3 }));
  strip.append(shape("line", { class: "total", x1: x(mapping.total), x2: x(mapping.total), y1: 6, y2: 22 }));
  strip.append(shape("circle", { class: "own", cx: x(effect), cy: 14, r: 5 }));
  const beside = effect > told.random_p95 ? "above what random heads do" : "within what random heads do";
  chance.replaceChildren(element("h4", { text: "Beside random heads" }), strip, element("p", { class: "meaning", text: `${beside}: ${words}` }));
}

// The three sides of the head, with who wrote them where the file has `why`.
function renderSides(column, mapping, head) {
  const { circuit, inspector } = column;
  const known = sidesOf(circuit, mapping, head);
  const parts = [];
  if (known) {
    parts.push(element("h4", { text: "What it reads: its three sides" }));
    const effects = known.sides.flatMap((side) => [side.effect, ...(side.writers || []).map((writer) => writer[2])]);
    const largest = Math.max(1e-9, ...effects.map(Math.abs));
    for (const side of known.sides) parts.push(sideBlock(column, head, side, largest));
    parts.push(element("p", { class: "meaning", text: `Each side alone from the counterfactual run; the weight alone does ${number(known.pattern)}.` }));
  }
  if (live && mapping && !mapping.unfinished && !(known && known.sides[0].writers)) parts.push(live.whyButton(circuit, head, pairOf(circuit)));
  inspector.sides.replaceChildren(...parts);
}

function sideBlock(column, head, side, largest) {
  const { circuit } = column;
  const bar = (effect) => {
    const made = element("i", { class: effect < 0 ? "fill against" : "fill", "aria-hidden": "true" });
    made.style.width = `${Math.min(100, (100 * Math.abs(effect)) / largest)}%`;
    return element("span", { class: "track" }, made);
  };
  const row = (tag, name, effect, options) => element(tag, options, element("span", { class: "who", text: name }), bar(effect), element("span", { class: "num", text: number(effect, 3) }));
  const block = element("div", { class: "side", role: "group", "aria-label": `${side.side} side` });
  block.append(row("div", `${side.side}: ${SIDES[side.side]}`, side.effect, { class: "whole" }));
  const shown = (side.writers || []).map((writer, index) => [writer, index]).filter(([[, , effect]]) => Math.abs(effect) >= 0.0005).slice(0, 6);
  for (const [writer, index] of shown) {
    const [name, position, effect] = writer;
    const thing = /^L\d+H\d+$/.test(name) ? `head:${headNamed(circuit, name)}` : `writer:${head}-${side.side}-${index}`;
    const said = sayWriter(side.side, writer);
    const button = row("button", position === null ? name : `${name}@${position}`, effect, { type: "button", class: "writer", title: said, "data-thing": thing });
    labelled(button, said);
    button.addEventListener("click", () => pin(circuit, thing));
    block.append(button);
  }
  if (side.writers && !shown.length) block.append(element("p", { class: "meaning", text: "no writer below has an effect there" }));
  return block;
}

const headNamed = (circuit, name) => {
  const [, layer, index] = name.match(/^L(\d+)H(\d+)$/);
  return Number(layer) * circuit.heads + Number(index);
};

function fillFacts(list, facts) {
  list.replaceChildren(
    ...facts.map(([name, value, meaning]) =>
      element("div", {}, element("dt", { text: name }), element("dd", { class: "value", text: value }), element("dd", { class: "meaning", text: meaning }))),
  );
}
