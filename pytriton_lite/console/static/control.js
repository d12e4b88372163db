// Loading, reloading and unloading, where the server takes such orders, and what is said of it.

import { LostError, post } from "./api.js";
import { h } from "./dom.js";
import { notice } from "./notices.js";

export const MODES = {
  none: "Models stay as they were at the start. With --model-control-mode=explicit they are loaded and unloaded here.",
  poll: "Models follow their repository, which the server looks at every few seconds (--model-control-mode=poll).",
  watch: "Models are loaded anew as soon as their files change (--watch).",
  explicit: "",
};

async function change(button, model, action) {
  const words = { load: ["Loading", "is loaded"], reload: ["Reloading", "is loaded anew where its files have changed"], unload: ["Unloading", "is being unloaded: requests inside it are served"] };
  const [doing, done] = words[action];
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  const waiting = notice(`${doing} ${model} …`, "info");
  try {
    await post(`v2/repository/models/${encodeURIComponent(model)}/${action === "unload" ? "unload" : "load"}`);
    notice(`${model} ${done}.`, "good");
  } catch (error) {
    if (!(error instanceof LostError)) notice(`${model}: ${error.message}`, "bad"); // of that one the page tells by itself
  } finally {
    waiting.remove();
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
}

/** Asks before a model is taken away from its clients. */
function confirm(question, action) {
  const dialog = h("dialog", { "aria-label": question, onclose: () => dialog.remove() },
    h("p", {}, question),
    h("form", { method: "dialog", class: "buttons", onsubmit: (event) => { event.preventDefault(); dialog.close(); } },
      h("button", { type: "button", class: "danger", onclick: () => { dialog.close(); action(); } }, "Unload"),
      h("button", { type: "submit", autofocus: true }, "Keep")));
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * The buttons of *model*. `update` takes whether any version of it is loaded. *onChange* is called when something was done.
 */
export function modelButtons(model, onChange) {
  const act = (button, action) => change(button, model, action).finally(onChange);
  const load = h("button", { type: "button", class: "small", "aria-label": `Load ${model}`, onclick: () => act(load, load.dataset.action) }, "Load");
  const unload = h("button", {
    type: "button", class: "small", "aria-label": `Unload ${model}`,
    onclick: () => confirm(`Unload ${model}? New requests for it are refused, those inside it are served.`, () => act(unload, "unload")),
  }, "Unload");
  const element = h("span", { class: "actions" }, load, unload);
  return {
    element,
    update(isLoaded) {
      load.dataset.action = isLoaded ? "reload" : "load";
      load.textContent = isLoaded ? "Reload" : "Load";
      load.setAttribute("aria-label", `${isLoaded ? "Reload" : "Load"} ${model}`);
      unload.hidden = !isLoaded;
    },
  };
}
