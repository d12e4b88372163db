// Lines of the log, as the server keeps them, and errors.

import { connection, get } from "./api.js";
import { h, setText } from "./dom.js";
import { count, timeOfDay } from "./format.js";
import { every } from "./polling.js";

const EVERY_MS = 2000;
const MOST = 600;
const OPEN = 3;
const ORDER = ["verbose", "info", "warning", "error"];

function subject(line) {
  const version = line.version ? `:${line.version}` : "";
  return [line.model && `${line.model}${version}`, line.instance, line.request_id && `request ${line.request_id}`].filter(Boolean).join(" · ");
}

/** What two lines have in common that say the same, of whichever instance. */
function sameness(line) {
  const text = line.instance ? line.text.replaceAll(line.instance, "") : line.text;
  return JSON.stringify([line.level, line.model, line.version, line.place, text, line.traceback]);
}

/** The row of *line*. One of an error is open where *isOpen*: the newest ones are. */
function row(line, isOpen) {
  const about = subject(line);
  const [first, ...rest] = `${line.text}${line.traceback ? `\n${line.traceback}` : ""}`.split("\n");
  const head = [
    h("time", { datetime: new Date(line.time_ms).toISOString() }, timeOfDay(line.time_ms)),
    h("span", { class: `level ${line.level}` }, line.level),
    h("span", { class: "place" }, line.place),
  ];
  const text = rest.length
    ? h("details", { open: isOpen }, h("summary", {}, first), h("pre", { tabindex: "0" }, rest.join("\n").replace(/^\n+/, "")))
    : h("span", { class: "text" }, first);
  const link = about && line.model ? h("a", { class: "about", href: `#/models/${encodeURIComponent(line.model)}` }, about) : about ? h("span", { class: "about" }, about) : null;
  const times = h("b", { class: "times", hidden: true });
  return h("li", { "data-level": line.level, "data-same": sameness(line), "data-times": "1", class: line.level },
    h("div", { class: "line-head" }, head, times, link), text);
}

/** *item* says what *line* says again: it counts, and tells the time of the last one. */
function again(item, line) {
  const times = Number(item.dataset.times) + 1;
  item.dataset.times = String(times);
  const shown = item.querySelector(".times");
  shown.hidden = false;
  setText(shown, `${times} times`);
  const time = item.querySelector("time");
  time.dateTime = new Date(line.time_ms).toISOString();
  setText(time, timeOfDay(line.time_ms));
}

/**
 * A list of lines that follows *path*, which may have a query. `end` stops it. *empty* is what is said where there are none.
 */
export function lineList(path, { empty, isError = false, onProblem }) {
  const rows = h("ol", { class: `lines ${isError ? "errors" : ""}` });
  const nothing = h("p", { class: "muted" }, empty);
  const least = h("select", { "aria-label": "Severity at least", onchange: filter }, ORDER.map((level) =>
    h("option", { value: level, selected: level === "verbose" }, level === "verbose" ? "everything" : level === "error" ? "errors" : `${level} and up`)));
  const words = h("input", { type: "search", placeholder: "Contains …", "aria-label": "Lines that contain", oninput: filter });
  const said = h("span", { class: "muted", role: "status" });
  const filters = h("div", { class: "filters" }, isError ? null : least, words, said);
  const element = h("div", {}, filters, nothing, rows);
  let last = 0;
  let isLater = false;

  function matches(item) {
    return ORDER.indexOf(item.dataset.level) >= ORDER.indexOf(least.value) && item.textContent.toLowerCase().includes(words.value.toLowerCase());
  }

  function filter() {
    let shown = 0;
    for (const item of rows.children) {
      item.hidden = !matches(item);
      if (!item.hidden) shown += Number(item.dataset.times);
    }
    setText(said, `${count(shown, isError ? "error" : "line")}`);
    nothing.hidden = rows.children.length > 0;
  }

  async function look() {
    try {
      const { lines } = await get(`${path}${path.includes("?") ? "&" : "?"}after=${last}`);
      for (const line of lines) {
        const newest = rows.firstElementChild;
        if (isError && newest?.dataset.same === sameness(line)) again(newest, line);
        else rows.prepend(row(line, isError && isLater));
        last = Math.max(last, line.number);
      }
      if (isError && !isLater) for (const item of [...rows.children].slice(0, OPEN)) item.querySelector("details")?.setAttribute("open", "");
      isLater = true;
      while (rows.children.length > MOST) rows.lastElementChild.remove();
      filter();
      onProblem(null);
    } catch (error) {
      onProblem(error);
    }
  }

  /** The server that is back may be another one, whose lines are numbered anew. */
  function forget() {
    rows.replaceChildren();
    last = 0;
    isLater = false;
  }

  connection.addEventListener("back", forget);
  const stop = every(EVERY_MS, look);
  return { element, end: () => { stop(); connection.removeEventListener("back", forget); } };
}
