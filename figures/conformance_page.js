"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const checks = Object.keys(data.checks), adapters = data.adapters;
const LOOKS = {
  passed: ["", "passed"], xfailed: ["~", "xfailed"], failed: ["×", "failed"],
  skipped: ["", "skipped"], "not run": ["", "not run"],
};
const $ = (id) => document.getElementById(id);
const words = (check) => check.replaceAll("_", " ");
const look = (outcome) => (outcome === "skipped" || outcome === "not run" ? "silent" : outcome);
const source = (check) => (data.promises[check] === "ours" ? "ampsim" : data.promises[check]);
const promise = (check) => `Source of the check: ${source(check)}${data.ends.includes(check) ? "; at the ends of float32" : ""}.`;
const isBroken = (found) => found.outcome === "failed";
const named = (adapter) => `${adapter.arm} ${adapter.version}${adapter.live ? "" : " (recorded)"}`;

function make(tag, given = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function link(text, address) {
  return /^https:\/\//.test(address || "") ? make("a", { href: address, rel: "noopener" }, text) : document.createTextNode(text);
}

// Text in which addresses become links.
function linked(text) {
  return text.split(/(https:\/\/[^\s,;)]+)/).map((part, i) => (i % 2 ? link(part, part) : part));
}

function found(adapter, check) {
  return adapter.checks[check] || { outcome: "not run", seen: "", reason: "" };
}

function button(adapter, check, text) {
  const cell = found(adapter, check), [sign, word] = LOOKS[cell.outcome];
  const label = `${adapter.arm}, ${words(check)}: ${word}`;
  return make("button", { type: "button", className: look(cell.outcome), title: label, ariaLabel: label, onclick: () => show(adapter, check) }, text ? `${word} ${sign}` : sign);
}

function draw() {
  const oneFramework = adapters.find((adapter) => adapter.arm === $("adapter").value), oneCheck = $("check").value, only = $("broken").checked;
  const shownFrameworks = oneFramework ? [oneFramework] : adapters.filter((adapter) => !only || checks.some((check) => isBroken(found(adapter, check))));
  const shownChecks = oneCheck ? [oneCheck] : checks.filter((check) => !only || shownFrameworks.some((adapter) => isBroken(found(adapter, check))));
  const grid = $("grid"), list = Boolean(oneFramework || oneCheck);
  grid.className = list ? "list" : "matrix";
  if (list) {
    const rows = shownChecks.flatMap((check) => shownFrameworks.map((adapter) => [adapter, check])).filter(([adapter, check]) => !only || isBroken(found(adapter, check)));
    grid.replaceChildren(make("tbody", {}, ...rows.map(([adapter, check]) => make("tr", {},
      make("th", { scope: "row" }, oneFramework && !oneCheck ? words(check) : named(adapter)),
      make("td", {}, button(adapter, check, true)), make("td", {}, found(adapter, check).seen)))));
  } else {
    const names = shownFrameworks.map((adapter) => make("th", { scope: "col" }, make("span", {}, named(adapter))));
    grid.replaceChildren(make("thead", {}, make("tr", {}, make("td"), ...names)), make("tbody", {}, ...shownChecks.map((check) =>
      make("tr", {}, make("th", { scope: "row", title: data.checks[check] }, words(check)), ...shownFrameworks.map((adapter) => make("td", {}, button(adapter, check)))))));
  }
  $("about").replaceChildren(...(oneCheck ? [make("p", {}, data.checks[oneCheck]), make("p", { className: "faint" }, promise(oneCheck))] : []), ...(oneFramework ? [about(oneFramework)] : []));
  drawDrift(shownFrameworks);
}

function about(adapter) {
  const how = adapter.live ? `run on ${adapter.date}; make frameworks runs it again` : `recorded on ${adapter.date} with the code of commit ${adapter.commit.slice(0, 8)}`;
  const run = `${adapter.version}${adapter.pinned ? "" : " (not the pinned version)"}, ${how}`;
  return make("p", {}, link(adapter.target, adapter.source), ` of ${adapter.requirement.split("==")[0]} ${run}.`, adapter.patched ? ` Replaced parts: ${adapter.patched}.` : "");
}

function drawDrift(shown) {
  const groups = new Map(); // sentence -> its adapters
  for (const adapter of shown) {
    const drift = adapter.drift, ran = drift ? drift.histories - drift.refused : 0;
    const said = !drift ? "no dialect" : drift.differing ? `${drift.differing.toLocaleString()} of ${ran.toLocaleString()} sequences differ; first difference ${drift.first}` : `all ${ran.toLocaleString()} sequences give equal scales, bit for bit`;
    groups.set(said, [...(groups.get(said) || []), adapter]);
  }
  const rows = [...groups].map(([said, adapters]) => make("tr", {},
    make("th", { scope: "row", className: adapters.some((adapter) => adapter.drift && adapter.drift.differing) ? "failed" : "" }, said),
    make("td", {}, adapters.map((adapter) => `${named(adapter)}${adapter.dialect ? ` of ${adapter.dialect}` : ""}`).join(", "))));
  $("drift").replaceChildren(make("tbody", {}, ...rows));
}

function show(adapter, check) {
  const cell = found(adapter, check), dialog = $("cell");
  const close = make("button", { className: "close", ariaLabel: "Close", onclick: () => dialog.close() }, "×");
  const parts = [close, make("h2", { id: "cell-title" }, words(check)), make("p", {}, data.checks[check]), make("p", { className: "faint" }, promise(check)), about(adapter),
    make("p", {}, make("span", { className: "seen" }, `${LOOKS[cell.outcome][1]}${cell.seen ? ": " : "."}`), cell.seen)];
  if (cell.reason) parts.push(make("p", {}, "Declared: ", ...linked(cell.reason)));
  if (cell.did) parts.push(make("pre", {}, cell.did.join("\n")));
  if (cell.reports) parts.push(make("p", {}, "Upstream: ", ...linked(cell.reports), "."));
  dialog.replaceChildren(...parts);
  history.replaceState(null, "", `#${adapter.arm}/${check}`);
  dialog.showModal();
}

function begin() {
  const option = (value, text) => make("option", { value }, text);
  $("adapter").append(option("", "all"), ...adapters.map((adapter) => option(adapter.arm, named(adapter))));
  $("check").append(option("", "all"), ...checks.map((check) => option(check, words(check))));
  const all = adapters.flatMap((adapter) => Object.values(adapter.checks)), count = (outcome) => all.filter((each) => each.outcome === outcome).length;
  const classes = new Set(adapters.map((adapter) => adapter.class)).size, live = adapters.filter((adapter) => adapter.live).length;
  $("said").textContent = `${checks.length} checks on ${classes} scaler classes (${adapters.length} configurations, ${live} of them live): ${count("passed")} cells passed, ${count("xfailed")} xfailed, ${count("failed")} failed.`;
  $("key").replaceChildren(...Object.entries(LOOKS).map(([outcome, [sign, word]]) => make("span", {}, make("i", { className: look(outcome) }, sign || "\u00a0"), word)));
  for (const id of ["adapter", "check", "broken"]) $(id).addEventListener("change", draw);
  $("pick").addEventListener("submit", (event) => event.preventDefault());
  $("cell").addEventListener("close", () => history.replaceState(null, "", location.pathname));
  $("cell").addEventListener("click", (event) => { if (event.target === $("cell")) $("cell").close(); });
  draw();
  const [name, check] = decodeURIComponent(location.hash.slice(1)).split("/");
  const adapter = adapters.find((each) => each.arm === name);
  if (adapter && checks.includes(check)) show(adapter, check);
}
begin();
