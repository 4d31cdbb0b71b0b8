// Elements of the page. Text always enters as text, never as markup.

export const byId = (id) => document.getElementById(id);

// `class`, `text` and `onclick` (or another event) are understood; all other options are attributes.
export function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// An accessible name that begins with the visible text, so that whoever steers by voice can say it.
export function setLabel(made, label) {
  const texts = [...made.children].filter((child) => child.textContent.trim());
  const visible = texts.map((child) => child.textContent.trim()).join(" ");
  for (const child of texts) child.after(" ");
  made.setAttribute("aria-label", label.startsWith(visible) ? label : `${visible}: ${label}`);
  return made;
}

// Roving tabindex: the container is one stop of the Tab key, the arrow keys move inside it.
// `perRow` is the number of items in a row; without it all items are one row.
export function addRovingFocus(container, selector, perRow = () => 1) {
  const items = () => [...container.querySelectorAll(selector)];
  container.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    const targets = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at + perRow(),
      ArrowUp: at - perRow(),
      Home: 0,
      End: all.length - 1,
    };
    if (at < 0 || !(event.key in targets)) return;
    event.preventDefault();
    all[targets[event.key]]?.focus();
  });
  container.addEventListener("focusin", (event) => {
    if (event.target.matches(selector)) setTabStop(items(), event.target);
  });
}

function setTabStop(items, chosen) {
  for (const item of items) item.setAttribute("tabindex", item === chosen ? 0 : -1);
}

// Replace the items of a container. The item with the same `attribute` keeps the focus and the tab stop.
export function replaceKeepingFocus(container, selector, attribute, draw) {
  const valueOf = (item) => item?.getAttribute(attribute);
  const focused = container.contains(document.activeElement) ? valueOf(document.activeElement) : undefined;
  const stop = valueOf(container.querySelector(`${selector}[tabindex="0"]`));
  draw();
  const items = [...container.querySelectorAll(selector)];
  const find = (value) => items.find((item) => value !== undefined && valueOf(item) === value);
  setTabStop(items, find(focused) || find(stop) || items[0]);
  find(focused)?.focus({ preventScroll: true });
}

// Draw only if what is shown changed since the last time: a button that is made anew between press and
// release loses the click.
export function drawIfChanged(container, shown, draw) {
  const words = JSON.stringify(shown);
  if (container.dataset.words === words) return;
  container.dataset.words = words;
  draw();
}

// A definition list of [name, value, meaning].
export function fillFacts(list, facts) {
  const row = ([name, value, meaning]) =>
    element(
      "div",
      {},
      element("dt", { text: name }),
      element("dd", { class: "value", text: value }),
      element("dd", { class: "meaning", text: meaning }),
    );
  list.replaceChildren(...facts.map(row));
}

export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy it from the address bar";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

export function downloadBlob(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
