/* The section "Games": recorded episodes, step by step. */
(function (E) {
  "use strict";
  const NAMES = { "box-world": "BoxWorld", "mini-pacman": "Mini Pacman" };

  E.gamesView = function (body, games) {
    if (!games.length) {
      body.replaceChildren(E.empty("There are no recorded episodes here yet. Train an agent and watch it play:", [
        "rmc train box-world --preset fast --run runs/boxes     # or mini-pacman; --preset smoke takes seconds and learns nothing",
        "rmc explore runs/boxes"]));
      return;
    }
    const holder = E.el("div");
    let [game, episode] = [games[0], 0];
    const episodes = E.el("div");
    const open = () => {
      E.stopAll();
      holder.replaceChildren(build(game, game.episodes[episode]));
    };
    const listEpisodes = () => {
      episode = 0;
      episodes.replaceChildren(E.select("Episode", game.episodes.map((one, i) =>
        [String(i), `${i + 1}: ${E.short(one.return)} points in ${one.steps} steps${one.ended ? "" : ", not to its end"}`]),
      "0", (value) => { episode = Number(value); open(); }));
    };
    const runs = E.select("Agent", games.map((one, i) => [String(i), `${NAMES[one.game]}: ${one.name}`]), "0", (value) => {
      game = games[Number(value)];
      listEpisodes();
      open();
    });
    listEpisodes();
    open();
    body.replaceChildren(E.el("div", { class: "row" }, runs, episodes), holder);
  };

  function build(game, episode) {
    const cells = E.bytes(episode.cells);
    const area = game.rows * game.columns;
    const cellsAt = (t) => cells.subarray(t * area, (t + 1) * area);
    const trace = episode.trace ? E.recordedTrace(episode.trace) : null;
    const level = E.board(game.rows, game.columns);
    const first = E.seenCells(game, cellsAt(0), episode.positions[0]);
    const view = E.board(first.rows, first.columns);
    const held = game.game === "box-world" ? E.el("p", { class: "held" }) : null;
    const words = E.el("p", { class: "caption", "aria-live": "polite" });
    const policy = E.bars(game.actions, () => "Probability of every action");
    const values = E.lines([{ name: "value", colour: "var(--accent)", points: episode.values.map((value, t) => [t + 1, value]) }],
      { label: "The agent's value estimate at every step", xName: "step", size: innerWidth < 560 ? [340, 170] : [480, 190] });
    const rewards = E.tableOf("Steps as a table", () => ({
      head: ["step", "action", "reward", "value", "row", "column"],
      rows: episode.values.map((value, t) => [String(t + 1), game.actions[episode.actions[t]], E.short(episode.rewards[t]),
        E.number(value), ...episode.positions[t].map((place) => String(place + 1))]),
    }));
    const stepper = E.stepper({
      count: episode.steps, what: "step", pace: 180, onChange: show,
      describe: (t) => `step ${t + 1} of ${episode.steps}`,
    });
    const inside = trace && E.inside(trace, {
      columns: episode.values.map((_, t) => String(t + 1)), what: "step",
      inputName: trace.inputs > 1 ? "what is seen" : "the input", room: 1020, onStep: (t) => stepper.set(t),
    });

    function describe(t) {
      const [row, column] = episode.positions[t];
      const sofar = episode.rewards.slice(0, t).reduce((a, b) => a + b, 0);
      const parts = [`At row ${row + 1}, column ${column + 1}`];
      if (episode.held) parts.push(episode.held[t] >= E.KEY_CODE ? `holding key ${episode.held[t] - E.KEY_CODE + 1}` : "holding no key");
      if (episode.power) parts.push(`level ${episode.level[t]}${episode.power[t] ? `, powered for ${episode.power[t]} steps` : ""}`);
      return `${parts.join(", ")}. ${E.short(sofar)} points so far. Does: ${game.actions[episode.actions[t]]}` +
        `${episode.rewards[t] ? `, and gets ${E.short(episode.rewards[t])}` : ""}.`;
    }

    function show(t) {
      const now = cellsAt(t);
      const place = episode.positions[t];
      const power = episode.power ? episode.power[t] : 0;
      const seen = E.seenCells(game, now, place);
      const shares = trace && trace.inputs === seen.codes.length
        ? seen.codes.map((_, i) => trace.meanOnInput(t, i)) : null;
      level.draw((brush) => (game.game === "box-world"
        ? E.paintBoxWorld(brush, game, now, place)
        : E.paintPacman(brush, game, now, place, { power, step: t })), `The whole level. ${describe(t)}`);
      view.draw((brush) => E.paintSeen(brush, game, seen, power, shares), `What the agent sees: ${seen.rows} by ${seen.columns} cells`);
      if (held) {
        const box = E.el("i", { class: "key", "aria-hidden": "true" });
        const holds = episode.held[t] >= E.KEY_CODE;
        if (holds) box.style.background = E.seenColour(game, episode.held[t], 0);
        held.replaceChildren(box, holds ? `holds key ${episode.held[t] - E.KEY_CODE + 1}` : "holds no key");
      }
      words.textContent = describe(t);
      policy.update(episode.policy[t], episode.policy[t].map((_, a) => (a === episode.actions[t] ? "said" : "")));
      values.mark(t + 1);
      if (inside) inside.show(trace, t);
    }

    const element = E.el("div", { class: "stack" },
      E.el("div", { class: "sticky" }, stepper.element),
      E.el("div", { class: "columns game" },
        E.card("The level", null, level.element, words),
        E.el("div", { class: "stack" },
          E.el("div", { class: "two even" },
            E.card("What it sees", `The bare colours it is given.${trace && trace.inputs > 1 ? " Larger rings: more attention." : ""}`, view.element, held),
            E.card("What it does", null, policy.element)),
          E.card("What it expects", "The value estimate: reward to come, later reward counting less.", values.element, rewards.element))),
      ...(inside ? [inside.overview, E.el("div", { class: "columns half" }, inside.slots, inside.heads)]
        : [E.el("div", { class: "card note" }, "This agent's core has no memory slots, so there is no attention to show.")]));
    requestAnimationFrame(() => show(0));
    return element;
  }
})((window.Explorer ||= {}));
