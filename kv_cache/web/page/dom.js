/* Elements, requests, and what is shown of numbers. All text is set as text, never as markup. */

export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export class Refusal extends Error {}

export async function ask(path, body, method) {
  const options = { method: method || (body === undefined ? "GET" : "POST"), headers: {} };
  if (body instanceof Blob) {
    options.body = body;
    options.headers["Content-Type"] = "application/octet-stream";
  } else if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refusal("The server does not answer; runs go on without it. Start serve again.");
  }
  const document = await answer.json().catch(() => ({}));
  if (answer.status === 401) { location.hash = "#/token"; }
  if (!answer.ok) throw new Refusal(document.error ? document.error.sentence : `${path}: ${answer.status}`);
  return document;
}

export function figures(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(digits)));
}

export function clock(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.round(seconds)), two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

export function date(text) {
  const value = typeof text === "number" ? new Date(text * 1000) : new Date(text);
  return Number.isNaN(value.getTime()) ? "–" : value.toISOString().slice(0, 16).replace("T", " ");
}

const LOOKS = { valid: "good", done: "good", suspect: "poor", interrupted: "poor", cancelled: "poor", stopped: "poor", running: "", invalid: "bad", failed: "bad", unreadable: "bad" };

export function badge(word) {
  return h("span", { class: `badge ${LOOKS[word] || ""}` }, word || "–");
}

export function moved(row) {
  return row.moved ? h("span", { class: "small" }, row.moved) : null;
}

export function copied(text, what) {
  const button = h("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text()); button.textContent = "Copied"; }
    catch { button.textContent = "Select it and copy"; }
  } }, `Copy ${what}`);
  return button;
}

export function table(caption, heads, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, h("span", {}, caption)),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows)));
}

export function alert(id) {
  return h("p", { class: "wrong", role: "alert", id });
}

/* A chart of lines whose points go out on the left: it never holds more than `MOST`. */
export const MOST = 600;

export class Chart {
  constructor(title, unit, names) {
    this.names = names;
    this.data = [[], ...names.map(() => [])];
    this.box = h("div", { class: "plot" });
    this.says = h("p", { class: "hint" });
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, `${title}, ${unit}`), this.says), this.box);
    this.plot = null;
  }

  add(at, values) {
    const last = this.data[0][this.data[0].length - 1];
    if (last !== undefined && at <= last) return;
    [at, ...values].forEach((value, index) => {
      this.data[index].push(value === undefined ? null : value);
      if (this.data[index].length > MOST) this.data[index].shift();
    });
  }

  set(places, columns) { this.data = [places, ...columns]; }

  draw() {
    if (!this.box.isConnected || !this.box.clientWidth) return;
    const now = this.names.map((name, index) => `${name} ${figures(this.data[index + 1][this.data[index + 1].length - 1])}`);
    this.says.textContent = now.join(" · ");
    if (this.plot) {
      if (this.plot.width !== this.box.clientWidth) this.plot.setSize({ width: this.box.clientWidth, height: 180 });
      this.plot.setData(this.data);
      return;
    }
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const axis = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid") }, size: 52 };
    const dashes = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 2], [12, 4]];
    this.plot = new uPlot({
      width: this.box.clientWidth, height: 180, legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(0, low || 0), high > 0 ? high * 1.08 : 1] } },
      axes: [{ ...axis, size: 30, values: (_, places) => places.map(this.place || clock) }, { ...axis, values: (_, values) => values.map((v) => figures(v)) }],
      series: [{}, ...this.names.map((label, index) => ({ label, stroke: colour(`c${index % 9}`), width: 2, dash: dashes[index % 6], points: { show: this.points || false } }))],
    }, this.data, this.box);
    this.box.setAttribute("role", "img");
    this.box.setAttribute("aria-label", `Lines: ${this.names.join(", ")}`);
  }
}
