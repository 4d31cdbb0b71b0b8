// Elements: text always enters as text.

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function shape(tag, attributes = {}, text = null, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  made.append(...children);
  return made;
}

// A name that begins with what is seen, so that whoever steers by voice can say it.
function labelled(made, words) {
  const texts = [...made.children].filter((child) => child.textContent.trim());
  const seen = texts.map((child) => child.textContent.trim()).join(" ");
  for (const child of texts) child.after(" ");
  made.setAttribute("aria-label", words.startsWith(seen) ? words : `${seen}: ${words}`);
  return made;
}

const RULER = document.createElement("canvas").getContext("2d");
function widthOf(text, size, bold) {
  RULER.font = `${bold ? 600 : 400} ${size}px ${getComputedStyle(document.body).fontFamily}`;
  return RULER.measureText(text).width;
}

// One stop for the tab key, arrows inside: `across` is how many items a row has (Infinity for one row).
function rove(container, selector, across = () => Infinity) {
  container.addEventListener("keydown", (event) => {
    const items = [...container.querySelectorAll(selector)];
    const at = items.indexOf(document.activeElement);
    const row = across();
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: Number.isFinite(row) ? row : 1, ArrowUp: Number.isFinite(row) ? -row : -1 };
    let next = null;
    if (at >= 0 && event.key in steps) next = at + steps[event.key];
    else if (at >= 0 && event.key === "Home") next = 0;
    else if (at >= 0 && event.key === "End") next = items.length - 1;
    if (next === null) return;
    event.preventDefault();
    if (!items[next]) return;
    settle(items, items[next]);
    items[next].focus();
  });
  container.addEventListener("focusin", (event) => {
    const items = [...container.querySelectorAll(selector)];
    if (items.includes(event.target)) settle(items, event.target);
  });
}

function settle(items, chosen) {
  for (const item of items) item.setAttribute("tabindex", item === chosen ? 0 : -1);
}

// Draw the items of a container again without losing the place of the keyboard.
function keepFocus(container, selector, name, draw) {
  const active = container.contains(document.activeElement) ? document.activeElement.getAttribute(name) : null;
  const stop = container.querySelector(`${selector}[tabindex="0"]`)?.getAttribute(name);
  draw();
  const items = [...container.querySelectorAll(selector)];
  const find = (wanted) => items.find((item) => wanted !== null && item.getAttribute(name) === wanted);
  settle(items, find(active) || find(stop) || items[0]);
  if (active !== null && find(active)) find(active).focus({ preventScroll: true });
}

function offer(text, name) {
  const link = element("a", { href: URL.createObjectURL(text), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
