// The diagram as SVG or PNG, the numbers as CSV.

import { toCsv } from "./circuit.js";
import { downloadBlob, element, svg } from "./dom.js";
import { pairOf, state } from "./state.js";

const STYLES = [
  ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "opacity"],
  ["font-family", "font-size", "font-weight", "text-anchor"],
].flat();

// The part of the picture that is seen, with the styles of the page written into it so that it stands alone.
function standaloneSvg({ picture, viewport, placed, circuit }) {
  const copy = picture.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [picture, ...picture.querySelectorAll("*")].forEach((original, index) => {
    const style = getComputedStyle(original);
    for (const name of STYLES) copies[index].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["role", "tabindex", "aria-pressed"]) copies[index].removeAttribute(name);
  });
  for (const area of copy.querySelectorAll(".hit-area")) area.remove();
  const width = Math.min(viewport.clientWidth, picture.clientWidth) / placed.scale;
  const height = Math.min(viewport.clientHeight, picture.clientHeight) / placed.scale;
  const x = viewport.scrollLeft / placed.scale;
  const y = viewport.scrollTop / placed.scale;
  const fill = getComputedStyle(document.body).getPropertyValue("--card");
  copy.prepend(
    svg("title", {}, `${circuit.name}: ${circuit.prompt}`),
    svg("rect", { x, y, width, height, fill }),
  );
  copy.setAttribute("viewBox", `${x} ${y} ${width} ${height}`);
  copy.setAttribute("width", width * placed.scale);
  copy.setAttribute("height", height * placed.scale);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

function fileName({ circuit }, ending) {
  const name = circuit.name.replace(/[^\w.-]+/g, "-");
  return `${name}-${pairOf(circuit).join("-")}.${ending}`;
}

export function saveSvg(column) {
  const blob = new Blob([standaloneSvg(column)], { type: "image/svg+xml" });
  downloadBlob(blob, fileName(column, "svg"));
}

export function savePng(column) {
  const image = new Image();
  image.onload = () => {
    const canvas = element("canvas", { width: image.width * 2, height: image.height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => downloadBlob(blob, fileName(column, "png")), "image/png");
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standaloneSvg(column))}`;
}

export function saveCsv(column) {
  const text = toCsv(column.circuit, state.percentage);
  downloadBlob(new Blob(["\ufeff", text], { type: "text/csv" }), fileName(column, "csv"));
}
