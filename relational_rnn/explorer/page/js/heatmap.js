/* A grid of numbers as colours. Hovering, or arrow keys on the focused map, shows a cell's number. */
(function (E) {
  "use strict";
  const GAP = 1.5;
  const MARGIN_LEFT = 26;
  const MARGIN_TOP = 18;

  /** Small shares stay visible: the eye is to see 0.1 among zeros. */
  E.shade = (value) => (value <= 0 ? 0 : Math.min(1, value) ** 0.7);

  /** options: label, rows (slot numbers as text), columns (text), cell [width, height], describe(row, column, value),
   *  onColumn(column), swatches (colour the row labels as slots), every (label every n-th column).
   *  -> {element, update(value(row, column)), mark(column)} */
  E.heatmap = function (options) {
    const { label, rows, columns, cell: [width, height], describe, onColumn, swatches = true, every = 1 } = options;
    const gap = width > 6 ? GAP : 0;
    const gridWidth = columns.length * width;
    const gridHeight = rows.length * height;
    const total = [MARGIN_LEFT + gridWidth + 2, MARGIN_TOP + gridHeight + 2];
    const x = (column) => MARGIN_LEFT + column * width;
    const y = (row) => MARGIN_TOP + row * height;
    let value = () => 0;
    let cursor = null;

    const cells = rows.map((_, r) => columns.map((_, c) => E.svg("rect", {
      x: x(c), y: y(r), width: width - gap, height: height - gap, rx: gap ? 2 : 0, class: "heat",
    })));
    const ground = E.svg("rect", {
      x: MARGIN_LEFT - 2, y: MARGIN_TOP - 2, width: gridWidth + 4 - gap, height: gridHeight + 4 - gap, rx: 4, class: "ground",
    });
    const marker = E.svg("rect", {
      y: MARGIN_TOP - 2, width: Math.max(width - gap, 2) + 2, height: gridHeight + 4 - gap, rx: 3, class: "marker",
    });
    const pointer = E.svg("rect", { width: width - gap + 2, height: height - gap + 2, rx: 3, class: "pointer" });
    for (const extra of [marker, pointer]) extra.style.display = "none";
    const rowLabels = rows.map((text, r) => E.svg("g", {},
      swatches && text.length < 3 ? swatchAt(r) : null,
      E.svg("text", { x: MARGIN_LEFT - 7, y: y(r) + height / 2 - gap / 2, class: "axis end" }, text)));
    const columnLabels = columns.map((text, c) => (c % every ? null :
      E.svg("text", { x: x(c) + (width - gap) / 2, y: MARGIN_TOP - 9, class: "axis middle" }, text)));

    function swatchAt(r) {
      const dot = E.svg("rect", { x: 1, y: y(r) + height / 2 - gap / 2 - 3.5, width: 7, height: 7, rx: 2 });
      dot.style.fill = E.slotColour(r);
      return dot;
    }

    const picture = E.svg("svg", {
      viewBox: `0 0 ${total.join(" ")}`, width: total[0], height: total[1], class: onColumn ? "map clickable" : "map",
      role: "img", tabindex: "0", "aria-label": `${label}. Arrow keys read single numbers.`,
    }, ground, marker, cells, pointer, rowLabels, columnLabels);

    function point(row, column, place) {
      cursor = [row, column];
      pointer.style.display = "";
      pointer.setAttribute("x", x(column) - 1);
      pointer.setAttribute("y", y(row) - 1);
      const text = describe(row, column, value(row, column));
      if (place) return E.showTip(text, ...place);
      const box = cells[row][column].getBoundingClientRect();
      E.showTip(text, box.right, box.top);
      E.say(text);
    }

    function leave() {
      cursor = null;
      pointer.style.display = "none";
      E.hideTip();
    }

    function at(event) {
      const box = picture.getBoundingClientRect();
      const column = Math.floor(((event.clientX - box.left) / box.width * total[0] - MARGIN_LEFT) / width);
      const row = Math.floor(((event.clientY - box.top) / box.height * total[1] - MARGIN_TOP) / height);
      return row >= 0 && row < rows.length && column >= 0 && column < columns.length ? [row, column] : null;
    }

    picture.addEventListener("pointermove", (event) => {
      const found = at(event);
      if (found) point(...found, [event.clientX, event.clientY]);
      else leave();
    });
    picture.addEventListener("pointerleave", leave);
    picture.addEventListener("blur", leave);
    picture.addEventListener("click", (event) => {
      const found = at(event);
      if (found && onColumn) onColumn(found[1]);
    });
    picture.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (move) {
        event.preventDefault();
        const [row, column] = cursor ? [cursor[0] + move[0], cursor[1] + move[1]] : [0, 0];
        point(Math.max(0, Math.min(rows.length - 1, row)), Math.max(0, Math.min(columns.length - 1, column)));
      } else if (event.key === "Escape") {
        leave();
      } else if (event.key === "Enter" && cursor && onColumn) {
        onColumn(cursor[1]);
      }
    });

    return {
      element: picture,
      update(newValue, top = 1) {
        value = newValue;
        cells.forEach((row, r) => row.forEach((cell, c) => {
          cell.setAttribute("fill-opacity", E.shade((value(r, c) || 0) / top).toFixed(3));
        }));
      },
      mark(column) {
        marker.style.display = column === null ? "none" : "";
        if (column !== null) marker.setAttribute("x", x(column) - 1);
      },
    };
  };
})((window.Explorer ||= {}));
