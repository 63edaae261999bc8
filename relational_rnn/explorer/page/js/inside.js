/* The inside of a memory at one step: attention of every head, gates and change of every slot; and all steps at a glance. */
(function (E) {
  "use strict";

  /** The attention of all heads. trace fixes the sizes; `show(trace, step)` the numbers. */
  function heads(trace, inputName) {
    const { slots, heads: count, blocks } = trace;
    const rows = Array.from({ length: slots }, (_, n) => String(n + 1));
    const columns = [...rows, "in"];
    let now = [trace, 0];
    let block = blocks - 1;
    const value = (h) => (row, column) => {
      const [traced, step] = now;
      return column < slots ? traced.attend(step, block, h, row, column) : traced.readsInput(step, block, h, row);
    };
    const cell = slots <= 4 ? [28, 26] : [20, 19];
    const maps = Array.from({ length: count }, (_, h) => E.heatmap({
      label: `Head ${h + 1}: attention of slots (rows) to slots and to ${inputName} (columns)`,
      rows, columns, cell,
      describe: (row, column, number) =>
        `Head ${h + 1}: slot ${row + 1} reads ${column < slots ? `slot ${column + 1}` : inputName}, ${E.number(number)}`,
    }));
    const table = E.tableOf("Attention as a table", () => ({
      head: ["Head, slot", ...rows.map((n) => `slot ${n}`), inputName],
      rows: maps.flatMap((_, h) => rows.map((_, r) =>
        [`${h + 1}, slot ${r + 1}`, ...columns.map((_, c) => E.number(value(h)(r, c), 4))])),
    }));
    const chooser = blocks > 1 ? E.select("Block", Array.from({ length: blocks }, (_, b) => [String(b), `${b + 1} of ${blocks}`]),
      String(block), (chosen) => { block = Number(chosen); refresh(); }) : null;
    const refresh = () => {
      maps.forEach((map, h) => map.update(value(h)));
      table.refresh();
    };
    const element = E.card("Who attends to whom",
      `Each row is a slot, and shares its attention among the slots and ${inputName} (in). A row sums to 1.`,
      chooser,
      E.el("div", { class: "maps" }, maps.map((map, h) =>
        E.el("figure", {}, E.el("figcaption", {}, `Head ${h + 1}`), map.element))),
      scale(), table.element);
    return { element, show(traced, step) { now = [traced, step]; refresh(); } };
  }

  function scale() {
    const steps = [0, 0.1, 0.25, 0.5, 0.75, 1];
    return E.el("div", { class: "scale", "aria-hidden": "true" }, steps.map((value) => {
      const box = E.el("i");
      box.style.opacity = E.shade(value);
      return E.el("span", {}, E.el("b", {}, box), String(value));
    }));
  }

  /** Gates and change of every slot as a table with bars in it. */
  function slotTable(trace) {
    const gated = trace.inputGate !== null;
    const kinds = [...(gated ? [["inputGate", "takes in"], ["forgetGate", "keeps"]] : []), ["change", "changed by"]];
    const rows = Array.from({ length: trace.slots }, (_, n) => {
      const cells = kinds.map(() => {
        const bar = E.el("i", { class: "fill" });
        bar.style.background = E.slotColour(n);
        const number = E.el("span", { class: "amount" });
        return { bar, number, cell: E.el("td", {}, E.el("span", { class: "meter", "aria-hidden": "true" }, bar), number) };
      });
      return { cells, row: E.el("tr", {}, E.el("th", { scope: "row" }, E.swatch(n), `slot ${n + 1}`), cells.map(({ cell }) => cell)) };
    });
    const note = gated
      ? "Takes in: the input gate. Keeps: the forget gate. Both are means over the slot's units. Changed by: root mean square of new minus old."
      : "This memory has no gates. Changed by: root mean square of new minus old.";
    const element = E.card("What each slot does", note,
      E.el("table", { class: "meters" },
        E.el("thead", {}, E.el("tr", {}, E.el("th", { scope: "col" }, E.el("span", { class: "spoken" }, "Slot")),
          kinds.map(([, name]) => E.el("th", { scope: "col" }, name)))),
        E.el("tbody", {}, rows.map(({ row }) => row))));
    return {
      element,
      show(traced, step) {
        const most = Math.max(1e-9, ...traced.change.flat());
        rows.forEach(({ cells }, n) => kinds.forEach(([key], i) => {
          const value = traced[key][step][n];
          cells[i].bar.style.width = `${100 * Math.min(1, key === "change" ? value / most : value)}%`;
          cells[i].number.textContent = E.number(value);
        }));
      },
    };
  }

  /** One quantity of every slot at every step. */
  function timeline(trace, columns, what, room, onStep) {
    const kinds = {
      reads: ["reads the input", (t, n) => now.meanInput(t, n), () => "attention to the input, mean of the heads"],
      change: ["changed", (t, n) => now.change[t][n], () => "change"],
      ...(trace.inputGate && {
        inputGate: ["takes in", (t, n) => now.inputGate[t][n], () => "input gate"],
        forgetGate: ["keeps", (t, n) => now.forgetGate[t][n], () => "forget gate"],
      }),
    };
    let now = trace;
    let kind = "reads";
    const rows = Array.from({ length: trace.slots }, (_, n) => String(n + 1));
    const fits = Math.min(room, innerWidth - 110) / columns.length;
    const width = Math.max(columns.length > 80 ? 5 : 13, Math.min(66, fits)); // what does not fit scrolls
    const longest = Math.max(...columns.map((text) => text.length));
    const map = E.heatmap({
      label: `Slots (rows) over all ${what}s (columns)`, rows, columns, cell: [width, 20],
      every: Math.ceil((7 * longest + 4) / width), onColumn: onStep,
      describe: (n, t, value) => `Slot ${n + 1}, ${what} ${t + 1}: ${kinds[kind][2]()} ${E.number(value)}`,
    });
    const table = E.tableOf("These numbers as a table", () => ({
      head: [what, ...rows.map((n) => `slot ${n}`)],
      rows: columns.map((text, t) => [`${t + 1} ${text}`, ...rows.map((_, n) => E.number(kinds[kind][1](t, n), 4))]),
    }));
    const name = E.newId("kind");
    const chooser = E.el("fieldset", { class: "segments" }, E.el("legend", { class: "spoken" }, "What to show"),
      Object.entries(kinds).map(([key, [text]]) => E.el("label", {},
        E.el("input", { type: "radio", name, value: key, checked: key === kind, on: { change: () => { kind = key; refresh(); } } }),
        E.el("span", {}, text))));
    const refresh = () => {
      let most = 1;
      if (kind === "change") most = Math.max(1e-9, ...now.change.flat());
      map.update((n, t) => kinds[kind][1](t, n), most);
      table.refresh();
    };
    const element = E.card("Slots over time", `Every column is a ${what}; choose one to go there.`,
      chooser, E.el("div", { class: "scroll" }, map.element), table.element);
    refresh();
    return {
      element,
      show(traced, step) {
        if (traced !== now) {
          now = traced;
          refresh();
        }
        map.mark(step);
      },
    };
  }

  /** All three for one trace; `room` is how wide all steps together may be drawn. -> {overview, heads, slots, show(trace, step)} */
  E.inside = function (trace, { columns, what, inputName = "the input", room, onStep }) {
    const parts = [timeline(trace, columns, what, room, onStep), heads(trace, inputName), slotTable(trace)];
    return {
      overview: parts[0].element,
      heads: parts[1].element,
      slots: parts[2].element,
      show: (traced, step) => parts.forEach((part) => part.show(traced, step)),
    };
  };

})((window.Explorer ||= {}));
