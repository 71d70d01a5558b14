"use strict";
// The map of nodes on a canvas: racks are boxes, nodes are blocks in them, and a rank is a cell with a state.

const CELLS = [40, 32, 26, 20, 15, 11, 8, 6, 5, 4, 3];
const TALLEST = 600;

class NodeMap {
  constructor() {
    this.box = byId("map"); this.canvas = byId("canvas"); this.tip = byId("tip");
    this.nodes = null; this.cells = null; this.focus = -1; this.hover = -1; this.places = [];
    this.box.addEventListener("mousemove", (event) => this.pointAt(event));
    this.box.addEventListener("mouseleave", () => this.setHover(-1));
    this.box.addEventListener("keydown", (event) => this.press(event));
    this.box.addEventListener("focus", () => { if (this.focus < 0) this.setFocus(0); });
    this.box.addEventListener("blur", () => { this.tip.hidden = true; });
    byId("find").addEventListener("input", (event) => this.find(event.target.value.trim()));
    new ResizeObserver(() => this.layOut()).observe(this.box);
  }

  takeNodes(nodes) {
    this.nodes = nodes;
    this.holdsFor = nodes.rows.map(() => []);
    nodes.rows.forEach((row, index) => row[3].forEach((holder) => this.holdsFor[holder].push(index)));
    this.width = 0;
    this.layOut();
  }

  takeCells(cells) { this.cells = cells; this.legend(); this.draw(); }

  // --- layout ------------------------------------------------------------------------------------------------------

  layOut() {
    const width = this.box.clientWidth;
    if (!this.nodes || !width || width === this.width) return;
    this.width = width;
    const racks = new Map();
    this.nodes.rows.forEach((row, index) => {
      if (!racks.has(row[1])) racks.set(row[1], []);
      racks.get(row[1]).push(index);
    });
    for (const cell of CELLS) {
      this.place(racks, cell, width);
      if (this.height <= TALLEST) break;
    }
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = width * scale; this.canvas.height = this.height * scale;
    this.canvas.style.width = `${width}px`; this.canvas.style.height = `${this.height}px`;
    this.draw();
  }

  place(racks, cell, width) {
    const per = this.nodes.per_node, gap = cell > 26 ? 4 : cell > 8 ? 2 : cell > 4 ? 1 : 0.5;
    const across = per <= 4 || cell > 12 ? Math.min(per, 8) : Math.ceil(per / 2), down = Math.ceil(per / across);
    const named = cell >= 15, label = cell > 8 ? 20 : cell >= 5 ? 15 : 12, pad = cell > 8 ? 10 : cell > 4 ? 5 : 3;
    const nodeWidth = Math.max(across * (cell + gap) + (cell > 26 ? 14 : cell > 4 ? 6 : 2), named ? 62 : 0);
    const nodeHeight = down * (cell + gap) + (named ? (cell > 26 ? 30 : 20) : cell > 4 ? 5 : 2);
    this.cell = cell; this.gap = gap; this.named = named; this.places = []; this.boxes = []; this.across = across;
    let x = 0, y = 0, tallest = 0;
    for (const [rack, members] of racks) {
      const most = Math.max(1, Math.floor((width - 2 * pad) / nodeWidth));
      const columns = Math.min(most, Math.max(1, Math.ceil(Math.sqrt(members.length * 2.2 * nodeHeight / nodeWidth))));
      const rows = Math.ceil(members.length / columns), head = racks.size > 1 || rack ? label : 0;
      const wide = columns * nodeWidth + 2 * pad, high = rows * nodeHeight + head + 2 * pad;
      if (x + wide > width && x > 0) { x = 0; y += tallest + (cell > 4 ? 8 : 3); tallest = 0; }
      this.boxes.push({ x, y, wide, high, rack });
      members.forEach((index, i) => {
        this.places[index] = { x: x + pad + (i % columns) * nodeWidth, y: y + pad + head + Math.floor(i / columns) * nodeHeight };
      });
      x += wide + (cell > 4 ? 8 : 3); tallest = Math.max(tallest, high);
    }
    this.height = y + tallest + 2;
  }

  // --- drawing -----------------------------------------------------------------------------------------------------

