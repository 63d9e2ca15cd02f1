// Draws a part of the graph: springs along relations, repulsion between concepts; a click on one grows its neighbourhood.

const SVG = "http://www.w3.org/2000/svg";
const SPRING = 110, ALONG = 190, PUSH = 9000, STEPS = 250, APART = 80;
const PLACES = Array.from({ length: 14 }, (_, step) => 0.17 + step * 0.05);
const still = window.matchMedia("(prefers-reduced-motion: reduce)");

const make = (name, parent, attributes = {}) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
};
const cut = (text) => (text.length > 26 ? `${text.slice(0, 25)}…` : text);

class Drawing {
  constructor(place) {
    this.place = place;
    this.svg = place.querySelector("svg");
    this.view = place.querySelector("[data-view]");
    this.nodes = new Map();
    this.edges = new Map();
    this.scale = 1; this.x = 0; this.y = 0; this.letters = 1;
    place.hidden = false;
    this.measure();
    this.listen();
  }

  measure() {
    const box = this.svg.getBoundingClientRect();
    this.width = Math.max(200, box.width); this.height = Math.max(200, box.height);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
  }

  async begin() {
    const first = this.place.dataset.seed;
    await this.fetch(this.place.dataset.drawing, null);
    if (first && this.nodes.has(first)) { this.nodes.get(first).grown = true; this.choose(this.nodes.get(first)); }
    else if (this.nodes.size) this.choose(this.nodes.values().next().value);
    this.show();
  }

  async grow(node) {
    this.choose(node);
    if (node.grown) return;
    node.grown = true;
    const drawn = [...this.nodes.keys()].slice(0, 200).map((id) => `&drawn=${id}`).join("");
    await this.fetch(`/ui/graph/around.json?seed=${node.id}${drawn}`, node);
    this.show();
  }

