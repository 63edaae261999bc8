/* Pictures of BoxWorld and Mini Pacman on a canvas, in units of cells; the shapes of environments/rendering.py. */
(function (E) {
  "use strict";
  // Codes of BoxWorld's cells (environments/box_world_levels.py) and of Mini Pacman's (bits: red, green, blue).
  const [BORDER, GEM, KEY, LOCK, AGENT] = [1, 2, 3, 23, 63];
  const [GHOST, PACMAN, FOOD, PILL, WALL] = [1, 2, 4, 6, 7];
  const REACH = 2; // cells seen on each side in a viewport
  const INK = "#262830";

  const rgb = (colour) => `rgb(${colour.map((part) => Math.round(255 * part)).join(" ")})`;

  /** A canvas of rows x columns cells that stays sharp. -> {element, draw(paint)}; paint gets a brush. */
  E.board = function (rows, columns) {
    const canvas = E.el("canvas", { class: "board", role: "img" });
    const context = canvas.getContext("2d");
    canvas.style.aspectRatio = `${columns} / ${rows}`;
    let paint = null;

    const brush = {
      rectangle(row, column, height, width, colour, radius = 0) {
        context.fillStyle = colour;
        context.beginPath();
        context.roundRect(column, row, width, height, radius);
        context.fill();
      },
      disc(row, column, radius, colour, from = 0, to = 2 * Math.PI) {
        context.fillStyle = colour;
        context.beginPath();
        context.moveTo(column, row);
        context.arc(column, row, radius, from, to);
        context.fill();
      },
      ring(row, column, radius, width, colour, from = 0, to = 2 * Math.PI) {
        context.strokeStyle = colour;
        context.lineWidth = width;
        context.beginPath();
        context.arc(column, row, radius, from, to);
        context.stroke();
      },
      polygon(points, colour) {
        context.fillStyle = colour;
        context.beginPath();
        points.forEach(([row, column]) => context.lineTo(column, row));
        context.fill();
      },
      /** Darken everything but the window around a cell. */
      dimOutside(row, column, colour) {
        context.fillStyle = colour;
        context.beginPath();
        context.rect(0, 0, columns, rows);
        context.rect(column - REACH, row - REACH, 2 * REACH + 1, 2 * REACH + 1);
        context.fill("evenodd");
        context.strokeStyle = "rgb(255 255 255 / 0.85)";
        context.lineWidth = 0.08;
        context.strokeRect(column - REACH, row - REACH, 2 * REACH + 1, 2 * REACH + 1);
      },
    };

    function redraw() {
      const width = canvas.clientWidth * (window.devicePixelRatio || 1);
      if (!paint || !width) return;
      canvas.width = Math.round(width);
      canvas.height = Math.round(width * rows / columns);
      context.setTransform(canvas.width / columns, 0, 0, canvas.height / rows, 0, 0);
      paint(brush);
    }

    new ResizeObserver(redraw).observe(canvas);
    return { element: canvas, draw(newPaint, label) { paint = newPaint; canvas.setAttribute("aria-label", label); redraw(); } };
  };

  // ---- BoxWorld

  E.paintBoxWorld = function (brush, game, cells, [agentRow, agentColumn]) {
    const side = game.columns;
    brush.rectangle(0, 0, side, side, "#1e1e22");
    brush.rectangle(1, 1, side - 2, side - 2, "#d8d8d4");
    for (let k = 2; k < side - 1; k++) {
      brush.rectangle(k - 0.02, 1, 0.04, side - 2, "#cecec9");
      brush.rectangle(1, k - 0.02, side - 2, 0.04, "#cecec9");
    }
    cells.forEach((code, number) => {
      if (code <= BORDER || code === AGENT) return;
      const [row, column] = [Math.floor(number / side), number % side];
      const next = cells[number + 1];
      if (code < LOCK && next >= LOCK && next < AGENT) brush.rectangle(row + 0.02, column + 0.02, 0.96, 1.96, INK, 0.2);
      brush.rectangle(row + 0.08, column + 0.08, 0.84, 0.84, code === GEM ? "#fff" : rgb(game.palette[code]), 0.14);
      if (code === GEM) gem(brush, row, column);
      else if (code < LOCK) key(brush, row, column);
      else lock(brush, row, column);
    });
    brush.disc(agentRow + 0.5, agentColumn + 0.5, 0.4, "#5a5a5e");
    for (const eye of [-0.14, 0.14]) brush.disc(agentRow + 0.43, agentColumn + 0.5 + eye, 0.075, "#fff");
    if (game.view === "viewport") brush.dimOutside(agentRow, agentColumn, "rgb(30 30 34 / 0.5)");
  };

  function key(brush, row, column) {
    brush.ring(row + 0.5, column + 0.34, 0.12, 0.075, INK);
    brush.rectangle(row + 0.463, column + 0.47, 0.075, 0.32, INK);
    for (const tooth of [0.6, 0.71]) brush.rectangle(row + 0.5, column + tooth, 0.17, 0.075, INK);
  }

  function lock(brush, row, column) {
    brush.ring(row + 0.45, column + 0.5, 0.14, 0.075, INK, Math.PI, 2 * Math.PI);
    brush.rectangle(row + 0.45, column + 0.28, 0.32, 0.44, INK, 0.05);
    brush.disc(row + 0.61, column + 0.5, 0.06, "#fafafa");
  }

  function gem(brush, row, column) {
    const [left, right, top, waist, tip] = [column + 0.2, column + 0.8, row + 0.25, row + 0.44, row + 0.8];
    const [a, b, middle] = [column + 0.36, column + 0.64, column + 0.5];
    brush.polygon([[top, a], [top, b], [waist, right], [tip, middle], [waist, left]], "#5cc4ff");
    brush.polygon([[waist, a], [waist, b], [tip, middle]], "#96deff");
  }

  // ---- Mini Pacman

  const GHOSTS = ["#ec3a3a", "#ff96c4", "#46d6dc", "#ffa63e", "#aa6ef0", "#6ed25a"];

  E.paintPacman = function (brush, game, cells, [row, column], { power, step }) {
    const { rows, columns } = game;
    const wall = (r, c) => r < 0 || c < 0 || r >= rows || c >= columns || cells[r * columns + c] === WALL;
    brush.rectangle(0, 0, rows, columns, "#0c0e26");
    let ghosts = 0;
    cells.forEach((code, number) => {
      const [r, c] = [Math.floor(number / columns), number % columns];
      if (code === WALL) return brush.rectangle(r, c, 1.02, 1.02, "#1c2468");
      if (code === FOOD) brush.disc(r + 0.5, c + 0.5, 0.1, "#eec49c");
      if (code === PILL) brush.disc(r + 0.5, c + 0.5, 0.3, "#ffecc8");
    });
    cells.forEach((code, number) => {
      const [r, c] = [Math.floor(number / columns), number % columns];
      if (code === WALL) return;
      for (const [dr, dc] of [[-1, 0], [1, 0], [0, -1], [0, 1]]) {
        if (wall(r + dr, c + dc)) brush.rectangle(r + (dr > 0 ? 0.94 : 0), c + (dc > 0 ? 0.94 : 0), dr ? 0.06 : 1, dc ? 0.06 : 1, "#4a62dc");
      }
      if (code === GHOST) ghost(brush, r, c, power ? "#344ce6" : GHOSTS[ghosts++ % GHOSTS.length], power > 0);
    });
    const mouth = (step % 2 ? 38 : 14) * Math.PI / 180;
    brush.disc(row + 0.5, column + 0.5, 0.44, "#ffd628", mouth, 2 * Math.PI - mouth);
    if (game.view === "viewport") brush.dimOutside(row, column, "rgb(12 14 38 / 0.55)");
  };

  function ghost(brush, row, column, colour, scared) {
    brush.disc(row + 0.47, column + 0.5, 0.4, colour);
    brush.rectangle(row + 0.47, column + 0.1, 0.34, 0.8, colour);
    for (let k = 0; k < 3; k++) brush.disc(row + 0.8, column + 0.1 + 0.8 * (k + 0.5) / 3, 0.134, colour);
    for (const side of [-0.16, 0.16]) {
      brush.disc(row + 0.42, column + 0.5 + side, scared ? 0.07 : 0.12, "#fff");
      if (!scared) brush.disc(row + 0.44, column + 0.5 + side, 0.06, "#14185a");
    }
  }

  // ---- what the agent sees: the bare colours of its observation

  /** The cells in view, by code: a window around the agent (what is outside the room is border), or all. */
  E.seenCells = function (game, cells, [row, column]) {
    if (game.view !== "viewport") return { rows: game.rows, columns: game.columns, codes: Array.from(cells) };
    const outside = game.game === "box-world" ? BORDER : WALL;
    const codes = [];
    for (let r = row - REACH; r <= row + REACH; r++) {
      for (let c = column - REACH; c <= column + REACH; c++) {
        const inside = r >= 0 && c >= 0 && r < game.rows && c < game.columns;
        codes.push(inside ? cells[r * game.columns + c] : outside);
      }
    }
    return { rows: 2 * REACH + 1, columns: 2 * REACH + 1, codes };
  };

  E.seenColour = function (game, code, power) {
    if (game.game === "box-world") return rgb(game.palette[code]);
    return rgb([code & 1, ((code >> 1) & 1) + (code === GHOST ? power / 20 : 0), (code >> 2) & 1]);
  };

  /** `shares` by cell, where the memory attends to every cell by itself, are drawn as rings. */
  E.paintSeen = function (brush, game, seen, power, shares) {
    const most = shares ? Math.max(...shares) : 1;
    brush.rectangle(0, 0, seen.rows, seen.columns, "#77777c");
    seen.codes.forEach((code, i) => {
      const [r, c] = [Math.floor(i / seen.columns), i % seen.columns];
      brush.rectangle(r + 0.015, c + 0.015, 0.97, 0.97, E.seenColour(game, code, power));
      if (!shares) return;
      brush.ring(r + 0.5, c + 0.5, 0.3 * Math.sqrt(shares[i] / most), 0.07, "#000");
      brush.ring(r + 0.5, c + 0.5, 0.3 * Math.sqrt(shares[i] / most), 0.035, "#fff");
    });
  };

  E.KEY_CODE = KEY;
})((window.Explorer ||= {}));
