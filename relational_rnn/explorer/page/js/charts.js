/* Bars for shares, and lines over steps. */
(function (E) {
  "use strict";

  /** Shares by name. -> {element, update(values, classes)} */
  E.bars = function (names, describe = (name) => name) {
    const rows = names.map((name) => {
      const bar = E.el("i", { class: "fill" });
      const number = E.el("td", { class: "amount" });
      const row = E.el("tr", {}, E.el("th", { scope: "row" }, name),
        E.el("td", { class: "track", "aria-hidden": "true" }, E.el("span", {}, bar)), number);
      return { row, bar, number };
    });
    const element = E.el("table", { class: "bars" }, E.el("caption", { class: "spoken" }, describe("")),
      E.el("tbody", {}, rows.map(({ row }) => row)));
    return {
      element,
      update(values, classes = []) {
        rows.forEach(({ row, bar, number }, i) => {
          bar.style.width = `${100 * Math.max(0, Math.min(1, values[i]))}%`;
          number.textContent = E.percent(values[i], 1);
          row.className = classes[i] || "";
        });
      },
    };
  };

  /** Round numbers that divide an interval into about `count` parts. */
  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
    const result = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) result.push(value);
    return result;
  }

  /** series: [{name, colour, points: [[x, y], ...]}]; options: label, percent, levels [{value, name}], xName,
   *  size [width, height], range [low, high]. -> {element, mark(x)} */
  E.lines = function (series, { label, percent = false, levels = [], xName = "updates", size = null, range = null }) {
    const [width, height] = size || (innerWidth < 560 ? [340, 220] : [600, 250]); // text keeps its size on a phone
    const margin = { left: 46, right: 14, top: 12, bottom: 40 };
    const points = series.flatMap((one) => one.points);
    const ys = [...points.map((p) => p[1]), ...levels.map((level) => level.value)];
    const xs = points.map((p) => p[0]);
    const [x0, x1] = xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1];
    let [y0, y1] = range || (percent ? [0, 1] : [Math.min(0, ...ys), Math.max(...ys)]);
    if (y1 - y0 < 1e-9) [y0, y1] = [y0 - 0.5, y1 + 0.5];
    const x = (value) => margin.left + (x1 > x0 ? (value - x0) / (x1 - x0) : 0.5) * (width - margin.left - margin.right);
    const y = (value) => height - margin.bottom - (value - y0) / (y1 - y0) * (height - margin.top - margin.bottom);
    const show = (value) => (percent ? E.percent(value, 1) : E.number(value, 2));

    const grid = ticks(y0, y1, 4).map((value) => E.svg("g", {},
      E.svg("line", { x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value), class: "grid" }),
      E.svg("text", { x: margin.left - 8, y: y(value), class: "axis end" }, percent ? `${Math.round(100 * value)} %` : E.short(value))));
    const bottom = ticks(x0, x1, 5).map((value) =>
      E.svg("text", { x: x(value), y: height - margin.bottom + 16, class: "axis middle" }, E.short(value)));
    const name = E.svg("text", { x: width - margin.right, y: height - 9, class: "axis end" }, xName);
    const marks = levels.map((level) => E.svg("g", {},
      E.svg("line", { x1: margin.left, x2: width - margin.right, y1: y(level.value), y2: y(level.value), class: "level" }),
      E.svg("text", { x: margin.left + 6, y: y(level.value) - 8, class: "axis haloed" }, level.name)));
    const drawn = series.map((one) => {
      const line = one.points.length > 1
        ? E.svg("polyline", { points: one.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), class: "line" })
        : E.svg("circle", { cx: x(one.points[0][0]), cy: y(one.points[0][1]), r: 4, class: "dot" });
      line.style[one.points.length > 1 ? "stroke" : "fill"] = one.colour;
      return line;
    });
    const dot = E.svg("circle", { r: 4.5, class: "dot" });
    const cursor = E.svg("line", { y1: margin.top, y2: height - margin.bottom, class: "cursor" });
    for (const part of [dot, cursor]) part.style.display = "none";
    const element = E.svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": label },
      grid, bottom, name, marks, cursor, drawn, dot);

    element.addEventListener("pointermove", (event) => {
      const box = element.getBoundingClientRect();
      const at = [(event.clientX - box.left) / box.width * width, (event.clientY - box.top) / box.height * height];
      let best = null;
      for (const one of series) {
        for (const [a, b] of one.points) {
          const distance = Math.hypot(x(a) - at[0], y(b) - at[1]);
          if (!best || distance < best.distance) best = { distance, one, a, b };
        }
      }
      if (!best || best.distance > 40) return leave();
      dot.style.display = "";
      dot.style.fill = best.one.colour;
      dot.setAttribute("cx", x(best.a));
      dot.setAttribute("cy", y(best.b));
      E.showTip(`${best.one.name}: ${show(best.b)} at ${E.thousands(best.a)} ${xName}`, event.clientX, event.clientY);
    });
    function leave() {
      dot.style.display = "none";
      E.hideTip();
    }
    element.addEventListener("pointerleave", leave);
    return {
      element,
      mark(value) {
        cursor.style.display = "";
        cursor.setAttribute("x1", x(value));
        cursor.setAttribute("x2", x(value));
      },
    };
  };

  E.legend = (series) => E.el("ul", { class: "legend" }, series.map((one) => {
    const dot = E.el("i", { class: "swatch", "aria-hidden": "true" });
    dot.style.background = one.colour;
    return E.el("li", {}, dot, E.el("span", {}, one.name, one.note ? E.el("span", { class: "muted" }, one.note) : null));
  }));
})((window.Explorer ||= {}));
