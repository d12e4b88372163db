// The controls for one input tensor, made from its metadata.

import { h, newId } from "./dom.js";
import { SCALES, draw, elementsOf, imageLayout } from "./images.js";
import { elementCount, isReal, randomElements, readNumbers, shapeFor } from "./tensors.js";

const MOST_TYPED = 64;
const MOST_RANDOM = 1 << 24;

function wordsOf(shape) {
  return `[${shape.join(", ")}]`;
}

/** Names of the ways in which this input can be filled, the one that suits it best first. */
function modesFor(datatype, shape, dims) {
  const isLarge = elementCount(shape.map((dim) => (dim < 0 ? 1 : dim))) > MOST_TYPED;
  if (datatype === "BYTES") return ["text", "file", "random"];
  const layout = imageLayout(dims);
  const variable = shape.filter((dim) => dim < 0).length;
  const modes = [];
  if (layout) modes.push("image");
  if (datatype === "UINT8" && !layout && variable > 0 && dims.length === 1) modes.push("file");
  modes.push(...(isLarge ? ["random", "numbers"] : ["numbers", "random"]));
  return modes;
}

const LABELS = { numbers: "Numbers", text: "Text", file: "File", image: "Image", random: "Random" };

function exampleText(datatype, shape, dims) {
  // Along what may have any length stand three elements, so that one sees that there may be several.
  const isList = dims.length > 0 && dims.at(-1) < 0 && datatype !== "BYTES";
  const count = Math.max(1, elementCount(shape.map((dim) => (dim < 0 ? 1 : dim)))) * (isList ? 3 : 1);
  if (datatype === "BYTES") return Array.from({ length: Math.min(count, MOST_TYPED) }, () => "text").join("\n");
  const one = (at) => (datatype === "BOOL" ? "true" : isReal(datatype) ? `${at + 1}.0` : String((at + 1) % 100));
  return Array.from({ length: Math.min(count, MOST_TYPED) }, (_, at) => one(at)).join(", ");
}

/**
 * Controls for *tensor*, which has `name`, `datatype` and `shape`. *batches*: the first dimension is the batch. `read` gives
 * the elements, their shape, and where they came from; it raises Error for what cannot be read here. *onChange* hears of changes.
 */
