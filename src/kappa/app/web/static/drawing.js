// Draws a part of the graph: springs along relations, repulsion between concepts; a click on one grows its neighbourhood.

const SVG = "http://www.w3.org/2000/svg";
const SPRING = 110, PUSH = 9000, STEPS = 250;
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
    this.scale = 1; this.x = 0; this.y = 0;
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
    for (const one of found.nodes) {
      if (this.nodes.has(one.id)) continue;
      // A spiral: the same picture for the same answer.
      const turn = this.nodes.size * 2.4, far = 30 + 14 * Math.sqrt(this.nodes.size);
      const from = origin || { x: this.width / 2, y: this.height / 2 };
      this.nodes.set(one.id, { ...one, x: from.x + far * Math.cos(turn), y: from.y + far * Math.sin(turn) });
    }
    for (const one of found.edges) {
      if (!this.nodes.has(one.from) || !this.nodes.has(one.to) || one.from === one.to) continue;
      const key = `${one.from} ${one.to}`, known = this.edges.get(key);
      if (known) { known.types.add(one.type); known.on ||= one.on; }
      else this.edges.set(key, { from: this.nodes.get(one.from), to: this.nodes.get(one.to), types: new Set([one.type]), on: one.on });
    }
    this.settle();
    const fresh = before ? `, ${this.nodes.size - before} new` : "";
    const more = found.found > found.nodes.length ? `, of ${found.found} around` : "";
    this.say(`${this.nodes.size} concepts${fresh}${more}${found.complete ? "" : "; not all could be read"}`);
  }

  settle() {
    const all = [...this.nodes.values()], links = [...this.edges.values()], tall = this.height / this.width;
    for (let step = 0; step < STEPS; step++) {
      const heat = 12 * (1 - step / STEPS);
      for (const one of all) { one.dx = (this.width / 2 - one.x) * 0.01 * tall; one.dy = (this.height / 2 - one.y) * 0.01 / tall; }
      for (let i = 0; i < all.length; i++) {
        for (let j = i + 1; j < all.length; j++) {
          const a = all[i], b = all[j], x = a.x - b.x || 0.1, y = a.y - b.y || 0.1, push = PUSH / (x * x + y * y + 25);
          const far = Math.hypot(x, y), px = (x / far) * push, py = (y / far) * push;
          a.dx += px; a.dy += py; b.dx -= px; b.dy -= py;
        }
      }
      for (const { from, to } of links) {
        const x = to.x - from.x, y = to.y - from.y, far = Math.hypot(x, y) || 1, pull = (far - SPRING) * 0.05;
        from.dx += (x / far) * pull; from.dy += (y / far) * pull; to.dx -= (x / far) * pull; to.dy -= (y / far) * pull;
      }
      for (const one of all) {
        const far = Math.hypot(one.dx, one.dy) || 1, go = Math.min(far, heat);
        one.x += (one.dx / far) * go; one.y += (one.dy / far) * go;
      }
    }
  }

  show() {
    const edges = this.place.querySelector("[data-edges]"), nodes = this.place.querySelector("[data-nodes]");
    for (const one of this.edges.values()) {
      if (!one.group) {
        one.group = make("g", edges, { class: one.on ? "edge on" : "edge" });
        one.line = make("line", one.group, { class: one.on ? "on" : "", "marker-end": "url(#arrow)" });
        one.text = make("text", one.group);
      }
      one.text.textContent = [...one.types].join(", ").toLowerCase().replaceAll("_", " ");
    }
    for (const one of this.nodes.values()) {
      if (one.group) continue;
      one.size = 6 + Math.min(9, Math.log2((one.degree || 1) + 1));
      one.group = make("g", nodes, { class: "node", tabindex: "0", role: "button", "data-id": one.id });
      one.px = one.x; one.py = one.y;
      make("circle", one.group, { r: one.size });
      make("text", one.group, { y: one.size + 13 }).textContent = cut(one.label);
      make("title", one.group).textContent = `${one.label} (${one.ontology})`;
      one.group.addEventListener("click", () => { if (!this.moved) this.grow(one); });
      one.group.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.grow(one); }
      });
    }
    this.mark();
    this.animate();
  }

  mark() {
    for (const one of this.nodes.values()) {
      one.group?.setAttribute("class", `node${one.grown ? " grown" : ""}${one.on ? " on" : ""}${one === this.chosen ? " chosen" : ""}`);
      one.group?.setAttribute("aria-label", `${one.label}, ${one.grown ? "grown" : "grow"}`);
    }
    for (const one of this.edges.values()) one.group?.classList.toggle("near", one.from === this.chosen || one.to === this.chosen);
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
      for (const { from, to, line, text } of this.edges.values()) {
        const far = Math.hypot(to.px - from.px, to.py - from.py) || 1, end = (far - to.size - 2) / far;
        line.setAttribute("x1", from.px.toFixed(1)); line.setAttribute("y1", from.py.toFixed(1));
        line.setAttribute("x2", (from.px + (to.px - from.px) * end).toFixed(1)); line.setAttribute("y2", (from.py + (to.py - from.py) * end).toFixed(1));
        // Not in the middle, where that of a relation back would stand, and away from the chosen one, where all meet.
        const at = from === this.chosen ? 0.55 : to === this.chosen ? 0.3 : 0.4;
        text.setAttribute("x", (from.px + (to.px - from.px) * at).toFixed(1)); text.setAttribute("y", (from.py + (to.py - from.py) * at).toFixed(1));
      }
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
  }

  say(text) { this.place.querySelector("[data-said]").textContent = text; }

  fit() {
    const all = [...this.nodes.values()];
    if (!all.length) return;
    const xs = all.map((one) => one.x), ys = all.map((one) => one.y);
    const left = Math.min(...xs) - 70, right = Math.max(...xs) + 70, top = Math.min(...ys) - 30, bottom = Math.max(...ys) + 40;
    this.scale = Math.min(1.5, this.width / (right - left), this.height / (bottom - top));
    this.x = this.width / 2 - (this.scale * (left + right)) / 2;
    this.y = this.height / 2 - (this.scale * (top + bottom)) / 2;
    this.place_view();
  }

  zoom(by, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(6, Math.max(0.15, this.scale * by));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.place_view();
  }

  place_view() {
    // Letters don't get smaller than can be read, however small the drawing is.
    this.svg.style.setProperty("--letters", Math.max(1, 0.85 / this.scale).toFixed(3));
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
