/* Puts the sections together, and shows the one the address names. */
(function (E) {
  "use strict";
  const SECTIONS = ["memory", "games", "programs", "results"];
  const data = window.explorerData;

  const builders = data && {
    memory: (body) => E.memoryView(body, data.memory),
    games: (body) => E.gamesView(body, data.games),
    programs: (body) => E.programsView(body, data.programs),
    results: (body) => E.resultsView(body, data.results, data.notices),
  };
  const built = {};

  /** A section is made when it is first looked at: the page is there sooner. */
  function build(name) {
    if (name in built) return;
    const body = document.querySelector(`#${name} .body`);
    if (data) {
      built[name] = builders[name](body);
    } else {
      built[name] = null;
      body.replaceChildren(E.empty("This page has no data: data.js is missing beside it. Make a folder with both:", ["rmc explore --to FOLDER"]));
    }
  }

  function open() {
    const wanted = location.hash.slice(1);
    if (wanted === "content") return; // the link that skips the header
    const shown = SECTIONS.includes(wanted) ? wanted : SECTIONS[0];
    E.stopAll();
    E.hideTip();
    for (const name of SECTIONS) {
      document.getElementById(name).hidden = name !== shown;
      const link = document.querySelector(`nav a[href="#${name}"]`);
      if (name === shown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    build(shown);
    document.title = `${document.querySelector(`#${shown} h1`).textContent} · Relational memory explorer`;
    scrollTo(0, 0);
  }

  E.themeButton(document.getElementById("theme"), () => built.memory?.recolour());
  if (data) document.getElementById("made").textContent = data.made;
  addEventListener("hashchange", open);
  open();
  document.documentElement.dataset.ready = "yes";
})((window.Explorer ||= {}));
