/* The section "Programs": a learning-to-execute input read character by character. */
(function (E) {
  "use strict";

  E.programsView = function (body, models) {
    if (!models.length) {
      body.replaceChildren(E.empty("There are no programs here yet. Train a model to execute them and read along:", [
        "rmc train lte --preset fast --task program --run runs/programs     # --preset smoke takes seconds and learns nothing",
        "rmc explore runs/programs"]));
      return;
    }
    const holder = E.el("div");
    const samples = E.el("div");
    let [model, index] = [models[0], 0];
    const open = () => {
      E.stopAll();
      holder.replaceChildren(build(model.samples[index]));
    };
    const list = () => {
      index = 0;
      samples.replaceChildren(E.select("Text", model.samples.map((sample, i) => [String(i), sample.text]), "0",
        (value) => { index = Number(value); open(); }));
    };
    const runs = E.select("Model", models.map((one, i) =>
      [String(i), `${one.name}: ${one.task}, length ${one.length}${one.nest > 1 ? `, nest ${one.nest}` : ""}`]), "0",
    (value) => { model = models[Number(value)]; list(); open(); });
    list();
    open();
    body.replaceChildren(E.el("div", { class: "row" }, runs, samples), holder);
  };

  // Steps of reading, by kind: the class of their chip, and what they are.
  const KINDS = [["", "character"], ["", "a step without input, to write the first digit"],
    ["written good", "digit of its calculation, right"], ["written bad", "digit of its calculation, wrong"]];

  function build(sample) {
    const read = sample.steps.length;
    const written = sample.target.length;
    const final = sample.soFar[sample.text.length - 1];
    const trace = sample.trace ? E.recordedTrace(sample.trace) : null;
    const right = [...sample.target].map((symbol, i) => final[i] === symbol);
    const calculates = sample.steps.some(([, kind]) => kind > 0);
    const reading = sample.steps.map(([symbol, kind, count]) => ({
      text: symbol || "\u00b7", kind: KINDS[kind][0],
      name: kind === 0 ? `character ${count}: ${symbol}` : `${KINDS[kind][1]}${symbol && `: ${symbol}`}`,
    }));
    const writing = [...final].map((symbol, i) => ({
      text: symbol, kind: right[i] ? "written good" : "written bad", name: `digit ${i + 1} written: ${symbol}`,
    }));
    const chips = [...reading, ...(trace ? writing : [])];
    const stepper = E.stepper({
      count: chips.length, start: read - 1, what: calculates ? "step" : "character", pace: 260, chips, onChange: show,
      describe: (t) => (t < read ? `read ${t + 1} of ${read}` : `wrote ${t - read + 1} of ${written}`),
    });
    stepper.element.classList.add("text");
    const sentence = E.el("p", { class: "answer", "aria-live": "polite" });
    const soFar = E.el("div", { class: "digits" });
    const digits = E.el("table", { class: "plain wide" },
      E.el("thead", {}, E.el("tr", {}, ["digit", "right", "first guess", "second", "third"].map((text) => E.el("th", { scope: "col" }, text)))),
      E.el("tbody", {}, [...sample.target].map((symbol, i) => E.el("tr", { class: right[i] ? "good" : "bad" },
        E.el("th", { scope: "row" }, String(i + 1)), E.el("td", { class: "code" }, symbol),
        sample.likely[i].map((guess, k) => E.el("td", {}, E.el("span", { class: "code" }, guess), ` ${E.percent(sample.chances[i][k], 1)}`))))));
    const inside = trace && E.inside(trace, {
      columns: chips.map(({ text }) => text), what: calculates ? "step" : "character", room: 1020, onStep: (t) => stepper.set(t),
    });

    function show(t) {
      const at = sample.steps[Math.min(t, read - 1)][2] - 1;
      const guess = sample.soFar[at];
      const hits = [...guess].filter((symbol, i) => symbol === sample.target[i]).length;
      if (at < sample.text.length - 1) {
        sentence.className = "answer";
        sentence.replaceChildren("If it ended here: ", E.el("strong", { class: "code" }, guess));
      } else {
        sentence.className = `answer ${hits === written ? "good" : "bad"}`;
        sentence.replaceChildren("It answers ", E.el("strong", { class: "code" }, guess),
          hits === written ? ", which is right" : `: ${hits} of ${written} digits are right, it should be `,
          hits === written ? "" : E.el("strong", { class: "code target" }, sample.target));
      }
      soFar.replaceChildren(...[...guess].map((symbol, i) => {
        const box = E.el("span", { class: symbol === sample.target[i] ? "good" : "bad" }, E.el("b", { class: "code" }, symbol),
          E.el("small", {}, E.percent(sample.sureness[at][i])));
        if (t >= read && i === t - read) box.classList.add("now");
        return box;
      }));
      if (inside) inside.show(trace, t);
    }

    show(read - 1);
    return E.el("div", { class: "stack" },
      E.el("div", { class: "sticky" }, stepper.element),
      E.el("div", { class: "columns half" },
        E.card("The answer so far", "What would be written if the text ended at this character, and how sure each digit is.", sentence, soFar),
        E.card("The digits at the end", "The likeliest symbols for every digit of the answer.", E.el("div", { class: "scroll" }, digits))),
      ...(inside ? [inside.overview, E.el("div", { class: "columns half" }, inside.slots, inside.heads)]
        : [E.el("div", { class: "card note" }, "No attention is shown: this model's core has no memory slots.")]));
  }
})((window.Explorer ||= {}));
