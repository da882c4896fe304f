/* Two canvases. World: two images with two views each in a plane, one linear neuron, and the step that a loss makes. Fates: the
   plane of two weights, in which a reader starts runs of linear BYOL.
   A plain script without modules, requests or timers. Points are moved by mouse, finger or arrow keys; all numbers stand at full
   precision in data-numbers, where tests/bookbuild/test_canvas.py compares them with the library's.

   The population is finite. An anchor is any of the four views, its partner an independent view of the same image, and a negative
   any of the four views; without averaging, each view is an image of its own. A symmetric matrix is [xx, xy, yy]. */
(function () {
  "use strict";

  /* ---- What it computes ---- */

  const IMAGES = [[0, 1], [2, 3]], ALONE = [[0], [1], [2], [3]];
  const START = { views: [[1, -1], [1, 1], [-1, -1], [-1, 1]], weight: [0.7, 0.7], loss: "simple", tau: 0.5, beta: 0.5, averaged: true, centred: true };
  const minus = (a, b) => [a[0] - b[0], a[1] - b[1]];
  const square = (d) => [d[0] * d[0], d[0] * d[1], d[1] * d[1]];
  const sum = (...terms) => terms.reduce((total, [c, m]) => m.map((entry, i) => total[i] + c * entry), terms[0][1].map(() => 0));
  const mean = (list) => sum(...list.map((one) => [1 / list.length, one]));
  const times = (m, v) => [m[0] * v[0] + m[1] * v[1], m[1] * v[0] + m[2] * v[1]];
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
  const length = (v) => Math.hypot(v[0], v[1]);

  /* Between images, within them, and of the mean itself. */
  function moments(views, images) {
    const centres = images.map((image) => mean(image.map((a) => views[a]))), middle = mean(centres);
    return {
      mean: middle,
      common: square(middle),
      between: mean(centres.map((centre) => square(minus(centre, middle)))),
      within: mean(images.map((image, i) => mean(image.map((a) => square(minus(views[a], centres[i])))))),
    };
  }

  /* tau * InfoNCE: the mean over anchors a of r(a, partner) + tau log sum_b exp(-r(a, b) / tau), with r = (z_a - z_b)^2 / 2. Half of
     minus its gradient is this matrix times w; as tau grows it becomes the covariance between images. */
  function infoNce(views, images, w, tau) {
    const terms = [];
    for (const image of images) {
      for (const a of image) {
        const apart = views.map((view) => square(minus(views[a], view)));
        const r = views.map((view) => dot(w, minus(views[a], view)) ** 2 / 2), least = Math.min(...r);
        const mass = r.map((one) => Math.exp((least - one) / tau)), all = mass.reduce((x, y) => x + y);
        views.forEach((_, b) => terms.push([mass[b] / all / 8, apart[b]]));
        image.forEach((p) => terms.push([-1 / image.length / 8, apart[p]]));
      }
    }
    return sum(...terms);
  }

  /* Eigenvalues, the larger first, and unit eigenvectors. */
  function eigen([xx, xy, yy]) {
    const half = (xx - yy) / 2, reach = Math.hypot(half, xy), angle = Math.atan2(xy, half) / 2, centre = (xx + yy) / 2;
    const first = [Math.cos(angle), Math.sin(angle)];
    return { values: [centre + reach, centre - reach], axes: [first, [-first[1], first[0]]] };
  }

  function compute(state) {
    const { views, weight, loss, tau, beta, averaged, centred } = state, images = averaged ? IMAGES : ALONE;
    const found = moments(views, images), kept = centred ? 0 : 1;
    const { between, within, common } = found;
    const operator = loss === "simple" ? sum([1, between], [kept, common])
      : loss === "byol" ? sum([beta - beta * beta, between], [-beta * beta, within], [kept * (beta - beta * beta), common])
        : infoNce(views, images, weight, tau);
    const step = times(operator, weight), a = dot(weight, times(between, weight)), b = dot(weight, times(within, weight));
    return { ...state, ...found, operator, ...eigen(operator), step, share: a + b > 0 ? a / (a + b) : 0 };
  }

  /* ---- What it says ---- */

  const number = (x) => x.toFixed(2).replace(/^-(0\.00)$/, "$1").replace("-", "\u2212");
  const pair = (v) => `(${number(v[0])}, ${number(v[1])})`;
  const NAMES = { simple: "The simple loss", info_nce: "InfoNCE", byol: "BYOL" };
  function sentence(n) {
    const grows = dot(n.weight, n.step), turned = Math.abs(grows) < 0.005 ? "keeps its length" : grows > 0 ? "grows" : "shrinks";
    const given = n.loss === "info_nce" ? ` with \u03c4 = ${number(n.tau)}` : n.loss === "byol" ? ` with \u03b2 = ${number(n.beta)}` : "";
    return `${NAMES[n.loss]}${given}. Between images the variance is ${number(n.between[0])} across and ${number(n.between[2])} up; `
      + `within an image it is ${number(n.within[0])} and ${number(n.within[2])}. `
      + `The operator multiplies by ${number(n.values[0])} along ${pair(n.axes[0])} and by ${number(n.values[1])} along ${pair(n.axes[1])}. `
      + `The weight ${pair(n.weight)} takes the step ${pair(n.step)} and ${turned}; of its output's variance the share ${number(n.share)} survives.`;
  }
  const HINTS = {
    simple: "The operator is the covariance of the images\u2019 mean views.",
    info_nce: "Each view is an anchor, either view of its image its partner, and all four views are negatives. The step is multiplied by \u03c4: with a large \u03c4 it is that of the simple loss.",
    byol: "Along an axis with variance a between and b within images the step is \u03b2(a \u2212 \u03b2(a + b)): the weight grows where the share a/(a + b) exceeds \u03b2.",
  };
  function hint(n) {
    const still = length(n.mean) < 0.005 ? " The mean of all views is zero now: drag a view." : "";
    const stays = n.loss === "info_nce" ? " InfoNCE sees only differences, so the mean changes nothing." : ` What all views share counts as if it told images apart.${still}`;
    return HINTS[n.loss] + (n.averaged ? "" : " Each view now counts as an image of its own, so what augmentation changes grows as well.") + (n.centred ? "" : stays);
  }

  /* ---- What it draws: 100 units of the drawing are one of the plane ---- */

  const REACH = 2.2, UNIT = 100, SIDE = 2 * REACH * UNIT, PAD = 0.2;
  const SVG = "http://www.w3.org/2000/svg";
  const at = (v) => [(REACH + v[0]) * UNIT, (REACH - v[1]) * UNIT];
  function make(kind, parent, attributes = {}, text = "") {
    const element = document.createElementNS(SVG, kind);
    set(element, attributes);
    element.textContent = text;
    return parent.appendChild(element);
  }
  function set(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  }
  function ellipse(element, covariance, centre) {
    const { values, axes } = eigen(covariance), [cx, cy] = at(centre);
    const [rx, ry] = values.map((value) => (Math.sqrt(Math.max(value, 0)) + PAD) * UNIT);
    set(element, { cx, cy, rx, ry, transform: `rotate(${-Math.atan2(axes[0][1], axes[0][0]) * 180 / Math.PI} ${cx} ${cy})` });
  }
  function line(element, from, to) {
    const [x1, y1] = at(from), [x2, y2] = at(to);
    set(element, { x1, y1, x2, y2 });
  }

  function build(root) {
    const name = root.id;
    const drawing = make("svg", root, { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "group", "aria-label": "Four views, the weight, and the step", "aria-describedby": `${name}-said` });
    const tips = make("defs", drawing);
    for (const kind of ["weight", "step"]) {
      const tip = make("marker", tips, { id: `${name}-${kind}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 14, markerHeight: 14, markerUnits: "userSpaceOnUse", orient: "auto" });
      make("path", tip, { d: "M0 0 8 4 0 8z", class: `sslbook-canvas-${kind}-tip` });
    }
    const shape = (kind, what, more) => make(kind, drawing, { class: `sslbook-canvas-${what}`, ...more });
    const label = (what, words) => make("text", drawing, { class: `sslbook-canvas-word sslbook-canvas-${what}-word` }, words);
    line(shape("line", "rule"), [-REACH, 0], [REACH, 0]);
    line(shape("line", "rule"), [0, -REACH], [0, REACH]);
    set(label("rule", "across"), { x: SIDE - 6, y: SIDE / 2 - 8, "text-anchor": "end" });
    set(label("rule", "up"), { x: SIDE / 2 + 8, y: 18 });
    const parts = {
      within: IMAGES.map(() => shape("ellipse", "within")), between: shape("ellipse", "between"),
      axes: [0, 1].map(() => shape("line", "axis")), weight: shape("line", "weight", { "marker-end": `url(#${name}-weight)` }),
      step: shape("line", "step", { "marker-end": `url(#${name}-step)` }), rest: shape("circle", "rest", { r: 11 }),
      words: { within: label("within", "within"), between: label("between", "between"), weight: label("weight", "w"), step: label("step", "step") },
    };
    const handles = ["View 1 of image A", "View 2 of image A", "View 1 of image B", "View 2 of image B", "The weight"].map((what, i) => {
      const handle = make("g", drawing, { class: "sslbook-canvas-handle", tabindex: 0, role: "button", "aria-roledescription": "movable point", "data-handle": i < 4 ? `view-${i}` : "weight" });
      make("circle", handle, { r: 24, class: "sslbook-canvas-ring" });
      if (i < 2) make("rect", handle, { x: -9, y: -9, width: 18, height: 18, class: "sslbook-canvas-view" });
      else make("circle", handle, { r: i < 4 ? 10 : 7, class: i < 4 ? "sslbook-canvas-view" : "sslbook-canvas-grip" });
      if (i < 4) make("text", handle, { class: "sslbook-canvas-word", x: i < 2 ? 16 : -16, y: 5, "text-anchor": i < 2 ? "start" : "end" }, i < 2 ? "A" : "B");
      return { handle, what };
    });
    return { drawing, parts, handles };
  }

  function draw({ parts, handles }, n) {
    IMAGES.forEach((image, i) => {
      const own = image.map((a) => n.views[a]), centre = mean(own);
      ellipse(parts.within[i], mean(own.map((view) => square(minus(view, centre)))), centre);
    });
    ellipse(parts.between, n.between, n.mean);
    parts.within.forEach((one) => one.classList.toggle("sslbook-canvas-off", !n.averaged));
    n.axes.forEach((axis, i) => {
      const size = Math.min(Math.abs(n.values[i]), REACH), arm = axis.map((entry) => entry * size);
      line(parts.axes[i], arm.map((entry) => -entry), arm);
      parts.axes[i].classList.toggle("sslbook-canvas-negative", n.values[i] < 0);
    });
    const long = length(n.step), end = n.weight.map((entry, i) => entry + n.step[i]), tiny = long < 0.05;
    line(parts.weight, [0, 0], n.weight);
    line(parts.step, n.weight, end);
    parts.step.style.visibility = tiny ? "hidden" : "";
    const [cx, cy] = at(n.weight);
    set(parts.rest, { cx, cy, visibility: tiny ? "visible" : "hidden" });
    const place = (word, point, dx, dy, anchor = "middle") => {
      const [x, y] = at(point).map((entry, i) => Math.min(Math.max(entry + [dx, dy][i], 30), SIDE - 30));
      set(parts.words[word], { x, y, "text-anchor": anchor });
    };
    const [left, right] = IMAGES.map((image) => mean(image.map((a) => n.views[a])));
    place("within", [left[0], Math.min(n.views[0][1], n.views[1][1])], 0, 44);
    place("between", mean([left, right]), -44, 42);
    place("weight", n.weight.map((entry) => entry / 2), -14, -8);
    place("step", end, n.step[0] < -0.02 ? -24 : 24, n.step[1] < 0 ? 22 : -8);
    parts.words.step.style.visibility = parts.step.style.visibility;
    handles.forEach(({ handle, what }, i) => {
      const point = i < 4 ? n.views[i] : n.weight;
      handle.setAttribute("transform", `translate(${at(point).join(" ")})`);
      handle.setAttribute("aria-label", `${what}, at ${pair(point)}; arrow keys move it`);
    });
  }

  /* ---- What moves it ---- */

  const CONTROLS = (name) => `
<fieldset><legend>Loss</legend>
<label><input type="radio" name="${name}-loss" value="simple" checked> simple</label>
<label><input type="radio" name="${name}-loss" value="info_nce"> InfoNCE</label>
<label><input type="radio" name="${name}-loss" value="byol"> BYOL</label></fieldset>
<label class="sslbook-canvas-range" data-for="info_nce" hidden>\u03c4 <input type="range" name="tau" min="-1.3" max="1.3" step="0.01" value="-0.3"> <output></output></label>
<label class="sslbook-canvas-range" data-for="byol" hidden>\u03b2 <input type="range" name="beta" min="0" max="1" step="0.01" value="0.5"> <output></output></label>
<label><input type="checkbox" name="averaged"> What if views are not averaged?</label>
<label><input type="checkbox" name="centred"> What if the mean stays?</label>
<p class="sslbook-canvas-buttons"><button type="button" data-do="step">Take a step</button> <button type="button" data-do="reset">Start again</button></p>
<p class="sslbook-canvas-hint"></p>`;
  const inside = (x) => Math.min(Math.max(Math.round(x * 100) / 100, -2), 2);

  /* What both canvases have: the form and the sentence below the drawing, and a point that mouse, finger and keys move. */
  function frame(root, controls) {
    const panel = document.createElement("form"), said = document.createElement("p");
    panel.className = "sslbook-canvas-panel";
    panel.innerHTML = controls;
    panel.addEventListener("submit", (event) => event.preventDefault());
    said.id = `${root.id}-said`;
    said.className = "sslbook-canvas-said";
    set(said, { "aria-live": "polite", "aria-atomic": "true" });
    root.append(panel, said);
    return { panel, said, control: (field) => panel.elements[field] };
  }
  function place(drawing, event) {
    const box = drawing.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width * 2 * REACH - REACH, REACH - (event.clientY - box.top) / box.height * 2 * REACH];
  }
  function movable(handle, drawing, point, move) {
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(event.pointerId);
      handle.focus();
      event.preventDefault();
    });
    handle.addEventListener("pointermove", (event) => {
      if (handle.hasPointerCapture(event.pointerId)) move(place(drawing, event));
    });
    handle.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!way) return;
      event.preventDefault();
      const by = event.shiftKey ? 0.01 : 0.1;
      move(point().map((entry, i) => entry + by * way[i]));
    });
  }
  function told(control, values) {
    for (const [field, value] of Object.entries(values)) {
      control(field).nextElementSibling.textContent = number(value);
      control(field).setAttribute("aria-valuetext", number(value));
    }
  }

  function world(root) {
    const fresh = () => JSON.parse(JSON.stringify(START));
    let state = fresh();
    const picture = build(root), { panel, said, control } = frame(root, CONTROLS(root.id));

    function show() {
      const n = compute(state);
      draw(picture, n);
      root.dataset.numbers = JSON.stringify(n);
      said.textContent = sentence(n);
      panel.querySelector(".sslbook-canvas-hint").textContent = hint(n);
      panel.querySelectorAll("[data-for]").forEach((row) => { row.hidden = row.dataset.for !== state.loss; });
      told(control, { tau: state.tau, beta: state.beta });
    }
    picture.handles.forEach(({ handle }, i) => {
      movable(handle, picture.drawing, () => (i < 4 ? state.views[i] : state.weight), (point) => {
        (i < 4 ? state.views[i] : state.weight).splice(0, 2, ...point.map(inside));
        show();
      });
    });
    panel.addEventListener("input", () => {
      state.loss = control(`${root.id}-loss`).value;
      state.tau = Number((10 ** Number(control("tau").value)).toPrecision(2));
      state.beta = Number(control("beta").value);
      state.averaged = !control("averaged").checked;
      state.centred = !control("centred").checked;
      show();
    });
    panel.addEventListener("click", (event) => {
      const what = event.target.dataset.do;
      if (what === "step") { /* half of it, so that the eye can follow; a weight that leaves the picture is shortened */
        const { step } = compute(state), next = state.weight.map((entry, i) => entry + step[i] / 2), far = Math.max(length(next) / 1.6, 1);
        state.weight = next.map((entry) => entry / far);
        show();
      } else if (what === "reset") {
        panel.reset();
        state = fresh();
        show();
      }
    });
    panel.reset(); /* a reloaded page would keep what was chosen */
    show();
  }

  /* ---- Runs of linear BYOL, one unit: w1 across, the predictor w2 up, the target theta, which begins at w1 ---- */

  const velocity = ([w1, w2, theta], h, decay) => {
    const error = theta * h - w2 * w1; /* a view has the variance 1, of which h survives */
    return [w2 * error - decay * w1, error * w1 - decay * w2, w1 - theta];
  };
  /* Runge and Kutta's method of fourth order up to the time 400; a point of the path is [time, w1, w2, theta]. */
  function follow([w1, w2], h, decay) {
    const path = [[0, w1, w2, w1]], to = (w, slope, by) => w.map((entry, i) => entry + by * slope[i]);
    let w = [w1, w2, w1];
    for (let time = 0, dt = 0.005; time < 400; time += dt, dt = Math.min(dt * 1.001, 0.04)) {
      const one = velocity(w, h, decay), two = velocity(to(w, one, dt / 2), h, decay);
      const three = velocity(to(w, two, dt / 2), h, decay), four = velocity(to(w, three, dt), h, decay);
      w = w.map((entry, i) => entry + dt / 6 * (one[i] + 2 * two[i] + 2 * three[i] + four[i]));
      const last = path[path.length - 1];
      if (Math.hypot(w[0] - last[1], w[1] - last[2]) > 0.02 || time + dt >= 400) path.push([time + dt, ...w]);
    }
    return path;
  }
  function run({ start, h, decay }) {
    const [w1, w2] = start, path = follow(start, h, decay), end = path[path.length - 1], q = w1 * w1 - w2 * w2;
    const lives = decay ? Math.abs(end[1]) > 0.02 : q > 0 || (w2 > 0 && w1 !== 0 && q > -h * h);
    return { start, h, decay, path, q, after: end[1] * end[1] - end[2] * end[2], lives, end: end.slice(1, 3) };
  }
  function fate({ start, h, decay, q, after, lives, end }) {
    const from = `From ${pair(start)}, Q = w\u2081\u00b2 \u2212 w\u2082\u00b2 = ${number(q)}`, verdict = lives ? "the unit survives" : "the unit collapses";
    if (decay) {
      const why = decay > h * h / 4 ? `, as every unit does once the decay exceeds h\u00b2/4 = ${number(h * h / 4)}` : "";
      return `${from}. Weight decay moves Q towards 0, here to ${number(after)}, so the path leaves its hyperbola. At the end, at ${pair(end)}, ${verdict}${why}.`;
    }
    const why = start[0] === 0 ? "w\u2081 is zero, so nothing moves" : q > 0 ? "Q is positive, so w\u2081 cannot vanish"
      : start[1] < 0 ? "Q is not positive and w\u2082 is negative" : `Q is ${lives ? "above" : "not above"} \u2212h\u00b2 = ${number(-h * h)}`;
    return `${from}, and Q stays ${number(after)}. ${why[0].toUpperCase()}${why.slice(1)}: ${verdict}, and ends at ${pair(end)}${lives ? ", where w\u2082 = h" : ""}.`;
  }

  const RUNS = `
<label class="sslbook-canvas-range">share h <input type="range" name="h" min="0.05" max="1" step="0.05" value="0.5"> <output></output></label>
<label class="sslbook-canvas-range">weight decay <input type="range" name="decay" min="0" max="0.3" step="0.01" value="0"> <output></output></label>
<p class="sslbook-canvas-buttons"><button type="button" data-do="reset">Clear</button></p>
<p class="sslbook-canvas-hint">Press in the plane to start a run there, or move the start with the arrow keys and press Enter. The green curve is w\u2082(h \u2212 w\u2082), enlarged four times: the rate at which w\u2081 begins to grow, the parabola of the chapter on BYOL with \u03b2 = w\u2082. It is zero on the dashed line.</p>`;

  function fates(root) {
    const state = { start: [0.6, 1], h: 0.5, decay: 0 };
    const drawing = make("svg", root, { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "group", "aria-label": "The plane of the weights", "aria-describedby": `${root.id}-said`, class: "sslbook-canvas-plane" });
    const shape = (kind, what, more) => make(kind, drawing, { class: `sslbook-canvas-${what}`, ...more });
    const curve = (points) => points.map((point, i) => `${i ? "L" : "M"}${at(point).map((entry) => entry.toFixed(1)).join(" ")}`).join("");
    const ticks = Array.from({ length: 89 }, (_, i) => -REACH + i * REACH / 44);
    const dead = [shape("path", "dead"), shape("path", "dead")], past = make("g", drawing);
    line(shape("line", "rule"), [-REACH, 0], [REACH, 0]);
    line(shape("line", "rule"), [0, -REACH], [0, REACH]);
    const rate = shape("path", "rate"), law = shape("line", "law"), hyperbola = shape("path", "conserved");
    const path = shape("path", "path", { pathLength: 1 }), finish = shape("path", "finish");
    const label = (what, words, x, y, anchor = "start") => make("text", drawing, { class: `sslbook-canvas-word sslbook-canvas-${what}-word`, x, y, "text-anchor": anchor }, words);
    label("rule", "w\u2081", SIDE - 6, SIDE / 2 + 22, "end");
    label("rule", "w\u2082", SIDE / 2 + 8, 18);
    label("rule", "collapse", SIDE / 2, 48, "middle");
    label("rule", "collapse", SIDE / 2, SIDE - 24, "middle");
    const level = label("step", "w\u2082 = h", SIDE - 6, 0, "end");
    const handle = shape("g", "handle", { tabindex: 0, role: "button", "aria-roledescription": "movable point", "data-handle": "start" });
    make("circle", handle, { r: 24, class: "sslbook-canvas-ring" });
    make("circle", handle, { r: 8, class: "sslbook-canvas-grip" });
    const { panel, said, control } = frame(root, RUNS);

    function show(animated = false) {
      const n = run(state), { h, decay } = state;
      const [x, y] = at(n.end), cross = `M${x - 9} ${y - 9}l18 18m0 -18l-18 18`, box = `M${x - 7} ${y - 7}h14v14h-14z`;
      set(dead[0], { d: `${curve(ticks.map((w1) => [w1, Math.hypot(w1, h)]))}V0H0z` });
      set(dead[1], { d: `${curve(ticks.map((w1) => [w1, -Math.abs(w1)]))}V${SIDE}H0z` });
      dead.forEach((one) => one.classList.toggle("sslbook-canvas-none", decay > 0));
      set(rate, { d: curve(ticks.map((w2) => [4 * w2 * (h - w2), w2])) });
      line(law, [-REACH, h], [REACH, h]);
      level.setAttribute("y", at([0, h])[1] - 8);
      const size = Math.sqrt(Math.abs(n.q)), [sign, along] = n.q > 0 ? [Math.sign(state.start[0]), 0] : [Math.sign(state.start[1]) || 1, 1];
      set(hyperbola, { d: curve(ticks.map((t) => (along ? [t, sign * Math.hypot(t, size)] : [sign * Math.hypot(t, size), t]))) });
      set(path, { d: curve(n.path.map((point) => point.slice(1, 3))) });
      set(finish, { d: n.lives ? box : cross });
      [path, finish].forEach((one) => one.classList.toggle("sslbook-canvas-lost", !n.lives));
      path.classList.remove("sslbook-canvas-run");
      if (animated) {
        path.getBBox(); /* lets the animation begin anew */
        path.classList.add("sslbook-canvas-run");
      }
      handle.setAttribute("transform", `translate(${at(state.start).join(" ")})`);
      handle.setAttribute("aria-label", `The start, at ${pair(state.start)}; arrow keys move it, Enter starts a run`);
      root.dataset.numbers = JSON.stringify(n);
      said.textContent = fate(n);
      told(control, { h, decay });
    }
    function launch(point) { /* the run before stays in the picture, paler */
      past.append(path.cloneNode());
      past.lastChild.classList.remove("sslbook-canvas-run");
      if (past.childNodes.length > 8) past.firstChild.remove();
      state.start = point.map(inside);
      show(true);
    }
    movable(handle, drawing, () => state.start, (point) => {
      state.start = point.map(inside);
      show();
    });
    handle.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      launch(state.start);
    });
    drawing.addEventListener("click", (event) => { if (!handle.contains(event.target)) launch(place(drawing, event)); });
    panel.addEventListener("input", () => {
      state.h = Number(control("h").value);
      state.decay = Number(control("decay").value);
      past.replaceChildren();
      show();
    });
    panel.addEventListener("click", (event) => {
      if (event.target.dataset.do !== "reset") return;
      panel.reset();
      past.replaceChildren();
      Object.assign(state, { start: [0.6, 1], h: 0.5, decay: 0 });
      show();
    });
    panel.reset();
    show();
  }

  function canvas(root) {
    root.querySelectorAll("img, .sslbook-canvas-note").forEach((still) => still.remove());
    ({ world, fates })[root.dataset.sslbookCanvas](root);
  }
  function start() { document.querySelectorAll("[data-sslbook-canvas]").forEach(canvas); }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
