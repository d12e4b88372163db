// Elements made by code. Text only ever becomes text: nothing that the server says is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Puts *children* in the place of what is in *element*: nested lists, of which null and false are left out. */
export function put(element, ...children) {
  element.replaceChildren();
  fill(element, {}, children);
}

/** An HTML element. Properties that begin with "on" are listeners, all others attributes; false and null leave one out. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Sets text only where it differs, so that a selection and a screen reader are left in peace. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

let ids = 0;

/** An id that no other element of the page has. */
export function newId(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}

/**
 * Panels behind tabs, by the pattern of WAI-ARIA: arrows, Home and End move. Each of *tabs* has a name, a label and a panel;
 * *onChange* hears of the name that is shown.
 */
export function tabs(label, list, { selected = list[0].name, onChange = () => {} } = {}) {
  const buttons = new Map();
  const panels = new Map();

  function show(name, { focus = false } = {}) {
    for (const [other, button] of buttons) {
      const isShown = other === name;
      button.setAttribute("aria-selected", String(isShown));
      button.tabIndex = isShown ? 0 : -1;
      panels.get(other).hidden = !isShown;
      if (isShown && focus) button.focus();
    }
    onChange(name);
  }

  function onKey(event) {
    const names = list.map((tab) => tab.name);
    const at = names.indexOf(event.currentTarget.dataset.tab);
    const last = names.length - 1;
    const next = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(names[next], { focus: true });
  }

  for (const tab of list) {
    const id = newId("tab");
    const panelId = newId("panel");
    buttons.set(tab.name, h("button", {
      type: "button", role: "tab", id, "aria-controls": panelId, "data-tab": tab.name,
      onclick: () => show(tab.name), onkeydown: onKey,
    }, tab.label));
    panels.set(tab.name, h("div", { role: "tabpanel", id: panelId, "aria-labelledby": id, tabindex: "0" }, tab.panel));
  }
  const element = h("div", { class: "tabs" },
    h("div", { role: "tablist", "aria-label": label, class: "tablist" }, [...buttons.values()]),
    [...panels.values()]);
  show(list.some((tab) => tab.name === selected) ? selected : list[0].name);
  return { element, show };
}
