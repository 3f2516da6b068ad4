/* The form of a command, from its table of options: presets, the options that matter, then all. */

import { alert, ask, copied, h } from "./dom.js";

const label = (option) => option.flag && !option.flag.startsWith("-") ? option.flag : option.path;

/* One option. `changed` is called with its value, or undefined where it is left as it is. */
function field(option, value, changed, lists, prefix) {
  const id = `${prefix}-${option.path}`, hint = `${id}-hint`;
  const common = { id, "aria-describedby": hint, "data-path": option.path };
  const nothing = option.default === null || option.default === undefined || option.default === "" || String(option.default) === "";
  const usual = nothing ? "not set" : `default ${Array.isArray(option.default) ? option.default.join(", ") : typeof option.default === "object" ? "as shipped" : option.default}`;
  const tell = (text) => changed(text === "" ? undefined : option.several ? text.split("\n").map((line) => line.trim()).filter(Boolean) : text);
  let input;
  if (option.class === "never") {
    input = h("input", { ...common, disabled: true, placeholder: `not from a page: ${option.why_never}` });
  } else if (option.choices.length || option.kind === "switch") {
    const words = option.kind === "switch" ? ["true", "false"] : option.choices;
    input = h("select", { ...common, onchange: () => tell(input.value) },
      h("option", { value: "" }, usual), words.map((word) => h("option", { value: word }, word)));
  } else if (option.several) {
    input = h("textarea", { ...common, rows: 2, placeholder: `${usual}; one a line`, oninput: () => tell(input.value) });
  } else {
    input = h("input", { ...common, placeholder: usual, autocomplete: "off", spellcheck: "false", list: option.kind === "path" ? lists : null, oninput: () => tell(input.value.trim()) });
  }
  if (value !== undefined) input.value = Array.isArray(value) ? value.join("\n") : value;
  const more = [option.unit, option.bounds, option.flag && option.flag.startsWith("-") ? option.flag : null].filter(Boolean).join("; ");
  return h("div", { class: "field" },
    h("label", { for: id }, label(option) + (option.required ? " (needed)" : "")), input,
    h("p", { id: hint }, option.help + (more ? ` [${more}]` : "")));
}

function presets(form, values, changed) {
  const radio = (name, text) => h("label", { class: "choice" },
    h("input", { type: "radio", name: "preset", value: name, checked: (values.config || "") === name,
      onchange: () => changed("config", name || undefined) }), text);
  return h("fieldset", {}, h("legend", {}, "Preset"),
    form.presets.map((name) => radio(name, name)), radio("", "defaults"),
    h("p", { class: "hint" }, "A shipped configuration; what is set below overrides it."));
}

