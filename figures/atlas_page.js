"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const laws = Object.keys(data.laws), peers = data.peers;
const LOOKS = {
  passed: ["", "keeps it"], "expected failure": ["~", "does otherwise, by choice"], failed: ["×", "breaks it"],
  refused: ["!", "hangs or crashes"], "not applicable": ["", "not asked"], "not run": ["", "not run"],
};
const $ = (id) => document.getElementById(id);
const words = (law) => law.replaceAll("_", " ");
const look = (outcome) => (outcome.startsWith("not ") ? "silent" : outcome.split(" ")[0]);
const promise = (law) => `Whose promise: ${data.promises[law]}${data.ends.includes(law) ? "; at the ends of float32" : ""}.`;
const isBroken = (found) => found.outcome === "failed" || found.outcome === "refused";

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

function found(peer, law) {
  return peer.laws[law] || { outcome: "not run", seen: peer.not_run || "", reason: "" };
}

function button(peer, law, text) {
  const cell = found(peer, law), [sign, word] = LOOKS[cell.outcome];
  const label = `${peer.arm}, ${words(law)}: ${word}`;
  return make("button", { type: "button", className: look(cell.outcome), title: label, ariaLabel: label, onclick: () => show(peer, law) }, text ? `${word} ${sign}` : sign);
}

function draw() {
  const onePeer = peers.find((peer) => peer.arm === $("peer").value), oneLaw = $("law").value, only = $("broken").checked;
  const shownPeers = onePeer ? [onePeer] : peers.filter((peer) => !only || laws.some((law) => isBroken(found(peer, law))));
  const shownLaws = oneLaw ? [oneLaw] : laws.filter((law) => !only || shownPeers.some((peer) => isBroken(found(peer, law))));
  const grid = $("grid"), list = Boolean(onePeer || oneLaw);
  grid.className = list ? "list" : "matrix";
  if (list) {
    const rows = shownLaws.flatMap((law) => shownPeers.map((peer) => [peer, law])).filter(([peer, law]) => !only || isBroken(found(peer, law)));
    grid.replaceChildren(make("tbody", {}, ...rows.map(([peer, law]) => make("tr", {},
      make("th", { scope: "row" }, onePeer && !oneLaw ? words(law) : `${peer.arm} ${peer.version || ""}`),
      make("td", {}, button(peer, law, true)), make("td", {}, found(peer, law).seen)))));
  } else {
    const names = shownPeers.map((peer) => make("th", { scope: "col" }, make("span", {}, `${peer.arm} ${peer.version || "(not run)"}`)));
    grid.replaceChildren(make("thead", {}, make("tr", {}, make("td"), ...names)), make("tbody", {}, ...shownLaws.map((law) =>
      make("tr", {}, make("th", { scope: "row", title: data.laws[law] }, words(law)), ...shownPeers.map((peer) => make("td", {}, button(peer, law)))))));
  }
  $("about").replaceChildren(...(oneLaw ? [make("p", {}, data.laws[oneLaw]), make("p", { className: "faint" }, promise(oneLaw))] : []), ...(onePeer ? [about(onePeer)] : []));
  drawDrift(shownPeers);
}

function about(peer) {
  const run = peer.version ? `${peer.version}${peer.pinned ? "" : ", which is not the pinned one"}, run on ${peer.date}` : `not run: ${peer.not_run}`;
  return make("p", {}, link(peer.target, peer.source), ` of ${peer.requirement.split("==")[0]} ${run}.`, peer.patched ? ` Changed around it: ${peer.patched}.` : "");
}

function drawDrift(shown) {
  const groups = new Map(); // sentence -> the peers of which it is said
  for (const peer of shown.filter((peer) => peer.version)) {
    const drift = peer.drift, ran = drift ? drift.histories - drift.refused : 0;
    const said = !drift ? "no dialect" : drift.differing ? `${drift.differing.toLocaleString()} of ${ran.toLocaleString()} differ, the first ${drift.first}` : `all ${ran.toLocaleString()} random histories equal, to the last bit`;
    groups.set(said, [...(groups.get(said) || []), peer]);
  }
  const rows = [...groups].map(([said, peers]) => make("tr", {},
    make("th", { scope: "row", className: peers.some((peer) => peer.drift && peer.drift.differing) ? "failed" : "" }, said),
    make("td", {}, peers.map((peer) => `${peer.arm} ${peer.version}${peer.dialect ? ` (${peer.dialect})` : ""}`).join(", "))));
  $("drift").replaceChildren(make("tbody", {}, ...rows));
}

function show(peer, law) {
  const cell = found(peer, law), dialog = $("cell");
  const close = make("button", { className: "close", ariaLabel: "Close", onclick: () => dialog.close() }, "×");
  const parts = [close, make("h2", { id: "cell-title" }, words(law)), make("p", {}, data.laws[law]), make("p", { className: "faint" }, promise(law)), about(peer),
    make("p", {}, make("span", { className: "seen" }, `${LOOKS[cell.outcome][1]}${cell.seen ? ": " : "."}`), cell.seen)];
  if (cell.reason) parts.push(make("p", {}, "Declared: ", ...linked(cell.reason)));
  for (const history of cell.history || []) if (history.bad.length) parts.push(picture(history));
  if (cell.did && !cell.test) parts.push(make("pre", {}, cell.did.join("\n")));
  if (cell.test && cell.fails_by) {
    const copy = make("button", { type: "button", onclick: () => navigator.clipboard.writeText(cell.test).then(() => { copy.textContent = "Copied"; }) }, "Copy the test");
    parts.push(make("div", { className: "bar" }, copy, link("Search upstream", cell.search)),
      make("p", {}, "Upstream: ", ...linked(cell.reports), "."),
      make("p", { className: "faint" }, `The test was run in this peer's own environment, without ampsim: it fails there (${cell.fails_by}).`),
      make("pre", { tabIndex: 0 }, cell.test));
  }
  dialog.replaceChildren(...parts);
  history.replaceState(null, "", `#${peer.arm}/${law}`);
  dialog.showModal();
}

