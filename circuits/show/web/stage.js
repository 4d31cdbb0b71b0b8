// The frame around the diagram: zoom, pan and fit by mouse, fingers, buttons and keys.

function buildStage(column) {
  const { stage, picture } = column;
  const button = (text, label, act) => element("button", { type: "button", class: "tool", "aria-label": label, title: label, text, onclick: act });
  column.zoomed = element("span", { class: "zoomed" });
  column.tools = element(
    "div",
    { class: "tools", role: "group", "aria-label": "Zoom and download" },
    button("−", "Zoom out", () => zoom(column, 1 / 1.25)),
    button("+", "Zoom in", () => zoom(column, 1.25)),
    button("Fit", "Fit the whole picture", () => fit(column)),
    column.zoomed,
    button("SVG", "Download the diagram as SVG", () => saveSvg(column)),
    button("PNG", "Download the diagram as PNG", () => savePng(column)),
    button("CSV", "Download the numbers as CSV", () => saveCsv(column)),
  );
  stage.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = stage.getBoundingClientRect();
    zoom(column, Math.exp(-event.deltaY * 0.004), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  stage.addEventListener("keydown", (event) => {
    const acts = { "+": () => zoom(column, 1.25), "=": () => zoom(column, 1.25), "-": () => zoom(column, 1 / 1.25), 0: () => fit(column) };
    if (acts[event.key] && !event.ctrlKey && !event.metaKey) acts[event.key]();
  });
  picture.addEventListener("focusin", (event) => {
    const rect = event.target.place;
    if (rect && event.target.matches(":focus-visible")) setView(column, viewWith(viewOf(column), frameOf(column), rect));
  });
  drag(column);
}

const frameOf = (column) => ({ width: column.stage.clientWidth || 1, height: column.stage.clientHeight || 1 });

function viewOf(column) {
  const { circuit, layout } = column;
  if (printing) return fitView(layout, frameOf(column));
  if (state.views[circuit.id]) return state.views[circuit.id];
  const ends = pairOf(circuit).map((at) => layout.columns.find((token) => token.at === at)?.x).filter((x) => x !== undefined);
  const middle = ends.length ? ends.reduce((sum, x) => sum + x, 0) / ends.length : layout.width / 2;
  return openingView(layout, frameOf(column), middle);
}

function setView(column, view) {
  state.views[column.circuit.id] = heldView(view, column.layout, frameOf(column));
  placeStage(column);
  keepAddress();
}

function zoom(column, factor, x = column.stage.clientWidth / 2, y = column.stage.clientHeight / 2) {
  setView(column, zoomAt(viewOf(column), factor, x, y));
}

function fit(column) {
  setView(column, fitView(column.layout, frameOf(column)));
}

// The stage is as high as the whole picture at the width there is, within limits; the view says which part is seen.
function placeStage(column) {
  const { stage, picture, layout } = column;
  const whole = Math.min(stage.clientWidth / layout.width, 1.4);
  const most = Math.max(640, 0.75 * window.innerHeight); // so that what is said below stays in sight
  stage.style.height = `${Math.round(Math.min(Math.max(layout.height * Math.max(whole, READABLE), 220), most))}px`;
  const frame = frameOf(column);
  const view = viewOf(column);
  picture.setAttribute("width", frame.width);
  picture.setAttribute("height", frame.height);
  picture.setAttribute("viewBox", `${view.x} ${view.y} ${frame.width / view.scale} ${frame.height / view.scale}`);
  const all = isWhole(view, layout, frame);
  column.zoomed.textContent = `${percent(view.scale)}${all ? "" : " · drag to see more"}`;
  stage.classList.toggle("partly", !all);
}

// One finger or the mouse pans, two fingers zoom; what moved is no click.
function drag(column) {
  const { stage } = column;
  const pointers = new Map();
  let moved = 0;
  stage.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    moved = 0;
  });
  const { signal } = column.ended; // these listeners end with the column
  window.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
    pointers.set(event.pointerId, now);
    moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (moved < 5) return;
    hideHint();
    if (!others.length) return setView(column, panBy(viewOf(column), now[0] - before[0], now[1] - before[1]));
    const apart = (point) => Math.hypot(point[0] - others[0][0], point[1] - others[0][1]) || 1;
    const box = stage.getBoundingClientRect();
    zoom(column, apart(now) / apart(before), (now[0] + others[0][0]) / 2 - box.left, (now[1] + others[0][1]) / 2 - box.top);
  }, { signal });
  for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, (event) => pointers.delete(event.pointerId), { signal });
  stage.addEventListener("click", (event) => {
    if (moved < 5) return;
    moved = 0;
    event.stopPropagation();
  }, true);
}