  async fetch(address, origin) {
    this.say("…");
    let answer;
    try {
      answer = await fetch(address, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(answer.statusText);
      this.add(await answer.json(), origin);
    } catch (error) {
      this.say(`The graph could not be read: ${error.message}`);
    }
  }

  add(found, origin) {
    const before = this.nodes.size;
    this.drawn = false;
    for (const one of found.nodes) {
      if (this.nodes.has(one.id)) continue;
      // A spiral: the same picture for the same answer.
      const turn = this.nodes.size * 2.4, far = 30 + 14 * Math.sqrt(this.nodes.size);
      const from = origin || { x: this.width / 2, y: this.height / 2 };
      const made = { ...one, x: from.x + far * Math.cos(turn), y: from.y + far * Math.sin(turn) };
      if (one.way !== undefined) made[this.along()] = this.stage(one.way);
      this.nodes.set(one.id, made);
    }
    for (const one of found.edges) {
      if (!this.nodes.has(one.from) || !this.nodes.has(one.to) || one.from === one.to) continue;
      const key = `${one.from} ${one.to}`, known = this.edges.get(key);
      if (known) { known.types.add(one.type); known.on ||= one.on; }
      else this.edges.set(key, { from: this.nodes.get(one.from), to: this.nodes.get(one.to), types: new Set([one.type]), on: one.on });
    }
    this.settle();
    // Twice: names that are put apart make the drawing wider, so that letters have to be larger in it.
    for (let times = 0; times < 2; times++) { this.fit(); this.separate(); }
    const fresh = before ? `, ${this.nodes.size - before} new` : "";
    const more = found.found > found.nodes.length ? `, of ${found.found} around` : "";
    this.say(`${this.nodes.size} concepts${fresh}${more}${found.complete ? "" : "; not all could be read"}`);
  }

  // A path goes from one end of the drawing to the other, the longer way.
  along() { return this.width >= this.height ? "x" : "y"; }
  stage(way) { return (this.along() === "x" ? this.width : this.height) * (0.1 + 0.8 * way); }

  settle() {
    const along = this.along();
    const all = [...this.nodes.values()], links = [...this.edges.values()], tall = this.height / this.width;
    for (let step = 0; step < STEPS; step++) {
      const heat = 12 * (1 - step / STEPS);
      for (const one of all) { one.dx = (this.width / 2 - one.x) * 0.01 * tall; one.dy = (this.height / 2 - one.y) * 0.01 / tall; }
      for (let i = 0; i < all.length; i++) {
        for (let j = i + 1; j < all.length; j++) {
          const a = all[i], b = all[j], x = a.x - b.x || 0.1, y = a.y - b.y || 0.1, push = (a.on && b.on ? 6 : 1) * PUSH / (x * x + y * y + 25);
          const far = Math.hypot(x, y), px = (x / far) * push, py = (y / far) * push;
          a.dx += px; a.dy += py; b.dx -= px; b.dy -= py;
        }
      }
      for (const { from, to, on } of links) {
        // A path has room for the names of its relations.
        const x = to.x - from.x, y = to.y - from.y, far = Math.hypot(x, y) || 1, pull = (far - (on ? ALONG : SPRING)) * 0.05;
        from.dx += (x / far) * pull; from.dy += (y / far) * pull; to.dx -= (x / far) * pull; to.dy -= (y / far) * pull;
      }
      for (const one of all) if (one.way !== undefined) one["d" + along] = (this.stage(one.way) - one[along]) * 0.5;
      for (const one of all) {
        const far = Math.hypot(one.dx, one.dy) || 1, go = Math.min(far, heat);
        one.x += (one.dx / far) * go; one.y += (one.dy / far) * go;
      }
    }
  }

  // Concepts are as wide as their names: none stands on another, nor on a path that it is not on.
  separate() {
    const all = [...this.nodes.values()];
    for (const one of all) { one.half = Math.max(16, (3.5 * cut(one.label).length + 4) * this.letters); one.tall = 11 + 9 * this.letters; }
    for (let step = 0; step < APART; step++) {
      let moved = false;
      for (let i = 0; i < all.length; i++) {
        for (let j = i + 1; j < all.length; j++) {
          const a = all[i], b = all[j], x = b.x - a.x, y = b.y - a.y;
          const wide = a.half + b.half - Math.abs(x), high = a.tall + b.tall - Math.abs(y);
          if (wide <= 0 || high <= 0) continue;
          moved = true;
          if (wide < high) { const go = (wide / 2 + 0.5) * (x < 0 ? -1 : 1); a.x -= go; b.x += go; }
          else { const go = (high / 2 + 0.5) * (y < 0 ? -1 : 1); a.y -= go; b.y += go; }
        }
      }
      for (const { from, to, on } of this.edges.values()) {
        if (!on) continue;
        const x = to.x - from.x, y = to.y - from.y, far = Math.hypot(x, y) || 1;
        for (const one of all) {
          if (one.on) continue;
          // Its name hangs below it.
          const dx = one.x - from.x, dy = one.y + 8 - from.y, at = (dx * x + dy * y) / far, off = (dy * x - dx * y) / far;
          const room = (one.tall * Math.abs(x) + one.half * Math.abs(y)) / far;
          if (at < 0 || at > far || Math.abs(off) >= room) continue;
          const go = (room - Math.abs(off)) * (off < 0 ? -1 : 1);
          one.x -= (y / far) * go; one.y += (x / far) * go;
          moved = true;
        }
      }
      if (!moved) break;
    }
  }

  // Names of relations stand where nothing else does; one that finds no place is seen when its line is pointed at.
  label() {
    const taken = [];
    const free = (box) => !taken.some((one) => box.x < one.x + one.width && one.x < box.x + box.width && box.y < one.y + one.height && one.y < box.y + box.height);
    for (const { x, y, size, text } of this.nodes.values()) {
      const box = text.getBBox();
      taken.push({ x: x - size, y: y - size, width: 2 * size, height: 2 * size }, { x: x + box.x, y: y + box.y, width: box.width, height: box.height });
    }
    const named = [...this.edges.values()].filter((one) => this.named(one));
    named.sort((a, b) => Boolean(b.on) - Boolean(a.on));
    for (const one of named) {
      const { from, to, text } = one, { width, height } = text.getBBox();
      // Nearer to where it comes from, for one back may stand on the same line; but away from the chosen one, where all meet.
      const best = from === this.chosen ? 0.6 : to === this.chosen ? 0.35 : 0.45;
      const order = [...PLACES].sort((a, b) => Math.abs(a - best) - Math.abs(b - best));
      const place = (at) => ({ x: from.x + (to.x - from.x) * at - width / 2 - 1, y: from.y + (to.y - from.y) * at - height / 2, width: width + 2, height });
      const found = order.find((at) => free(place(at)));
      one.at = found ?? 0.5;
      one.crowded = found === undefined;
      if (found !== undefined) taken.push(place(found));
    }
    this.mark();
    this.put();
  }

  named(edge) { return edge.on || edge.from === this.chosen || edge.to === this.chosen; }

  show() {
    const edges = this.place.querySelector("[data-edges]"), names = this.place.querySelector("[data-names]"), nodes = this.place.querySelector("[data-nodes]");
    for (const one of this.edges.values()) {
      if (!one.group) {
        one.group = make("g", edges, { class: one.on ? "edge on" : "edge" });
        one.line = make("line", one.group, { class: one.on ? "on" : "", "marker-end": "url(#arrow)" });
        one.reach = make("line", one.group, { class: "reach" });
        // Above every line, not above its own alone.
        one.text = make("text", names);
        one.at = 0.5;
        for (const [event, on] of [["pointerenter", true], ["pointerleave", false]]) one.group.addEventListener(event, () => { one.pointed = on; this.mark(); });
      }
      one.text.textContent = [...one.types].join(", ").toLowerCase().replaceAll("_", " ");
    }
    for (const one of this.nodes.values()) {
      if (one.group) continue;
      one.size = 6 + Math.min(9, Math.log2((one.degree || 1) + 1));
      one.group = make("g", nodes, { class: "node", tabindex: "0", role: "button", "data-id": one.id });
      one.px = one.x; one.py = one.y;
      make("circle", one.group, { r: one.size });
      one.text = make("text", one.group, { y: one.size + 13 });
      one.text.textContent = cut(one.label);
      make("title", one.group).textContent = `${one.label} (${one.ontology})`;
      one.group.addEventListener("click", () => { if (!this.moved) this.grow(one); });
      one.group.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.grow(one); }
      });
    }
    this.drawn = true;
    this.mark();
    this.animate();
  }

  mark() {
    for (const one of this.nodes.values()) {
      one.group?.setAttribute("class", `node${one.grown ? " grown" : ""}${one.on ? " on" : ""}${one === this.chosen ? " chosen" : ""}`);
      one.group?.setAttribute("aria-label", `${one.label}, ${one.grown ? "grown" : "grow"}`);
    }
    for (const one of this.edges.values()) one.text?.setAttribute("class", `${this.named(one) && !one.crowded ? "named" : ""}${one.pointed ? " pointed" : ""}`);
  }

  put() {
    for (const { from, to, line, reach, text, at } of this.edges.values()) {
      const far = Math.hypot(to.px - from.px, to.py - from.py) || 1, end = (far - to.size - 2) / far;
      for (const one of [line, reach]) {
        one.setAttribute("x1", from.px.toFixed(1)); one.setAttribute("y1", from.py.toFixed(1));
        one.setAttribute("x2", (from.px + (to.px - from.px) * end).toFixed(1)); one.setAttribute("y2", (from.py + (to.py - from.py) * end).toFixed(1));
      }
      text.setAttribute("x", (from.px + (to.px - from.px) * at).toFixed(1)); text.setAttribute("y", (from.py + (to.py - from.py) * at).toFixed(1));
    }
  }

  animate() {
    this.fit();
    const begun = performance.now(), long = still.matches ? 0 : 350, ever = this.turn = (this.turn || 0) + 1;
    for (const one of this.nodes.values()) { one.ox = one.px; one.oy = one.py; }
    const frame = (now) => {
      if (ever !== this.turn) return;
      const share = long ? Math.min(1, (now - begun) / long) : 1, eased = 1 - (1 - share) ** 3;
      for (const one of this.nodes.values()) {
        one.px = one.ox + (one.x - one.ox) * eased; one.py = one.oy + (one.y - one.oy) * eased;
        one.group.setAttribute("transform", `translate(${one.px.toFixed(1)} ${one.py.toFixed(1)})`);
      }
      this.put();
      if (share < 1) requestAnimationFrame(frame);
    };
    frame(begun + (long ? 0 : 1));
  }

  choose(node) {
    this.chosen = node;
    const open = this.place.querySelector("[data-open]");
    open.href = `/ui/graph/concepts/${node.id}`;
    open.textContent = `Open “${node.label}”`;
    this.mark();
    this.relabel();
  }

  say(text) { this.place.querySelector("[data-said]").textContent = text; }

  fit() {
    const all = [...this.nodes.values()];
    if (!all.length) return;
    const ys = all.map((one) => one.y), half = (one) => Math.max(40, one.half || 0) + 10;
    const left = Math.min(...all.map((one) => one.x - half(one))), right = Math.max(...all.map((one) => one.x + half(one))), top = Math.min(...ys) - 30, bottom = Math.max(...ys) + 40;
    this.scale = Math.min(1.5, this.width / (right - left), this.height / (bottom - top));
    this.x = this.width / 2 - (this.scale * (left + right)) / 2;
    this.y = this.height / 2 - (this.scale * (top + bottom)) / 2;
    this.place_view();
    this.relabel();
  }

  // Once all of it is drawn, and as large as it will be.
  relabel() { if (this.drawn) this.label(); }

  zoom(by, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(6, Math.max(0.15, this.scale * by));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.place_view();
    this.relabel();
  }

  place_view() {
    // Letters don't get smaller than can be read, however small the drawing is.
    this.letters = Math.max(1, 0.85 / this.scale);
    this.svg.style.setProperty("--letters", this.letters.toFixed(3));
    this.view.setAttribute("transform", `translate(${this.x.toFixed(1)} ${this.y.toFixed(1)}) scale(${this.scale.toFixed(3)})`);
  }

  at(event) {
    const box = this.svg.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  listen() {
    for (const button of this.place.querySelectorAll("[data-zoom]")) {
      const what = button.dataset.zoom;
      button.addEventListener("click", () => (what === "fit" ? this.fit() : this.zoom(what === "in" ? 1.3 : 1 / 1.3)));
    }
    this.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const { x, y } = this.at(event);
      this.zoom(event.deltaY < 0 ? 1.12 : 1 / 1.12, x, y);
    }, { passive: false });
    new ResizeObserver(() => { this.measure(); this.fit(); }).observe(this.svg);
    let last = null;
    this.svg.addEventListener("pointerdown", (event) => { last = this.at(event); this.moved = false; });
    window.addEventListener("pointerup", () => { last = null; });
    this.svg.addEventListener("pointermove", (event) => {
      if (!last) return;
      const now = this.at(event);
      if (Math.hypot(now.x - last.x, now.y - last.y) < 3 && !this.moved) return;
      this.moved = true;
      this.x += now.x - last.x; this.y += now.y - last.y; last = now;
      this.place_view();
    });
  }
}

for (const place of document.querySelectorAll("[data-drawing]")) new Drawing(place).begin();
