"use strict";
// What `deadpool plan` says of this job: one sentence, and what spares and the interval would change.

// The axis shows goodput, and is logarithmic in what is missing from 100 %: 90, 99 and 99.9 % are equally far apart.
const goodput = (lost) => (lost === null || lost === undefined ? "–" : `${Number((100 - lost).toPrecision(7))} %`);

class PlanPanel {
  constructor() { this.marks = {}; this.charts = { spares: this.chart("spares", 1), interval: this.chart("interval", 3) }; }

  chart(name, distribution) {
    return new Chart(byId(`plan-${name}`), () => ({
      scales: { x: { time: false, distr: distribution, log: 2 }, y: { distr: 3, dir: -1 } },
      series: [{ label: name === "spares" ? "spares" : "steps", value: (_, x) => words.whole(x) },
        { label: "goodput", stroke: colour("accent"), width: 1.8, points: { show: false }, value: (_, lost) => goodput(lost) }],
      axes: [{ ...axis((_, values) => values.map((value) => (value === null || value % 1 ? null : words.whole(value)))), size: 36 },
        axis((_, values) => values.map((value) => (value === null ? null : goodput(value))))],
      hooks: { draw: [(plot) => this.mark(plot, this.marks[name])] },
    }));
  }

  take(plan) {
    setText(byId("plan-text"), plan.text); setText(byId("plan-about"), plan.about);
    for (const name of ["spares", "interval"]) {
      const found = plan.charts.find((each) => each.name === name);
      this.marks[name] = found;
      this.charts[name].set(found ? [found.x, found.lost] : [[], []], "No curve yet.");
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
      const x = plot.valToPos(chart.x[index], "x", true), y = plot.valToPos(chart.lost[index], "y", true);
      const left = x > plot.bbox.left + plot.bbox.width / 2;
      pen.fillStyle = colour(tone); pen.beginPath(); pen.arc(x, y, 5 * scale, 0, 7); pen.fill();
      pen.textAlign = left ? "right" : "left"; pen.fillText(text, x + (left ? -9 : 9) * scale, y + 16 * scale);
    });
    pen.restore();
  }

  redraw() { Object.values(this.charts).forEach((chart) => chart.redraw()); }
}
