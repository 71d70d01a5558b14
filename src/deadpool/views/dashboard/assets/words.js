"use strict";
// Small helpers of the page. Text from nodes only ever becomes a text node: nothing here parses HTML.

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "text") element.textContent = value;
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function byId(id) { return document.getElementById(id); }

function setText(element, text) { if (element.textContent !== text) element.textContent = text; }

const words = {
  seconds(value) {
    if (value === null || value === undefined) return "–";
    if (value < 0.0009995) return `${(1e6 * value).toFixed(0)} µs`;
    if (value < 1) return `${(1e3 * value).toFixed(value < 0.01 ? 1 : 0)} ms`;
    if (value < 100) return `${Number(value.toPrecision(3))} s`;
    if (value < 6000) return `${Number((value / 60).toPrecision(3))} min`;
    return `${Number((value / 3600).toPrecision(3))} h`;
  },
  size(count) {
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (count < 1000) return unit === "B" ? `${count.toFixed(0)} B` : `${Number(count.toPrecision(3))} ${unit}`;
      count /= 1000;
    }
    return `${Number(count.toPrecision(3))} TB`;
  },
  whole(value) { return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"); },
  clock(t) { return new Date(1000 * t).toLocaleTimeString("en-GB"); },
  day(t) { return new Date(1000 * t).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }); },
  list(items, most) {
    const shown = items.slice(0, most).join(", ");
    return items.length > most ? `${shown} and ${items.length - most} more` : shown;
  },
};

// As much of a text as fits, on a canvas.
function fitting(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let shown = text.slice(0, 40);
  while (shown.length > 1 && pen.measureText(`${shown}…`).width > width) shown = shown.slice(0, -1);
  return `${shown}…`;
}

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }
