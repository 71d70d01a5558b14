"use strict";
// One fault in detail: its phases as a waterfall, a row per rank, what the coordinator logged, and ends of logs.

const MARK_TONES = { aborted: "unwind", unwound: "plan", built: "prepare", restored: "connect", rebuilt: "h", resumed: "redo" };

function faultPanel(fault, close) {
  const total = Math.max(1e-9, fault.seconds || fault.phases.reduce((sum, phase) => sum + phase.seconds, 0), ...fault.rows.map((row) => Math.max(...Object.values(row.at))));
  const title = make("div", { class: "title" }, make("h2", { id: "detail-title", text: `${fault.cause}: ${fault.reason}` }),
    make("button", { type: "button", class: "plain", onclick: close, text: "Close" }));
  return [title, facts(fault), phases(fault, total), make("h3", { text: rankTitle(fault) }), marks(fault), ranks(fault, total),
    make("div", { class: "columns" }, storyOf(fault), logsOf(fault))];
}

function facts(fault) {
  const found = [["Until every rank had done a new step", fault.seconds === null ? "not over" : words.seconds(fault.seconds)],
    ["Steps done again", words.whole(fault.lost_steps)], ["Resumed at step", words.whole(fault.resume_step)],
    [fault.kind === "drain" ? "Node that left" : "Node", fault.node || "none"],
    ["Ranks", fault.rank_count ? words.list(fault.ranks, 8) : "none lost"], ["When", words.day(fault.began)]];
  return make("div", { class: "facts" }, ...found.map(([label, value]) => make("div", {}, make("span", { text: label }), make("b", { text: value }))));
}

function phases(fault, total) {
  return make("div", { class: "fall", id: "phases" }, ...fault.phases.map((phase) => {
    const end = (phase.begin + phase.seconds) / total;
    const about = make("span", { class: "about", text: phase.meaning, style: end < 0.6 ? { left: `calc(${100 * end}% + 10px)` } : { right: `calc(${100 - 100 * phase.begin / total}% + 10px)`, "text-align": "right" } });
    const block = make("span", { class: "block", style: { left: `${100 * phase.begin / total}%`, width: `${100 * phase.seconds / total}%`, "--tone": `var(--${phase.name})` } });
    const covered = phase.seconds / total > 0.7;
    return make("div", { class: "line", "data-phase": phase.name }, make("b", { text: phase.name }), make("span", { class: "time", text: words.seconds(phase.seconds) }),
      make("div", { class: "track", title: phase.meaning }, block, covered ? null : about));
  }));
}

function rankTitle(fault) {
  const shown = fault.rows.length, all = fault.row_count;
  return shown < all ? `Ranks: those that were lost and the slowest, ${shown} of ${words.whole(all)}` : "Ranks";
}

function marks(fault) {
  return make("div", { class: "marks" }, ...fault.marks.map((name) => make("span", {}, make("i", { style: { background: `var(--${MARK_TONES[name]})` } }), name)));
}

function ranks(fault, total) {
  return make("div", { class: "fall ranks" }, ...fault.rows.map((row) => {
    const track = make("div", { class: "track" });
    let last = 0;
    for (const [name, at] of Object.entries(row.at).sort((a, b) => a[1] - b[1])) {
      const begin = Math.max(0, last);
      track.append(make("span", { class: "block", title: `${name} after ${words.seconds(Math.max(0, at))}`, style: { left: `${100 * begin / total}%`, width: `${Math.max(0, 100 * (at - begin) / total)}%`, "--tone": `var(--${MARK_TONES[name]})` } }));
      last = at;
    }
    const name = make("span", { class: "name" }, make("b", { text: `rank ${row.rank}` }), make("span", { class: "quiet", text: ` ${row.trainer}${row.lost ? ", replaced" : ""}` }));
    return make("div", { class: "line", "data-rank": row.rank }, name, track);
  }));
}

function storyOf(fault) {
  return make("div", {}, make("h3", { text: "What the coordinator did" }), make("ol", { class: "events" },
    ...fault.story.map((line) => make("li", {}, make("time", { text: `+${words.seconds(Math.max(0, line.at))}` }), make("span", { text: line.text })))));
}

function logsOf(fault) {
  const logs = fault.logs.map((log) => make("div", {}, make("p", { class: "quiet", text: `rank ${log.rank}, trainer ${log.trainer} (${log.part})` }), make("pre", { text: log.text, tabindex: "0" })));
  return make("div", {}, make("h3", { text: "Ends of the logs of the ranks concerned" }), ...(logs.length ? logs : [make("p", { class: "quiet", text: "The logs of these ranks are not in the run folder, or are empty." })]));
}
