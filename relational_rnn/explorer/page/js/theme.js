/* Light or dark: as the system says, unless the visitor chose. Loaded first, so that nothing flashes. */
(function (E) {
  "use strict";
  const KEY = "relational-memory-explorer-theme";
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage is switched off: the choice lasts as long as the page
    }
  }

  function store(choice) {
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      /* as above */
    }
  }

  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);

  const choice = stored();
  if (choice === "dark" || choice === "light") root.dataset.theme = choice;

  /** Make a button that switches, and call `changed` whenever the colours become others. */
  E.themeButton = function (button, changed) {
    const label = () => {
      button.textContent = isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      store(root.dataset.theme);
      label();
      changed();
    });
    systemDark.addEventListener("change", () => {
      label();
      changed();
    });
    button.hidden = false;
    label();
  };
})((window.Explorer ||= {}));
