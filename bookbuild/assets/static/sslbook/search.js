/* Search by section, over the texts in sections.js. No requests, so that it also works from file://.
   A section is worth more the rarer the word and the more often it stands there, most in its title, then in its boxes' titles;
   short answers come first, pages without a number and appendices after chapters. A public name of the library comes first of all, and
   so does a result of a paper that is asked for by its number ("Theorem 6"); a name of a parameter comes with the functions that
   have it. For a word that is nowhere the nearest one that is somewhere is taken. */
(function () {
  "use strict";

  const TITLE = 9, CHAPTER = 1.5, BOX = 2.5, SATURATION = 1.4, ANSWER = 1.8, ASIDE = 0.7, APPENDIX = 0.45, SHOWN = 30;
  const ENTRY = /^ssl\w+\./;  // the anchor of a public name
  const APPENDICES = /\/(ledger|errata|notation|library|reproduce)$/;
  const WORD = /[\p{L}\p{N}]+(?:\.\p{N}+|_+[\p{L}\p{N}]+)*/gu;  // 6.4 is one word, and so is top_eigenpairs
  const ASKING = new Set(("a an and are at be can do does for from how i if in is it its my of on or should so that the there this to "
    + "was what when where which why with you your").split(" "));
  const RESULT = /^\s*(theorem|thm|lemma|lem|corollary|cor|equation|eq|table|tab|figure|fig|definition|def)\.?\s*(\d+)\s*$/i;

  const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replace(/[’']s\b/g, "");
  const words = (text) => plain(text).match(WORD) || [];
  /* A text has its names, and the words that they are made of. */
  const withParts = (text) => words(text).flatMap((word) => word.includes("_") ? [word, ...word.split(/_+/)] : [word]);
  /* Plurals that are more than an s, by what stands for them: each rule has those of its kind, and no word that only looks like one. */
  const PLURALS = [
    [/(matr|append|hel)ices?$/, "$1ix"], [/(ind|vert|vort|simpl|cort|^ap|^cod)ices?$/, "$1ex"],
    [/^(ax|(?:eigen|sub)?bas|.*(?:lys|thes|gnos|emphas)|cris)es$/, "$1is"], [/(x|ch|sh|ss|zz|^gas|^bus)es$/, "$1"],
    [/(maxim|minim|optim|extrem|spectr|moment|quant|strat|errat|continu|equilibri)a$/, "$1um"],
    [/(criteri|phenomen|automat|polyhedr)a$/, "$1on"], [/((?:lem|sche|stig)ma)ta$/, "$1"], [/(formul|antenn)ae$/, "$1a"],
    [/^(radi|foc|loc|nucle|stimul|(?:sub)?modul|tor|calcul)i$/, "$1us"], [/^(hal|shel|cal|sel|wol|loa|lea)ves$/, "$1f"],
    [/(child)ren$/, "$1"], [/(?<=..)ie[sd]?$/, "y"], [/((?:[cgt]p|el|men)u)s$/, "$1"],
  ];
  /* A word without an s that is no plural's stays: loss, axis, radius, bias. */
  const SINGULAR = /(?:[sui]s|(?:bi|^ali|^canv|^atl)as|^lens)$/;
  function singular(word) {
    if (word.length < 4) return word;
    const [rule, instead] = PLURALS.find(([rule]) => rule.test(word)) || (SINGULAR.test(word) ? [] : [/s$/, ""]);
    return rule ? word.replace(rule, instead) : word;
  }
  /* Enough to bring together collapse, collapses, collapsed and collapsing. */
  function stem(word) {
    const one = singular(word);
    return one.length < 5 ? one : one.replace(/(?:ation|ising|izing|ised|ized|ing|(?<!e)ed|e)$/, "");
  }

  function prepare(sections) {
    let length = 0;
    const written = new Map();  // each word, as it is written, by its stem, and how often
    const known = sections.map((section) => {
      const count = new Map();
      const own = withParts(section.text).map(stem);
      for (const word of own) count.set(word, (count.get(word) || 0) + 1);
      for (const word of withParts(`${section.title} ${section.boxes} ${section.text}`)) written.set(word, (written.get(word) || 0) + 1);
      length += own.length;
      return {
        section, count, length: own.length,
        title: withParts(section.title).map(stem),
        chapter: words(section.chapter).map(stem),
        boxes: words(section.boxes).map(stem),
        weight: APPENDICES.test(section.page) ? APPENDIX : /\/questions$/.test(section.page) ? ANSWER
          : /^\d/.test(section.chapter) && !/\/(details|audit)_/.test(section.page) ? 1 : ASIDE,
      };
    });
    return { known, written, mean: length / Math.max(1, known.length) };
  }

  /* How many letters are to be changed, put in, left out or swapped with the next to make one word of another. */
  function slips(one, other) {
    let last = [], row = [...Array(other.length + 1).keys()];
    for (let i = 1; i <= one.length; i++) {
      const next = [i];
      for (let j = 1; j <= other.length; j++) {
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (one[i - 1] !== other[j - 1]));
        if (i > 1 && j > 1 && one[i - 1] === other[j - 2] && one[i - 2] === other[j - 1]) next[j] = Math.min(next[j], last[j - 2] + 1);
      }
      [last, row] = [row, next];
    }
    return row[other.length];
  }

  /* The words of a query that say something; for each that is nowhere the parts of a name, or the nearest word: [asked, taken]. */
  function understood(index, query) {
    const all = words(query), telling = all.filter((word) => !ASKING.has(word));
    const somewhere = (word) => index.known.some((entry) => times(entry.count, word) || begins(entry.title, word) || begins(entry.boxes, word)
      || begins(entry.chapter, word));
    return (telling.length ? telling : all).flatMap((word, k, asked) => {
      if (somewhere(stem(word)) || [asked[k - 1] + word, word + asked[k + 1]].some((both) => somewhere(stem(both)))) return [[word, word]];
      if (word.includes("_") && word.split(/_+/).every((part) => somewhere(stem(part)))) return word.split(/_+/).map((part) => [part, part]);
      const most = word.length < 5 ? 1 : 2;
      const near = [...index.written].filter(([other]) => other.length > 3 && Math.abs(other.length - word.length) <= most)
        .map(([other, count]) => [slips(word, other), -count, other]).filter(([far]) => far <= most);
      return [[word, near.length ? near.sort((a, b) => a[0] - b[0] || a[1] - b[1])[0][2] : word]];
    });
  }

  const begins = (list, word) => list.some((other) => other === word) ? 1
    : !/^\p{N}/u.test(word) && list.some((other) => other.startsWith(word)) ? 0.6 : 0;
  function times(count, word) {
    let found = count.get(word) || 0;
    if (word.length > 2) for (const [other, n] of count) if (other !== word && other.startsWith(word)) found += 0.6 * n;
    return found;
  }

  /* "batch norm" is BatchNorm, too: words that stand side by side also count as one. */
  function ask(taken) {
    const asked = taken.map(([, word]) => stem(word));
    return asked.map((word, i) => {
      const joined = [];
      if (i + 1 < asked.length) joined.push(word + asked[i + 1]);
      if (i > 0) joined.push(asked[i - 1] + word);
      return [word, ...joined];
    });
  }

  /* "Theorem 6" is what the papers call it, in the titles of errata; in those of our boxes it is A-Thm6. */
  function named(query) {
    const [, word, number] = query.match(RESULT) || [];
    if (!word) return null;
    const code = word.slice(0, /^eq/i.test(word) ? 2 : 3).replace(/^the$/i, "thm");
    return new RegExp(`\\b[a-c]-${code}${number}(?!\\d)|\\b${word}s? ${number}(?![\\d.]*\\d)`, "i");
  }

  /* Whether a section is the entry of the name that is asked for, 2, or of a function with such a parameter, 1. */
  function entryOf(section, query) {
    const name = query.trim().replace(/^(import\s+)?ssl\w+\./, "").replace(/\W*$/, "").toLowerCase();
    if (!ENTRY.test(section.anchor)) return 0;
    const own = section.title.toLowerCase();
    return own === name || own.endsWith("." + name) ? 2 : section.boxes.toLowerCase().split(" ").includes(name) ? 1 : 0;
  }

  function search(index, query, taken = understood(index, query)) {
    const asked = ask(taken);
    if (!asked.length) return [];
    const hits = index.known.map((entry) => asked.map((forms) => forms.map((word) => {
      const tf = times(entry.count, word);
      const size = 0.4 + 0.6 * entry.length / index.mean;
      return begins(entry.title, word) * TITLE / Math.sqrt(entry.title.length + 2) + begins(entry.chapter, word) * CHAPTER
        + begins(entry.boxes, word) * BOX + tf * (SATURATION + 1) / (tf + SATURATION * size);
    }).reduce((a, b) => Math.max(a, b), 0)));
    const rarity = asked.map((_, i) => {
      const among = hits.filter((hit) => hit[i] > 0).length;
      return Math.log(1 + (index.known.length - among + 0.5) / (among + 0.5));
    });
    const phrase = plain(query.trim()), name = named(query);
    const rank = (all) => index.known.map((entry, k) => {
      if (name && name.test(entry.section.title + " · " + entry.section.boxes)) return { entry, score: 100 + entry.weight };
      const entered = entryOf(entry.section, query);
      if (entered > 1) return { entry, score: 200 - entry.section.title.length };
      if (all ? !hits[k].every((hit) => hit > 0) : !hits[k].some((hit) => hit > 0)) return null;
      let score = hits[k].reduce((sum, hit, i) => sum + hit * rarity[i], 0) * (entered ? 1 : entry.weight);
      if (plain(entry.section.title).includes(phrase)) score *= 1.5;
      else if (asked.length > 1 && plain(entry.section.text).includes(phrase)) score *= 1.25;
      return { entry, score };
    }).filter(Boolean).sort((a, b) => b.score - a.score);
    const every = rank(true);
    return (every.length ? every : rank(false)).map((hit) => hit.entry.section);
  }

  /* A stretch of the text around the first word that was asked for, with all of them marked. */
  function excerpt(text, forms) {
    const asked = forms.flat();
    const is = (word) => asked.some((other) => stem(plain(word)).startsWith(other));
    const found = [...text.matchAll(WORD)].find((match) => is(match[0]));
    const at = found ? found.index : 0;
    let begin = Math.max(0, at - 70);
    if (begin) begin = Math.max(0, text.indexOf(" ", begin) + 1);
    let end = Math.min(text.length, begin + 220);
    if (end < text.length) end = text.lastIndexOf(" ", end);
    const shown = document.createElement("p");
    const piece = (begin ? "… " : "") + text.slice(begin, end) + (end < text.length ? " …" : "");
    let last = 0;
    for (const match of piece.matchAll(WORD)) {
      if (!is(match[0])) continue;
      const mark = document.createElement("mark");
      mark.textContent = match[0];
      shown.append(piece.slice(last, match.index), mark);
      last = match.index + match[0].length;
    }
    shown.append(piece.slice(last));
    return shown;
  }

  function item(section, forms) {
    const row = document.createElement("li"), link = document.createElement("a"), where = document.createElement("small");
    link.href = `${section.page}.html${section.title === section.chapter ? "" : "#" + section.anchor}`;
    link.textContent = section.title;
    row.append(link);
    if (section.title !== section.chapter) {
      where.textContent = section.chapter;
      row.append(" ", where);
    }
    row.append(excerpt(section.text, forms));
    return row;
  }

  function start() {
    const place = document.getElementById("search-results");
    const input = document.querySelector(".bd-search-container form.bd-search input");
    if (!place || !window.sslbookSections) return;
    const index = prepare(window.sslbookSections);
    window.sslbookSearch = (query) => search(index, query);
    const status = document.createElement("p"), list = document.createElement("ul");
    status.setAttribute("role", "status");
    list.className = "search";
    const more = document.createElement("button");
    more.textContent = "Show all";
    place.append(status, list, more);
    function show(query, most = SHOWN) {
      const taken = understood(index, query), forms = ask(taken), found = search(index, query, taken);
      const mended = taken.filter(([asked, word]) => asked !== word).map(([asked, word]) => `Nothing has “${asked}”; this is for “${word}”. `);
      list.replaceChildren(...found.slice(0, most).map((section) => item(section, forms)));
      more.hidden = found.length <= most;
      more.onclick = () => show(query, found.length);
      const count = found.length > most ? `The first ${most} of ${found.length} sections` : `${found.length} section${found.length === 1 ? "" : "s"}`;
      status.textContent = !query.trim() ? "Type a word: collapse, BatchNorm, temperature."
        : found.length ? `${mended.join("")}${count} for “${query.trim()}”.` : `Nothing for “${query.trim()}”: try fewer or shorter words.`;
    }
    const asked = new URLSearchParams(location.search).get("q") || "";
    if (input) {
      input.value = asked;
      let waiting;
      input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => show(input.value), 120); });
      input.form.addEventListener("submit", (event) => { event.preventDefault(); show(input.value); });
      input.focus();
    }
    show(asked);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
