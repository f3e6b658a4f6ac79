"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const laws = Object.keys(data.laws), peers = data.peers;
const LOOKS = {
  passed: ["", "keeps it"], "expected failure": ["~", "does otherwise, by choice"], failed: ["×", "breaks it"],
  "not applicable": ["", "not asked"], "not run": ["", "not run"],
};
const $ = (id) => document.getElementById(id);
const words = (law) => law.replaceAll("_", " ");
const look = (outcome) => (outcome.startsWith("not ") ? "silent" : outcome.split(" ")[0]);
const promise = (law) => `Whose promise: ${data.promises[law]}${data.ends.includes(law) ? "; at the ends of float32" : ""}.`;
const isBroken = (found) => found.outcome === "failed";
const named = (peer) => `${peer.arm} ${peer.version}${peer.live ? "" : " (recorded)"}`;

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
  return peer.laws[law] || { outcome: "not run", seen: "", reason: "" };
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
      make("th", { scope: "row" }, onePeer && !oneLaw ? words(law) : named(peer)),
      make("td", {}, button(peer, law, true)), make("td", {}, found(peer, law).seen)))));
  } else {
    const names = shownPeers.map((peer) => make("th", { scope: "col" }, make("span", {}, named(peer))));
    grid.replaceChildren(make("thead", {}, make("tr", {}, make("td"), ...names)), make("tbody", {}, ...shownLaws.map((law) =>
      make("tr", {}, make("th", { scope: "row", title: data.laws[law] }, words(law)), ...shownPeers.map((peer) => make("td", {}, button(peer, law)))))));
  }
  $("about").replaceChildren(...(oneLaw ? [make("p", {}, data.laws[oneLaw]), make("p", { className: "faint" }, promise(oneLaw))] : []), ...(onePeer ? [about(onePeer)] : []));
  drawDrift(shownPeers);
}

function about(peer) {
  const how = peer.live ? `judged on ${peer.date}; make peers judges it again` : `recorded on ${peer.date} with the code of commit ${peer.commit.slice(0, 8)}`;
  const run = `${peer.version}${peer.pinned ? "" : ", which is not the pinned one"}, ${how}`;
  return make("p", {}, link(peer.target, peer.source), ` of ${peer.requirement.split("==")[0]} ${run}.`, peer.patched ? ` Changed around it: ${peer.patched}.` : "");
}

function drawDrift(shown) {
  const groups = new Map(); // sentence -> the peers of which it is said
  for (const peer of shown) {
    const drift = peer.drift, ran = drift ? drift.histories - drift.refused : 0;
    const said = !drift ? "no dialect" : drift.differing ? `${drift.differing.toLocaleString()} of ${ran.toLocaleString()} differ, the first ${drift.first}` : `all ${ran.toLocaleString()} random histories equal, to the last bit`;
    groups.set(said, [...(groups.get(said) || []), peer]);
  }
  const rows = [...groups].map(([said, peers]) => make("tr", {},
    make("th", { scope: "row", className: peers.some((peer) => peer.drift && peer.drift.differing) ? "failed" : "" }, said),
    make("td", {}, peers.map((peer) => `${named(peer)}${peer.dialect ? ` of ${peer.dialect}` : ""}`).join(", "))));
  $("drift").replaceChildren(make("tbody", {}, ...rows));
}

function show(peer, law) {
  const cell = found(peer, law), dialog = $("cell");
  const close = make("button", { className: "close", ariaLabel: "Close", onclick: () => dialog.close() }, "×");
  const parts = [close, make("h2", { id: "cell-title" }, words(law)), make("p", {}, data.laws[law]), make("p", { className: "faint" }, promise(law)), about(peer),
    make("p", {}, make("span", { className: "seen" }, `${LOOKS[cell.outcome][1]}${cell.seen ? ": " : "."}`), cell.seen)];
  if (cell.reason) parts.push(make("p", {}, "Declared: ", ...linked(cell.reason)));
  if (cell.did) parts.push(make("pre", {}, cell.did.join("\n")));
  if (cell.reports) parts.push(make("p", {}, "Upstream: ", ...linked(cell.reports), "."));
  dialog.replaceChildren(...parts);
  history.replaceState(null, "", `#${peer.arm}/${law}`);
  dialog.showModal();
}

function begin() {
  const option = (value, text) => make("option", { value }, text);
  $("peer").append(option("", "all"), ...peers.map((peer) => option(peer.arm, named(peer))));
  $("law").append(option("", "all"), ...laws.map((law) => option(law, words(law))));
  const all = peers.flatMap((peer) => Object.values(peer.laws)), count = (outcome) => all.filter((each) => each.outcome === outcome).length;
  const classes = new Set(peers.map((peer) => peer.class)).size, live = peers.filter((peer) => peer.live).length;
  $("said").textContent = `${laws.length} laws asked of ${classes} classes of scalers, in ${peers.length} ways to drive them, ${live} of them live. Of the cells, ${count("passed")} keep a law, ${count("expected failure")} do otherwise by choice, ${count("failed")} break one.`;
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
