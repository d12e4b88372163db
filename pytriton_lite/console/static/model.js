// One model: a form that sends requests to it, its charts, its log, its configuration.

import { LostError, ServerError, get, modelPath } from "./api.js";
import { barChart, lineChart } from "./charts.js";
import { MODES, modelButtons } from "./control.js";
import { h, put, setText, tabs } from "./dom.js";
import { milliseconds, number } from "./format.js";
import { lineList } from "./lines.js";
import { problemLine } from "./notices.js";
import { isLoaded, readIndex, statesOf } from "./overview.js";
import { every } from "./polling.js";
import { requestForm } from "./request.js";
import { toJson } from "./tensors.js";

const INDEX_MS = 4000;

/** The page of the model called *name*. *context* is as for `overview`; *tab* is what is shown first. */
export function modelPage(name, { about, history, onSample }, tab = "request") {
  const buttons = about.mode === "explicit" ? modelButtons(name, () => looking.again()) : null;
  const states = h("div", { class: "states" });
  const unavailable = h("p", { class: "card" }, h("span", { class: "muted" }, "Asking for the model's metadata …"));
  const forms = h("div");
  const request = h("div", {}, unavailable, forms);
  const configuration = h("div");
  const instances = h("tbody");
  const problem = problemLine();
  const charts = [
    lineChart({ title: "Throughput", unit: "per second", series: [
      { name: "inferences", key: "inferences", kind: "one" }, { name: "requests", key: "requests", kind: "two" }, { name: "failed", key: "failures", kind: "bad" }] }),
    lineChart({ title: "Latency", unit: "milliseconds, mean of a request", series: [
      { name: "whole", key: "latency_ms", kind: "one" }, { name: "in the queue", key: "queue_ms", kind: "two" }, { name: "computing", key: "compute_ms", kind: "three" }] }),
    lineChart({ title: "Waiting", unit: "requests", least: 2, series: [{ name: "waiting", key: "waiting", kind: "one" }] }),
    lineChart({ title: "Batch", unit: "inferences in an execution, mean", series: [{ name: "size", key: "batch", kind: "one" }] }),
    lineChart({ title: "Workers", unit: "processes", least: 2, series: [
      { name: "alive and ready", key: "ready", kind: "one" }, { name: "busy", key: "busy", kind: "two" }] }),
  ];
  const batches = barChart({ title: "Batch sizes", unit: "executions since the model was loaded", empty: "Nothing was executed yet." });
  const workers = h("table", { class: "plain" }, h("caption", {}, "Instances"),
    h("thead", {}, h("tr", {}, ["Instance", "State", "Process", "Batches"].map((title) => h("th", { scope: "col" }, title)))), instances);
  const logProblem = problemLine();
  const log = lineList(`console/lines?model=${encodeURIComponent(name)}`, { empty: "The model has said nothing lately.", onProblem: logProblem.tell });
  const counted = h("p", { class: "muted" });
  const { element: panels } = tabs(`Parts of ${name}`, [
    { name: "request", label: "Request", panel: request },
    { name: "charts", label: "Charts", panel: h("div", {}, counted, h("div", { class: "charts" }, charts.map((chart) => chart.element), batches.element), h("div", { class: "card scroll" }, workers)) },
    { name: "log", label: "Log", panel: h("div", { class: "card" }, logProblem.element, log.element) },
    { name: "configuration", label: "Configuration", panel: configuration },
  ], { selected: tab, onChange: (shown) => history_(shown) });
  const element = h("div", {},
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Models"), " / ", name),
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, name), buttons?.element),
    states, problem.element, panels);
  let shownReady = null;
  let shownModel = null;

  function history_(shown) {
    const hash = `#/models/${encodeURIComponent(name)}${shown === "request" ? "" : `/${shown}`}`;
    if (location.hash !== hash) window.history.replaceState(null, "", hash);
  }

  /** The form and the configuration, made anew when what serves has changed; the next time begins again where the server was lost. */
  async function describe(versions) {
    const ready = JSON.stringify(versions.map((version) => [version.version, version.state]));
    if (ready === shownReady) return;
    shownReady = ready;
    try {
      await Promise.all([describeRequest(), describeConfiguration()]);
    } catch (error) {
      if (!(error instanceof LostError)) throw error;
      shownReady = null;
    }
  }

  /** The form. Raises LostError. */
  async function describeRequest() {
    try {
      const metadata = await get(modelPath(name));
      // The configuration says more, and may be restricted where metadata are not.
      const config = await get(`${modelPath(name)}/config`).catch(() => ({ max_batch_size: 0 }));
      // What somebody has typed stays while the model is what it was: it may be reloaded after every change of its code.
      const model = JSON.stringify([metadata, config]);
      if (model !== shownModel) forms.replaceChildren(requestForm({ metadata, config, about }));
      shownModel = model;
      put(unavailable);
      unavailable.hidden = true;
      forms.hidden = false;
    } catch (error) {
      if (error instanceof LostError) throw error;
      put(unavailable, "No request can be sent to it now. ", h("span", { class: "muted" }, error.message));
      unavailable.hidden = false;
      forms.hidden = true;
    }
  }

  async function describeConfiguration() {
    const [given, completed] = await Promise.allSettled([get(`console/given/${encodeURIComponent(name)}`), get(`${modelPath(name)}/config`)]);
    const text = given.status === "rejected"
      ? h("p", { class: "muted" }, given.reason.message)
      : given.value.text === null
        ? h("p", { class: "muted" }, `There is no ${given.value.file}: the server, or the model's auto_complete_config, has said everything.`)
        : h("pre", { tabindex: "0" }, given.value.text);
    const whole = completed.status === "rejected" ? h("p", { class: "muted" }, completed.reason.message) : h("pre", { tabindex: "0" }, toJson(completed.value));
    configuration.replaceChildren(h("div", { class: "columns" },
      h("section", { class: "card", "aria-label": "As given" }, h("h2", {}, "As given"), given.status === "fulfilled" ? h("p", { class: "muted" }, `${given.value.file}, as it lies in the repository now`) : null, text),
      h("section", { class: "card", "aria-label": "As completed" }, h("h2", {}, "As completed"), h("p", { class: "muted" }, "What the server works with"), whole)));
  }

  function sample() {
    const points = history.points(name);
    for (const chart of charts) chart.update(points);
    batches.update(history.batches(name));
    const versions = (history.latest?.versions ?? []).filter((version) => version.model === name);
    const rows = versions.flatMap((version) => version.instances.map((instance) => [
      version.version > 1 || versions.length > 1 ? `${instance.name}, version ${version.version}` : instance.name,
      instance.state, instance.pid || "–", instance.batches]));
    instances.replaceChildren(...rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row" }, first), rest.map((value) => h("td", {}, String(value))))));
    workers.hidden = rows.length === 0;
    const sum = (key) => versions.reduce((all, version) => all + version[key], 0);
    const loads = versions.map((version) => milliseconds(version.load_ms)).join(", ");
    setText(counted, versions.length
      ? `${number(sum("succeeded"))} requests answered, ${number(sum("failed"))} failed, ${number(sum("rejected"))} refused, ${number(sum("restarts"))} workers replaced since it was loaded, which took ${loads}.`
      : "The model is not loaded.");
  }

  async function look() {
    try {
      const index = await readIndex();
      const versions = index.get(name);
      if (versions === undefined) throw new ServerError(404, `There is no model called ${name} in the repository.`);
      problem.tell(null);
      const key = JSON.stringify(versions);
      if (states.dataset.shown !== key) {
        states.dataset.shown = key;
        put(states, statesOf(versions, { isFull: true }));
        buttons?.update(isLoaded(versions));
      }
      await describe(versions);
    } catch (error) {
      problem.tell(error);
      // The index may be restricted where the rest is not. A server that is lost leaves the page as it was.
      if (!(error instanceof LostError || (error instanceof ServerError && error.status === 404))) await describe([]);
    }
  }

  const looking = every(INDEX_MS, look);
  const stopSamples = onSample(sample);
  return { element, title: name, mode: MODES[about.mode], end: () => { looking(); stopSamples(); log.end(); } };
}
