// Charts as SVG: lines over the last minutes, and bars. What a chart shows stands in words beside it, too.

import { h, setText, svg } from "./dom.js";
import { number } from "./format.js";

const HEIGHT = 132;
const LEFT = 44;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const SPAN_MS = 300_000;

/** The smallest of 1, 2, 5, 10, 20 … that is not below *value*. */
function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((top) => top >= value * 0.999);
}

function widthOf(element) {
  return Math.max(220, Math.round(element.clientWidth || 320));
}

/**
 * A chart of lines, whose scale ends at *least* or above it. *series* have a `name` (what a person reads), a `key` of points, and a `kind` that names their colour.
 * `update(points)` draws them; a point without a number is a gap.
 */
export function lineChart({ title, unit, series, format = number, least = 0 }) {
  const picture = svg("svg", { role: "img", class: "chart", height: HEIGHT, focusable: "false" });
  const values = series.map((one) => h("b", {}, "–"));
  const legend = h("ul", { class: "legend" }, series.map((one, at) =>
    h("li", {}, h("span", { class: `swatch ${one.kind}`, "aria-hidden": "true" }), one.name, " ", values[at])));
  const when = h("span", { class: "muted when" });
  const element = h("figure", { class: "card figure" },
    h("figcaption", {}, h("span", { class: "title" }, title), h("span", { class: "muted" }, unit), when), picture, legend);
  let shown = [];
  let pointer = null;

  function x(time, width, now) {
    return LEFT + (width - LEFT - RIGHT) * (1 - (now - time) / SPAN_MS);
  }

  function draw() {
    const width = widthOf(element) - 24;
    const now = shown.at(-1)?.time_ms ?? 0;
    const points = shown.filter((point) => now - point.time_ms <= SPAN_MS);
    const most = Math.max(0, ...points.flatMap((point) => series.map((one) => point[one.key] ?? 0)));
    const top = Math.max(least, niceTop(most));
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(top * share);
      parts.push(svg("line", { x1: LEFT, x2: width - RIGHT, y1: at, y2: at, class: "grid" }));
      parts.push(svg("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, format(top * share)));
    }
    for (const minutes of [4, 2]) {
      const at = x(now - minutes * 60_000, width, now);
      parts.push(svg("text", { x: at, y: HEIGHT - 4, "text-anchor": "middle" }, `${minutes} min ago`));
    }
    parts.push(svg("text", { x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, "now"));
    for (const one of series) {
      parts.push(...lineOf(points, one, (time) => x(time, width, now), y));
    }
    const chosen = pointer === null ? null : nearest(points, pointer, (time) => x(time, width, now));
    if (chosen) {
      const at = x(chosen.time_ms, width, now);
      parts.push(svg("line", { x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor" }));
    }
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.setAttribute("width", width);
    picture.replaceChildren(...parts);
    const latest = points.at(-1);
    const told = chosen ?? latest;
    series.forEach((one, at) => setText(values[at], told ? format(told[one.key]) : "–"));
    setText(when, chosen && latest ? `${Math.round((now - chosen.time_ms) / 1000)} s ago` : "");
    const words = series.map((one) => `${one.name} ${latest ? format(latest[one.key]) : "unknown"}`).join(", ");
    picture.setAttribute("aria-label", `${title}, ${unit}, now: ${words}; at most ${format(most)} in the last five minutes`);
  }

  picture.addEventListener("pointermove", (event) => {
    pointer = event.offsetX;
    draw();
  });
  picture.addEventListener("pointerleave", () => {
    pointer = null;
    draw();
  });
  new ResizeObserver(draw).observe(element);
  return {
    element,
    update(points) {
      shown = points;
      draw();
    },
  };
}

function nearest(points, at, x) {
  let best = null;
  for (const point of points) {
    if (best === null || Math.abs(x(point.time_ms) - at) < Math.abs(x(best.time_ms) - at)) best = point;
  }
  return best;
}

function lineOf(points, one, x, y) {
  const parts = [];
  let path = "";
  let last = null;
  const end = () => {
    if (path.includes("L")) parts.push(svg("path", { d: path, class: `line ${one.kind}` }));
    else if (last) parts.push(svg("circle", { cx: x(last.time_ms), cy: y(last[one.key]), r: 1.8, class: `dot ${one.kind}` }));
    path = "";
    last = null;
  };
  for (const point of points) {
    const value = point[one.key];
    if (value === null || value === undefined) {
      end();
      continue;
    }
    path += `${path ? "L" : "M"}${x(point.time_ms).toFixed(1)} ${y(value).toFixed(1)}`;
    last = point;
  }
  end();
  return parts;
}

const MOST_BARS = 16;

/** Bars: `update` takes pairs of a label and a number. */
export function barChart({ title, unit, empty }) {
  const rows = h("ul", { class: "bars" });
  const element = h("figure", { class: "card figure" },
    h("figcaption", {}, h("span", { class: "title" }, title), h("span", { class: "muted" }, unit)), rows);

  function row(label, amount, most, all) {
    const share = amount / most;
    return h("li", {},
      h("span", { class: "label" }, label),
      svg("svg", { class: "bar-track", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { x: 0, y: 0, width: Math.max(0.5, share * 100), height: 10, class: "fill" })),
      h("span", { class: "amount" }, `${number(amount)} · ${number((100 * amount) / all)} %`));
  }

  return {
    element,
    update(pairs) {
      const most = Math.max(1, ...pairs.map(([, amount]) => amount));
      const all = pairs.reduce((sum, [, amount]) => sum + amount, 0);
      const shown = [...pairs].sort(([, one], [, other]) => other - one).slice(0, MOST_BARS).sort(([one], [other]) => one - other);
      rows.replaceChildren(...(shown.length
        ? shown.map(([label, amount]) => row(String(label), amount, most, all))
        : [h("li", { class: "muted" }, empty)]));
    },
  };
}
