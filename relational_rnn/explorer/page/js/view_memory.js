/* The section "Inside the memory": a question, answered live. */
(function (E) {
  "use strict";

  E.memoryView = function (body, models) {
    if (!models.length) {
      body.replaceChildren(E.empty("There is no trained memory here yet. Train a small one (minutes on a CPU) and look inside:", [
        "rmc train nth-farthest --preset demo --run runs/memory", "rmc explore runs/memory"]));
      return null;
    }
    const holder = E.el("div");
    let shown = null;
    const open = (index) => {
      E.stopAll();
      shown = build(new E.Model(models[index]));
      holder.replaceChildren(shown.element);
    };
    const chooser = models.length > 1
      ? E.select("Model", models.map((model, i) => [String(i), title(model)]), "0", (index) => open(Number(index)))
      : E.el("p", { class: "field muted" }, title(models[0]));
    body.replaceChildren(chooser, holder);
    open(0);
    return { recolour: () => shown.recolour() };
  };

  function title({ name, accuracy, task, slots, heads, headSize }) {
    const score = accuracy === null ? "" : `, ${E.percent(accuracy, 1)} right on fresh questions`;
    return `${name}: ${task.vectors} vectors of ${task.dims} dimensions, ${slots} slots of ${heads * headSize}, ${heads} heads${score}`;
  }

  function build(model) {
    const { vectors: count, dims } = model.task;
    let question = E.Question.random(model.task);
    let step = count - 1;
    let axes = [0, 1];
    let result = null;
    let due = false;

    const plane = E.plane(count, (label, [x, y]) => {
      const vector = question.vectors[question.stepOf(label)];
      vector[axes[0]] = Math.round(x * 1000) / 1000;
      if (axes[1] < dims) vector[axes[1]] = Math.round(y * 1000) / 1000;
      soon();
    });
    const distances = E.distanceLine(count);
    const ranks = Array.from({ length: count }, (_, i) => [String(i + 1),
      i === 0 ? "farthest" : i === count - 1 ? `${E.ordinal(count)} (itself)` : `${E.ordinal(i + 1)} farthest`]);
    const letters = Array.from({ length: count }, (_, label) => [String(label), E.letter(label)]);
    const rank = E.select("Which is the", ranks, "1", (value) => { question.rank = Number(value); compute(); });
    const reference = E.select("from", letters, "0", (value) => { question.m = Number(value); compute(); });
    const dimensions = Array.from({ length: dims }, (_, d) => [String(d), `${d + 1}`]);
    const axisChoosers = dims > 2 ? E.el("div", { class: "row" }, ["Dimension across", "up"].map((name, i) =>
      E.select(name, dimensions, String(i), (value) => { axes[i] = Number(value); show(); }))) : null;
    const numbers = numberTable(model.task, (t, d, value) => { question.vectors[t][d] = value; compute(); });
    const stepper = E.stepper({
      count, start: step, what: "vector", pace: 900,
      chips: letters.map(([, text]) => ({ text })),
      describe: (t) => `${E.letter(question.labels[t])}, ${t + 1} of ${count}`,
      onChange: (t) => { step = t; show(); },
    });
    const goTo = (t) => stepper.set(t);
    const answer = E.answerCard(count, goTo);
    const matrix = E.matrix(model.slots, model.slotSize);
    result = model.run(question.features());
    const inside = E.inside(result.trace, {
      columns: letters.map((_, t) => String(t + 1)), what: "step", room: 560, onStep: goTo,
    });

    /** Once for each picture, however many moves a drag reports. */
    function soon() {
      if (due) return;
      due = true;
      requestAnimationFrame(() => {
        due = false;
        compute();
      });
    }

    function compute() {
      result = model.run(question.features());
      refresh();
    }

    function refresh() {
      stepper.relabel(question.labels.map((label) => ({
        text: E.letter(label), kind: label === question.m ? "m" : "",
        name: `Vector ${E.letter(label)}${label === question.m ? ", the reference" : ""}`,
      })));
      show();
    }

    function show() {
      rank.querySelector("select").value = String(question.rank);
      reference.querySelector("select").value = String(question.m);
      const said = answer.show(question, result.answers, step);
      plane.show(question, axes, step, said);
      distances.show(question);
      numbers.show(question);
      inside.show(result.trace, step);
      matrix.show(result.memories[step], step);
    }

    const fresh = () => {
      question = E.Question.random(model.task);
      compute();
    };
    const questionCard = E.card("The question", null,
      E.el("div", { class: "row ask" }, rank, reference),
      plane.element, key(),
      E.el("figure", { class: "line-figure" }, E.el("figcaption", {}, dims > 2 ? `Distance from the reference in all ${dims} dimensions` : "Distance from the reference"), distances.element),
      axisChoosers,
      E.el("div", { class: "row" }, E.button("Random question", fresh, { class: "primary" }),
        E.button("Other order", () => { question.reorder(); compute(); })),
      numbers.element);
    refresh();
    return {
      recolour: matrix.recolour,
      element: E.el("div", { class: "stack" },
        E.el("div", { class: "sticky" }, stepper.element),
        E.el("div", { class: "columns" },
          E.el("div", { class: "stack" }, questionCard),
          E.el("div", { class: "stack" }, answer.element, inside.overview)),
        inside.heads,
        E.el("div", { class: "columns half" }, inside.slots, matrix.element)),
    };
  }

  /** What the marks in the plane mean. */
  const key = () => E.el("ul", { class: "legend marks", "aria-hidden": "true" },
    [["m", "reference"], ["right", "right answer"], ["said", "what it says"], ["unseen", "still to come"]].map(([kind, text]) =>
      E.el("li", {}, E.svg("svg", { viewBox: "-12 -12 24 24", width: 20, height: 20 },
        E.svg("g", { class: `point small ${kind}` }, E.svg("circle", { r: 10, class: "ring" }), E.svg("circle", { r: 6.5, class: "disc" }))), text)));

  /** Every number of every vector, to type. */
  function numberTable({ vectors: count, dims }, onChange) {
    const inputs = Array.from({ length: count }, (_, t) => Array.from({ length: dims }, (_, d) => {
      const input = E.el("input", {
        type: "number", min: "-1", max: "1", step: "any",
        on: { change: () => { const value = Number(input.value); if (input.value !== "" && Number.isFinite(value)) onChange(t, d, value); } },
      });
      return input;
    }));
    const names = inputs.map(() => E.el("th", { scope: "row" }));
    const details = E.el("details", { class: "numbers" }, E.el("summary", {}, "Edit the numbers"),
      E.el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The vectors' numbers" },
        E.el("table", { class: "plain inputs" },
          E.el("thead", {}, E.el("tr", {}, E.el("th", { scope: "col" }, "vector"),
            Array.from({ length: dims }, (_, d) => E.el("th", { scope: "col" }, String(d + 1))))),
          E.el("tbody", {}, inputs.map((row, t) => E.el("tr", {}, names[t], row.map((input) => E.el("td", {}, input))))))));
    return {
      element: details,
      show(question) {
        question.vectors.forEach((vector, t) => {
          names[t].textContent = E.letter(question.labels[t]);
          vector.forEach((value, d) => {
            inputs[t][d].setAttribute("aria-label", `${E.letter(question.labels[t])}, dimension ${d + 1}`);
            if (document.activeElement !== inputs[t][d]) inputs[t][d].value = String(Math.round(value * 1000) / 1000);
          });
        });
      },
    };
  }
})((window.Explorer ||= {}));
