// What the file holds, what the reader has chosen, and choosing. All that is chosen stands in the address.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { group: "", share: data.share, picking: "key", pairs: {}, pinned: null, hovered: null, views: {} };
let columns = [];
data.circuits.forEach(unpack);

const groupOf = (circuit) => String(circuit.group);
const shownCircuits = () => data.circuits.filter((circuit) => groupOf(circuit) === state.group);
const pairOf = (circuit) => state.pairs[pairKey(circuit)] || openingPair(circuit);
// Circuits side by side share what is chosen, unless their models cut the prompt into other tokens.
const pairKey = (circuit) => {
  const first = data.circuits.find((each) => groupOf(each) === groupOf(circuit));
  return !first || first.words.length === circuit.words.length ? groupOf(circuit) : `${groupOf(circuit)}.${circuit.words.length}`;
};
const sameShape = (one, other) => one.layers === other.layers && one.heads === other.heads;
const measured = (circuit) => {
  const mapping = mappingOf(circuit, pairOf(circuit));
  return { mapping, carriers: carriersOf(mapping, state.share) };
};

// The thing that a column tells of: what is pinned, else what the mouse or the keyboard is at, else the first carrier.
function thingOf(column) {
  const { circuit } = column;
  const at = state.pinned || state.hovered;
  if (at) {
    const owner = data.circuits.find((each) => each.id === at.id);
    if (owner === circuit) return at.thing;
    if (kindOf(at.thing) === "head" && owner && sameShape(owner, circuit)) return at.thing;
  }
  const { carriers } = measured(circuit);
  return `head:${carriers.length ? carriers[0][0] : 0}`;
}

const isPinned = (circuit, thing) => Boolean(state.pinned) && state.pinned.thing === thing && (state.pinned.id === circuit.id || kindOf(thing) === "head");

function pin(circuit, thing) {
  state.pinned = isPinned(circuit, thing) ? null : { id: circuit.id, thing };
  state.hovered = null;
  renderThings();
}

function free() {
  if (!state.pinned) return;
  state.pinned = null;
  renderThings();
}

// Passing over a thing shows it only while nothing is pinned; its numbers are shown in words in any case.
function preview(circuit, thing, target) {
  if (target) showHint(target, sayThing(circuit, thing));
  else hideHint();
  const hovered = target ? { id: circuit.id, thing } : null;
  if (state.hovered?.thing === hovered?.thing && state.hovered?.id === hovered?.id) return;
  state.hovered = hovered;
  if (!state.pinned) columns.forEach(renderInspector);
}

function choosePair(circuit, pair) {
  state.pairs[pairKey(circuit)] = pair;
  renderAll();
}

function pick(circuit, at) {
  const [key, query] = pairOf(circuit);
  const pair = state.picking === "key" ? [at, query] : [key, at];
  if (live && pair[0] <= pair[1] && !mappingOf(circuit, pair)) live.askAlso(circuit, pair);
  else choosePair(circuit, pair);
}

// What is said of any thing of a circuit.
function sayThing(circuit, thing) {
  const { mapping, carriers } = measured(circuit);
  const place = placeOf(thing);
  if (thing === "output") return sayOutput(circuit);
  if (kindOf(thing) === "head") return sayHead(circuit, mapping, idOf(thing), carriers);
  if (kindOf(thing) === "token") return sayToken(circuit, mapping, idOf(thing), pairOf(circuit));
  if (kindOf(thing) === "box") return sayBox(circuit.spans.find((span) => span.name === place));
  if (kindOf(thing) === "arrow") {
    const arrow = mappingOf(circuit, place.split("-").map(Number));
    return sayArrow(circuit, arrow, carriersOf(arrow, state.share));
  }
  const [side, writer] = writerAt(circuit, mapping, place);
  return sayWriter(side, writer);
}

// A writer by `head-side-number`, as in `writer:143-query-0`.
function writerAt(circuit, mapping, place) {
  const [head, side, index] = place.split("-");
  const sides = sidesOf(circuit, mapping, Number(head));
  return [side, sides.sides.find((each) => each.side === side).writers[Number(index)]];
}

// Whether a thing of an address exists here.
function exists(circuit, thing) {
  try {
    if (kindOf(thing) === "head") return idOf(thing) >= 0 && idOf(thing) < circuit.layers * circuit.heads;
    if (kindOf(thing) === "token") return idOf(thing) >= 0 && idOf(thing) < circuit.words.length;
    return Boolean(sayThing(circuit, thing));
  } catch {
    return false;
  }
}

// The words of what is under the mouse or has the keyboard's place.
const hint = element("div", { class: "hint", role: "presentation", hidden: true });
document.body.append(hint);

let hinted = null;

function showHint(target, text) {
  hint.textContent = text;
  hint.hidden = false;
  hinted = target;
  placeHint();
}

function placeHint() {
  if (hint.hidden) return;
  const box = hinted.getBoundingClientRect();
  const [width, height] = [hint.offsetWidth, hint.offsetHeight];
  const left = Math.min(Math.max(6, box.left + box.width / 2 - width / 2), document.documentElement.clientWidth - width - 6);
  const above = box.top - height - 8;
  hint.style.left = `${left}px`;
  hint.style.top = `${above > 4 ? above : Math.min(box.bottom + 8, window.innerHeight - height - 4)}px`;
}

function hideHint() {
  hint.hidden = true;
}

// Listeners of anything that stands for a thing.
function follow(target, circuit, thing, act = () => pin(circuit, thing)) {
  target.addEventListener("mouseenter", () => preview(circuit, thing, target));
  target.addEventListener("mouseleave", () => preview(circuit, thing, null));
  target.addEventListener("focus", () => target.matches(":focus-visible") && preview(circuit, thing, target)); // a click leaves no hint behind
  target.addEventListener("blur", () => preview(circuit, thing, null));
  target.addEventListener("click", act);
  if (!(target instanceof HTMLElement)) {
    target.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      act();
    });
  }
  return target;
}
