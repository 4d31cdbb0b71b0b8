// The words of what is under the mouse or has the keyboard's focus.

import { element } from "./dom.js";

const tooltip = element("div", { class: "tooltip", role: "presentation", hidden: true });
document.body.append(tooltip);
let owner = null;

export function showTooltip(target, text) {
  owner = target;
  tooltip.textContent = text;
  tooltip.hidden = false;
  placeTooltip();
}

export function hideTooltip() {
  tooltip.hidden = true;
}

// Above its owner, or below where there is no space above; always inside the window.
export function placeTooltip() {
  if (tooltip.hidden) return;
  const box = owner.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  const rightmost = document.documentElement.clientWidth - width - 6;
  const left = Math.min(Math.max(6, box.left + box.width / 2 - width / 2), rightmost);
  const above = box.top - height - 8;
  const below = Math.min(box.bottom + 8, window.innerHeight - height - 4);
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${above > 4 ? above : below}px`;
}
