/* Runs: the list, and one as it goes on. What is drawn comes once a second from the server; nothing
   here grows: each chart holds its last points only. */

import { alert, ask, badge, Chart, clock, date, figures, h, moved, table } from "./dom.js";
import { look } from "./look.js";

const LOOK_AGAIN_MS = 3000;

export async function runs(place) {
  const list = h("div", { id: "runs" });
  let shown = "";
  async function refresh() {
    const { runs: all } = await ask("/runs");
    const now = JSON.stringify(all.map((run) => [run.id, run.state]));
    if (now === shown) return;
    shown = now;
    list.replaceChildren(all.length
      ? table("The latest runs", ["started", "command", "state", "command line"], all.map((run) => h("tr", {},
        h("th", { scope: "row" }, h("a", { href: `#/run/${run.id}` }, date(run.started_unix_s))), h("td", {}, run.command), h("td", {}, badge(run.state)), h("td", { class: "long" }, run.line))))
      : h("p", {}, "Nothing was started here yet."));
  }
  place.append(h("h2", {}, "Runs"), list);
  await refresh();
  const again = setInterval(() => { if (!document.hidden) refresh().catch(() => undefined); }, LOOK_AGAIN_MS);
  return () => clearInterval(again);
}

const address = (file) => `/files/${file.split("/").map(encodeURIComponent).join("/")}`;

const CARDS = [["phase", "phase"], ["left", "time left"], ["read", "storage read, GiB/s"], ["write", "storage write, GiB/s"],
  ["operations", "storage operations/s"], ["p50", "read p50, ms"], ["p95", "read p95, ms"], ["p99", "read p99, ms"],
  ["users", "users"], ["queued", "queued"], ["in_flight", "in flight"], ["done", "requests done"],
  ["hits", "hit ratio, %"], ["cpu", "CPU, cores of this run"], ["device", "device busy, %"], ["saturation", "saturation"]];

