"use strict";
// Puts the parts of the view where they belong. Each part comes whole, whenever it has changed.

class Page {
  constructor() {
    this.faults = []; this.audits = []; this.open = null; this.parts = {};
    this.map = new NodeMap();
    this.steps = stepChart(() => this.faults, () => this.audits, (cause) => this.show(cause));
    this.loss = lossChart();
    this.plan = new PlanPanel();
    this.source = byId("data") ? new EmbeddedSource(byId("data")) : new StreamSource();
    byId("login").addEventListener("submit", (event) => { event.preventDefault(); this.source.login(byId("token").value); byId("token").value = ""; });
    byId("theme").addEventListener("click", () => this.setTheme(document.documentElement.dataset.theme === "light" ? "dark" : "light"));
    this.source.start(this);
  }

  take(name, part) {
    byId("main").hidden = false; byId("login").hidden = true;
    this.parts[name] = part;
    const taker = this[`take_${name}`];
    if (taker) taker.call(this, part);
  }

  askToken(error) {
    byId("main").hidden = true; byId("login").hidden = false;
    setText(byId("login-error"), error); setText(byId("link"), "no token");
    byId("token").focus();
  }

  linked(state) { this.link = state; this.showLink(); }

  showLink() {
    const ended = this.parts.job && this.parts.job.ended, silent = this.parts.job && !this.parts.job.answers;
    const text = this.link === "live" ? (ended ? "the job has ended" : silent ? "no coordinator answers; shown is what the run folder says" : "live") : this.link;
    setText(byId("link"), text);
  }

  take_job(job) {
    setText(byId("job-name"), job.name); document.title = `${job.name} · DeadPool`;
    const from = job.began ? `since ${words.day(job.began)}` : "", to = job.ended ? `, ended ${words.day(job.ended)}` : "";
    setText(byId("job-line"), `${words.whole(job.world_size)} ranks ${from}${to}`);
    const rows = [...Object.entries(job.versions), ...Object.entries(job.settings)];
    byId("settings-list").replaceChildren(...rows.map(([name, value]) => make("div", {}, make("dt", { text: name.replaceAll("_", " ") }), make("dd", { text: typeof value === "object" ? JSON.stringify(value) : String(value) }))));
    this.showLink();
  }

  take_head(head) {
    byId("state").dataset.state = head.state; setText(byId("state-text"), head.text);
    const box = byId("figures");
    if (box.children.length !== head.figures.length) {
      box.replaceChildren(...head.figures.map((each) => make("div", { class: "figure", id: `figure-${each.name}` }, make("div", { class: "label" }), make("div", { class: "value" }), make("div", { class: "about" }))));
    }
    head.figures.forEach((each, i) => [each.label, each.value, each.detail].forEach((text, j) => setText(box.children[i].children[j], text)));
    const text = JSON.stringify(head.actions);
    if (text === this.actions) return;
    this.actions = text;
    const todo = head.actions.map((action) => make("div", { class: "action todo" }, make("strong", { text: "To do" }), action));
    byId("actions").replaceChildren(...(todo.length ? todo : [make("div", { class: "action" }, make("strong", { text: "Nothing to do" }), head.state === "completed" ? "The job is complete." : "DeadPool needs nobody at the moment.")]));
  }

  take_nodes(nodes) { this.map.takeNodes(nodes); }
  take_cells(cells) { this.map.takeCells(cells); }

  take_faults(faults) {
    this.faults = faults;
    setText(byId("fault-count"), faults.length ? words.whole(faults.length) : "");
    const rows = faults.slice(-200).reverse().map((fault) => make("button", { type: "button", class: "fault", "data-kind": fault.kind, "data-cause": fault.cause, "aria-expanded": String(fault.cause === this.open), onclick: () => this.show(fault.cause) },
      make("b", { text: `${fault.cause}${fault.node ? ` · ${fault.node}` : ""}` }), make("span", { class: "cost", text: fault.seconds === null ? "under way" : words.seconds(fault.seconds) }),
      make("span", { class: "about", text: `${words.clock(fault.began)} · ${fault.reason} · ${fault.lost_steps ? `${fault.lost_steps} step${fault.lost_steps === 1 ? "" : "s"} done again` : "no completed step lost"}` })));
    byId("faults").replaceChildren(...(rows.length ? rows : [make("p", { class: "quiet", text: "None so far." })]));
    if (this.steps.plot) this.steps.plot.redraw();
    if (this.open) this.refreshFault();
  }

