// Puts together what `page_layout.py` has placed, for the gaps that are open and the chosen share: it adds up
// the widths of the columns that are shown and looks up the rows. It decides nothing and measures no text.

import { carriersOf, isPair } from "./circuit.js";

export function layOut(circuit, { shown, pair, percentage }) {
  const { picture } = circuit;
  const columns = placeColumns(circuit, shown);
  const right = columns.at(-1).right;
  const xOf = centresOf(columns);
  const stage = picture.stages[picture.stage_at[percentage - 1]];
  const rows = stage.map(([first, last, top, bottom, lanes]) => ({ first, last, top, bottom, lanes }));
  const foot = rows[0].bottom;
  const arrows = circuit.mappings.flatMap((mapping, index) => {
    const front = isPair(mapping, pair);
    if (!mapping.drawn && !front) return [];
    const ends = [mapping.key, mapping.query];
    const [start, end] = ends.map(xOf);
    const carriers = carriersOf(mapping, percentage);
    const drawn = picture.arrows[index].filter(([, , [first]]) => first <= carriers.length);
    return drawn.map(([layer, lane, steps, places, effects]) => {
      const heads = steps.filter((step) => step <= carriers.length).map((step) => carriers[step - 1].head);
      const effect = effects[heads.length - 1];
      const [named, position, offset, led] = places[Math.min(heads.length, places.length) - 1];
      const y = rowOf(rows, layer).lanes[lane];
      const names = { named, left: xOf(position) + offset, led: Boolean(led) };
      return { mapping, front, layer, heads, start, end, y, effect, names };
    });
  });
  const groups = picture.groups.map(({ text, ends, offset, down }) => {
    const [start, end] = ends.map(xOf);
    return { text, start, end, middle: (start + end) / 2 + offset, y: foot + down };
  });
  const stream = xOf(circuit.words.length - 1);
  const output = { ...picture.output, stream, x: stream + picture.output.offset };
  const size = { width: right + picture.beyond, height: foot + picture.below };
  return { columns, right, rows, foot, arrows, groups, output, ...size };
}

export const rowOf = (rows, layer) => rows.find((row) => row.first <= layer && layer <= row.last);

function placeColumns({ picture, labels }, shown) {
  let right = picture.axis;
  return shown.map((position) => {
    const isGap = Array.isArray(position);
    const width = isGap ? picture.gap : picture.widths[position];
    const text = isGap ? "…" : labels[position];
    right += width;
    return { position, text, width, x: right - width / 2, left: right - width, right };
  });
}

// The centre of a position's column; a gap's column stands for all positions in it.
function centresOf(columns) {
  const isIn = ([first, last = first], position) => first <= position && position <= last;
  return (position) => columns.find((column) => isIn([column.position].flat(), position)).x;
}
