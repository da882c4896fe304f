/* Formulas are typeset where the reader is, then a few at a time those that follow and those before, and all of them before
   printing. Runs before mathjax.js, whose MathJax.startup.promise then waits for the last formula; the event sslbook:typeset
   names those that have got their size. */
(function () {
  "use strict";

  const FEW = 24, AHEAD = 0.5; /* of the window's height: typeset formulas take less room, and others move up */
  /* Where a line that begins with a quad goes on with a statement, it was broken for phones. */
  const BROKEN = /\s*\\\\\s*&\s*(\\q?quad\s*)+/g, WIDE = window.matchMedia("(min-width: 48rem)").matches;
  const waiting = new Set();
  let all = [], at = 0; /* all formulas of the page, and the place among them where the reader is */
  let led = null; /* where a link led: it stays in its place while what stands above gets its size, till the reader moves */
  let finish;

  function typeset(formulas) {
    if (!formulas.length) return;
    formulas.forEach((formula) => waiting.delete(formula));
    window.MathJax.typeset(formulas);
    document.dispatchEvent(new CustomEvent("sslbook:typeset", { detail: formulas }));
    if (led) led.scrollIntoView({ behavior: "instant" });
    if (!waiting.size) finish();
  }

  /* The reader has come to these. */
  function visit(formulas) {
    if (formulas.length) at = all.indexOf(formulas[0]);
    typeset(formulas.filter((formula) => waiting.has(formula)));
  }

  const whenIdle = (task) => (window.requestIdleCallback ? requestIdleCallback(task, { timeout: 400 }) : setTimeout(task, 40));
  function goOn() {
    typeset([...all.slice(at), ...all.slice(0, at)].filter((formula) => waiting.has(formula)).slice(0, FEW));
    if (waiting.size) whenIdle(goOn);
  }

  function seen(formula) {
    if (!waiting.has(formula) || !formula.checkVisibility()) return false;
    const box = formula.getBoundingClientRect();
    return box.bottom > 0 && box.top < (1 + AHEAD) * window.innerHeight;
  }

  /* An inline formula stays on one line with the punctuation around it, the ’s and the -th of an index too: browsers may break
     beside any picture. */
  const OPENS = /[(\[“‘"']+$/, CLOSES = /^[^\p{L}\p{N}_\s(\[“‘—–/·]+(?:[\p{L}\p{N}_]{1,2}(?![\p{L}\p{N}_]))?/u;
  function hold(formula) {
    const before = formula.previousSibling, after = formula.nextSibling;
    const opening = before instanceof Text && before.data.match(OPENS);
    const closing = after instanceof Text && after.data.match(CLOSES);
    if (!opening && !closing) return;
    const held = document.createElement("span");
    held.className = "sslbook-nobreak";
    formula.replaceWith(held);
    if (opening) { before.data = before.data.slice(0, opening.index); held.append(opening[0]); }
    held.append(formula);
    if (closing) { after.data = after.data.slice(closing[0].length); held.append(closing[0]); }
  }

  /* On a phone a long inline formula may go on in the next line before a relation that stands in no bracket. */
  const LONG = 32, TOKEN = /\\left\b|\\right\b|\\(?:le|ge|leq|geq|approx)\b|\\.|[\s\S]/g;
  const DEPTH = { "{": 1, "(": 1, "[": 1, "\\left": 1, "}": -1, ")": -1, "]": -1, "\\right": -1 };
  function breakable(formula) {
    const source = formula.textContent.trim().slice(2, -2), parts = [""];
    if (source.length < LONG || source.includes("\\begin")) return;
    let depth = 0;
    for (const [token] of source.matchAll(TOKEN)) {
      depth += DEPTH[token] || 0;
      if (!depth && /^([=<>]|\\(le|ge|leq|geq|approx))$/.test(token) && parts[parts.length - 1].trim()) parts.push("{}");
      parts[parts.length - 1] += token;
    }
    formula.replaceWith(...parts.map((part) => {
      const piece = formula.cloneNode();
      piece.textContent = `\\(${part}\\)`;
      return piece;
    }));
  }

  function begin() {
    if (!WIDE) document.querySelectorAll("span.math").forEach(breakable);
    document.querySelectorAll("span.math").forEach(hold);
    all = Array.from(document.querySelectorAll(".math"));
    const parts = WIDE ? all.flatMap((formula) => Array.from(formula.childNodes)) : [];
    for (const part of parts) if (part instanceof Text) part.data = part.data.replace(BROKEN, " ");
    all.forEach((formula) => waiting.add(formula));
    const finished = new Promise((resolve) => { finish = resolve; });
    window.addEventListener("beforeprint", () => typeset(Array.from(waiting)));
    if (led) led.scrollIntoView({ behavior: "instant" });
    for (let some; (some = all.filter(seen)).length; ) visit(some);
    const watch = new IntersectionObserver(
      (entries) => visit(entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target)),
      { rootMargin: `0px 0px ${100 * AHEAD}% 0px` },
    );
    waiting.forEach((formula) => watch.observe(formula));
    whenIdle(goOn);
    return finished;
  }

  function follow(hash) {
    led = window.sslbookTarget?.(hash); /* of book.js */
  }
  /* Who comes back or reloads is where he was, not where the link leads. */
  const [arrival] = performance.getEntriesByType("navigation");
  if (!arrival || arrival.type === "navigate") follow(location.hash);
  for (const move of ["wheel", "touchmove", "pointerdown", "keydown"]) {
    window.addEventListener(move, () => { led = null; }, { capture: true, passive: true });
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a[href*='#']");
    const elsewhere = event.ctrlKey || event.metaKey || event.shiftKey; /* another tab */
    if (link && link.pathname === location.pathname && !elsewhere) follow(link.hash);
  });

  window.MathJax = Object.assign(window.MathJax || {}, { startup: { pageReady: begin } });
})();
