// Items are what can be pointed at and pinned. They are named by kind and place:
// `head:143`, `token:5`, `box:4+6`, `arrow:5-8`, `writer:143-query-0`, `output`.

import { mappingOf, writerAt } from "./circuit.js";
import { setLabel, svg } from "./dom.js";
import { chosen, circuitWith, live, pairOf, state, update, withPair } from "./state.js";
import { arrowText, boxText, headText, outputText, tokenText, writerText } from "./text.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

export const kindOf = (item) => item.split(":")[0];
const placeOf = (item) => item.slice(item.indexOf(":") + 1);
export const numberOf = (item) => Number(placeOf(item));

export const spanOf = (circuit, item) => circuit.spans.find((span) => span.name === placeOf(item));
export const arrowOf = (circuit, item) => mappingOf(circuit, placeOf(item).split("-").map(Number));

export function itemText(circuit, item) {
  const { pair, mapping, carriers } = chosen(circuit);
  switch (kindOf(item)) {
    case "head":
      return headText(circuit, mapping, numberOf(item), carriers);
    case "token":
      return tokenText(circuit, numberOf(item), pair);
    case "box":
      return boxText(spanOf(circuit, item));
    case "arrow":
      return arrowText(circuit, arrowOf(circuit, item), state.percentage);
    case "writer":
      return writerText(...writerAt(circuit, mapping, placeOf(item)));
    default:
      return outputText(circuit);
  }
}

// Whether an item that an address names is in this circuit.
export function exists(circuit, item) {
  const counts = { head: circuit.layers * circuit.heads, token: circuit.words.length };
  const kind = kindOf(item);
  if (kind in counts) return numberOf(item) >= 0 && numberOf(item) < counts[kind];
  if (kind === "box") return Boolean(spanOf(circuit, item));
  if (kind === "arrow") return Boolean(arrowOf(circuit, item));
  if (kind !== "writer") return item === "output";
  try {
    return Boolean(itemText(circuit, item));
  } catch {
    return false;
  }
}

// The item that the inspector shows: what is pinned, else what is hovered, else the first carrier.
// A head that is pinned in one circuit is shown in every circuit of the same shape.
export function inspectedItem(circuit) {
  const at = state.pinned || state.hovered;
  const owner = at && circuitWith(at.id);
  if (owner === circuit) return at.item;
  const sameShape = owner && owner.layers === circuit.layers && owner.heads === circuit.heads;
  if (sameShape && kindOf(at.item) === "head") return at.item;
  const { carriers } = chosen(circuit);
  return `head:${carriers.length ? carriers[0].head : 0}`;
}

export function isPinned(circuit, item) {
  if (state.pinned?.item !== item) return false;
  return state.pinned.id === circuit.id || kindOf(item) === "head";
}

// Pin an item, or unpin it if it is pinned; `changes` are other fields of the state to set with it.
export function togglePin(circuit, item, changes = {}) {
  const pinned = isPinned(circuit, item) ? null : { id: circuit.id, item };
  update({ pinned, hovered: null, ...changes });
}

export function unpin() {
  if (state.pinned) update({ pinned: null });
}

export function choosePair(circuit, pair) {
  update({ pairs: withPair(circuit, pair) });
}

// Set the key or the query to a token. A live page asks for a mapping that was not measured.
export function chooseToken(circuit, position) {
  const [key, query] = pairOf(circuit);
  const pair = state.picking === "key" ? [position, query] : [key, position];
  const isMissing = pair[0] <= pair[1] && !mappingOf(circuit, pair);
  if (live.askMapping && isMissing) live.askMapping(circuit, pair);
  else choosePair(circuit, pair);
}

// A group of shapes that stands for an item; `name` is its class.
export function itemShape(circuit, item, name, ...shapes) {
  const attributes = { class: `item ${name}`, role: "button", tabindex: -1, "data-item": item };
  return setLabel(svg("g", { ...attributes, "aria-pressed": "false" }, ...shapes), itemText(circuit, item));
}

// Give an element the behaviour of an item: a tooltip, the inspector while nothing is pinned, and a click.
export function makeSelectable(element, circuit, item, select = () => togglePin(circuit, item)) {
  const enter = () => {
    showTooltip(element, itemText(circuit, item));
    hover({ id: circuit.id, item });
  };
  const leave = () => {
    hideTooltip();
    hover(null);
  };
  element.addEventListener("mouseenter", enter);
  element.addEventListener("mouseleave", leave);
  element.addEventListener("focus", () => element.matches(":focus-visible") && enter()); // a click shows none
  element.addEventListener("blur", leave);
  return makeClickable(element, select);
}

// Shapes are clicked by Enter and the space bar, too, as buttons are.
export function makeClickable(element, select) {
  element.addEventListener("click", select);
  if (!(element instanceof HTMLElement)) {
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      select();
    });
  }
  return element;
}

function hover(hovered) {
  const same = state.hovered?.item === hovered?.item && state.hovered?.id === hovered?.id;
  if (!same) update({ hovered });
}
