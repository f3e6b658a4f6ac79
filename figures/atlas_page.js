"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const checks = Object.keys(data.checks), peers = data.peers;
const LOOKS = {
  passed: ["", "keeps it"], "xfailed": ["~", "does otherwise, by choice"], failed: ["×", "breaks it"],
  "skipped": ["", "not asked"], "not run": ["", "not run"],
};
const $ = (id) => document.getElementById(id);
const words = (check) => check.replaceAll("_", " ");
const look = (outcome) => (outcome.startsWith("not ") ? "silent" : outcome.split(" ")[0]);
const promise = (check) => `Whose promise: ${data.promises[check]}${data.ends.includes(check) ? "; at the ends of float32" : ""}.`;
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

function found(peer, check) {
  return peer.checks[check] || { outcome: "not run", seen: "", reason: "" };
}

function button(peer, check, text) {
  const cell = found(peer, check), [sign, word] = LOOKS[cell.outcome];
  const label = `${peer.arm}, ${words(check)}: ${word}`;
  return make("button", { type: "button", className: look(cell.outcome), title: label, ariaLabel: label, onclick: () => show(peer, check) }, text ? `${word} ${sign}` : sign);
}

function draw() {
  const onePeer = peers.find((peer) => peer.arm === $("peer").value), oneCheck = $("check").value, only = $("broken").checked;
  const shownPeers = onePeer ? [onePeer] : peers.filter((peer) => !only || checks.some((check) => isBroken(found(peer, check))));
  const shownChecks = oneCheck ? [oneCheck] : checks.filter((check) => !only || shownPeers.some((peer) => isBroken(found(peer, check))));
  const grid = $("grid"), list = Boolean(onePeer || oneCheck);
  grid.className = list ? "list" : "matrix";
  if (list) {
    const rows = shownChecks.flatMap((check) => shownPeers.map((peer) => [peer, check])).filter(([peer, check]) => !only || isBroken(found(peer, check)));
    grid.replaceChildren(make("tbody", {}, ...rows.map(([peer, check]) => make("tr", {},
      make("th", { scope: "row" }, onePeer && !oneCheck ? words(check) : named(peer)),
      make("td", {}, button(peer, check, true)), make("td", {}, found(peer, check).seen)))));
  } else {
    const names = shownPeers.map((peer) => make("th", { scope: "col" }, make("span", {}, named(peer))));
    grid.replaceChildren(make("thead", {}, make("tr", {}, make("td"), ...names)), make("tbody", {}, ...shownChecks.map((check) =>
      make("tr", {}, make("th", { scope: "row", title: data.checks[check] }, words(check)), ...shownPeers.map((peer) => make("td", {}, button(peer, check)))))));
  }
  $("about").replaceChildren(...(oneCheck ? [make("p", {}, data.checks[oneCheck]), make("p", { className: "faint" }, promise(oneCheck))] : []), ...(onePeer ? [about(onePeer)] : []));
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

function show(peer, check) {
  const cell = found(peer, check), dialog = $("cell");
  const close = make("button", { className: "close", ariaLabel: "Close", onclick: () => dialog.close() }, "×");
  const parts = [close, make("h2", { id: "cell-title" }, words(check)), make("p", {}, data.checks[check]), make("p", { className: "faint" }, promise(check)), about(peer),
    make("p", {}, make("span", { className: "seen" }, `${LOOKS[cell.outcome][1]}${cell.seen ? ": " : "."}`), cell.seen)];
  if (cell.reason) parts.push(make("p", {}, "Declared: ", ...linked(cell.reason)));
  if (cell.did) parts.push(make("pre", {}, cell.did.join("\n")));
  if (cell.reports) parts.push(make("p", {}, "Upstream: ", ...linked(cell.reports), "."));
  dialog.replaceChildren(...parts);
  history.replaceState(null, "", `#${peer.arm}/${check}`);
  dialog.showModal();
}

function begin() {
  const option = (value, text) => make("option", { value }, text);
  $("peer").append(option("", "all"), ...peers.map((peer) => option(peer.arm, named(peer))));
  $("check").append(option("", "all"), ...checks.map((check) => option(check, words(check))));
  const all = peers.flatMap((peer) => Object.values(peer.checks)), count = (outcome) => all.filter((each) => each.outcome === outcome).length;
  const classes = new Set(peers.map((peer) => peer.class)).size, live = peers.filter((peer) => peer.live).length;
  $("said").textContent = `${checks.length} checks asked of ${classes} classes of scalers, in ${peers.length} ways to drive them, ${live} of them live. Of the cells, ${count("passed")} keep a check, ${count("xfailed")} do otherwise by choice, ${count("failed")} break one.`;
  $("key").replaceChildren(...Object.entries(LOOKS).map(([outcome, [sign, word]]) => make("span", {}, make("i", { className: look(outcome) }, sign || "\u00a0"), word)));
  for (const id of ["peer", "check", "broken"]) $(id).addEventListener("change", draw);
  $("pick").addEventListener("submit", (event) => event.preventDefault());
  $("cell").addEventListener("close", () => history.replaceState(null, "", location.pathname));
  $("cell").addEventListener("click", (event) => { if (event.target === $("cell")) $("cell").close(); });
  draw();
  const [name, check] = decodeURIComponent(location.hash.slice(1)).split("/");
  const peer = peers.find((each) => each.arm === name);
  if (peer && checks.includes(check)) show(peer, check);
}
begin();
