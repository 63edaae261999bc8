/* Going through time: one step back, one forward, play, a slider; and, for few steps, a button for each. */
(function (E) {
  "use strict";
  const PLAYERS = new Set(); // so that leaving a section stops what plays in it

  E.stopAll = () => PLAYERS.forEach((stop) => stop());

  /** options: count, start, what (word for a step), pace (milliseconds), onChange(step), describe(step).
   *  chips: [{text, kind}] adds a button for each step. -> {element, set(step), relabel(chips)} */
  E.stepper = function ({ count, start = 0, what = "step", pace = 700, onChange, describe, chips = null }) {
    let step = start;
    let timer = null;
    const slider = E.el("input", {
      type: "range", min: "0", max: String(count - 1), "aria-label": what, on: { input: () => go(Number(slider.value)) },
    });
    const back = E.button("‹", () => go(step - 1), { class: "round", "aria-label": `Previous ${what}` });
    const forward = E.button("›", () => go(step + 1), { class: "round", "aria-label": `Next ${what}` });
    const play = E.button("Play", toggle, { class: "play" });
    const where = E.el("span", { class: "where" });
    const buttons = chips && chips.map((_, i) => E.button("", () => go(i), { class: "chip" }));
    const strip = buttons && E.el("div", { class: "chips", role: "group", "aria-label": `All ${what}s` }, buttons);
    const element = E.el("div", { class: "stepper" },
      E.el("div", { class: "controls" }, back, play, forward, slider, where), strip);

    function go(wanted, quiet = false) {
      step = Math.max(0, Math.min(count - 1, wanted));
      slider.value = String(step);
      slider.setAttribute("aria-valuetext", describe(step));
      back.disabled = step === 0;
      forward.disabled = step === count - 1;
      where.textContent = describe(step);
      if (buttons) {
        buttons.forEach((button, i) => {
          button.classList.toggle("past", i < step);
          if (i === step) button.setAttribute("aria-current", "step");
          else button.removeAttribute("aria-current");
        });
      }
      if (!quiet) onChange(step);
    }

    function stop() {
      clearInterval(timer);
      timer = null;
      play.textContent = "Play";
      PLAYERS.delete(stop);
    }

    function toggle() {
      if (timer) return stop();
      if (step === count - 1) go(0);
      play.textContent = "Pause";
      PLAYERS.add(stop);
      timer = setInterval(() => {
        if (step === count - 1) stop();
        else go(step + 1);
      }, pace);
    }

    function relabel(newChips) {
      newChips.forEach(({ text, kind, name }, i) => {
        buttons[i].textContent = text;
        buttons[i].className = `chip ${kind || ""}`;
        buttons[i].setAttribute("aria-label", name || `${what} ${i + 1}: ${text}`);
      });
      go(step, true);
    }

    if (chips) relabel(chips);
    go(step, true);
    return { element, set: go, relabel, stop };
  };
})((window.Explorer ||= {}));
