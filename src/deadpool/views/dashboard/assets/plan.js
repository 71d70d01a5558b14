"use strict";
// What `deadpool plan` says of this job: one sentence, and what spares and the interval would change.

// The axis is logarithmic in what is missing from 100 %: 90, 99 and 99.9 % are 1, 2 and 3, equally far apart.
const goodput = (nines) => (nines === null || nines === undefined ? "–" : `${(100 * (1 - 10 ** -nines)).toFixed(3)} %`);

class PlanPanel {
  constructor() { this.marks = {}; this.charts = { spares: this.chart("spares", 1), interval: this.chart("interval", 3) }; }

  chart(name, distribution) {
    return new Chart(byId(`plan-${name}`), () => ({
      scales: { x: { time: false, distr: distribution, log: 2 }, y: { range: (_, low, high) => [Math.min(low, ...this.heights(name)) - 0.1, Math.max(high, ...this.heights(name)) + 0.2] } },
      series: [{ label: name === "spares" ? "spares" : "steps", value: (_, x) => words.whole(x) },
        { label: "goodput", stroke: colour("accent"), width: 1.8, points: { show: false }, value: (_, nines) => goodput(nines) }],
      axes: [{ ...axis((_, values) => values.map((value) => (value === null || value % 1 ? null : words.whole(value)))), size: 36 },
        { ...axis((_, values) => values.map((value) => this.label(name, value))), splits: () => this.heights(name), size: 78 }],
      hooks: { draw: [(plot) => this.mark(plot, this.marks[name])] },
    }));
  }

  heights(name) { return this.marks[name] ? this.marks[name].ticks.map((tick) => tick[0]) : []; }

  label(name, value) { const tick = this.marks[name] && this.marks[name].ticks.find((each) => each[0] === value); return tick ? tick[1] : null; }

  take(plan) {
    setText(byId("plan-text"), plan.text); setText(byId("plan-about"), plan.about);
    for (const name of ["spares", "interval"]) {
      const found = plan.charts.find((each) => each.name === name);
      this.marks[name] = found;
      this.charts[name].set(found ? [found.x, found.nines] : [[], []], "No curve yet.");
    }
  }

  mark(plot, chart) {
    if (!chart) return;
    const pen = plot.ctx, scale = window.devicePixelRatio || 1;
    const points = chart.now === chart.advised ? [[chart.advised, "now and advised", "t"]] : [[chart.advised, "advised", "t"], [chart.now, "now", "x"]];
    pen.save(); pen.font = `600 ${11 * scale}px system-ui, "DejaVu Sans", sans-serif`;
    points.forEach(([at, text, tone]) => {
      const index = chart.x.findIndex((x) => x >= at);
      if (index < 0) return;
      const x = plot.valToPos(chart.x[index], "x", true), y = plot.valToPos(chart.nines[index], "y", true);
      const left = x > plot.bbox.left + plot.bbox.width / 2;
      pen.fillStyle = colour(tone); pen.beginPath(); pen.arc(x, y, 5 * scale, 0, 7); pen.fill();
      pen.textAlign = left ? "right" : "left"; pen.fillText(text, x + (left ? -9 : 9) * scale, y - 10 * scale);
    });
    pen.restore();
  }

  redraw() { Object.values(this.charts).forEach((chart) => chart.redraw()); }
}
