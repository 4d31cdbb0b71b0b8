// What is shown, as files: the diagram as SVG or PNG, the numbers as CSV.

const COPIED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "font-family", "font-size", "font-weight", "text-anchor", "opacity"];

// The picture with the styles that the page gives it written into it, so that it can stand alone.
function standalone(column) {
  const { picture, circuit } = column;
  const copy = picture.cloneNode(true);
  const [from, to] = [[picture, ...picture.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  from.forEach((each, index) => {
    const style = getComputedStyle(each);
    for (const name of COPIED) to[index].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "role", "tabindex", "aria-pressed"]) to[index].removeAttribute(name);
  });
  for (const grip of copy.querySelectorAll("line")) if (grip.getAttribute("stroke") === "rgba(0, 0, 0, 0)") grip.remove();
  const [x, y, width, height] = copy.getAttribute("viewBox").split(" ").map(Number);
  const paper = shape("rect", { x, y, width, height, fill: getComputedStyle(document.body).getPropertyValue("--card") });
  copy.prepend(shape("title", {}, `${circuit.name}: ${circuit.prompt}`), paper);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

const fileName = (column, ending) => `${column.circuit.name.replace(/[^\w.-]+/g, "-")}-${pairOf(column.circuit).join("-")}.${ending}`;

function saveSvg(column) {
  offer(new Blob([standalone(column)], { type: "image/svg+xml" }), fileName(column, "svg"));
}

function savePng(column, scale = 2) {
  const picture = new Image();
  picture.onload = () => {
    const canvas = element("canvas", { width: picture.width * scale, height: picture.height * scale });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((file) => offer(file, fileName(column, "png")), "image/png");
  };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(column))}`;
}

function saveCsv(column) {
  offer(new Blob(["\ufeff", toCsv(column.circuit, state.share)], { type: "text/csv" }), fileName(column, "csv"));
}
