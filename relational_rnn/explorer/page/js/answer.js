/* The answer after every step, and the memory itself as a picture. */
(function (E) {
  "use strict";

  /** -> {element, show(question, answers, step)} */
  E.answerCard = function (count, onStep) {
    const letters = Array.from({ length: count }, (_, label) => E.letter(label));
    const sentence = E.el("p", { class: "answer", "aria-live": "polite" });
    const truth = E.el("p", { class: "note truth" });
    const bars = E.bars(letters, () => "Probability of every answer at this step");
    let now = null;
    const order = () => now.question.labels.map((label) => E.letter(label));
    const map = E.heatmap({
      label: "Probability of every answer (rows) after every step (columns)", rows: letters, swatches: false,
      columns: letters.map((_, t) => String(t + 1)), cell: [30, 20], onColumn: onStep,
      describe: (label, t, value) => `After step ${t + 1} (${order()[t]}): ${E.letter(label)} ${E.percent(value, 1)}`,
    });
    const table = E.tableOf("Probabilities as a table", () => ({
      head: ["after", ...letters],
      rows: now.answers.map((row, t) => [`step ${t + 1}`, ...row.map((value) => E.number(value, 4))]),
    }));
    const element = E.card("The answer", null, sentence, truth,
      E.el("div", { class: "two" }, bars.element,
        E.el("figure", {}, E.el("figcaption", {}, "After every step"), map.element)), table.element);
    return {
      element,
      show(question, answers, step) {
        now = { question, answers };
        const chances = answers[step];
        const said = chances.indexOf(Math.max(...chances));
        const right = question.answer();
        const last = step === answers.length - 1;
        const seen = last ? `After all ${answers.length} vectors` : `After ${step + 1} of ${answers.length} vectors`;
        sentence.className = `answer ${last ? (said === right ? "good" : "bad") : ""}`;
        sentence.replaceChildren(`${seen}: `, E.el("strong", {}, E.letter(said)), `, ${E.percent(chances[said])} sure`);
        const rank = question.rank === 1 ? "farthest" : `${E.ordinal(question.rank)} farthest`;
        const verdict = last ? (said === right ? "That is right: " : "That is wrong: ") : "To be found: ";
        truth.textContent = `${verdict}${E.letter(right)} is the ${rank} from ${E.letter(question.m)}.`;
        bars.update(chances, chances.map((_, label) => (label === right ? "right" : label === said ? "said" : "")));
        map.update((label, t) => answers[t][label]);
        map.mark(step);
        table.refresh();
        return said;
      },
    };
  };

  /** Every unit of every slot: blue above zero, orange below. -> {element, show(memory), recolour()} */
  E.matrix = function (slots, slotSize) {
    const canvas = E.el("canvas", { width: slotSize, height: slots, class: "matrix", role: "img" });
    canvas.style.height = `${slots * (slots > 8 ? 14 : 20)}px`;
    const context = canvas.getContext("2d");
    let memory = null;

    function draw() {
      if (!memory) return;
      const styles = getComputedStyle(document.documentElement);
      const [above, below, ground] = ["--above", "--below", "--sunken"].map((name) =>
        styles.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi).map((pair) => parseInt(pair, 16)));
      const image = context.createImageData(slotSize, slots);
      memory.forEach((value, i) => {
        const share = Math.min(1, Math.abs(value) / 1.5) ** 0.8;
        const colour = value > 0 ? above : below;
        for (let c = 0; c < 3; c++) image.data[4 * i + c] = ground[c] + (colour[c] - ground[c]) * share;
        image.data[4 * i + 3] = 255;
      });
      context.putImageData(image, 0, 0);
    }

    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const unit = Math.min(slotSize - 1, Math.floor((event.clientX - box.left) / box.width * slotSize));
      const slot = Math.min(slots - 1, Math.floor((event.clientY - box.top) / box.height * slots));
      E.showTip(`Slot ${slot + 1}, unit ${unit + 1}: ${E.number(memory[slot * slotSize + unit])}`, event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", E.hideTip);
    const rows = Array.from({ length: slots }, (_, n) => E.el("li", {}, E.swatch(n), String(n + 1)));
    return {
      element: E.card("The memory itself", `A row for each slot, a column for each of its ${slotSize} units; blue above zero, orange below.`,
        E.el("div", { class: "matrix-box" }, E.el("ol", { "aria-hidden": "true" }, rows), canvas)),
      show(newMemory, step) {
        memory = newMemory;
        const largest = memory.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
        canvas.setAttribute("aria-label", `The memory after step ${step + 1}: ${slots} slots of ${slotSize} units, the largest ${E.number(largest, 2)}`);
        draw();
      },
      recolour: draw,
    };
  };
})((window.Explorer ||= {}));
