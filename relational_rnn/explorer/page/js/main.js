/* Puts the sections together, and shows the one the address names. */
(function (E) {
  "use strict";
  const SECTIONS = ["memory", "games", "programs", "results"];
  const data = window.explorerData;
  const bodyOf = (name) => document.querySelector(`#${name} .body`);

  function open() {
    const wanted = location.hash.slice(1);
    const shown = SECTIONS.includes(wanted) ? wanted : SECTIONS[0];
    if (wanted === "content") return;
    E.stopAll();
    E.hideTip();
    for (const name of SECTIONS) {
      document.getElementById(name).hidden = name !== shown;
      const link = document.querySelector(`nav a[href="#${name}"]`);
      if (name === shown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${document.querySelector(`#${shown} h1`).textContent} · Relational memory explorer`;
    scrollTo(0, 0);
  }

  if (!data) {
    for (const name of SECTIONS) {
      bodyOf(name).replaceChildren(E.empty("This page has no data: data.js is missing beside it. Make a folder with both:", ["rmc explore --to FOLDER"]));
    }
    E.themeButton(document.getElementById("theme"), () => {});
  } else {
    const memory = E.memoryView(bodyOf("memory"), data.memory);
    E.gamesView(bodyOf("games"), data.games);
    E.programsView(bodyOf("programs"), data.programs);
    E.resultsView(bodyOf("results"), data.results, data.notices);
    E.themeButton(document.getElementById("theme"), memory.recolour);
    document.getElementById("made").textContent = data.made;
  }
  addEventListener("hashchange", open);
  open();
  document.documentElement.dataset.ready = "yes";
})((window.Explorer ||= {}));