// The scale of each iteration on a log axis, and a tick where a gradient was not finite.
function picture(run) {
  const W = 640, H = 150, LEFT = 64, RIGHT = 12, TOP = 14, FOOT = 34, NS = "http://www.w3.org/2000/svg";
  const scales = run.scales.map((each) => (each === "inf" ? Infinity : Number(each))), logs = scales.map((s) => (s > 0 && Number.isFinite(s) ? Math.log2(s) : null));
  const known = logs.filter((each) => each !== null), low = Math.min(...known, Infinity), high = Math.max(...known, -Infinity);
  const from = known.length ? low - 1 : 0, to = known.length ? high + 1 : 1;
  const x = (i) => LEFT + ((W - LEFT - RIGHT) * i) / Math.max(1, scales.length);
  const y = (i) => (logs[i] !== null ? TOP + ((H - TOP - FOOT) * (to - logs[i])) / (to - from) : scales[i] > 0 ? TOP - 8 : H - FOOT);
  const svg = document.createElementNS(NS, "svg");
  const put = (tag, given, text) => {
    const node = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(given)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
  };
  const label = (at, text) => put("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end", "font-size": 12, fill: "var(--faint)" }, text);
  const power = (e) => (Number.isInteger(e) ? `2^${e}` : (2 ** e).toPrecision(4));
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `scale of ${run.name}: ${run.scales.join(", ")}; overflows: ${run.bad}`);
  let path = "";
  scales.forEach((_, i) => { path += `${i ? "L" : "M"}${x(i)},${y(i)}L${x(i + 1)},${y(i)}`; });
  put("line", { x1: LEFT, x2: W - RIGHT, y1: H - FOOT, y2: H - FOOT, stroke: "var(--line)" });
  put("path", { d: path, fill: "none", stroke: "var(--blue)", "stroke-width": 2 });
  [...run.bad].forEach((flag, i) => {
    if (flag === "x") put("line", { x1: x(i + 0.5), x2: x(i + 0.5), y1: H - FOOT + 3, y2: H - FOOT + 14, stroke: "var(--vermilion)", "stroke-width": Math.max(1, Math.min(4, 240 / scales.length)) });
  });
  for (const each of new Set(scales.includes(0) ? [high] : [low, high])) if (Number.isFinite(each)) label(y(logs.indexOf(each)), power(each));
  scales.forEach((s, i) => { if (!(s > 0) || !Number.isFinite(s)) put("circle", { cx: x(i + 0.5), cy: y(i), r: 2.5, fill: "var(--vermilion)" }); });
  if (scales.includes(0)) label(H - FOOT, "0");
  if (scales.some((s) => !Number.isFinite(s))) label(TOP - 6, "inf");
  put("text", { x: LEFT, y: H - 4, "font-size": 12, fill: "var(--faint)" }, `${run.name}: loss scale of each of ${run.bad.length} iterations, then the next; red: a gradient was not finite`);
  return svg;
}

function begin() {
  const option = (value, text) => make("option", { value }, text);
  $("peer").append(option("", "all"), ...peers.map((peer) => option(peer.arm, `${peer.arm} ${peer.version || "(not run)"}`)));
  $("law").append(option("", "all"), ...laws.map((law) => option(law, words(law))));
  const all = peers.flatMap((peer) => Object.values(peer.laws)), count = (outcome) => all.filter((each) => each.outcome === outcome).length;
  const run = peers.filter((peer) => peer.version).length;
  $("said").textContent = `${laws.length} laws asked of ${new Set(peers.filter((peer) => peer.version).map((peer) => peer.class)).size} classes of scalers, in ${run} ways to drive them, as their frameworks ship them. Of the cells, ${count("passed")} keep a law, ${count("expected failure")} do otherwise by choice, ${count("failed") + count("refused")} break one${run < peers.length ? `; ${peers.length - run} could not be run` : ""}.`;
  $("key").replaceChildren(...Object.entries(LOOKS).map(([outcome, [sign, word]]) => make("span", {}, make("i", { className: look(outcome) }, sign || "\u00a0"), word)));
  for (const id of ["peer", "law", "broken"]) $(id).addEventListener("change", draw);
  $("pick").addEventListener("submit", (event) => event.preventDefault());
  $("cell").addEventListener("close", () => history.replaceState(null, "", location.pathname));
  $("cell").addEventListener("click", (event) => { if (event.target === $("cell")) $("cell").close(); });
  draw();
  const [name, law] = decodeURIComponent(location.hash.slice(1)).split("/");
  const peer = peers.find((each) => each.arm === name);
  if (peer && laws.includes(law)) show(peer, law);
}
begin();