  take_audits(audits) {
    this.audits = audits.rows;
    byId("audits-title").hidden = !audits.rows.length;
    setText(byId("audits-line"), audits.summary);
    const rows = audits.rows.slice().reverse().map((each) => make("li", { "data-verdict": each.verdict, class: each.is_error ? "erred" : "" }, make("time", { text: words.clock(each.ended || each.began) }), make("span", { text: each.text })));
    byId("audits").replaceChildren(...rows);
    if (this.steps.plot) this.steps.plot.redraw();
  }

  async show(cause) {
    this.open = this.open === cause ? null : cause;
    this.shown = "";
    this.take_faults(this.faults);
    if (!this.open) { byId("detail").hidden = true; return; }
    await this.refreshFault();
    byId("detail").focus({ preventScroll: true }); byId("detail").scrollIntoView({ block: "nearest" });
  }

  async refreshFault() {
    const cause = this.open, fault = await this.source.fault(cause).catch(() => null);
    if (!fault || cause !== this.open) return;
    const text = JSON.stringify(fault);
    if (text === this.shown) return;
    this.shown = text;
    byId("detail").replaceChildren(...faultPanel(fault, () => this.show(cause)));
    byId("detail").hidden = false;
  }

  take_events(events) {
    byId("events").replaceChildren(...events.map((each) => make("li", { "data-what": each.what }, make("time", { text: words.clock(each.t) }), make("span", { text: each.text }))));
  }

  take_curves(curves) {
    this.steps.set([curves.step_t, curves.step_s], "No step times yet.");
    this.loss.set([curves.loss_step, curves.loss], "The journal has no loss. Scripts log one with job.log(step, loss=...).");
    setText(byId("steps-line"), curves.step_s.length > 1 ? "logarithmic; click a mark to see that fault" : "");
    setText(byId("loss-line"), curves.loss.length > 1 ? `${curves.loss_key}, from the journal; each step once` : "");
  }

  take_plan(plan) { this.plan.take(plan); }

  take_copies(copies) {
    setText(byId("copies-line"), copies.summary);
    if (!copies.rows.length) { byId("copies").replaceChildren(make("p", { class: "quiet", text: "Who holds what is known while the job runs." })); return; }
    const head = make("tr", {}, ...["node", "version sent", "its copies lie on", "holds copies of", "host memory of copies", "a transfer's speed", "sent so far"].map((text) => make("th", { text, scope: "col" })));
    const body = copies.rows.map((row) => make("tr", { "data-node": row.node }, make("td", {}, make("b", { text: row.node }), row.role === "active" ? null : ` (${row.role})`),
      make("td", { text: row.version === null ? "–" : words.whole(row.version) }), make("td", { text: words.list(row.holders, 3) || "–" }), make("td", { text: words.list(row.holds_for, 3) || "–" }),
      make("td", {}, ...meter(row.arena_bytes, row.memory_bytes, words.size)), make("td", {}, ...speed(row)), make("td", { text: words.size(row.bytes_pushed) })));
    byId("copies").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
    if (copies.count > copies.rows.length) byId("copies").append(make("p", { class: "quiet", text: `${copies.rows.length} of ${words.whole(copies.count)} nodes; those furthest behind come first` }));
  }

  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("deadpool-theme", theme); } catch (error) { /* a report opened from a file may not */ }
    this.map.draw(); this.steps.redraw(); this.loss.redraw(); this.plan.redraw();
  }
}

function meter(value, whole, format) {
  if (!whole) return [format(value)];
  const share = Math.min(1, value / whole);
  return [make("span", { class: "meter", "aria-hidden": "true" }, make("i", { style: { width: `${100 * share}%` } })), `${format(value)} of ${format(whole)}`];
}

function speed(row) {
  if (!row.push_gbps) return ["–"];
  const rate = `${words.size(1e9 * row.push_gbps)}/s`;
  return row.link_gbps ? meter(row.push_gbps, row.link_gbps, (gbps) => `${words.size(1e9 * gbps)}/s`) : [rate];
}

function firstTheme() {
  try { const kept = localStorage.getItem("deadpool-theme"); if (kept) return kept; } catch (error) { /* see setTheme */ }
  return matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
}

document.documentElement.dataset.theme = firstTheme();
const page = new Page();
