/* The book's own script: sliders over precomputed frames, keyboard access to whatever scrolls sideways, light print.
   A plain script without modules or requests, so that it also runs when a page is opened from file://. */
(function () {
  "use strict";

  const FRAME_MS = 700;

  /* <div data-sslbook-slider>: one <img data-text> per value, all but one hidden; the control is shown here because
     without this script it would do nothing. */
  function slider(figure) {
    const frames = Array.from(figure.querySelectorAll("img[data-text]"));
    const last = frames.length - 1;
    const control = figure.querySelector(".sslbook-slider-control");
    const input = figure.querySelector("input[type=range]");
    const output = figure.querySelector("output");
    if (!frames.length || !control || !input || !output) return;
    const note = figure.querySelector(".sslbook-slider-note");
    if (note) note.hidden = true;
    control.hidden = false;

    function show() {
      const chosen = Number(input.value);
      frames.forEach((frame, i) => { frame.hidden = i !== chosen; });
      output.textContent = frames[chosen].dataset.text;
      input.setAttribute("aria-valuetext", frames[chosen].dataset.text);
    }
    input.addEventListener("input", show);
    show(); /* a reloaded page keeps the slider's place: bring the picture there */
    const button = figure.querySelector("button.sslbook-play");
    if (button) playable(button, input, output, last, (place) => { input.value = place; show(); });
  }

  /* A play button shows the frames in turn, from where the slider stands to the last, or all of them if it stands there. Nothing
     moves before somebody presses it; it stops at the end, when it is pressed again, and when somebody takes the slider. */
  function playable(button, input, output, last, move) {
    const what = button.getAttribute("aria-label").replace(/^Play/, "");
    let timer = 0;
    function say(word) {
      button.setAttribute("aria-label", word + what);
      button.toggleAttribute("data-playing", Boolean(timer));
      /* A screen reader need not read each of the values that rush by. */
      output.setAttribute("aria-live", timer ? "off" : "polite");
    }
    function stop() {
      clearInterval(timer);
      timer = 0;
      say("Play");
    }
    button.addEventListener("click", () => {
      if (timer) { stop(); return; }
      if (Number(input.value) >= last) move(0);
      timer = setInterval(() => {
        move(Number(input.value) + 1);
        if (Number(input.value) >= last) stop();
      }, FRAME_MS);
      say("Pause");
    });
    ["input", "pointerdown", "keydown"].forEach((touch) => input.addEventListener(touch, stop));
  }

  /* <div data-sslbook-ask>: a fold with a number; here a box takes its place, and takes the reader's own: 0.4, 2/5 or 0,4. */
  function ask(box, place) {
    const form = document.createElement("form"), id = `sslbook-ask-${place}`;
    form.innerHTML = `<label for="${id}">Your number</label><input id="${id}" inputmode="text" autocomplete="off" size="8">`
      + '<button type="submit">Check</button><output aria-live="polite"></output>';
    const [input, said] = [form.querySelector("input"), form.querySelector("output")];
    const near = (given, number) => Math.abs(given - number) <= Number(box.dataset.within) + 1e-12;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const parts = input.value.trim().replace(",", ".").replace("\u2212", "-").split("/");
      const given = parts.some((part) => !part.trim()) || parts.length > 2 ? NaN : Number(parts[0]) / Number(parts[1] || 1);
      const mistake = JSON.parse(box.dataset.wrong).find(([number]) => near(given, number));
      const right = near(given, Number(box.dataset.answer));
      box.dataset.state = right ? "right" : "wrong";
      if (!Number.isFinite(given)) said.textContent = "A number, please, such as 0.4 or 2/5.";
      else said.textContent = right ? "✓ Yes." : mistake ? `✗ ${mistake[1]}` : "✗ Not this one.";
    });
    box.querySelector("details").hidden = true; /* the solution has it, too */
    box.prepend(form);
  }

  /* Wide equations, tables and code scroll inside the column; a keyboard can only scroll what it can focus.
     data-sslbook-wide says where there is more to see (left, right or both): the style sheet fades that side. */
  const SCROLLING = "div.math > mjx-container, .pst-scrollable-table-container, .bd-article pre, .cell_output .text_html, span.math.sslbook-scrolls";
  function more(box) {
    const left = box.scrollLeft > 1, right = box.scrollLeft + box.clientWidth < box.scrollWidth - 1;
    box.dataset.sslbookWide = left && right ? "both" : left ? "left" : "right";
  }
  function focusable(box) {
    if (box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible") {
      if (!("sslbookWide" in box.dataset)) box.addEventListener("scroll", () => more(box), { passive: true });
      if (!box.hasAttribute("tabindex")) box.setAttribute("tabindex", "0");
      more(box);
    } else if ("sslbookWide" in box.dataset) {
      delete box.dataset.sslbookWide;
      box.removeAttribute("tabindex");
    }
  }
  /* What is folded is left: to ask for its size would lay it out. It settles when it opens. */
  const shown = (element) => element.checkVisibility();
  function settle(place) {
    Array.from(place.querySelectorAll("span.math")).filter(shown).forEach(fit);
    Array.from(place.querySelectorAll(SCROLLING)).filter(shown).forEach(focusable);
  }
  /* Formulas that have just been typeset (formulas.js), and the tables that hold them. */
  document.addEventListener("sslbook:typeset", (event) => {
    const formulas = event.detail.filter(shown);
    formulas.filter((formula) => formula.matches("span.math")).forEach(fit);
    const boxes = formulas.flatMap((formula) => [formula, formula.querySelector("mjx-container"), formula.closest(SCROLLING)]);
    new Set(boxes.filter((box) => box && box.matches(SCROLLING))).forEach(focusable);
  });
  document.addEventListener("toggle", (event) => settle(event.target), true);

  /* A formula in a sentence can't be broken. One that is a little wider than its column is set smaller; one that is much
     wider scrolls. A few pixels are no excess: ink may reach beyond its box. */
  const SLACK = 24, SMALLEST = 0.72;
  function fit(formula) {
    const picture = formula.querySelector("mjx-container");
    const column = formula.closest("p, li, dd, dt, td, th, h1, h2, h3, figcaption, summary");
    formula.classList.remove("sslbook-scrolls");
    formula.style.fontSize = "";
    if ("sslbookWide" in formula.dataset) {
      delete formula.dataset.sslbookWide;
      formula.removeAttribute("tabindex");
    }
    if (!picture || !column || column.closest("table")) return; /* a table grows with what it holds, and scrolls itself */
    const style = getComputedStyle(column);
    const room = column.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const held = formula.closest(".sslbook-nobreak") || formula;
    const need = () => held.getBoundingClientRect().width;
    const excess = need() - room;
    if (room <= 0 || excess <= 1) return;
    /* Some machines draw letters in whole pixels only: what was asked for may not be enough. */
    for (let size = room / need(); size >= SMALLEST; size *= Math.min(0.98, room / need())) {
      formula.style.fontSize = `${100 * size}%`;
      if (need() <= room + 1) return;
    }
    formula.style.fontSize = "";
    if (excess > SLACK) formula.classList.add("sslbook-scrolls");
  }

  /* The element that a fragment ("#thm-1") names, as browsers find it: as it is written, else decoded; one that is no
     percent-encoding ("#50%") is only what is written. formulas.js and ledger.js ask it, too. */
  window.sslbookTarget = function (hash) {
    const name = hash.slice(1), there = document.getElementById(name);
    if (there) return there;
    try { return document.getElementById(decodeURIComponent(name)); } catch { return null; }
  };

  /* A link into a folded part of the page opens it. */
  function unfold() {
    const target = window.sslbookTarget(location.hash);
    let fold = target && target.closest("details:not([open])");
    if (!fold) return;
    for (; fold; fold = target.closest("details:not([open])")) fold.open = true;
    target.scrollIntoView();
  }

  /* Paper is white: print a dark page as a light one. */
  function printLight() {
    const root = document.documentElement;
    let theme;
    window.addEventListener("beforeprint", () => { theme = root.dataset.theme; root.dataset.theme = "light"; });
    window.addEventListener("afterprint", () => { if (theme) root.dataset.theme = theme; });
  }

  function printButtons() {
    document.querySelectorAll("[data-sslbook-print]").forEach((button) => {
      button.addEventListener("click", () => window.print());
    });
  }

  function start() {
    printLight();
    printButtons();
    unfold();
    window.addEventListener("hashchange", unfold);
    /* The same link again, after a reader closed what it opened: no hash changes. */
    document.addEventListener("click", (event) => {
      const link = event.target.closest && event.target.closest("a[href*='#']");
      if (link && link.href === location.href) setTimeout(unfold);
    });
    document.querySelectorAll("[data-sslbook-slider]").forEach(slider);
    document.querySelectorAll("[data-sslbook-ask]").forEach(ask);
    settle(document);
    let waiting;
    window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(settle, 150, document); });
  }

  if (document.readyState === "complete") start();
  else window.addEventListener("load", start);
})();
