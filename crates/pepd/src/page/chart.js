// Charts, as SVG. A row is [second of Unix time, [values]].

import { clock, round } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 170;
const TOP = 8;
const BOTTOM = 22;
const LEFT = 76;
const RIGHT = 8;
// Number of missing intervals that makes a gap in a line; a late sample may skip one.
const GAP = 2.5;

export function svg(name, attributes = {}, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Returns the ticks of a scale up to this value: multiples of a round step. `base` is 1000, or
// 1024 for bytes.
export function steps(most, base) {
  let unit = 1;
  while (most / unit >= base) unit *= base;
  while (base === 1000 && most / unit < 1) unit /= base;
  const nice = base === 1000
    ? [1, 2, 5, 10, 20, 50, 100, 200, 500]
    : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
  const wanted = most / unit / 4;
  let step = nice.find((step) => step >= wanted) ?? base / 2;
  if (base === 1000 && wanted <= 0.5) step = [0.1, 0.2, 0.25, 0.5].find((step) => step >= wanted);
  step *= unit;
  const all = [];
  for (let value = 0; value < most + step * 0.999; value += step) all.push(value);
  return all;
}

// Returns the interval of the time labels.
export function timeStep(range, width) {
  const most = Math.max(2, Math.floor(width / 64));
  const nice = [60, 120, 300, 600, 1200, 1800, 3600, 7200];
  return nice.find((step) => range / step <= most) ?? 14400;
}

export function times(begin, end, width) {
  const step = timeStep(end - begin, width);
  // Labels are at multiples of the interval in local time.
  const offset = 60 * new Date(1000 * end).getTimezoneOffset();
  const all = [];
  for (let at = Math.ceil((begin - offset) / step) * step + offset; at <= end; at += step) all.push(at);
  return all;
}

// Draws the time labels below a chart.
export function drawTimes(root, begin, end, place, width, bottom) {
  for (const at of times(begin, end, width)) {
    const x = place(at);
    root.append(svg("line", { class: "grid", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
    // Omits labels that would exceed an edge.
    if (x - place(begin) < 18 || place(end) - x < 18) continue;
    root.append(svg("text", { class: "time", x, y: bottom + 16 }, clock(at)));
  }
}

// Figure with a title, lines, and a legend with the last values or those under the pointer.
export class Chart {
  // lines: [{name, look, value: (row) => number or null}]; base: of the scale; minimum: of its top.
  constructor(figure, { title, lines, base = 1000, unit = 1, minimum, write }) {
    Object.assign(this, { figure, lines, base, unit, minimum, write, pointed: null, rows: [] });
    const caption = document.createElement("figcaption");
    const heading = document.createElement("h3");
    heading.textContent = title;
    this.when = document.createElement("span");
    this.when.className = "when";
    this.legend = document.createElement("p");
    this.legend.className = "legend";
    this.values = lines.map((line) => {
      const entry = document.createElement("span");
      const sample = svg("svg", { class: "sample", viewBox: "0 0 22 8", "aria-hidden": "true" });
      sample.append(svg("path", { class: `line ${line.look}`, d: "M1 4H21" }));
      const value = document.createElement("b");
      entry.append(sample, `${line.name} `, value);
      this.legend.append(entry);
      return value;
    });
    caption.append(heading, this.when, this.legend);
    this.note = document.createElement("p");
    this.note.className = "empty";
    this.note.hidden = true;
    this.area = document.createElement("div");
    this.area.className = "chart";
    figure.replaceChildren(caption, this.area, this.note);
    this.area.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.area.addEventListener("pointerleave", () => this.point(null));
  }

  point(x) {
    this.pointed = x;
    if (this.rows.length > 0) this.showValues();
  }

  // Shows an explanation instead of the chart.
  explain(text) {
    this.note.textContent = text;
    this.note.hidden = false;
    this.area.hidden = true;
    this.legend.hidden = true;
  }

  draw(rows, begin, end, step) {
    this.note.hidden = true;
    this.area.hidden = false;
    this.legend.hidden = false;
    Object.assign(this, { rows, begin, end, step });
    const width = Math.max(200, this.area.clientWidth);
    const bottom = HEIGHT - BOTTOM;
    const room = width - LEFT - RIGHT;
    this.place = (at) => LEFT + ((at - begin) / (end - begin)) * room;
    const values = this.lines.map((line) => rows.map((row) => line.value(row)));
    const most = Math.max(this.minimum, ...values.flat().filter((value) => value !== null));
    const scale = steps(most / this.unit, this.base).map((value) => value * this.unit);
    const top = scale.at(-1);
    const height = (value) => bottom - (value / top) * (bottom - TOP);
    const root = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img" });
    root.append(svg("title", {}, `${this.figure.querySelector("h3").textContent} over time`));
    for (const value of scale) {
      const y = height(value);
      root.append(svg("line", { class: value === 0 ? "axis" : "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
      root.append(svg("text", { class: "value", x: LEFT - 8, y: y + 4 }, round(this.write(value))));
    }
    drawTimes(root, begin, end, this.place, room, bottom);
    this.lines.forEach((line, index) => this.drawLine(root, line.look, rows, values[index], height, bottom));
    this.mark = svg("line", { class: "mark", y1: TOP, y2: bottom, visibility: "hidden" });
    root.append(this.mark);
    this.area.replaceChildren(root);
    this.showValues();
  }

  drawLine(root, look, rows, values, height, bottom) {
    let line = "";
    let area = "";
    let last = null;
    const close = () => {
      if (last !== null) area += `L${last.toFixed(1)} ${bottom}Z`;
    };
    rows.forEach((row, index) => {
      const value = values[index];
      // A value is drawn at the middle of its interval; a missing interval makes a gap.
      const before = index > 0 && values[index - 1] !== null && row[0] - rows[index - 1][0] <= GAP * this.step;
      if (value === null) return;
      const x = this.place(row[0] + this.step / 2);
      const y = height(value).toFixed(1);
      if (!before) {
        close();
        area += `M${x.toFixed(1)} ${bottom}`;
      }
      line += `${before ? "L" : "M"}${x.toFixed(1)} ${y}${before ? "" : "h0.01"}`;
      area += `L${x.toFixed(1)} ${y}`;
      last = x;
    });
    close();
    root.append(svg("path", { class: `fill ${look}`, d: area }), svg("path", { class: `line ${look}`, d: line }));
  }

  // Shows the values under the pointer, or the last ones.
  showValues() {
    let row = this.rows.at(-1);
    if (this.pointed !== null && row) {
      const off = (row) => Math.abs(this.place(row[0] + this.step / 2) - this.pointed);
      row = this.rows.reduce((best, row) => (off(row) <= off(best) ? row : best));
      const x = this.place(row[0] + this.step / 2);
      this.mark.setAttribute("x1", x);
      this.mark.setAttribute("x2", x);
    }
    const pointed = this.pointed !== null && row;
    this.mark.setAttribute("visibility", pointed ? "visible" : "hidden");
    this.when.textContent = pointed ? clock(row[0], true) : "";
    this.lines.forEach((line, index) => {
      const value = row ? line.value(row) : null;
      this.values[index].textContent = value === null ? "–" : this.write(value);
    });
  }
}

// Draws the state of the link as one bar. `known` are times with a reported state.
export function drawStrip(area, { begin, end, known, outages }) {
  const width = Math.max(200, area.clientWidth);
  const [top, bottom] = [4, 34];
  const edge = 2;
  const place = (at) => edge + ((Math.min(Math.max(at, begin), end) - begin) / (end - begin)) * (width - 2 * edge);
  const root = svg("svg", { viewBox: `0 0 ${width} 56`, width, height: 56, role: "img" });
  const bar = (look, from, to) => {
    // Even the shortest outage is visible.
    const x = place(from);
    const minimum = look === "outage" ? 2 : 0;
    const rect = svg("rect", { class: look, x, y: top, width: Math.max(minimum, place(to) - x), height: bottom - top });
    root.append(rect);
    return rect;
  };
  root.append(svg("title", {}, "State of the link over the last hours"));
  bar("unknown", begin, end);
  for (const [from, to] of known) bar("up", from, to);
  for (const outage of outages) {
    const rect = bar("outage", outage.from, outage.to);
    rect.append(svg("title", {}, outage.text));
  }
  drawTimes(root, begin, end, place, width, bottom);
  area.replaceChildren(root);
}
