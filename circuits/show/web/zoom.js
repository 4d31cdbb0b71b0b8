// Zoom and pan of the diagram. The browser scrolls the viewport; zooming sets the size of the picture in it.

import { element } from "./dom.js";
import { saveCsv, savePng, saveSvg } from "./download.js";
import { pairOf, state, update } from "./state.js";
import { percent } from "./text.js";
import { hideTooltip } from "./tooltip.js";

const LEAST = 0.1;
const MOST = 6;
const LARGEST_FIT = 1.4;
const READABLE = 0.7; // below this scale words are too small: a wide picture opens larger, not whole
const STEP = 1.25;
const MARGIN = 8; // beside what the opening view must show
const LEAST_HEIGHT = 480; // of a diagram, however much stands above it
const BELOW = 16; // from the diagram to the end of the window

// The buttons above the diagram.
export function buildTools(column) {
  const button = (text, label, onclick) =>
    element("button", { type: "button", class: "tool", "aria-label": label, title: label, text, onclick });
  column.zoomLevel = element("span", { class: "zoom-level" });
  return element(
    "div",
    { class: "tools", role: "group", "aria-label": "Zoom and download" },
    button("−", "Zoom out", () => zoom(column, 1 / STEP)),
    button("+", "Zoom in", () => zoom(column, STEP)),
    button("Fit", "Fit the whole picture", () => fit(column)),
    column.zoomLevel,
    button("SVG", "Download the diagram as SVG", () => saveSvg(column)),
    button("PNG", "Download the diagram as PNG", () => savePng(column)),
    button("CSV", "Download the numbers as CSV", () => saveCsv(column)),
  );
}

export function addZoom(column) {
  const { viewport } = column;
  viewport.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = viewport.getBoundingClientRect();
    zoom(column, Math.exp(-event.deltaY * 0.004), [event.clientX - box.left, event.clientY - box.top]);
  });
  viewport.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey) return;
    if (event.key === "+" || event.key === "=") zoom(column, STEP);
    if (event.key === "-") zoom(column, 1 / STEP);
    if (event.key === "0") fit(column);
  });
  addDrag(viewport);
  viewport.addEventListener("scroll", () => {
    hideTooltip();
    if (!isScrolledTo(viewport, column.placed)) setView(column, viewOf(column));
  });
}

// The mouse drags the picture; fingers scroll it without help. A captured pointer clicks nothing below it.
function addDrag(viewport) {
  let last = null;
  viewport.addEventListener("pointerdown", (event) => (last = event));
  viewport.addEventListener("pointermove", (event) => {
    if (!last || event.pointerType !== "mouse" || event.buttons !== 1) return;
    const left = last.clientX - event.clientX;
    const top = last.clientY - event.clientY;
    const isDragged = viewport.hasPointerCapture(event.pointerId);
    if (!isDragged && Math.hypot(left, top) < 5) return;
    viewport.setPointerCapture(event.pointerId);
    viewport.scrollBy(left, top);
    last = event;
  });
}

function isScrolledTo({ scrollLeft, scrollTop }, { left, top }) {
  return Math.abs(scrollLeft - left) < 1 && Math.abs(scrollTop - top) < 1;
}

// Where the viewport is scrolled to. The browser scrolls by whole pixels, and the error would grow with every
// step of zooming, so a place less than a pixel from the one that was wanted is the one that was wanted.
function scrolled({ scrollLeft, scrollTop }, wanted) {
  const nearest = (actual, exact) => (Math.abs(actual - exact) < 1 ? exact : actual);
  return { left: nearest(scrollLeft, wanted.left), top: nearest(scrollTop, wanted.top) };
}

const frameOf = ({ viewport }) => ({ width: viewport.offsetWidth || 1, height: viewport.offsetHeight || 1 });

// The scale at which all of the picture is seen.
function fitScale({ width, height }, frame) {
  return Math.min(frame.width / width, frame.height / height, LARGEST_FIT);
}

// A view is a scale and the point of the picture at the upper left corner of the viewport.
function viewOf({ viewport, placed }) {
  const { left, top } = scrolled(viewport, placed);
  return { x: left / placed.scale, y: top / placed.scale, scale: placed.scale };
}

