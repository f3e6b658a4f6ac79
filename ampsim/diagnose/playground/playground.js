// The page: two rules over one run. Everything is drawn anew from `view` whenever a knob moves.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent, (key, value) => (value === "inf" ? Infinity : value));
  const dialects = Object.fromEntries(data.dialects.map((dialect) => [dialect.name, dialect]));
  const runs = data.runs.map((run) => ({
    ...run, ceilings: run.log2ceilings.map((log2) => (log2 === null ? 0 : 2 ** log2)),
  }));
  const TORCH = "torch.amp.GradScaler", MEGATRON = "megatron.core.DynamicGradScaler";
  const steps = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
  const { times, counted, percent, power } = Words;

  // Each knob: a field of Rule, its label, the slider's positions as values, how a value is said.
  const KNOBS = [
    ["init_scale", "first scale", steps(-10, 48).map((k) => 2 ** k), power],
    ["factor", "factor", [1.05, 1.1, 1.25, Math.SQRT2, 1.5, 2, 3, 4, 8, 16], times],
    ["growth_interval", "growth interval", [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000], (n) => counted(n, "step")],
    ["hysteresis", "hysteresis", steps(1, 8), (n) => counted(n, "overflow")],
    ["min_scale", "floor", [null, ...steps(-24, 40).map((k) => 2 ** k)], (value) => (value === null ? "none" : power(value))],
    ["delay", "delay", steps(0, 8), (n) => counted(n, "step")],
  ];

  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  // ------------------------------------------------------------------------------------------ what is looked at

  const view = {
    run: runs[0],
    step: 0,
    rules: { a: { dialect: TORCH, knobs: {} }, b: { dialect: MEGATRON, knobs: {} } },
    played: {},
  };

  const picture = Picture(view, look);
  const ruleOf = (side) => Runs.ruleOf(dialects[view.rules[side].dialect], view.rules[side].knobs);

  // Take the run's own first scale and interval for both rules.
  function chooseRun(run) {
    view.run = run;
    view.step = 0;
    for (const side of ["a", "b"]) Object.assign(view.rules[side].knobs, run.settings);
    $("said").textContent = run.said;
    $("run").value = String(runs.indexOf(run));
    $("step").max = String(run.ceilings.length - 1);
    picture.make();
    for (const side of ["a", "b"]) showKnobs(side);
    draw();
  }

  function summary(rule, played) {
    const losses = Runs.losses(view.run, played)?.filter((share) => share !== null);
    const updates = played.scales.length;
    return {
      skipped: played.skipped.length,
      share: played.skipped.length / updates,
      lost: losses?.length ? losses.reduce((sum, each) => sum + each, 0) / losses.length : null,
      budget: Runs.budget(rule, played, updates),
      final: played.newest,
    };
  }

  // ------------------------------------------------------------------------------------------------- the knobs

  function rulePanel(side) {
    const select = make("select", { id: `dialect-${side}` });
    select.setAttribute("aria-label", `Dialect of rule ${side.toUpperCase()}`);
    for (const { name } of data.dialects) {
      const lacking = LossScaler.LACKS.includes(name);
      select.append(make("option", { value: name, textContent: lacking ? `${name} (not in this page)` : name, disabled: lacking }));
    }
    select.onchange = () => chooseDialect(side, select.value);
    const own = make("button", { textContent: "defaults", title: "Set every knob to this framework's default" });
    own.onclick = () => {
      view.rules[side].knobs = {};
      showKnobs(side);
      draw();
    };
    const panel = make("section", { className: `rule ${side}`, id: `rule-${side}` });
    panel.style.setProperty("--mine", `var(--${side})`);
    panel.append(make("div", { className: "head" }, make("b", { textContent: `Rule ${side.toUpperCase()}` }), select, own));
    for (const [field, label, positions, say] of KNOBS) {
      const slider = make("input", { type: "range", id: `${field}-${side}`, min: "0", max: String(positions.length - 1) });
      slider.oninput = () => {
        turn(side, field, positions[Number(slider.value)]);
        showKnob(side, field, positions, say);
        draw();
      };
      const name = make("label", { textContent: label, htmlFor: slider.id });
      panel.append(make("div", { className: "knob" }, name, slider, make("output", { id: `${field}-${side}-says`, htmlFor: slider.id })));
    }
    panel.append(make("dl", { className: "numbers", id: `numbers-${side}` }), make("p", { className: "gave", id: `gave-${side}` }));
    return panel;
  }

  function turn(side, field, value) {
    const { knobs } = view.rules[side];
    if (field === "factor") Object.assign(knobs, { growth_factor: value, backoff_factor: 1 / value });
    else knobs[field] = value;
  }

  // Another framework keeps the run's first scale and interval, and has its own of the rest.
  function chooseDialect(side, name) {
    const { init_scale, growth_interval } = view.rules[side].knobs;
    view.rules[side] = { dialect: name, knobs: { init_scale, growth_interval } };
    showKnobs(side);
    draw();
  }

  function showKnobs(side) {
    $(`dialect-${side}`).value = view.rules[side].dialect;
    for (const [field, , positions, say] of KNOBS) showKnob(side, field, positions, say);
  }

  function showKnob(side, field, positions, say) {
    const { dialect, knobs } = view.rules[side];
    const rule = { ...dialects[dialect].rule, ...knobs };
    const value = field === "factor" ? rule.growth_factor : rule[field];
    const distance = (position) => (value === null || position === null ? Number(value !== position) * 1e9 : Math.abs(Math.log((position + 0.5) / (value + 0.5))));
    const nearest = positions.reduce((best, position, i) => (distance(position) < distance(positions[best]) ? i : best), 0);
    const apart = field === "factor" && Math.abs(rule.growth_factor * rule.backoff_factor - 1) > 1e-9;
    const text = apart ? `${times(rule.growth_factor)}, ${times(rule.backoff_factor)}` : say(value);
    $(`${field}-${side}`).value = String(nearest);
    $(`${field}-${side}`).setAttribute("aria-valuetext", text);
    $(`${field}-${side}-says`).textContent = text;
  }

  function showNumbers(side) {
    const played = view.played[side], numbers = summary(ruleOf(side), played);
    const bound = numbers.budget === null ? "–" : `≤ ${Math.floor(numbers.budget + 1e-9)}`;
    const items = [
      ["skipped", `${numbers.skipped} (${percent(numbers.share)})`, "steps that overflowed"],
      ["T1's bound", bound, numbers.budget === null ? "T1 needs every overflow to lower the scale" : "no history has more skips and ends at this scale"],
      ["made zero", percent(numbers.lost), "mean share of elements that fp16 rounds to zero"],
      ["ends at", power(numbers.final), "the newest scale"],
    ];
    $(`numbers-${side}`).replaceChildren(...items.map(([term, said, title]) =>
      make("div", { title }, make("dt", { textContent: term }), make("dd", { textContent: said }))));
    $(`gave-${side}`).textContent = played.raised ? `Gives up at step ${played.raised.step + (view.run.start ?? 0)}: ${played.raised.error.message}` : "";
  }

  // --------------------------------------------------------------------------------------------- draw it all

  let waiting = 0, tableWaiting = 0;

  function draw() {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(drawNow);
  }

  function drawNow() {
    for (const side of ["a", "b"]) view.played[side] = LossScaler.play(ruleOf(side), view.run.ceilings);
    view.first = Runs.firstDifference(view.played.a, view.played.b);
    const { first } = view, of = (side) => power(view.played[side].scales[first] ?? NaN);
    $("difference").textContent = first < 0
      ? "A and B do the same at every step."
      : `A and B part at step ${first + (view.run.start ?? 0)}: A is at ${of("a")}, B at ${of("b")}.`;
    picture.feed();
    ["a", "b"].forEach(showNumbers);
    sayStep();
    clearTimeout(tableWaiting);
    tableWaiting = setTimeout(table, 60);
  }

  function look(step) {
    view.step = Math.min(step, view.run.ceilings.length - 1);
    sayStep();
  }

  function sayStep() {
    $("step").value = String(view.step);
    const says = ["a", "b"].map((side) => {
      const played = view.played[side], name = side.toUpperCase(), scale = played.scales[view.step];
      if (scale === undefined) return `${name} has given up`;
      const losses = Runs.losses(view.run, played);
      const lost = losses ? `, ${percent(losses[Math.floor(view.step / view.run.every)])} made zero` : "";
      return `${name} at ${power(scale)}${scale > view.run.ceilings[view.step] ? ", skipped" : ""}${lost}`;
    });
    const top = view.run.ceilings[view.step];
    says.push(top > 0 ? `finite up to ${power(top)}` : "overflows at every scale");
    $("readout").textContent = `Step ${view.step + (view.run.start ?? 0)}: ${says.join(" · ")}`;
    $("step").setAttribute("aria-valuetext", $("readout").textContent);
  }

  function table() {
    const common = $("same").checked ? view.rules.a.knobs : {};
    const rows = data.dialects.map((dialect) => {
      const knobs = { init_scale: common.init_scale, growth_interval: common.growth_interval };
      const rule = Runs.ruleOf(dialect, knobs), played = LossScaler.play(rule, view.run.ceilings);
      return { dialect, played, ...summary(rule, played) };
    });
    const most = Math.max(1, ...rows.map((row) => row.skipped));
    $("dialects").replaceChildren(...rows.map((row) => {
      const { name } = row.dialect;
      const choose = make("button", { textContent: name, title: `Make it rule B. Read from ${row.dialect.source}` });
      choose.onclick = () => {
        chooseDialect("b", name);
        Object.assign(view.rules.b.knobs, { init_scale: common.init_scale, growth_interval: common.growth_interval });
        showKnobs("b");
      };
      const bar = make("div", { className: "bar" });
      bar.style.width = `${(100 * row.skipped) / most}%`;
      const used = Object.entries(view.rules).filter(([, rule]) => rule.dialect === name).map(([side]) => side);
      const lacking = LossScaler.LACKS.includes(name) ? ["lacking"] : [];
      const number = (text) => make("td", { className: "number", textContent: text });
      const end = row.played.raised ? `gives up at ${row.played.raised.step + (view.run.start ?? 0)}` : power(row.final);
      return make("tr", { className: [...used, ...lacking].join(" ") }, make("td", {}, choose), number(row.skipped),
        make("td", { className: "wide" }, bar), number(percent(row.lost)), number(end));
    }));
  }

  // ------------------------------------------------------------------------------------------------- the log

  function readLog() {
    const say = (...paragraphs) => $("found").replaceChildren(...paragraphs.map((text) => make("p", { textContent: text })));
    const history = Reader.read($("log").value, data.table);
    if (!history.step.length || history.scale.every(Number.isNaN)) {
      const what = history.step.length ? `${history.step.length} entries were read, but no loss scale is in them` : "No line with a loss scale was found";
      say(`${what}. Expected lines such as “step: 10, loss: 2.3, loss_scale: 65536”; log scaler.get_scale() once per step.`);
      $("found").firstChild.className = "bad";
      return;
    }
    const span = history.step[history.step.length - 1] - history.step[0];
    if (!(span < 400000)) {
      say(`The log spans ${span} steps; this page takes 400,000. Use: ampsim explain LOG`);
      return;
    }
    const filled = Logs.fill(history);
    say("The charts assume what the log leaves out. What it bears, whether the run is healthy, and what to try is said by: ampsim explain LOG");
    const run = {
      title: "Your log", said: "The log that you pasted below.", ceilings: Logs.ceilings(filled), start: history.step[0],
      logged: filled.scale.map(Runs.log2), settings: {},
    };
    runs.splice(data.runs.length, 1, run);
    options();
    for (const [side, name] of [["a", TORCH], ["b", MEGATRON]])
      view.rules[side] = { dialect: name, knobs: { init_scale: filled.scale[0] } };
    chooseRun(run);
    $("run").scrollIntoView({ block: "start" });
  }

  // A log as DeepSpeed would have left it on the second run.
  function example() {
    const { ceilings } = runs[1], rule = Runs.ruleOf(dialects["deepspeed.DynamicLossScaler"], { growth_interval: 50 });
    const played = LossScaler.play(rule, ceilings), skipped = new Set(played.skipped);
    $("log").value = Array.from(played.scales.slice(0, 600), (scale, step) =>
      `step: ${step}, loss_scale: ${scale}, skipped: ${Number(skipped.has(step))}`).join("\n");
    readLog();
  }

  function options() {
    $("run").replaceChildren(...runs.map((run, i) => make("option", { value: String(i), textContent: run.title })));
  }

  $("rules").append(rulePanel("a"), rulePanel("b"));
  options();
  $("run").onchange = () => chooseRun(runs[Number($("run").value)]);
  $("step").oninput = () => {
    look(Number($("step").value));
    picture.point(view.step);
  };
  $("same").onchange = table;
  $("read").onclick = readLog;
  $("example").onclick = example;
  matchMedia("(prefers-color-scheme: dark)").onchange = draw;
  for (const side of ["a", "b"]) view.played[side] = { scales: [], skipped: [], raised: null };
  chooseRun(runs[0]);
})();
