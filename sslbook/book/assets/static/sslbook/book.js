/* The book's own script: sliders over precomputed frames, keyboard access to whatever scrolls sideways, light print.
   A plain script without modules or requests, so that it also runs when a page is opened from file://. */
(function () {
  "use strict";

  /* <figure data-sslbook-slider>: one <img data-text> per value, all but one hidden; the control is shown here because
     without this script it would do nothing. */
  function slider(figure) {
    const frames = Array.from(figure.querySelectorAll("img[data-text]"));
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
      input.style.setProperty("--filled", (100 * chosen) / Math.max(1, frames.length - 1) + "%");
    }
    input.addEventListener("input", show);
    show(); /* a reloaded page keeps the slider's place: bring the picture there */
  }

  /* Wide equations, tables and code scroll inside the column; a keyboard can only scroll what it can focus.
     data-sslbook-wide says where there is more to see (left, right or both): the style sheet fades that side. */
  const SCROLLING = "div.math > mjx-container, .pst-scrollable-table-container, .bd-article pre, .cell_output .text_html, span.math.sslbook-scrolls";
  function more(box) {
    const left = box.scrollLeft > 1, right = box.scrollLeft + box.clientWidth < box.scrollWidth - 1;
    box.dataset.sslbookWide = left && right ? "both" : left ? "left" : "right";
  }
  function focusable() {
    document.querySelectorAll("span.math").forEach(fit);
    document.querySelectorAll(SCROLLING).forEach((box) => {
      if (box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX !== "visible") {
        if (!("sslbookWide" in box.dataset)) box.addEventListener("scroll", () => more(box), { passive: true });
        if (!box.hasAttribute("tabindex")) box.setAttribute("tabindex", "0");
        more(box);
      } else if ("sslbookWide" in box.dataset) {
        delete box.dataset.sslbookWide;
        box.removeAttribute("tabindex");
      }
    });
  }

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

  /* A link into a folded part of the page opens it. */
  function unfold() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
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

  function start() {
    printLight();
    unfold();
    window.addEventListener("hashchange", unfold);
    /* The same link again, after a reader closed what it opened: no hash changes. */
    document.addEventListener("click", (event) => {
      const link = event.target.closest && event.target.closest("a[href*='#']");
      if (link && link.href === location.href) setTimeout(unfold);
    });
    document.querySelectorAll("[data-sslbook-slider]").forEach(slider);
    const typeset = window.MathJax && MathJax.startup && MathJax.startup.promise;
    (typeset || Promise.resolve()).then(focusable);
    let waiting;
    window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(focusable, 150); });
  }

  if (document.readyState === "complete") start();
  else window.addEventListener("load", start);
})();
