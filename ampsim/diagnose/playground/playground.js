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
  const times = (value) => String(+value.toPrecision(3));

  // Each knob: a field of Rule, its label, the slider's positions as values, how a value is said.
  const KNOBS = [
    ["init_scale", "first scale", steps(-10, 48).map((k) => 2 ** k), power],
    ["factor", "factor", [1.05, 1.1, 1.25, Math.SQRT2, 1.5, 2, 3, 4, 8, 16], times],
    ["growth_interval", "growth interval", [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000], (n) => `${n} step${n > 1 ? "s" : ""}`],
    ["hysteresis", "hysteresis", steps(1, 8), (n) => `${n} overflow${n > 1 ? "s" : ""}`],
    ["min_scale", "floor", [null, ...steps(-24, 40).map((k) => 2 ** k)], (value) => (value === null ? "none" : power(value))],
    ["delay", "delay", steps(0, 8), (n) => `${n} step${n === 1 ? "" : "s"}`],
  ];

  function power(value) {
    if (value === 0) return "0";
    if (!Number.isFinite(value)) return "∞";
    const log2 = Math.log2(value);
    if (!Number.isInteger(log2)) return value >= 1e6 || value < 1e-3 ? value.toExponential(2) : times(value);
    return `2${[...String(log2)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻").join("")}`;
  }

  const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`);
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

  const ruleOf = (side) => Runs.ruleOf(dialects[view.rules[side].dialect], view.rules[side].knobs);

  // Take the run's own first scale and interval for both rules.
  function chooseRun(run) {
    view.run = run;
    view.step = 0;
    for (const side of ["a", "b"]) Object.assign(view.rules[side].knobs, run.settings);
    $("said").textContent = run.said;
    $("run").value = String(runs.indexOf(run));
    $("step").max = String(run.ceilings.length - 1);
    charts();
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

  // ------------------------------------------------------------------------------------------------ the charts

  let plots = [];
  const narrow = () => matchMedia("(max-width: 40rem)").matches; // as in playground.css: the picture stays in sight
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function charts() {
    plots.forEach((plot) => plot.destroy());
    const { counts } = view.run;
    $("heatfigure").hidden = $("lossfigure").hidden = !counts;
    document.querySelector("main").classList.toggle("bare", !counts);
    $("logged").hidden = !view.run.logged;
    const stepped = uPlot.paths.stepped({ align: 1 });
    const line = (name, side, more = {}) => ({
      label: name, stroke: () => color(side === "a" ? "ink" : side === "b" ? "purple" : "green"), width: 1.75,
      dash: side === "b" ? [6, 4] : undefined, paths: stepped, points: { show: false }, ...more,
    });
    const edges = (side) => [line(`${side} top`, side), line(`${side} bottom`, side)];
    plots = counts
      ? [
          plot("heat", narrow() ? 210 : 340, [...edges("a"), ...edges("b")], { drawAxes: [heat], draw: [skips] }, heatRange, power2, "size |g|"),
          plot("loss", 130, [line("A", "a"), line("B", "b")], { draw: [mark] }, () => [0, 100], (k) => String(k), "%"),
        ]
      : [];
    const log = view.run.logged ? [line("log", "log", { width: 4, alpha: 0.45 })] : [];
    const marks = counts ? [mark] : [skips];
    plots.push(plot("scale", counts ? 190 : narrow() ? 210 : 300, [...log, line("A", "a"), line("B", "b")], { drawAxes: [ceiling], draw: marks }, scaleRange, power2, "loss scale"));
  }

  const power2 = (k) => (Number.isInteger(k) ? power(2 ** k) : "");

  function plot(id, height, series, hooks, range, say, label) {
    const font = "12px system-ui, sans-serif", grid = { stroke: () => color("grid"), width: 1 };
    const axis = { stroke: () => color("faint"), grid, ticks: { show: false }, font };
    const options = {
      width: $(id).clientWidth || 600, height, legend: { show: false },
      cursor: { sync: { key: "run" }, drag: { x: false, y: false }, y: false, points: { show: false } },
      scales: { x: { time: false, range: () => [0, view.run.ceilings.length] }, y: { range } },
      axes: [
        { ...axis, size: 30, values: (_, ticks) => ticks.map((step) => (step + (view.run.start ?? 0)).toLocaleString("en")) },
        { ...axis, size: 58, values: (_, ticks) => ticks.map(say), label, labelSize: 18, labelFont: font },
      ],
      series: [{}, ...series],
      hooks: { ...hooks, setCursor: [(self) => self.cursor.event && self.cursor.idx !== null && look(self.cursor.idx)] },
    };
    return Object.assign(new uPlot(options, series.map(() => []).concat([[]]), $(id)), { id });
  }

  const heatRange = () => {
    const low = Math.min(...view.run.counts.map((counts) => counts[0] ?? 0));
    const high = Math.max(...view.run.counts.map((counts) => (counts[0] ?? 0) + counts.length - 1));
    return [Math.max(low, -66), Math.min(high, 24) + 10];
  };

  const log2 = (scale) => (scale > 0 && Number.isFinite(scale) ? Math.log2(scale) : null);

  function scaleRange() {
    let [low, high] = [Infinity, -Infinity];
    for (const { scales } of Object.values(view.played))
      for (const scale of scales) {
        const x = log2(scale);
        if (x !== null) [low, high] = [Math.min(low, x), Math.max(high, x)];
      }
    for (const x of view.run.logged ?? []) if (x !== null) [low, high] = [Math.min(low, x), Math.max(high, x)];
    return low > high ? [-1, 1] : [Math.floor(low) - 1, Math.ceil(high) + 2];
  }

  const within = (plot, paint) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    paint(ctx, bbox);
    ctx.restore();
  };

  // Elements by binade, blue where rule A's window holds them.
  function heat(plot) {
    within(plot, (ctx) => {
      const [kept, lost] = [color("blue"), color("vermilion")];
      const { counts, every } = view.run, { scales } = view.played.a;
      counts.forEach(([lowest, ...elements], sample) => {
        const all = elements.reduce((sum, many) => sum + many, 0);
        const [left, right] = [sample * every, (sample + 1) * every].map((step) => Math.round(plot.valToPos(step, "x", true)));
        const scale = log2(scales[sample * every]);
        elements.forEach((many, i) => {
          if (!many) return;
          const [exponent, share] = [lowest + i, many / all];
          const inside = scale !== null && exponent + scale >= Runs.FLUSHED && exponent + scale < Runs.OVERFLOWED;
          const [bottom, top] = [exponent, exponent + 1].map((edge) => Math.round(plot.valToPos(edge, "y", true)));
          ctx.globalAlpha = 0.08 + 0.92 * Math.min(1, Math.max(0, (Math.log10(share) + 4.5) / 3.7));
          ctx.fillStyle = inside ? kept : lost;
          ctx.fillRect(left, top, right - left, bottom - top);
        });
      });
    });
  }

  // Where the step overflows.
  function ceiling(plot) {
    within(plot, (ctx, bbox) => {
      ctx.fillStyle = color("line");
      ctx.globalAlpha = 0.6;
      const { ceilings } = view.run;
      const bottom = bbox.top + bbox.height;
      for (let step = 0, end; step < ceilings.length; step = end) {
        end = step + 1;
        while (end < ceilings.length && ceilings[end] === ceilings[step]) end++;
        if (ceilings[step] === Infinity) continue;
        const y = ceilings[step] > 0 ? plot.valToPos(Math.log2(ceilings[step]), "y", true) : bottom;
        const left = plot.valToPos(step, "x", true);
        ctx.fillRect(left, bbox.top, plot.valToPos(end, "x", true) - left + 0.5, Math.min(y, bottom) - bbox.top);
      }
    });
  }

  // A tick per skipped step, A's above B's, and the first step that differs.
  function skips(plot) {
    mark(plot);
    within(plot, (ctx, bbox) => {
      const unit = devicePixelRatio;
      ["a", "b"].forEach((side, row) => {
        ctx.fillStyle = color(side === "a" ? "ink" : "purple");
        const top = bbox.top + (4 + row * 14) * unit;
        for (const step of view.played[side].skipped)
          ctx.fillRect(plot.valToPos(step + 0.5, "x", true) - 0.5 * unit, top, 1.25 * unit, 10 * unit);
      });
    });
  }

  function mark(plot) {
    within(plot, (ctx, bbox) => {
      const unit = devicePixelRatio;
      if (view.first >= 0) {
        const x = plot.valToPos(view.first + 0.5, "x", true);
        ctx.strokeStyle = color("orange");
        ctx.setLineDash([]);
        ctx.lineWidth = 2 * unit;
        ctx.strokeRect(x, bbox.top - 5, 0, bbox.height + 10);
        if (plot === plots[0]) {
          const right = x > bbox.left + bbox.width * 0.7;
          ctx.fillStyle = color("orange");
          ctx.font = `600 ${12 * unit}px system-ui, sans-serif`;
          ctx.textAlign = right ? "right" : "left";
          const at = [`they part at step ${view.first + (view.run.start ?? 0)}`, x + (right ? -6 : 6) * unit, bbox.top + bbox.height - 12 * unit];
          ctx.strokeStyle = color("ground");
          ctx.lineWidth = 4 * unit;
          ctx.lineJoin = "round";
          ctx.strokeText(...at);
          ctx.fillText(...at);
        }
      }
      const at = plot.valToPos(view.step + 0.5, "x", true);
      ctx.fillStyle = color("sky");
      ctx.beginPath();
      ctx.moveTo(at, bbox.top + bbox.height - 8 * unit);
      ctx.lineTo(at - 5 * unit, bbox.top + bbox.height);
      ctx.lineTo(at + 5 * unit, bbox.top + bbox.height);
      ctx.fill();
    });
  }

  function feed() {
    const { run, played } = view, n = run.ceilings.length, x = steps(0, n);
    const column = (values) => Array.from({ length: n + 1 }, (_, step) => values[Math.min(step, n - 1)] ?? null);
    const logs = { a: column(Array.from(played.a.scales, log2)), b: column(Array.from(played.b.scales, log2)) };
    for (const side of ["a", "b"]) if (played[side].raised) logs[side].fill(null, played[side].scales.length + 1);
    const shifted = (side, edge) => logs[side].map((scale) => (scale === null ? null : edge - scale));
    const columns = {
      heat: () => ["a", "b"].flatMap((side) => [shifted(side, Runs.OVERFLOWED), shifted(side, Runs.FLUSHED)]),
      loss: () => ["a", "b"].map((side) => {
        const losses = Runs.losses(run, played[side]);
        return column(x.map((step) => losses[Math.floor(step / run.every)] ?? null).map((share) => share === null ? null : 100 * share));
      }),
      scale: () => [...(run.logged ? [column(run.logged)] : []), logs.a, logs.b],
    };
    for (const plot of plots) plot.setData([x, ...columns[plot.id]()]);
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
    feed();
    ["a", "b"].forEach(showNumbers);
    sayStep();
    clearTimeout(tableWaiting);
    tableWaiting = setTimeout(table, 60);
  }

  function look(step) {
    view.step = Math.min(step, view.run.ceilings.length - 1);
    sayStep();
    for (const plot of plots) plot.redraw(false);
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
    const history = Reader.read($("log").value, data.fields);
    if (!history.step.length || history.scale.every(Number.isNaN)) {
      const what = history.step.length ? `${history.step.length} entries were read, but no loss scale is in them` : "No line with a loss scale was found";
      say(`${what}. Expected lines such as “step: 10, loss: 2.3, loss_scale: 65536”; log scaler.get_scale() once per step.`);
      $("found").firstChild.className = "bad";
      return;
    }
    const known = Logs.infer(history), filled = Logs.fill(history, known);
    if (filled.scale.length > 400000) {
      say(`The log spans ${filled.scale.length} steps; this page takes 400,000. Use: ampsim explain LOG`);
      return;
    }
    const fits = Logs.consecutive(history) ? Logs.fitting(filled, known, data.dialects) : [];
    const named = fits[0] ?? { Megatron: MEGATRON, DeepSpeed: "deepspeed.DynamicLossScaler", fairseq: "fairseq.DynamicLossScaler" }[history.program];
    say(...sentences(history, known, filled, fits.map(({ name }) => name), named));
    const run = {
      title: "Your log", said: "The log that you pasted below.", ceilings: Logs.ceilings(filled), start: history.step[0],
      logged: filled.scale.map(log2), settings: {},
    };
    runs.splice(data.runs.length, 1, run);
    options();
    const choice = fits[0] ?? dialects[named ?? TORCH];
    const knobs = Logs.knobsOf(choice, filled, known);
    view.rules.a = { dialect: choice.name, knobs: { init_scale: filled.scale[0], ...knobs } };
    view.rules.b = { dialect: choice.name === TORCH ? MEGATRON : TORCH, knobs: { init_scale: filled.scale[0], growth_interval: knobs.growth_interval } };
    chooseRun(run);
    $("run").scrollIntoView({ block: "start" });
  }

  function sentences(history, known, filled, fits, named) {
    const scales = history.scale.filter((scale) => !Number.isNaN(scale)), rises = history.changes.length - known.skips.length;
    const end = history.step[history.step.length - 1], more = fits.length > 3 ? ` and ${fits.length - 3} more` : "";
    const said = [
      `Read: steps ${history.step[0]} to ${end}, from ${history.program}. The scale began at ${power(scales[0])}, ended at ` +
        `${power(scales[scales.length - 1])}, grew ${rises} times and fell ${known.skips.length} times.`,
      Logs.consecutive(history)
        ? `Skipped: ${filled.skipped.filter(Boolean).length} of ${filled.scale.length} steps.`
        : `Skipped: at least ${known.least} steps, by how far the scale fell between the lines of the log.`,
    ];
    const longest = known.skips.reduce((most, each) => (each.least > (most?.least ?? 3) ? each : most), undefined);
    if (longest)
      said.push(`The longest fall, ${power(longest.change.old)} to ${power(longest.change.new)} between steps ` +
        `${longest.change.after} and ${longest.change.step}, is ${longest.least} backoffs.`);
    const rule = [known.growth && `grows by ${times(known.growth)}`, known.backoff && `backs off by ${times(known.backoff)}`,
      known.interval && `grows after ${known.interval} clean steps`].filter(Boolean);
    if (rule.length) said.push(`Rule: ${rule.join(", ")}.`);
    if (fits.length) said.push(`Dialect: ${fits.slice(0, 3).join(", ")}${more} would have made this very trajectory; it is rule A now.`);
    else if (named) said.push(`Dialect: ${named}, by the form of the log; it is rule A now.`);
    else said.push("No dialect makes this trajectory from what the log tells; rule A is torch's.");
    said.push("What is wrong, and what to try: ampsim explain LOG.");
    return said;
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
  $("step").oninput = () => look(Number($("step").value));
  $("same").onchange = table;
  $("read").onclick = readLog;
  $("example").onclick = example;
  matchMedia("(prefers-color-scheme: dark)").onchange = draw;
  addEventListener("resize", () => plots.forEach((plot) => plot.setSize({ width: $(plot.id).clientWidth, height: plot.height })));
  for (const side of ["a", "b"]) view.played[side] = { scales: [], skipped: [], raised: null };
  chooseRun(runs[0]);
})();
