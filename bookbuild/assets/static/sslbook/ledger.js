/* The ledger's filter: words and a verdict. Without this script all claims are there. A plain script without requests, so that it
   also works from file://. */
(function () {
  "use strict";

  const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();

  /* A claim is the paragraph that begins it, and what stands behind that up to the next claim or fold. */
  function claim(first) {
    const parts = [first];
    for (let next = first.nextElementSibling; next && !next.matches(".sslbook-entry, .sslbook-fold, section"); next = next.nextElementSibling) {
      parts.push(next);
    }
    const text = plain(parts.map((part) => part.textContent).join(" "));
    return { parts, text, verdict: first.querySelector(".sslbook-verdict").textContent.trim(), home: first.closest("section") };
  }

  function field(form, words, input) {
    const label = document.createElement("label");
    input.id = `sslbook-filter-${words.toLowerCase()}`;
    label.htmlFor = input.id;
    label.textContent = words;
    form.append(label, input);
    return input;
  }

  function start() {
    const claims = [...document.querySelectorAll("p.sslbook-entry")].map(claim);
    if (!claims.length) return;
    const sections = [...new Set(claims.map((one) => one.home))];
    const folds = [...document.querySelectorAll("details.sslbook-fold")];
    const form = document.createElement("form"), status = document.createElement("p");
    form.className = "sslbook-filter";
    form.setAttribute("role", "search");
    form.setAttribute("aria-label", "Filter the claims");
    const input = field(form, "Words", document.createElement("input"));
    input.type = "search";
    input.placeholder = "A-Thm3, rate …";
    const select = field(form, "Verdict", document.createElement("select"));
    select.append(new Option("all verdicts", ""), ...[...new Set(claims.map((one) => one.verdict))].map((verdict) => new Option(verdict)));
    status.setAttribute("role", "status");
    form.append(status);
    sections[0].before(form);

    let filtered = false;
    function show() {
      const words = plain(input.value).split(/\s+/).filter(Boolean);
      const now = words.length > 0 || select.value !== "";
      let count = 0;
      for (const one of claims) {
        one.found = words.every((word) => one.text.includes(word)) && (!select.value || one.verdict === select.value);
        count += one.found;
        one.parts.forEach((part) => { part.hidden = !one.found; });
      }
      for (const box of [...sections, ...folds]) {
        const own = claims.filter((one) => box.contains(one.parts[0]));
        box.hidden = !own.some((one) => one.found);
      }
      if (now) folds.forEach((fold) => { fold.open = !fold.hidden; });
      else if (filtered) folds.forEach((fold) => { fold.open = false; });
      filtered = now;
      status.textContent = now ? `${count} of ${claims.length} claims` : `${claims.length} claims`;
    }

    /* A link to a claim that is hidden shows all again. */
    function reveal() {
      const target = window.sslbookTarget(location.hash); /* of book.js */
      if (!target || !target.closest("[hidden]")) return;
      [input.value, select.value] = ["", ""];
      show();
      const fold = target.closest("details");
      if (fold) fold.open = true;
      target.scrollIntoView();
    }

    let waiting; /* what counts is announced when the reader pauses, not at each letter */
    input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(show, 150); });
    select.addEventListener("change", show);
    form.addEventListener("submit", (event) => { event.preventDefault(); show(); });
    window.addEventListener("hashchange", reveal);
    show();
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
