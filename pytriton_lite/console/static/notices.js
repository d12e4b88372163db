// What has to be said above the page: a server that is lost, a header that it wants, what an order has led to.

import { LostError, connection, useHeader } from "./api.js";
import { h, setText } from "./dom.js";

const SHOWN_MS = 8000;

/** A sentence above the page. Good ones go by themselves; bad ones stay until somebody has read them. */
export function notice(text, kind) {
  const element = h("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" },
    h("span", {}, text),
    kind === "info" ? null : h("button", { type: "button", class: "small", "aria-label": "Close the message", onclick: () => element.remove() }, "Close"));
  document.getElementById("notices").append(element);
  if (kind === "good") setTimeout(() => element.remove(), SHOWN_MS);
  return element;
}

/** A line for what a part of the page could not get. `tell` takes the error, or null when there is none; that the server is lost is said above. */
export function problemLine() {
  const element = h("p", { class: "error", role: "alert", hidden: true });
  return {
    element,
    tell(error) {
      element.hidden = error === null || error instanceof LostError;
      if (!element.hidden) setText(element, error.message);
    },
  };
}

/** Tells when the server is lost and when it is back, and asks for the header that it wants. *onHeader* shows the page anew. */
export function watchConnection(onHeader) {
  let lost = null;
  connection.addEventListener("lost", () => {
    document.body.classList.add("lost");
    lost = notice("The server cannot be reached. This page tries again every second, and goes on when it is back.", "bad");
    lost.querySelector("button").remove();
  });
  connection.addEventListener("back", () => {
    document.body.classList.remove("lost");
    lost?.remove();
    notice("The server is back.", "good");
  });
  connection.addEventListener("restricted", (event) => askFor(event.detail, onHeader));
}

function askFor(header, onHeader) {
  if (document.querySelector(`form[data-header="${CSS.escape(header)}"]`)) return;
  const value = h("input", { type: "password", id: `header-${header}`, autocomplete: "off", required: true });
  const form = h("form", {
    class: "notice info", "data-header": header, onsubmit: (event) => {
      event.preventDefault();
      useHeader(header, value.value);
      form.remove();
      onHeader();
    },
  },
  h("label", { for: value.id }, `A part of what this page shows is restricted. Its value of the header ${header}, kept in this tab alone:`),
  value, h("button", { type: "submit", class: "small" }, "Use"));
  document.getElementById("notices").append(form);
}
