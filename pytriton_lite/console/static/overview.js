// All models: their states, what they do now, and the server's charts.

import { address, post } from "./api.js";
import { lineChart } from "./charts.js";
import { MODES, modelButtons } from "./control.js";
import { h, put, setText } from "./dom.js";
import { count, milliseconds, number } from "./format.js";
import { problemLine } from "./notices.js";
import { every } from "./polling.js";

const INDEX_MS = 4000;

/** Versions by model, with `state` and `reason`, as the repository index has them. */
export async function readIndex() {
  const rows = JSON.parse(await post("v2/repository/index"));
  const models = new Map();
  for (const row of rows) {
    if (!models.has(row.name)) models.set(row.name, []);
    if (row.version !== undefined || row.state !== undefined) models.get(row.name).push(row);
  }
  return models;
}

/** Whether any of *versions* serves, or is about to. */
export function isLoaded(versions) {
  return versions.some((version) => version.state === "READY" || version.state === "LOADING");
}

/** A state in a word, a colour and a shape: nobody has to see the colour. */
export function stateBadge(version) {
  const state = version.state ?? "NOT LOADED";
  return h("span", { class: `badge ${state.toLowerCase().replace(" ", "-")}` }, version.version ? `${version.version} ${state}` : state);
}

/** The badges of all versions, and the reasons of those that are not ready, in full where there is room. */
export function statesOf(versions, { isFull = false } = {}) {
  const shown = versions.length ? versions : [{}];
  const reasons = shown.filter((version) => version.reason && version.reason !== "unloaded");
  return [
    h("span", { class: "badges" }, shown.map(stateBadge)),
    reasons.map((version) => reasonOf(version, isFull)),
  ];
}

function reasonOf(version, isFull) {
  const [first, ...rest] = version.reason.split("\n");
  const prefix = version.version ? `Version ${version.version}: ` : "";
  if (!rest.length) return h("p", { class: "reason" }, `${prefix}${first}`);
  return h("details", { class: "reason", open: isFull }, h("summary", {}, `${prefix}${first}`), h("pre", { tabindex: "0" }, rest.join("\n").trim()));
}

function tile(label) {
  const value = h("b", {}, "–");
  const detail = h("span", { class: "muted" });
  return { element: h("div", { class: "card tile" }, h("span", { class: "muted" }, label), value, detail), set: (text, more = "") => { setText(value, text); setText(detail, more); } };
}

/** Where else the server listens. */
function elsewhere(about) {
  const host = address("").hostname;
  const metrics = about.metrics_port ? `${about.metrics_tls ? "https" : "http"}://${host}:${about.metrics_port}/metrics` : "";
  const parts = [
    about.grpc_port ? h("span", {}, "gRPC ", h("code", {}, `${host}:${about.grpc_port}`)) : null,
    metrics ? h("span", {}, "Metrics for Prometheus ", h("a", { href: metrics }, metrics)) : null,
  ].filter(Boolean);
  return parts.length ? h("p", { class: "muted elsewhere" }, parts) : null;
}