export async function watch(place, id) {
  const run = await ask(`/runs/${id}`);
  const cards = {}, why = alert("why"), lost = alert("lost"), state = h("span", { id: "state" }, badge(run.state));
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Share of the phase that is over" });
  const soFar = h("ul", { class: "reasons", id: "so-far" }), waiting = h("p", { class: "hint" }), slos = h("div", {}), log = h("pre", { id: "log", tabindex: "0", role: "region", "aria-label": "Log" }, run.log.slice(-12).join("\n"));
  const metrics = h("p", { class: "hint" });
  const live = h("section", { id: "live", hidden: true, "aria-label": "Live" });
  const after = h("section", { id: "after" });
  const charts = {
    rates: new Chart("Bytes moved by tier", "GiB/s", ["storage read", "storage write", "cpu read", "cpu write", "gpu read", "gpu write"]),
    reads: new Chart("Storage reads", "ms", ["p50", "p95", "p99"]),
    writes: new Chart("Storage writes", "ms", ["p50", "p95", "p99"]),
    load: new Chart("Load", "count", ["users", "queued", "in flight"]),
  };
  const search = new Chart("Loads that were tried, by number of the probe", "users or requests/s", ["SLOs kept", "SLOs missed"]);
  search.place = (number) => Number.isInteger(number) ? String(number) : "";
  search.points = true;
  const tried = h("section", { id: "tried", hidden: true, "aria-label": "Search" }, search.element);
  let looked = 0;
  window.charts = charts; // what a test counts
  const stop = h("button", { type: "button", id: "stop", onclick: () => end(`/runs/${id}/stop`, {}, "POST") }, "Stop: keep the result");
  const cancel = h("button", { type: "button", id: "cancel", onclick: () => {
    if (window.confirm("End this run and remove what it wrote?")) end(`/runs/${id}`, undefined, "DELETE");
  } }, "Cancel: keep nothing");
  const buttons = h("div", { class: "row" }, stop, cancel);
  async function end(path, body, method) {
    try { await ask(path, body, method); stop.disabled = cancel.disabled = true; }
    catch (error) { why.textContent = error.message; }
  }
  live.append(h("dl", { class: "cards" }, CARDS.map(([name, title]) => h("div", {}, h("dt", {}, title), cards[name] = h("dd", {}, "–")))), bar,
    h("h3", {}, "So far"), soFar, waiting, slos, h("div", { class: "charts" }, Object.values(charts).map((chart) => chart.element)),
    metrics);
  place.append(h("h2", {}, `${run.command} of ${date(run.started_unix_s)}`), h("p", {}, state), h("pre", { tabindex: "0", role: "region", "aria-label": "Command line" }, run.line), buttons, why, lost, live, tried, after,
    h("h3", {}, "Log"), log);

  const tier = (now, name, what) => { const row = now.tiers[name] || now.tiers[name.toUpperCase()]; return row ? row[what] : undefined; };
  function show(event) {
    lost.textContent = "";
    log.textContent = event.log.join("\n");
    state.replaceChildren(badge(event.state), ` ${clock(event.at_s)}`);
    if (event.probes.length) {
      tried.hidden = false;
      search.set(event.probes.map((each) => each.number), [true, false].map((side) => event.probes.map((each) => each.inside === side ? each.load : null)));
      search.draw();
    }
    if (run.command !== "run" && (looked += 1) % 5 === 0) soFarLeft().catch(() => undefined);
    if (!event.now) return;
    const now = event.now, set = (name, text) => { cards[name].textContent = text; };
    live.hidden = false;
    if (!metrics.childElementCount) metrics.replaceChildren("For a dashboard of your own, while it runs: ", h("a", { href: event.metrics }, event.metrics), " (Prometheus).");
    set("phase", `${now.phase} ${clock(now.phase_s)}`);
    set("left", clock(now.left_s));
    bar.value = now.planned_s ? Math.min(1, now.phase_s / now.planned_s) : 0;
    set("read", figures(tier(now, "storage", "read_gib_s")));
    set("write", figures(tier(now, "storage", "write_gib_s")));
    set("operations", figures((tier(now, "storage", "read_ops_s") || 0) + (tier(now, "storage", "write_ops_s") || 0)));
    ["p50", "p95", "p99"].forEach((name) => set(name, figures(now.latency_ms[`read_${name}`])));
    ["users", "queued", "in_flight", "done", "saturation"].forEach((name) => set(name, figures(now[name], 3)));
    set("hits", now.hit_ratio === null ? "–" : figures(100 * now.hit_ratio));
    set("cpu", figures(now.cpu_cores, 3));
    set("device", now.device === null ? "–" : figures(100 * now.device, 3));
    charts.rates.add(event.at_s, ["storage", "cpu", "gpu"].flatMap((name) => [tier(now, name, "read_gib_s"), tier(now, name, "write_gib_s")]));
    charts.reads.add(event.at_s, ["p50", "p95", "p99"].map((name) => now.latency_ms[`read_${name}`]));
    charts.writes.add(event.at_s, ["p50", "p95", "p99"].map((name) => now.latency_ms[`write_${name}`]));
    charts.load.add(event.at_s, [now.users, now.queued, now.in_flight]);
    Object.values(charts).forEach((chart) => chart.draw());
    soFar.replaceChildren(...(now.so_far.length ? now.so_far : ["Nothing counts against the run yet; its verdict is made at the end."]).map((text) => h("li", {}, text)));
    waiting.textContent = `Judged at the end: ${now.waiting.join(", ")}.`;
    slos.replaceChildren(table("SLOs so far", ["SLO", "limit, ms", "answers", "within, %", ""], now.slos.map((slo) => h("tr", {},
      h("th", { scope: "row" }, slo.name), h("td", { class: "n" }, figures(slo.limit_ms)), h("td", { class: "n" }, String(slo.answers)),
      h("td", { class: "n" }, slo.share === null ? "–" : figures(100 * slo.share)), h("td", {}, slo.kept === null ? "too few to say" : slo.kept ? "kept" : "missed")))));
  }
  const looks = new Map(); // by their file: what lies beside the result, as it grows
  function left(last) {
    last.files.filter((file) => /\.(csv|jsonl|tmp)$/.test(file) && !looks.has(file)).forEach((file) => {
      const inside = h("div", {}), going = file.endsWith(".tmp"); // it gets its name when all of it is there
      const title = h("summary", {}, going ? "What is written now" : `Look at ${file.split("/").pop()}`);
      const box = h("details", { class: "look", open: going, ontoggle: () => { if (box.open && !inside.childElementCount) again(); } }, title, inside);
      const looking = look(address(file), inside, going);
      const again = async () => { const kind = await looking().catch(() => ""); if (going && kind) title.textContent = `${kind} so far`; };
      looks.set(file, { box, again });
    });
    [...looks.keys()].filter((file) => !last.files.includes(file)).forEach((file) => looks.delete(file));
    return [...last.results.map((row) => h("p", {}, h("a", { href: `/page?result=${encodeURIComponent(row.path)}` }, `The ${row.kind}'s page`), " ", badge(row.verdict || row.kind), moved(row), row.value === null ? "" : ` ${figures(row.value / 2 ** 30)} GiB/s `, ` ${row.path}`)),
      ...[...looks.values()].map((each) => each.box)];
  }
  let shown = "", over = false;
  async function soFarLeft() {
    const last = await ask(`/runs/${id}?fresh=1`);
    if (over) return; // asked before the end, answered after it
    const text = JSON.stringify([last.results.length, last.files]);
    if (text !== shown) {
      const all = left(last);
      after.replaceChildren(...(all.length ? [h("h3", {}, "Left so far"), ...all] : []));
      shown = text;
    }
    looks.forEach((each) => { if (each.box.open) each.again(); });
  }
  async function ended() {
    over = true;
    const last = await ask(`/runs/${id}`);
    state.replaceChildren(badge(last.state), last.exit_code === null ? "" : ` exit code ${last.exit_code}`);
    buttons.hidden = true;
    if (last.refusal) why.textContent = last.refusal;
    const all = left(last);
    after.replaceChildren(h("h3", {}, "What it left"), ...all.slice(0, last.results.length),
      h("pre", { id: "output", tabindex: "0", role: "region", "aria-label": "Output" }, last.output.join("\n")), ...all.slice(last.results.length),
      h("details", {}, h("summary", {}, `${last.files.length} files`), h("ul", {}, last.files.map((file) => h("li", {}, h("a", { href: address(file) }, file))))),
      h("p", {}, h("a", { href: "#/results" }, "All results")));
    log.textContent = last.log.join("\n");
  }
  if (run.state !== "running") { await ended(); return undefined; }
  const events = new EventSource(`/runs/${id}/events`);
  events.onmessage = (message) => show(JSON.parse(message.data));
  events.onerror = () => {
    lost.textContent = events.readyState === EventSource.CLOSED ? "This page no longer gets what the run does, as too many watch or serve has another token; load it again."
      : "The server does not answer; the run goes on without it. Once serve is started again, this page goes on.";
  };
  events.addEventListener("end", () => { events.close(); lost.textContent = ""; ended().catch((error) => { why.textContent = error.message; }); });
  return () => events.close();
}
