// All that the page knows: the circuits, and what the reader has chosen. `update` alone changes it.

import { carriersOf, mappingOf, openingPair, unpack } from "./circuit.js";

export const page = JSON.parse(document.getElementById("data").textContent);

export const state = {
  circuits: page.circuits.map(unpack),
  group: "", // the circuits of one group stand side by side
  beside: "", // a second group that is shown to the right of the first
  percentage: Math.round(page.share * 100), // the share of a mapping's total that its carriers must reach
  picking: "key", // the end of the mapping that a click on a token sets
  pairs: {}, // [key, query] that was chosen in each group
  pinned: null, // {id, item}: the circuit's id and the item, such as "head:143"
  hovered: null, // the same, for what the mouse or the keyboard is at
  views: {}, // {x, y, scale} of the diagrams that were moved or zoomed, by circuit
  opened: {}, // the columns of the diagrams in which gaps were opened, by circuit
  printing: false,
  // Of a live page:
  form: null, // the question that is put together, with what the server said of it
  waiting: [], // questions that were asked and have no circuit yet, each with its group
  progress: { text: "", share: 0 }, // of what is measured
  error: "", // what the reader must mend
  jobs: [], // the jobs that are being measured
};

// What a live page can do beyond a file; a page that is a file leaves these null.
// `askMapping(circuit, pair)`, `headActions(circuit, head)` gives buttons, `render(changed)` draws the form.
export const live = { askMapping: null, headActions: null, render: null };

let redraw = () => {};

// `listener(names)` is called after each change with the names of the fields that were set.
export function onChange(listener) {
  redraw = listener;
}

export function update(changes) {
  Object.assign(state, changes);
  redraw(Object.keys(changes));
}

export const groupOf = (circuit) => String(circuit.group);
export const circuitsOf = (group) => state.circuits.filter((circuit) => groupOf(circuit) === group);
export const isShown = (group) => group === state.group || (group !== "" && group === state.beside);
export const shownCircuits = () => {
  const groups = [...new Set([state.group, state.beside])];
  return groups.flatMap((group) => circuitsOf(group));
};
export const columnsOf = (circuit) => state.opened[circuit.id] || circuit.picture.columns;
export const circuitWith = (id) => state.circuits.find((circuit) => circuit.id === id);

// Circuits of one group share the chosen mapping, unless their models cut the prompt into other tokens.
function pairName(circuit) {
  const group = groupOf(circuit);
  const [first] = circuitsOf(group);
  const sameLength = !first || first.words.length === circuit.words.length;
  return sameLength ? group : `${group}.${circuit.words.length}`;
}

export const pairOf = (circuit) => state.pairs[pairName(circuit)] || openingPair(circuit);
export const withPair = (circuit, pair) => ({ ...state.pairs, [pairName(circuit)]: pair });

// The mapping that is chosen (null if it is not in the file) and its carriers at the chosen share.
export function chosen(circuit) {
  const pair = pairOf(circuit);
  const mapping = mappingOf(circuit, pair);
  return { pair, mapping, carriers: carriersOf(mapping, state.percentage) };
}
