/* The section "Results": the paper's claims beside ours, and learning curves. */
(function (E) {
  "use strict";
  const HUES = 8;
  const MODELS = ["RMC", "LSTM", "EntNet", "DNC", "ConvLSTM"]; // each keeps its colour in all charts
  const MOST_LEVELS = 4; // of the paper in one chart; more would be a thicket

  E.resultsView = function (body, results, notices) {
    const { claims, runs } = results;
    const drawn = runs.filter((run) => run.points.length);
    const parts = [];
    if (notices.length) {
      parts.push(E.card("What could not be shown", null, E.el("ul", { class: "notices" }, notices.map((text) => E.el("li", {}, text)))));
    }
    if (drawn.length) parts.push(E.el("div", { class: drawn.length > 1 ? "columns half" : "stack" }, runCards(drawn)));
    if (!claims.some((claim) => claim.outcomes.length) && !drawn.length) {
      parts.push(E.empty("No run has been kept or given yet. Train something, then show its curve or keep its result:", [
        "rmc train nth-farthest --preset demo --run runs/memory", "rmc explore runs/memory",
        "rmc results add runs/memory && rmc explore"]));
    }
    for (const [section, group] of grouped(claims, (claim) => claim.section)) parts.push(claimCard(section, group));
    body.replaceChildren(E.el("div", { class: "stack" }, parts));
  };

  function grouped(items, keyOf) {
    const groups = new Map();
    for (const item of items) {
      const key = keyOf(item);
      groups.set(key, [...(groups.get(key) || []), item]);
    }
    return groups;
  }

  // ---- curves of the runs given

  function runCards(runs) {
    return [...grouped(runs, (run) => `${run.experiment}, ${run.measure}`)].map(([title, group]) => {
      const percent = group[0].unit === "%";
      const series = group.map((run, i) => ({
        name: run.name, colour: `var(--slot-${i % HUES})`, points: run.points,
        note: ` ${[run.core, run.task, run.preset].filter(Boolean).join(", ")}: ${shown(run.points.at(-1)[1], percent)}`,
      }));
      return chartCard(`Runs: ${title}`, series, percent, []);
    });
  }

  const shown = (value, percent) => (percent ? E.percent(value, 1).replace(" ", "\u00a0") : E.number(value, 1));

  function chartCard(title, series, percent, levels) {
    const chart = E.lines(series, { label: `${title}: ${series.map((one) => one.name).join(", ")}`, percent, levels });
    return E.card(title, null, chart.element, E.legend(series), tableOfCurves(series, percent));
  }

  const tableOfCurves = (series, percent) => E.tableOf("Curves as a table", () => ({
    head: ["run", "updates", "value"],
    rows: series.flatMap((one) => one.points.map(([step, value]) => [one.name, E.thousands(step), shown(value, percent)])),
  })).element;

  // ---- the paper's claims

  function claimCard(section, claims) {
    const ran = claims.filter((claim) => claim.outcomes.length);
    const missing = claims.filter((claim) => !claim.outcomes.length);
    const note = missing.length ? `${ran.length} of ${claims.length} have a result here.` : null;
    const { whose } = claims[0];
    const columns = ["what", whose, "ours", "both on a line", "how"];
    const hidden = (text) => (text === whose || text === "ours" ? text : E.el("span", { class: "spoken" }, text));
    // Roles, because a phone shows the rows as blocks, which takes a table's meaning from it.
    const table = (rows) => E.el("div", { class: "scroll" }, E.el("table", { class: "claims", role: "table" },
      E.el("thead", {}, E.el("tr", { role: "row" }, columns.map((text) => E.el("th", { scope: "col", role: "columnheader" }, hidden(text))))),
      E.el("tbody", {}, rows)));
    return E.card(section, note,
      curves(ran),
      ran.length ? table(ran.flatMap(outcomeRows)) : null,
      missing.length ? E.el("details", { class: "numbers", open: !ran.length && missing.length < 5 },
        E.el("summary", {}, `No result here yet: ${missing.length}`), table(missing.map(missingRow))) : null);
  }

  const colourOf = (model) => `var(--slot-${Math.max(0, MODELS.indexOf(model)) % HUES})`;

  const unique = (items) => [...new Set(items)];

  /** Every seed of every claim's first outcome; a colour for each model, or for each claim where all are of one. */
  function curves(claims) {
    const models = unique(claims.map((claim) => claim.model));
    const wordy = models.length === 1 && claims.length > 1 && claims.length <= HUES;
    const nameOf = (claim) => (wordy ? `${claim.model}, ${claim.what}` : claim.model);
    const colours = new Map(claims.map((claim, i) => [nameOf(claim), wordy ? `var(--slot-${i})` : colourOf(claim.model)]));
    const series = claims.flatMap((claim) => claim.outcomes.slice(0, 1).flatMap((outcome) => outcome.curves
      .filter((curve) => curve.step.length)
      .map((curve) => ({
        name: `${claim.model}, ${claim.what}${outcome.curves.length > 1 ? `, seed ${curve.seed}` : ""}`,
        colour: colours.get(nameOf(claim)), points: curve.step.map((step, j) => [step, curve.value[j]]),
      }))));
    if (!series.some((one) => one.points.length > 1)) return null; // a point alone is in the table
    const percent = claims[0].unit === "%";
    const papers = [...grouped(claims.filter((claim) => claim.paper !== null), (claim) => claim.paper)];
    const levels = papers.length > MOST_LEVELS ? [] : papers.map(([paper, same]) => ({
      value: percent ? paper / 100 : paper,
      name: `${same[0].whose}: ${unique(same.map((claim) => claim.model)).join(", ")}`,
    }));
    const chart = E.lines(series, { label: `Learning curves: ${series.map((one) => one.name).join("; ")}`, percent, levels });
    const legend = E.legend([...colours].map(([name, colour]) => ({ name, colour })));
    return E.el("div", { class: "stack" }, chart.element, legend, tableOfCurves(series, percent));
  }

  const cell = (label, kind, ...content) => E.el("td", { role: "cell", class: kind, "data-label": label }, ...content);
  const heading = (text) => E.el("th", { scope: "row", role: "rowheader" }, text);

  const outcomeRows = (claim) => claim.outcomes.map((outcome, i) => E.el("tr", { role: "row" },
    heading(i ? `${claim.model}: another setting` : `${claim.model}: ${claim.what}`),
    cell(claim.whose, "amount", claim.paper_text), cell("ours", "amount", E.el("strong", {}, outcome.text)),
    cell("", "picture", compare(claim, outcome)),
    cell("", "how", `${outcome.updates} updates, ${outcome.time}, ${outcome.hardware}`, E.el("br"), E.el("code", {}, outcome.command))));

  const missingRow = (claim) => E.el("tr", { class: "none", role: "row" }, heading(`${claim.model}: ${claim.what}`),
    cell(claim.whose, "amount", claim.paper_text), cell("ours", "amount", "no result here"), cell("", "picture"),
    cell("", "how", E.el("code", {}, claim.command)));

  /** The paper's number as a ring and ours as dots, on a line from 0 to the largest. */
  function compare(claim, outcome) {
    if (claim.paper === null || !outcome.values.length) return "";
    const percent = claim.unit === "%";
    const ours = outcome.values.map((value) => (percent ? 100 * value : value));
    const most = percent ? 100 : Math.max(claim.paper, ...ours) * 1.05;
    const x = (value) => 8 + value / most * 128;
    return E.svg("svg", { viewBox: "0 0 144 18", class: "compare", "aria-hidden": "true" },
      E.svg("line", { x1: 8, x2: 136, y1: 9, y2: 9, class: "rail" }),
      E.svg("circle", { cx: x(claim.paper), cy: 9, r: 6, class: "paper" }),
      ours.map((value) => E.svg("circle", { cx: x(value), cy: 9, r: 3.5, class: "ours" })));
  }
})((window.Explorer ||= {}));
