/* Elements, numbers as text, the tooltip. Text always goes in as text nodes: names in the data cannot be markup. */
(function (E) {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") {
        for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
      } else if (name === "value" || name === "checked" || name === "open") {
        element[name] = value;
      } else {
        element.setAttribute(name, value === true ? "" : value);
      }
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return element;
  }

  /** el("button", {type: "button", on: {click}}, "text", child, ...) */
  E.el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  E.svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  let numbered = 0;
  E.newId = (word) => `${word}-${++numbered}`;

  // ---- numbers as text

  E.number = (value, digits = 3) =>
    value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
  E.percent = (value, digits = 0) => `${E.number(100 * value, digits)} %`;
  E.thousands = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });
  /** 12000 -> 12k, for axes */
  E.short = (value) => {
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${unit}`;
    }
    return `${+value.toPrecision(3)}`.replace("-", "−");
  };
  E.duration = (seconds) => {
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    return `${(seconds / 3600).toFixed(1)} h`;
  };
  /** A B C ... for vectors; beyond the alphabet their numbers */
  E.letter = (i) => (i < 26 ? String.fromCharCode(65 + i) : `v${i + 1}`);
  E.ordinal = (n) => {
    const tens = n % 100;
    const end = tens > 10 && tens < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] || "th";
    return `${n}${end}`;
  };

  // ---- parts used everywhere

  E.slotColour = (slot) => `var(--slot-${slot % 8})`;
  E.swatch = (slot) => {
    const dot = E.el("i", { class: "swatch", "aria-hidden": "true" });
    dot.style.background = E.slotColour(slot);
    return dot;
  };

  E.card = (title, note, ...children) =>
    E.el("div", { class: "card" },
      E.el("div", { class: "card-head" }, E.el("h2", {}, title), note ? E.el("p", { class: "note" }, note) : null),
      ...children);

  E.select = (label, options, value, onChange) => {
    const id = E.newId("choice");
    const select = E.el("select", { id, on: { change: () => onChange(select.value) } },
      options.map(([key, text]) => E.el("option", { value: key }, text)));
    select.value = value;
    return E.el("div", { class: "field" }, E.el("label", { for: id }, label), select);
  };

  E.button = (text, onClick, attributes = {}) =>
    E.el("button", { type: "button", on: { click: onClick }, ...attributes }, text);

  /** A table that is only filled while it is open; `fill()` gives {head: [...], rows: [[...], ...]}. */
  E.tableOf = (summary, makeContent) => {
    const holder = E.el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": summary });
    const details = E.el("details", { class: "numbers" }, E.el("summary", {}, summary), holder);
    const refresh = () => {
      if (!details.open) return;
      const { head, rows } = makeContent();
      holder.replaceChildren(E.el("table", { class: "plain" },
        E.el("thead", {}, E.el("tr", {}, head.map((text) => E.el("th", { scope: "col" }, text)))),
        E.el("tbody", {}, rows.map(([first, ...rest]) =>
          E.el("tr", {}, E.el("th", { scope: "row" }, first), rest.map((text) => E.el("td", {}, text)))))));
    };
    details.addEventListener("toggle", refresh);
    return { element: details, refresh };
  };

  E.empty = (what, commands) =>
    E.el("div", { class: "empty" }, E.el("p", {}, what),
      E.el("pre", {}, E.el("code", {}, commands.join("\n"))));

  // ---- the tooltip, and words for screen readers

  E.showTip = (text, x, y) => {
    const tip = document.getElementById("tip");
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${y - height - 12 < 8 ? y + 18 : y - height - 12}px`;
  };
  E.hideTip = () => {
    document.getElementById("tip").hidden = true;
  };
  E.say = (text) => {
    document.getElementById("spoken").textContent = text;
  };
})((window.Explorer ||= {}));