export function inputControls(tensor, { batches, isOptional, onChange }) {
  const { name, datatype, shape } = tensor;
  const dims = batches ? shape.slice(1) : shape;
  const layout = imageLayout(dims);
  const modes = modesFor(datatype, shape, dims);
  const isVariable = shape.some((dim) => dim < 0);
  const id = newId("input");
  let mode = modes[0];
  let canvas = null;

  const isSingle = elementCount(shape.map((dim) => (dim < 0 && batches ? 1 : dim))) === 1;
  const text = h("textarea", { id, rows: datatype === "BYTES" ? 3 : 2, spellcheck: "false", value: exampleText(datatype, shape, dims), oninput: onChange });
  const file = h("input", { type: "file", id: `${id}-file`, onchange: onFile });
  const scale = h("select", { id: `${id}-scale`, onchange: onChange },
    Object.entries(SCALES).map(([key, one]) => h("option", { value: key, selected: key === (isReal(datatype) ? "unit" : "bytes") }, one.label)));
  const preview = h("div", { class: "preview" });
  const shapeInput = h("input", { id: `${id}-shape`, placeholder: "from the data", spellcheck: "false", autocomplete: "off", oninput: onChange });
  const used = h("input", { type: "checkbox", id: `${id}-used`, checked: !isOptional, onchange: show });

  const typed = h("div", {},
    h("label", { for: id }, datatype === "BYTES" ? (isSingle ? "Text" : "Texts, one a line") : "Values, row by row"), text);
  const chosen = h("div", {}, h("label", { for: `${id}-file` }, layout ? "Image file" : "File"), file, preview);
  const scaled = h("div", {}, h("label", { for: `${id}-scale` }, "Values of a pixel"), scale);
  const shaped = h("div", {}, h("label", { for: `${id}-shape` }, "Shape"), shapeInput);
  const drawn = h("p", { class: "muted" }, "New values for each request.");
  const radios = h("div", { class: "choices", role: "radiogroup", "aria-label": `Source of ${name}` }, modes.map((one) => {
    const radio = h("input", { type: "radio", name: `${id}-mode`, value: one, checked: one === mode, onchange: () => { mode = one; show(); } });
    return h("label", { class: "choice" }, radio, LABELS[one]);
  }));
  const body = h("div", { class: "input-body" }, radios, typed, chosen, scaled, drawn, shaped);
  const element = h("fieldset", { class: "input", "data-input": name },
    h("legend", {}, h("code", {}, name), " ", h("span", { class: "muted" }, `${datatype} ${wordsOf(shape)}`),
      isOptional ? h("label", { class: "choice optional" }, used, "send") : null),
    body);

  function show() {
    body.hidden = !used.checked;
    typed.hidden = mode !== "numbers" && mode !== "text";
    chosen.hidden = mode !== "file" && mode !== "image";
    scaled.hidden = mode !== "image" || !isReal(datatype);
    drawn.hidden = mode !== "random";
    shaped.hidden = !isVariable || mode === "image";
    file.accept = mode === "image" ? "image/*" : "";
    onChange();
  }

  async function onFile() {
    canvas = null;
    preview.replaceChildren();
    const one = file.files[0];
    if (one && (mode === "image" || one.type.startsWith("image/"))) {
      const target = document.createElement("canvas");
      try {
        await draw(one, mode === "image" ? layout : { width: 0, height: 0 }, target);
        canvas = target;
        target.setAttribute("role", "img");
        target.setAttribute("aria-label", `${one.name}, ${target.width} by ${target.height} pixels`);
        preview.append(target);
      } catch (error) {
        if (mode === "image") preview.append(h("p", { class: "error", role: "alert" }, error.message));
      }
    }
    onChange();
  }

  function givenShape(count) {
    const words = shapeInput.value.match(/-?\d+/g);
    return isVariable && words ? words.map(Number) : shapeFor(shape, count);
  }

  /** The shape of as many elements as a person wants, and one along what may have any length. */
  function randomShape() {
    return givenShape(elementCount(shape.map((dim) => (dim < 0 ? 1 : dim))));
  }

  async function read() {
    const base = { name, datatype };
    if (mode === "random") {
      const wanted = randomShape();
      const count = elementCount(wanted);
      if (!(count >= 0 && count <= MOST_RANDOM)) throw new Error(`${name}: random values are made for at most ${MOST_RANDOM} elements`);
      return { ...base, shape: wanted, elements: randomElements(datatype, count), source: { kind: "random" } };
    }
    if (mode === "image") {
      if (!canvas) throw new Error(`${name}: choose an image file first`);
      const found = elementsOf(canvas, layout, isReal(datatype) ? scale.value : "bytes");
      const source = { kind: "image", file: file.files[0].name, layout, scale: isReal(datatype) ? scale.value : "bytes", width: canvas.width, height: canvas.height };
      return { ...base, shape: batches ? [1, ...found.dims] : found.dims, elements: found.elements, source, isBinary: true };
    }
    if (mode === "file") {
      const one = file.files[0];
      if (!one) throw new Error(`${name}: choose a file first`);
      const contents = new Uint8Array(await one.arrayBuffer());
      const elements = datatype === "BYTES" ? [contents] : contents;
      return { ...base, shape: givenShape(elements.length), elements, source: { kind: "file", file: one.name }, isBinary: true };
    }
    if (mode === "text") {
      const elements = isSingle ? [text.value] : text.value.split("\n");
      return { ...base, shape: givenShape(elements.length), elements, source: { kind: "typed" } };
    }
    const elements = readNumbers(text.value, datatype);
    return { ...base, shape: givenShape(elements.length), elements, source: { kind: "typed" } };
  }

  /** `read` for code alone: a file that was not chosen yet has a name that stands for one. */
  function describe() {
    const base = { name, datatype };
    const fileName = file.files[0]?.name ?? (mode === "image" ? "photo.jpg" : "input.bin");
    if (mode === "random") return { ...base, shape: randomShape(), elements: [], source: { kind: "random" } };
    if (mode === "file") {
      const count = datatype === "BYTES" ? 1 : file.files[0]?.size ?? 0;
      return { ...base, shape: givenShape(count), elements: [], source: { kind: "file", file: fileName } };
    }
    if (mode === "image") {
      const size = canvas ?? { width: Math.max(layout.width, 0) || 224, height: Math.max(layout.height, 0) || 224 };
      const found = layout.order === "HWC" ? [size.height, size.width, layout.channels] : [layout.channels, size.height, size.width];
      const source = { kind: "image", file: fileName, layout, scale: isReal(datatype) ? scale.value : "bytes", width: size.width, height: size.height };
      return { ...base, shape: batches ? [1, ...found] : found, elements: [], source };
    }
    const elements = mode === "text" ? (isSingle ? [text.value] : text.value.split("\n")) : readNumbers(text.value, datatype);
    return { ...base, shape: givenShape(elements.length), elements, source: { kind: "typed" } };
  }

  show();
  return { element, name, read, describe, isSent: () => used.checked };
}
