"use strict";
// Curves, drawn by uPlot: step time with faults, drains, audits and silent errors marked, and the loss.

const FONT = '12px system-ui, "DejaVu Sans", sans-serif';

class Chart {
  constructor(box, options) { this.box = box; this.options = options; this.plot = null; new ResizeObserver(() => this.fit()).observe(box); }

  fit() { if (this.plot && this.box.clientWidth) this.plot.setSize({ width: this.box.clientWidth, height: 260 }); }

  set(data, empty) {
    if (data[0].length < 2) {
      if (this.plot) { this.plot.destroy(); this.plot = null; }
      this.box.replaceChildren(make("p", { class: "empty", text: empty }));
      return;
    }
    if (this.plot) { this.plot.setData(data); return; }
    this.box.replaceChildren();
    this.plot = new uPlot({ width: this.box.clientWidth || 600, height: 260, ...this.options() }, data, this.box);
  }

  redraw() {
    if (!this.plot) return;
    const data = this.plot.data;
    this.plot.destroy(); this.plot = null;
    this.set(data, "");
  }
}

function axis(format) {
  return { stroke: () => colour("quiet"), font: FONT, grid: { stroke: () => colour("line"), width: 1 }, ticks: { stroke: () => colour("line"), width: 1 }, values: format, size: 62 };
}

// Hours and minutes, with seconds in a short span and with the day where a new one begins.
function clocks(splits) {
  const narrow = splits.length > 1 && splits[1] - splits[0] < 60;
  let last = "";
  return splits.map((t) => {
    const when = new Date(1000 * t), day = when.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    const clock = when.toLocaleTimeString("en-GB", narrow ? {} : { hour: "2-digit", minute: "2-digit" });
    const text = last && day !== last ? day : clock;
    last = day;
    return text;
  });
}

function stepChart(faults, audits, open) {
  const chart = new Chart(byId("steps"), () => ({
    scales: { y: { distr: 3 } },
    series: [{ label: "time", value: (_, t) => (t ? words.clock(t) : "–") },
      { label: "step time", stroke: colour("accent"), width: 1.6, points: { show: false }, value: (_, s) => words.seconds(s) }],
    axes: [{ ...axis((_, splits) => clocks(splits)), size: 36, space: 90 }, axis((_, values) => values.map((value) => (value === null ? null : words.seconds(value))))],
    hooks: { draw: [(plot) => { mark(plot, faults()); markAudits(plot, audits()); }], ready: [(plot) => plot.over.addEventListener("click", (event) => pick(plot, event, faults(), open))] },
  }));
  return chart;
}

function mark(plot, faults) {
  const { ctx: pen, bbox } = plot, scale = window.devicePixelRatio || 1;
  pen.save();
  faults.forEach((fault) => {
    const x = plot.valToPos(fault.began, "x", true), end = plot.valToPos(fault.began + (fault.seconds || 0), "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    pen.fillStyle = pen.strokeStyle = colour(fault.kind === "drain" ? "d" : "x");
    pen.globalAlpha = 0.14; pen.fillRect(x, bbox.top, Math.max(2, Math.min(end, bbox.left + bbox.width) - x), bbox.height);
    pen.globalAlpha = 1; pen.lineWidth = 1.5 * scale; pen.beginPath(); pen.moveTo(x, bbox.top); pen.lineTo(x, bbox.top + bbox.height); pen.stroke();
    if (faults.length <= 12) { pen.font = `600 ${11 * scale}px system-ui, "DejaVu Sans", sans-serif`; pen.textAlign = "left"; pen.fillText(fault.cause, x + 5 * scale, bbox.top + 12 * scale); }
  });
  pen.restore();
}

// A dot at the bottom for each audit, and a diamond with a name for each error that was found.
function markAudits(plot, audits) {
  const { ctx: pen, bbox } = plot, scale = window.devicePixelRatio || 1, y = bbox.top + bbox.height - 8 * scale;
  pen.save();
  audits.forEach((audit) => {
    const x = plot.valToPos(audit.ended || audit.began, "x", true), half = (audit.is_error ? 6 : 3) * scale;
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    pen.fillStyle = colour(audit.is_error ? "x" : audit.verdict === "alike" ? "t" : "quiet");
    pen.beginPath();
    if (audit.is_error) { pen.moveTo(x, y - half); pen.lineTo(x + half, y); pen.lineTo(x, y + half); pen.lineTo(x - half, y); pen.closePath(); } else pen.arc(x, y, half, 0, 2 * Math.PI);
    pen.fill();
    if (audit.is_error) { pen.font = `600 ${11 * scale}px system-ui, "DejaVu Sans", sans-serif`; pen.textAlign = "right"; pen.fillText(audit.named.map((each) => each.node).join(", ") || "nobody named", x - 9 * scale, y + 4 * scale); }
  });
  pen.restore();
}

function pick(plot, event, faults, open) {
  const near = faults.map((fault) => [Math.abs(plot.valToPos(fault.began, "x") - event.offsetX), fault.cause]).sort((a, b) => a[0] - b[0])[0];
  if (near && near[0] < 24) open(near[1]);
}

function lossChart() {
  return new Chart(byId("loss"), () => ({
    scales: { x: { time: false } },
    series: [{ label: "step", value: (_, step) => words.whole(step) },
      { label: "loss", stroke: colour("t"), width: 1.8, points: { show: false }, value: (_, loss) => (loss === null || loss === undefined ? "–" : Number(loss.toPrecision(7)).toString()) }],
    axes: [{ ...axis((_, values) => values.map((value) => words.whole(value))), size: 40 }, axis((_, values) => values.map((value) => (value === null ? null : Number(value.toPrecision(4)).toString())))],
  }));
}