function setView(column, view) {
  update({ views: { ...state.views, [column.circuit.id]: view } });
}

function fit(column) {
  setView(column, { x: 0, y: 0, scale: fitScale(column.layout, frameOf(column)) });
}

// Where the middle of the mapping in front is in the viewport, or the nearest place that is seen.
function pointInFront({ circuit, layout, viewport, placed }) {
  const { width, height } = frameOf({ viewport });
  const ends = layout.columns.filter(({ position }) => pairOf(circuit).includes(position));
  const heights = layout.arrows.filter(({ front }) => front).map(({ y }) => y);
  const middle = (values, otherwise) =>
    values.length ? (Math.min(...values) + Math.max(...values)) / 2 : otherwise;
  const x = middle(ends.map((column) => column.x), layout.width / 2) * placed.scale - viewport.scrollLeft;
  const y = middle(heights, layout.height / 2) * placed.scale - viewport.scrollTop;
  return [Math.min(Math.max(x, 0), width), Math.min(Math.max(y, 0), height)];
}

// The point of the picture at (x, y) of the viewport stays where it is.
function zoom(column, factor, [x, y] = pointInFront(column)) {
  const before = viewOf(column);
  const scale = Math.min(MOST, Math.max(LEAST, before.scale * factor));
  const shift = 1 / before.scale - 1 / scale;
  setView(column, { x: before.x + x * shift, y: before.y + y * shift, scale });
}

// Whole if it can be read so; else as large as shows key, query and output from the sentence to the top.
function openingView({ circuit, layout }, frame) {
  const whole = fitScale(layout, frame);
  if (whole >= READABLE) return { x: 0, y: 0, scale: whole };
  const { output } = layout;
  const ends = layout.columns.filter(({ position }) => pairOf(circuit).includes(position));
  const left = Math.min(output.x - output.width / 2, ...ends.map((column) => column.left));
  const right = Math.max(output.x + output.width / 2, ...ends.map((column) => column.right));
  const needed = { width: right - left + 2 * MARGIN, height: layout.height };
  const scale = Math.max(whole, Math.min(fitScale(needed, frame), READABLE));
  const spare = frame.width / scale - (right - left);
  return { x: Math.max(0, left - spare / 2), y: 0, scale };
}

// The viewport is as high as the whole picture at the width there is, but no higher than what is left of the
// window when the page opens.
export function placePicture(column) {
  const { circuit, viewport, picture, layout } = column;
  const byWidth = Math.min(viewport.offsetWidth / layout.width, LARGEST_FIT);
  const top = viewport.getBoundingClientRect().top + window.scrollY;
  const highest = Math.max(LEAST_HEIGHT, window.innerHeight - top - BELOW);
  const height = layout.height * Math.max(byWidth, READABLE);
  viewport.style.height = `${Math.round(Math.min(Math.max(height, 220), highest))}px`;
  const frame = frameOf(column);
  const opening = openingView(column, frame);
  const whole = { x: 0, y: 0, scale: fitScale(layout, frame) };
  const view = state.printing ? whole : state.views[circuit.id] || opening;
  picture.setAttribute("viewBox", `0 0 ${layout.width} ${layout.height}`);
  picture.setAttribute("width", layout.width * view.scale);
  picture.setAttribute("height", layout.height * view.scale);
  const wanted = { left: view.x * view.scale, top: view.y * view.scale };
  if (!isScrolledTo(viewport, wanted)) viewport.scrollTo(wanted);
  column.placed = { scale: view.scale, ...scrolled(viewport, wanted) };
  const seenFrom = viewport.scrollLeft / view.scale;
  picture.querySelector(".axis-group")?.setAttribute("transform", `translate(${seenFrom} 0)`);
  const isWhole = view.scale <= whole.scale * 1.001;
  column.zoomLevel.textContent = `${percent(view.scale)}${isWhole ? "" : " · drag to see more"}`;
  viewport.classList.toggle("partly", !isWhole);
}
