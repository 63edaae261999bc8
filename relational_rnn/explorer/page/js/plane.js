/* Two dimensions of a question's vectors as points that can be moved, and their true distances on a line. */
(function (E) {
  "use strict";
  const SIZE = 340;
  const EDGE = 22;
  const STEP = 0.05; // of an arrow key

  const clamp = (value) => Math.max(-1, Math.min(1, value));
  const toPixels = (value) => EDGE + (value + 1) / 2 * (SIZE - 2 * EDGE);
  const fromPixels = (pixels) => clamp((pixels - EDGE) / (SIZE - 2 * EDGE) * 2 - 1);

  /** onMove(label, [x, y]) while a point is dragged or moved by keys. -> {element, show(question, axes, step, said)} */
  E.plane = function (count, onMove) {
    const lines = Array.from({ length: count }, () => E.svg("line", { class: "link" }));
    const points = Array.from({ length: count }, (_, label) => point(label));
    const xName = E.svg("text", { x: SIZE - EDGE, y: SIZE - 6, class: "axis end" });
    const yName = E.svg("text", { x: EDGE - 14, y: EDGE - 8, class: "axis" });
    const frame = [-1, 0, 1].flatMap((value) => [
      E.svg("line", { x1: toPixels(value), x2: toPixels(value), y1: EDGE, y2: SIZE - EDGE, class: "grid" }),
      E.svg("line", { y1: toPixels(value), y2: toPixels(value), x1: EDGE, x2: SIZE - EDGE, class: "grid" }),
    ]);
    const element = E.svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, class: "plane", role: "group", "aria-label": "Vectors in the plane" },
      frame, xName, yName, lines, points.map(({ group }) => group));
    let place = [];
    let dragged = null;

    function point(label) {
      const ring = E.svg("circle", { r: 17, class: "ring" });
      const disc = E.svg("circle", { r: 12, class: "disc" });
      const text = E.svg("text", { class: "letter" }, E.letter(label));
      const group = E.svg("g", { class: "point", tabindex: "0", role: "button", "aria-roledescription": "movable point" }, ring, disc, text);
      group.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        dragged = label;
        group.setPointerCapture(event.pointerId);
        group.focus({ preventScroll: true });
      });
      group.addEventListener("pointermove", (event) => {
        if (dragged !== label) return;
        const box = element.getBoundingClientRect();
        const scale = SIZE / box.width;
        onMove(label, [fromPixels((event.clientX - box.left) * scale), -fromPixels((event.clientY - box.top) * scale)]);
      });
      for (const end of ["pointerup", "pointercancel"]) group.addEventListener(end, () => { dragged = null; });
      group.addEventListener("keydown", (event) => {
        const move = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
        if (!move) return;
        event.preventDefault();
        // Kept here too: the next key may come before the picture does.
        place[label] = place[label].map((value, i) => clamp(Math.round((value + STEP * move[i]) * 1000) / 1000));
        onMove(label, place[label]);
      });
      return { group, ring };
    }

    return {
      element,
      show(question, axes, step, said) {
        const flat = question.task.dims <= 2;
        const right = question.answer();
        const at = (label) => question.vectors[question.stepOf(label)];
        // A vector of one dimension lies on the horizontal axis.
        place = question.labels.map((_, label) => [at(label)[axes[0]], axes[1] < question.task.dims ? at(label)[axes[1]] : 0]);
        xName.textContent = `dimension ${axes[0] + 1}`;
        yName.textContent = axes[1] < question.task.dims ? `dimension ${axes[1] + 1}` : "";
        const [mx, my] = place[question.m];
        points.forEach(({ group }, label) => {
          const [x, y] = place[label];
          const seen = question.stepOf(label) <= step;
          group.setAttribute("transform", `translate(${toPixels(x)} ${toPixels(-y)})`);
          const kinds = [["m", label === question.m], ["right", label === right], ["said", label === said], ["unseen", !seen]];
          group.setAttribute("class", ["point", ...kinds.filter(([, is]) => is).map(([name]) => name)].join(" "));
          const roles = [label === question.m ? "the reference" : "", label === right ? "the right answer" : "", seen ? "" : "not yet seen"];
          group.setAttribute("aria-label",
            `${E.letter(label)} at ${E.number(x, 2)}, ${E.number(y, 2)}${roles.filter(Boolean).map((role) => `, ${role}`).join("")}; arrow keys move it`);
          const line = lines[label];
          line.setAttribute("x1", toPixels(mx));
          line.setAttribute("y1", toPixels(-my));
          line.setAttribute("x2", toPixels(x));
          line.setAttribute("y2", toPixels(-y));
          line.setAttribute("class", label === right ? "link right" : "link");
          line.style.display = flat ? "" : "none"; // with more dimensions these are not the distances
        });
      },
    };
  };

  /** Every vector's distance from m, in all dimensions, on a line. -> {element, show(question)} */
  E.distanceLine = function (count) {
    const width = 340;
    const letters = Array.from({ length: count }, (_, label) => E.svg("g", { class: "point small" },
      E.svg("circle", { r: 13, class: "ring" }), E.svg("circle", { r: 9, class: "disc" }),
      E.svg("text", { class: "letter" }, E.letter(label))));
    const element = E.svg("svg", { viewBox: `0 0 ${width} 70`, class: "distances", role: "img" },
      E.svg("line", { x1: 16, x2: width - 16, y1: 46, y2: 46, class: "level" }),
      E.svg("text", { x: 16, y: 62, class: "axis" }, "near"),
      E.svg("text", { x: width - 16, y: 62, class: "axis end" }, "far"), letters);
    return {
      element,
      show(question) {
        const distances = question.distances();
        const most = Math.max(...distances, 1e-9);
        const right = question.answer();
        const order = distances.map((_, label) => label).sort((a, b) => distances[a] - distances[b]);
        let last = -100;
        let lifted = false;
        for (const label of order) {
          const x = 16 + distances[label] / most * (width - 32);
          lifted = x - last < 21 && !lifted; // neighbours take turns on two levels
          last = x;
          letters[label].setAttribute("transform", `translate(${x.toFixed(1)} ${lifted ? 18 : 38})`);
          const kinds = [["m", label === question.m], ["right", label === right]];
          letters[label].setAttribute("class", ["point small", ...kinds.filter(([, is]) => is).map(([name]) => name)].join(" "));
        }
        const words = order.map((label) => `${E.letter(label)} ${E.number(distances[label], 2)}`).join(", ");
        element.setAttribute("aria-label", `Distances from ${E.letter(question.m)}, nearest first: ${words}`);
      },
    };
  };
})((window.Explorer ||= {}));
