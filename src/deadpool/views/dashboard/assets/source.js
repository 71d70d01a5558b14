"use strict";
// Where the page's data come from: inside the file (a report), or a stream of the server. The token stays in this tab.

const KEY = "deadpool-token";
const RETRY_MS = [500, 1000, 2000, 4000];

class EmbeddedSource {
  constructor(element) { this.data = JSON.parse(element.textContent); }
  start(page) {
    for (const [name, part] of Object.entries(this.data)) if (name !== "details") page.take(name, part);
    page.linked("report");
  }
  async fault(cause) { return this.data.details[cause] || null; }
}

class StreamSource {
  constructor() { this.token = sessionStorage.getItem(KEY) || ""; this.failures = 0; }

  start(page) {
    this.page = page;
    if (this.token) this.follow(); else page.askToken("");
  }

  login(token) { this.token = token.trim(); this.failures = 0; this.follow(); }

  async fault(cause) {
    const answer = await fetch(`/api/fault/${encodeURIComponent(cause)}`, this.options());
    return answer.ok ? answer.json() : null;
  }

  options() { return { headers: { Authorization: `Bearer ${this.token}` }, cache: "no-store" }; }

  async follow() {
    for (;;) {
      try {
        const answer = await fetch("/api/stream", this.options());
        if (answer.status === 401) {
          sessionStorage.removeItem(KEY);
          this.page.askToken(this.token ? "That is not the token of this job." : "");
          return;
        }
        if (answer.ok) {
          sessionStorage.setItem(KEY, this.token);
          this.failures = 0;
          this.page.linked("live");
          await this.read(answer.body);
        }
      } catch (error) { /* the server is gone; it may come back */ }
      this.page.linked("reconnecting");
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)]));
    }
  }

  async read(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        this.dispatch(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  dispatch(message) {
    if (!message.startsWith("event: ")) return;
    const line = message.indexOf("\n");
    this.page.take(message.slice(7, line), JSON.parse(message.slice(line + 7)));
  }
}