  draw() {
    if (!this.nodes || !this.cells || !this.places.length || this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.paint(); });
  }

  paint() {
    const pen = this.canvas.getContext("2d"), scale = window.devicePixelRatio || 1;
    const tones = {};
    for (const letter of Object.keys(this.nodes.states)) tones[letter] = colour(letter);
    const [ink, text, quiet, line, raised] = ["ink", "text", "quiet", "line", "raised"].map(colour);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.textBaseline = "alphabetic";
    for (const box of this.boxes) {
      pen.fillStyle = raised; pen.strokeStyle = line; pen.lineWidth = 1;
      pen.beginPath(); pen.roundRect(box.x + 0.5, box.y + 0.5, box.wide - 1, box.high - 1, this.cell > 4 ? 10 : 4); pen.fill(); pen.stroke();
      if (!box.rack) continue;
      pen.fillStyle = quiet; pen.font = `${this.cell > 8 ? 12 : this.cell >= 5 ? 10.5 : 9}px system-ui, "DejaVu Sans", sans-serif`;
      pen.fillText(fitting(pen, box.rack, box.wide - 10), box.x + (this.cell > 8 ? 12 : 5), box.y + (this.cell > 8 ? 20 : this.cell >= 5 ? 14 : 11));
    }
    const pitch = this.cell + this.gap, size = this.cell - (this.cell > 8 ? 0 : 0.25);
    const byTone = {};
    this.places.forEach((place, index) => {
      const states = this.cells.states[index] || "", row = this.nodes.rows[index];
      if (this.named) {
        pen.font = '12px system-ui, "DejaVu Sans", sans-serif'; pen.fillStyle = text;
        pen.fillText(fitting(pen, row[0], Math.max(56, this.across * pitch)), place.x, place.y + 12);
      }
      for (let i = 0; i < states.length; i++) (byTone[states[i]] ||= []).push(index, i);
    });
    for (const [letter, cells] of Object.entries(byTone)) {
      pen.fillStyle = tones[letter];
      pen.beginPath();
      for (let i = 0; i < cells.length; i += 2) {
        const [x, y] = this.cellAt(cells[i], cells[i + 1]);
        if (this.cell > 8) pen.roundRect(x, y, size, size, 4); else pen.rect(x, y, size, size);
      }
      pen.fill();
      if (this.cell < 15) continue;
      pen.fillStyle = ink; pen.font = `600 ${Math.round(Math.min(14, this.cell * 0.46))}px system-ui, "DejaVu Sans", sans-serif`; pen.textAlign = "center";
      for (let i = 0; i < cells.length; i += 2) {
        const [x, y] = this.cellAt(cells[i], cells[i + 1]), rank = this.rankOf(cells[i], cells[i + 1]);
        pen.fillText(rank === null ? letter.toUpperCase() : rank, x + size / 2, y + size / 2 + Math.min(14, this.cell * 0.46) * 0.36, size - 2);
      }
      pen.textAlign = "left";
    }
    for (const [at, style] of [[this.focus, colour("accent")], [this.hover, text]]) {
      if (at < 0 || !this.places[Math.floor(at / this.nodes.per_node)]) continue;
      const [x, y] = this.cellAt(Math.floor(at / this.nodes.per_node), at % this.nodes.per_node);
      pen.strokeStyle = style; pen.lineWidth = 2; pen.strokeRect(x - 1, y - 1, size + 2, size + 2);
    }
    performance.mark("map-painted");
  }

  cellAt(index, i) {
    const place = this.places[index], pitch = this.cell + this.gap;
    return [place.x + (i % this.across) * pitch, place.y + (this.named ? 17 : 0) + Math.floor(i / this.across) * pitch];
  }

  rankOf(index, i) {
    const position = this.nodes.rows[index][2];
    return position >= 0 ? position * this.nodes.per_node + i : null;
  }

  legend() {
    const counts = {};
    for (const states of this.cells.states) for (const letter of states) counts[letter] = (counts[letter] || 0) + 1;
    const text = JSON.stringify(counts);
    if (text === this.counts || !this.nodes) return;
    this.counts = text;
    byId("legend").replaceChildren(...Object.entries(this.nodes.states).filter(([letter]) => counts[letter]).map(([letter, name]) =>
      make("span", { "data-state": letter }, make("i", { style: { background: `var(--${letter})` } }), make("b", { text: words.whole(counts[letter]) }), name)));
  }

  // --- pointing ----------------------------------------------------------------------------------------------------

  pointAt(event) {
    if (!this.nodes) return;
    const edge = this.canvas.getBoundingClientRect(), x = event.clientX - edge.left, y = event.clientY - edge.top;
    const pitch = this.cell + this.gap, top = this.named ? 17 : 0;
    const index = this.places.findIndex((place) => x >= place.x && y >= place.y + top && x < place.x + this.across * pitch &&
      y < place.y + top + Math.ceil(this.nodes.per_node / this.across) * pitch);
    if (index < 0) return this.setHover(-1);
    const i = Math.floor((x - this.places[index].x) / pitch) + this.across * Math.floor((y - this.places[index].y - top) / pitch);
    this.setHover(i < this.nodes.per_node ? index * this.nodes.per_node + i : -1);
  }

  setHover(at) {
    if (at === this.hover) return;
    this.hover = at;
    if (at < 0) this.tip.hidden = true; else this.showTip(at);
    this.draw();
  }

  setFocus(at) {
    const count = this.nodes ? this.nodes.rows.length * this.nodes.per_node : 0;
    if (!count) return;
    this.focus = Math.max(0, Math.min(count - 1, at));
    setText(byId("cell"), this.textOf(this.focus).join(". "));
    const [, y] = this.cellAt(Math.floor(this.focus / this.nodes.per_node), this.focus % this.nodes.per_node);
    if (y < this.box.scrollTop || y > this.box.scrollTop + this.box.clientHeight - 40) this.box.scrollTop = y - 80;
    this.showTip(this.focus);
    this.draw();
  }

  press(event) {
    const per = this.nodes ? this.nodes.per_node : 1;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: per, ArrowUp: -per, PageDown: 16 * per, PageUp: -16 * per, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") { this.tip.hidden = true; return; }
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.setFocus(this.focus + moves[event.key]);
  }

  find(text) {
    if (!text || !this.nodes) return;
    const per = this.nodes.per_node, wanted = /^(rank\s*)?\d+$/i.test(text) ? Number(text.match(/\d+/)[0]) : null;
    let index = this.nodes.rows.findIndex((row) => row[0] === text), i = 0;
    if (index < 0 && wanted !== null) { index = this.nodes.rows.findIndex((row) => row[2] === Math.floor(wanted / per)); i = wanted % per; }
    if (index < 0) index = this.nodes.rows.findIndex((row) => row[0].includes(text));
    if (index >= 0) this.setFocus(index * per + i);
  }

  textOf(at) {
    const per = this.nodes.per_node, index = Math.floor(at / per), row = this.nodes.rows[index];
    const letter = (this.cells.states[index] || "")[at % per], rank = this.rankOf(index, at % per);
    const name = (i) => this.nodes.rows[i][0], step = this.cells.steps[index];
    const lines = [`${row[0]}${row[1] ? `, rack ${row[1]}` : ""}${rank !== null ? `, rank ${rank}` : ""}: ${this.nodes.states[letter] || "not known"}`];
    if (this.nodes.mesh && rank !== null) lines.push(this.coordinates(rank));
    if (row[5].length) lines.push(`It held ranks ${row[5][0]} to ${row[5][1]}`);
    if (step >= 0) lines.push(`At step ${words.whole(step)}`);
    if (row[3].length) lines.push(`Its copies lie on ${words.list(row[3].map(name), 6)}`);
    if (this.holdsFor[index].length) lines.push(`It holds copies of ${words.list(this.holdsFor[index].map(name), 6)}`);
    if (row[4]) lines.push(row[4]);
    return lines;
  }

  coordinates(rank) {
    const { names, shape } = this.nodes.mesh, parts = [];
    for (let i = names.length - 1; i >= 0; i--) { parts.unshift(`${names[i]} ${rank % shape[i]}`); rank = Math.floor(rank / shape[i]); }
    return parts.join(", ");
  }

  showTip(at) {
    const [first, ...rest] = this.textOf(at);
    this.tip.replaceChildren(make("b", { text: first }), ...rest.map((line) => make("div", { text: line })));
    const [x, y] = this.cellAt(Math.floor(at / this.nodes.per_node), at % this.nodes.per_node);
    this.tip.hidden = false;
    const left = Math.max(0, Math.min(x + this.cell + 8, this.width - this.tip.offsetWidth - 4));
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${y - this.box.scrollTop + this.cell + 8}px`;
  }
}
