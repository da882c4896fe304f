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

  /* Wide equations, tables and code scroll inside the column; a keyboard can only scroll what it can focus. */
  const SCROLLING = "div.math > mjx-container, span.math, .pst-scrollable-table-container, .bd-article pre, .cell_output .text_html";
  function focusable() {
    document.querySelectorAll(SCROLLING).forEach((box) => {
      if (box.scrollWidth > box.clientWidth + 1) {
        box.dataset.sslbookWide = "";
        if (!box.hasAttribute("tabindex")) box.setAttribute("tabindex", "0");
      } else if ("sslbookWide" in box.dataset) {
        delete box.dataset.sslbookWide;
        box.removeAttribute("tabindex");
      }
    });
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
    document.querySelectorAll("[data-sslbook-slider]").forEach(slider);
    const typeset = window.MathJax && MathJax.startup && MathJax.startup.promise;
    (typeset || Promise.resolve()).then(focusable);
    let waiting;
    window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(focusable, 150); });
  }

  if (document.readyState === "complete") start();
  else window.addEventListener("load", start);
})();
