// The charts of the playground: where the gradients lie, what is made zero, the loss scale; with skips and the first
// difference. They draw what `view` holds; `look` is called with the step under the mouse.
"use strict";

const Picture = (view, look) => {
  const { power } = Words, { log2 } = Runs;
  const $ = (id) => document.getElementById(id);
  let plots = [];
  const narrow = () => matchMedia("(max-width: 40rem)").matches; // as in playground.css: the picture stays in sight
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Make the charts that a run has.
  function make() {
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
    const plot = new uPlot(options, series.map(() => []).concat([[]]), $(id)), canvas = plot.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", $(`${id}figure`).querySelector("figcaption").textContent.replace(/\s+/g, " "));
    return Object.assign(plot, { id });
  }

  const heatRange = () => {
    const low = Math.min(...view.run.counts.map((counts) => counts[0] ?? 0));
    const high = Math.max(...view.run.counts.map((counts) => (counts[0] ?? 0) + counts.length - 1));
    return [Math.max(low, -66), Math.min(high, 24) + 10];
  };

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
    });
  }

  // Draw what the rules did.
  function feed() {
    const { run, played } = view, n = run.ceilings.length, x = Array.from({ length: n + 1 }, (_, step) => step);
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

  // Put the cursor on a step.
  function point(step) {
    for (const plot of plots) plot.setCursor({ left: plot.valToPos(step + 0.5, "x"), top: 0 }, false, false);
  }

  addEventListener("resize", () => plots.forEach((plot) => plot.setSize({ width: $(plot.id).clientWidth, height: plot.height })));
  return { make, feed, point };
};