/** The page. *context* has `about`, `history`, and `onSample` to hear of new samples. */
export function overview({ about, history, onSample }) {
  const isExplicit = about.mode === "explicit";
  const rows = new Map();
  const ready = tile("Models ready");
  const rate = tile("Requests");
  const latency = tile("Latency");
  const waiting = tile("Waiting");
  const workers = tile("Workers");
  const charts = [
    lineChart({ title: "Throughput", unit: "per second", series: [
      { name: "inferences", key: "inferences", kind: "one" }, { name: "requests", key: "requests", kind: "two" }, { name: "failed", key: "failures", kind: "bad" }] }),
    lineChart({ title: "Latency", unit: "milliseconds, mean of a request", series: [
      { name: "whole", key: "latency_ms", kind: "one" }, { name: "in the queue", key: "queue_ms", kind: "two" }, { name: "computing", key: "compute_ms", kind: "three" }] }),
    lineChart({ title: "Waiting", unit: "requests", least: 2, series: [{ name: "waiting", key: "waiting", kind: "one" }] }),
    lineChart({ title: "Workers", unit: "processes", least: 2, series: [
      { name: "alive and ready", key: "ready", kind: "one" }, { name: "busy", key: "busy", kind: "two" }] }),
  ];
  const filter = h("input", { type: "search", placeholder: "Find a model …", "aria-label": "Find a model", oninput: show, hidden: true });
  const body = h("tbody");
  const table = h("table", { class: "models" },
    h("caption", { class: "visually-hidden" }, "Models of the repository"),
    h("thead", {}, h("tr", {}, ["Model", "Versions", "Requests/s", "Latency", "Waiting", "Workers", isExplicit ? "Control" : null]
      .filter(Boolean).map((title) => h("th", { scope: "col" }, title)))),
    body);
  const problem = problemLine();
  const empty = h("p", { class: "muted card", hidden: true }, "There are no models in the repository.");
  const element = h("div", {},
    h("h1", { tabindex: "-1" }, "Models"),
    h("div", { class: "tiles" }, [ready, rate, latency, waiting, workers].map((one) => one.element)),
    problem.element, h("div", { class: "filters" }, filter), table, empty,
    MODES[about.mode] ? h("p", { class: "muted" }, MODES[about.mode]) : null,
    elsewhere(about),
    h("h2", {}, "The last five minutes"),
    h("div", { class: "charts four" }, charts.map((chart) => chart.element)));
  let index = new Map();

  function makeRow(model) {
    const cell = (label) => h("td", { "data-label": label });
    const cells = { states: cell("Versions"), rate: cell("Requests/s"), latency: cell("Latency"), waiting: cell("Waiting"), workers: cell("Workers") };
    const buttons = isExplicit ? modelButtons(model, () => looking.again()) : null;
    const row = h("tr", { "data-model": model },
      h("th", { scope: "row" }, h("a", { href: `#/models/${encodeURIComponent(model)}` }, model)),
      Object.values(cells), buttons ? h("td", { "data-label": "Control" }, buttons.element) : null);
    return { row, cells, buttons, shown: "" };
  }

  function show() {
    const wanted = filter.value.toLowerCase();
    for (const [model, versions] of index) {
      if (!rows.has(model)) rows.set(model, makeRow(model));
      const one = rows.get(model);
      const key = JSON.stringify(versions);
      if (one.shown !== key) {
        one.shown = key;
        put(one.cells.states, statesOf(versions));
        one.buttons?.update(isLoaded(versions));
      }
      one.row.hidden = !model.toLowerCase().includes(wanted);
    }
    for (const [model, one] of rows) {
      if (index.has(model)) continue;
      one.row.remove();
      rows.delete(model);
    }
    [...index.keys()].forEach((model, at) => {
      const { row } = rows.get(model);
      if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null);
    });
    filter.hidden = index.size < 8;
    table.hidden = index.size === 0;
    empty.hidden = index.size > 0;
    const readyCount = [...index.values()].filter((versions) => versions.some((version) => version.state === "READY")).length;
    ready.set(`${readyCount} of ${index.size}`, readyCount === index.size ? "" : `${count(index.size - readyCount, "model")} not ready`);
    sample();
  }

  function sample() {
    const now = history.now();
    if (!now) return;
    rate.set(`${number(now.requests ?? 0)}/s`, now.failures ? `${number(now.failures)}/s fail` : "");
    latency.set(milliseconds(now.latency_ms), now.queue_ms ? `${milliseconds(now.queue_ms)} in the queue` : "");
    waiting.set(number(now.waiting));
    workers.set(`${now.ready} of ${now.workers}`, `${now.busy} busy`);
    for (const [model, one] of rows) {
      const own = history.now(model);
      setText(one.cells.rate, own?.requests === undefined ? "–" : number(own.requests));
      setText(one.cells.latency, milliseconds(own?.latency_ms));
      setText(one.cells.waiting, number(own?.waiting ?? 0));
      setText(one.cells.workers, own?.workers ? `${own.ready} of ${own.workers}` : "–");
    }
    const points = history.points();
    for (const chart of charts) chart.update(points);
  }

  async function look() {
    try {
      index = await readIndex();
      problem.tell(null);
      show();
    } catch (error) {
      problem.tell(error);
    }
  }

  const looking = every(INDEX_MS, look);
  const stopSamples = onSample(sample);
  return { element, title: "Models", end: () => { looking(); stopSamples(); } };
}
