/* Which page is shown: by what stands behind the # of the address. */

import { alert, ask, h, Refusal } from "./dom.js";
import { start } from "./start.js";
import { runs, watch } from "./watch.js";
import { results, trend } from "./results.js";
import { traces } from "./traces.js";

const PAGES = { start, runs, run: watch, results, trend, traces, token };
const main = document.getElementById("main");
let leave = null;
let shows = 0;

async function show() {
  const turn = shows += 1;
  const [page, ...rest] = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  if (leave) leave();
  leave = null;
  const name = page in PAGES ? page : "start";
  document.querySelectorAll("nav a").forEach((link) => {
    const here = link.hash.split("/")[1] === ({ run: "runs", trend: "results" }[name] || name);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  const place = h("div", {});
  main.replaceChildren(place);
  try {
    const left = await PAGES[name](place, ...(page in PAGES ? rest : ["run"])) || null;
    if (turn === shows) leave = left;
    else if (left) left(); // another page was opened before this one was there
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    const why = alert("why");
    place.replaceChildren(why);
    why.textContent = error.message;
  }
  if (turn !== shows) return;
  const heading = place.querySelector("h2");
  document.title = `${heading ? heading.textContent : "KV-cache"} - storage benchmark`;
}

function token(place) {
  const why = alert("token-why");
  const field = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try { await ask("/login", field.value); location.hash = "#/start/run"; await about(); }
    catch (error) { why.textContent = error.message; }
  } }, h("input", { value: "kv-cache", autocomplete: "username", hidden: true }), h("div", { class: "field" }, h("label", { for: "token" }, "Token that serve was started with"), field), why,
  h("p", {}, h("button", { class: "first" }, "Open")));
  place.append(h("h2", {}, "Token"), form);
}

async function about() {
  const known = await ask("/commands");
  document.getElementById("about").textContent =
    `kv-cache ${known.version}. Results: ${known.results}. Paths may be named in: ${known.folders.join(", ")}. GiB is 2³⁰ bytes.`;
}

window.addEventListener("hashchange", () => { show().then(() => main.focus({ preventScroll: true })); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
show();
about().catch(() => undefined);