/* All options, found by what one types: as many as are looked for, never all fields at once. */
function searched(options, values, changed, lists, prefix, filled = () => undefined) {
  const SHOWN = 40;
  const place = h("div", { class: "fields" }), count = h("p", { class: "hint", role: "status" });
  const search = h("input", { id: `${prefix}-search`, type: "search", oninput: () => fill() });
  function fill() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fitting = options.filter((option) => {
      const text = `${option.path} ${option.flag || ""} ${option.help}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    count.textContent = `${fitting.length} of ${options.length} options${fitting.length > SHOWN ? `; the first ${SHOWN} are shown` : ""}`;
    place.replaceChildren(...fitting.slice(0, SHOWN).map((option) => field(option, values[option.path], (value) => changed(option.path, value), lists, prefix)));
    filled();
  }
  const box = h("details", { ontoggle: () => { if (box.open && !place.childElementCount) fill(); } },
    h("summary", {}, `All ${options.length} options`),
    h("div", { class: "field" }, h("label", { for: `${prefix}-search` }, "Search by name, flag or words of the help"), search), count, place);
  return box;
}

/* Instances of a simulated cluster, group by group. */
function instances(form, values, told, again) {
  const columns = ["count", "role", "hbm_gib", "tflops", "hbm_gbytes_per_s", "prefill_tokens_per_s", "decode_tokens_per_s", "max_num_seqs"];
  const shown = form.instance.filter((option) => columns.includes(option.path));
  const groups = [{ name: "gpu-a", count: "1" }, { name: "gpu-b", count: "1" }];
  const body = h("div", {});
  const name = h("input", { id: "drawn-name", value: "mine" });
  const status = alert("drawn-why");
  function cell(group, option, number) {
    const change = (event) => { group[option.path] = event.target.value; };
    const title = `${option.path} of group ${number + 1}`;
    const input = option.choices.length
      ? h("select", { "aria-label": title, onchange: change }, h("option", { value: "" }, String(option.default)), option.choices.map((word) => h("option", { value: word }, word)))
      : h("input", { "aria-label": title, size: 7, placeholder: String(option.default), oninput: change });
    input.value = group[option.path] || "";
    return h("td", {}, input);
  }
  function fill() {
    body.replaceChildren(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Groups of instances" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "group"), shown.map((option) => h("th", { scope: "col", title: option.help }, option.path + (option.unit ? `, ${option.unit}` : ""))), h("th", { scope: "col" }, "remove"))),
      h("tbody", {}, groups.map((group, number) => h("tr", {},
        h("td", {}, h("input", { "aria-label": `name of group ${number + 1}`, size: 7, value: group.name, oninput: (event) => { group.name = event.target.value; } })),
        shown.map((option) => cell(group, option, number)),
        h("td", {}, h("button", { type: "button", disabled: groups.length < 2, onclick: () => { groups.splice(number, 1); fill(); } }, "−", h("span", { class: "readout" }, `remove group ${number + 1}`)))))))));
  }
  fill();
  const typed = (group) => Object.fromEntries(Object.entries(group).filter(([key, value]) => key !== "name" && value !== "").map(([key, value]) => {
    const option = form.instance.find((each) => each.path === key);
    return [key, option.kind === "text" ? value : Number(value)];
  }));
  return h("details", {}, h("summary", {}, "Instances one by one"),
    h("p", { class: "hint" }, "Written as a scenario of its own, made of the one above; each group has as many instances as it says."),
    body,
    h("div", { class: "row" },
      h("button", { type: "button", onclick: () => { groups.push({ name: `gpu-${groups.length + 1}`, count: "1" }); fill(); } }, "Add a group"),
      h("div", { class: "field" }, h("label", { for: "drawn-name" }, "Name of the scenario"), name),
      h("button", { type: "button", onclick: async () => {
        status.textContent = "";
        try {
          const drawn = await ask("/scenarios", { name: name.value, base: values.scenario || form.scenarios[0],
            instances: Object.fromEntries(groups.map((group) => [group.name, typed(group)])) });
          told("scenario", drawn.path);
          again();
        } catch (error) { status.textContent = error.message; }
      } }, "Use these instances")), status);
}

export async function start(place, command, ...filled) {
  const [known, form] = await Promise.all([ask("/commands"), ask(`/commands/${encodeURIComponent(command)}`)]);
  const values = command === "run" && !filled.length ? { config: form.presets[0] } : {};
  if (command === "sim") values.scenario = form.scenarios[0];
  filled.forEach((pair) => { const [path, value] = pair.split("="); values[path] = value; });
  const settings = {};
  const why = alert("why"), line = h("pre", { id: "line", tabindex: "0", role: "region", "aria-label": "Command line" }), yaml = h("pre", { tabindex: "0", role: "region", "aria-label": "Configuration" });
  const planned = h("pre", { id: "planned", tabindex: "0", role: "region", "aria-label": "What it will do", hidden: true });
  const go = h("button", { class: "first", type: "submit", id: "go" }, "Start");
  let timer = null, number = 0, effective = {};

  /* What holds where nothing is filled in: a preset's value, and not the program's. */
  function inEffect() {
    place.querySelectorAll("[data-path]").forEach((input) => {
      const value = effective[input.dataset.path];
      if (input.value || input.disabled || value === undefined || (value !== null && typeof value === "object" && !Array.isArray(value))) return;
      const text = value === null ? "not set" : `${Array.isArray(value) ? value.join(", ") : value}`;
      if (input.options) input.options[0].textContent = text;
      else input.placeholder = text;
    });
  }

  function wanted() {
    const list = Object.entries(settings).map(([path, value]) => `${path}=${value}`);
    return { command, values: { ...values, ...(list.length ? { settings: list } : {}) } };
  }
  async function check(dryRun) {
    const mine = ++number;
    planned.hidden = true;
    try {
      const answer = await ask(dryRun ? "/check?dry_run=1" : "/check", wanted());
      if (mine !== number) return;
      if (answer.refusal) {
        why.textContent = answer.refusal.sentence;
        go.disabled = true;
        return;
      }
      line.textContent = answer.line;
      yaml.textContent = answer.yaml;
      yaml.parentNode.hidden = !answer.yaml;
      effective = answer.effective;
      inEffect();
      plan.hidden = !answer.dry_run;
      why.textContent = "";
      go.disabled = false;
      if (answer.planned) { planned.textContent = answer.planned; planned.hidden = false; }
    } catch (error) {
      if (mine !== number) return;
      why.textContent = error.message;
      go.disabled = true;
    }
  }
  function changed(path, value) {
    if (value === undefined) delete values[path];
    else values[path] = value;
    clearTimeout(timer);
    timer = setTimeout(check, 250);
  }
  const plan = h("button", { type: "button", id: "plan", onclick: async () => {
    plan.disabled = true;
    plan.textContent = "Checking …";
    await check(true);
    plan.disabled = false;
    plan.textContent = "Check: what will it do?";
  } }, "Check: what will it do?");

  const offered = form.options.filter((option) => !["dry_run", "list_all", "show"].includes(option.path));
  const first = offered.filter((option) => option.first && option.class !== "never" && !(option.path === "config" && form.presets.length) && option.path !== "settings");
  const choose = h("select", { id: "command", onchange: () => { location.hash = `#/start/${encodeURIComponent(choose.value)}`; } },
    known.commands.map((each) => h("option", { value: each.command, selected: each.command === command }, each.command)));
  const lists = h("datalist", { id: "paths" }, [...known.folders.map((folder) => `${folder}/`), ...known.traces, ...form.scenarios].map((path) => h("option", { value: path })));
  const fields = h("div", { class: "fields" });
  const fill = () => fields.replaceChildren(...first.map((option) => field(option, values[option.path], (value) => changed(option.path, value), "paths", "first")));
  fill();
  place.append(h("h2", {}, "Start"), h("form", { onsubmit: async (event) => {
    event.preventDefault();
    go.disabled = true;
    why.textContent = "";
    try { location.hash = `#/run/${(await ask("/runs", wanted())).id}`; }
    catch (error) { why.textContent = error.message; go.disabled = false; }
  } }, h("div", { class: "halves" },
    h("div", {},
      h("div", { class: "row" }, h("div", { class: "field" }, h("label", { for: "command" }, "Command"), choose), h("p", {}, form.about)),
      lists, form.presets.length && command !== "lab" ? presets(form, values, changed) : null, fields,
      command === "sim" ? instances(form, values, changed, () => { fill(); check(); }) : null,
      command === "sim" ? h("div", { id: "scenario-options" }, h("h3", {}, "The scenario"), searched(form.scenario, settings, (path, value) => {
        if (value === undefined) delete settings[path]; else settings[path] = value;
        changed("settings", undefined);
      }, "paths", "scenario")) : null,
      first.length < offered.length - 1 ? searched(offered.filter((option) => option.path !== "settings"), values, changed, "paths", "all", inEffect) : null),
    h("div", { class: "beside" },
      h("h3", {}, "The same on the command line"), line, copied(() => line.textContent, "the command"),
      h("details", {}, h("summary", {}, "Its configuration as YAML"), yaml, copied(() => yaml.textContent, "the YAML")),
      why, h("div", { class: "row" }, go, plan), planned))));
  await check();
  return () => clearTimeout(timer);
}
