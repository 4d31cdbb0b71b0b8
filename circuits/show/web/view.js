// Zoom, pan and fit as numbers: a view is the point of the picture at the upper left corner, and a scale.

const SCALES = [0.1, 6];
const READABLE = 0.62; // below this scale words are too small; a wide picture opens larger, not whole

function fitView(size, frame) {
  const scale = Math.min(frame.width / size.width, frame.height / size.height, 1.4);
  return { x: (size.width - frame.width / scale) / 2, y: (size.height - frame.height / scale) / 2, scale };
}

// Whole if it can be read so; else readable, with `middle` in the middle and the sentence at the foot.
function openingView(size, frame, middle) {
  const whole = fitView(size, frame);
  if (whole.scale >= READABLE) return whole;
  const view = { x: middle - frame.width / READABLE / 2, y: size.height - frame.height / READABLE, scale: READABLE };
  return heldView(view, size, frame);
}

// The same point stays under the mouse.
function zoomAt(view, factor, x, y) {
  const scale = Math.min(SCALES[1], Math.max(SCALES[0], view.scale * factor));
  return { x: view.x + x / view.scale - x / scale, y: view.y + y / view.scale - y / scale, scale };
}

const panBy = (view, dx, dy) => ({ ...view, x: view.x - dx / view.scale, y: view.y - dy / view.scale });

// Some of the picture always stays inside the frame: its middle, or its edge.
function heldView(view, size, frame) {
  const hold = (at, length, seen) => (seen >= length ? Math.min(0, Math.max(at, length - seen)) : Math.min(Math.max(at, -seen * 0.1), length - seen * 0.9));
  return { ...view, x: hold(view.x, size.width, frame.width / view.scale), y: hold(view.y, size.height, frame.height / view.scale) };
}

// The least move that brings a rectangle of the picture into the frame.
function viewWith(view, frame, rect, margin = 12) {
  const [width, height] = [frame.width / view.scale, frame.height / view.scale];
  const move = (at, seen, from, to) => (from - margin < at ? from - margin : to + margin > at + seen ? to + margin - seen : at);
  return { ...view, x: move(view.x, width, rect.x, rect.x + rect.width), y: move(view.y, height, rect.y, rect.y + rect.height) };
}

const isWhole = (view, size, frame) => view.x <= 0.5 && view.y <= 0.5 && view.x + frame.width / view.scale >= size.width - 0.5 && view.y + frame.height / view.scale >= size.height - 0.5;
