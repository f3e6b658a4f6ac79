"use strict";
/* The part of the report: its charts, the list of skipped steps, and the readout of a step. */

(() => {
  const data = JSON.parse(byId("data").textContent);
  const number = (value) => value === "inf" ? Infinity : value === "-inf" ? -Infinity : Number(value);
  const main = (role) => data.series.filter((series) => series.role === role).sort((a, b) => b.value.length - a.value.length)[0];
  const [scaleSeries, normSeries, lossSeries] = ["scale", "norm", "loss"].map(main);
  const shown = [scaleSeries, normSeries, lossSeries].filter(Boolean);

  /* The charts share one axis: the steps if each series has increasing ones, else the lines of the log. */
  const increases = (steps) => steps.every((step, i) => Number.isFinite(step) && (!i || step > steps[i - 1]));
  const axis = shown.every((series) => increases(series.step)) ? "step" : "line";
  const steps = [...new Set(shown.flatMap((series) => series[axis]))].sort((a, b) => a - b);
  if (!steps.length) steps.push(0);
  function aligned(series) {
    const values = new Float64Array(steps.length).fill(NaN);
    series?.[axis].forEach((at, i) => { values[search(steps, at)] = number(series.value[i]); });
    return values;
  }
  const [scale, norm, loss] = [scaleSeries, normSeries, lossSeries].map(aligned);
  const log2Scale = scale.map((s) => s > 0 ? Math.log2(s) : s === 0 ? LOWEST : NaN);
  const place = (skip) => axis === "line" ? skip.line : number(skip.last);
  const known = data.skips.filter((skip) => Number.isFinite(place(skip)));
  const skips = known.map((skip) => nearest(steps, place(skip)));
  const placeOf = (finding) => axis === "line" ? finding.lines[0] ?? NaN : number(finding.step);

  const grouped = (x) => x.toLocaleString("en", { maximumFractionDigits: 0 });
  const short = (x) => Number.isNaN(x) ? "NaN" : x === Infinity ? "inf" : String(Number(x.toPrecision(4)));
  const powerOfTwo = (s) => Number.isInteger(Math.log2(s)) ? "2" + superscript(Math.log2(s)) : "";
  const named = (s) => s >= 1 && s < 1e7 ? [grouped(s), powerOfTwo(s) && `(${powerOfTwo(s)})`].join(" ").trim()
    : powerOfTwo(s) || short(s);

  /* ---- the step under the cursor ---- */
  const skipped = new Set(skips);
  function say(i, spoken) {
    const parts = [`${axis === "step" ? "Step" : "Line"} ${grouped(steps[i])}`];
    if (!Number.isNaN(scale[i])) parts.push(`scale ${named(scale[i])}`);
    if (skipped.has(i)) parts.push("skipped");
    if (!Number.isNaN(norm[i])) parts.push(`norm ${short(norm[i])}`);
    if (!Number.isNaN(loss[i])) parts.push(`loss ${short(loss[i])}`);
    byId("readout").setAttribute("aria-live", spoken ? "polite" : "off");
    byId("readout").textContent = parts.join(" · ");
  }
  const view = new View(steps, skips, say);

  const MARGIN = 32; // pixels
  /* ---- marks, in the margin above the curve: skipped steps, and where the findings begin ---- */
  function drawSkips(plot) {
    within(plot, (ctx, x, _, box) => {
      ctx.fillStyle = css("vermilion");
      let last = -Infinity;
      const wide = Math.max(1, Math.round(1.2 * ratio()));
      for (let k = search(skips, search(steps, view.low)); k < skips.length; k++) {
        const left = Math.round(x(steps[skips[k]]));
        if (left > box.left + box.width) break;
        if (left < last + wide) continue;
        last = left;
        ctx.fillRect(left - (wide >> 1), box.top - 9 * ratio(), wide, 8 * ratio());
      }
    }, MARGIN * ratio());
  }

  function drawFindings(plot) {
    within(plot, (ctx, x, _, box) => {
      ctx.fillStyle = css("vermilion");
      ctx.font = `600 ${12 * ratio()}px system-ui, "DejaVu Sans", sans-serif`;
      const problems = data.findings.filter((finding) => finding.severity === "problem" && Number.isFinite(placeOf(finding)));
      let end = -Infinity;
      for (const finding of problems.sort((a, b) => placeOf(a) - placeOf(b))) {
        const at = x(placeOf(finding)), label = "▼ " + finding.id, wide = ctx.measureText(label).width;
        if (at < box.left || at > box.left + box.width) continue;
        const left = Math.min(at - 5 * ratio(), box.left + box.width - wide);
        ctx.fillText(left > end ? label : "▼", left, box.top - 14 * ratio());
        end = Math.max(end, left + wide);
      }
    }, MARGIN * ratio());
  }

  const line = (id, series, values, options) => {
    if (series && has(values)) new Chart(view, byId(id), { values, ...options });
    else byId("part-" + id).hidden = true;
  };
  line("scale", scaleSeries, log2Scale, {
    label: "Loss scale, logarithmic, with skipped steps", height: 270, stepped: true, room: 1, margin: MARGIN,
    tick: (k) => k === LOWEST ? "0" : "2" + superscript(k), splits: whole,
    over: (plot) => { drawSkips(plot); drawFindings(plot); },
  });

  /* ---- exponents ---- */
  if (data.exponents) drawExponents(data.exponents, { view, steps, log2Scale, drawSkips });
  else for (const id of ["part-heat", "part-lost"]) byId(id).hidden = true;

  /* ---- norm and loss ---- */
  line("norm", normSeries, norm.map((v) => v > 0 ? Math.log10(v) : NaN), {
    label: "Gradient norm, logarithmic", height: 190, room: 0.15, margin: 12, over: drawSkips,
    splits: (_, __, low, high, step) => high - low > 3 ? whole(_, __, low, high, step)
      : whole(_, __, Math.floor(low), high, 1).flatMap((k) => [k, k + Math.log10(2), k + Math.log10(5)])
        .filter((k) => low <= k && k <= high),
    tick: (k) => Number.isInteger(k) && Math.abs(k) > 2 ? "10" + superscript(k) : short(10 ** k),
  });
  line("loss", lossSeries, loss, { label: "Loss", height: 190, margin: 12, tick: short, over: drawSkips });

  /* ---- the list of skipped steps ---- */
  const body = byId("ledger").tBodies[0], PAGE = 25;
  const cell = (row, text, isNumber) => {
    const made = row.insertCell();
    if (isNumber) made.className = "number";
    made.append(text);
  };
  const nonfinite = ({ last }) => Object.entries(data.nonfinite[last] ?? {}).slice(0, 6)
    .map(([name, what]) => `${name} ${what.replace("nan", "NaN")}`).join(", ");
  function addRows() {
    for (const skip of known.slice(body.rows.length, body.rows.length + PAGE)) {
      const row = body.insertRow(), go = document.createElement("button");
      const first = axis === "line" ? skip.line : number(skip.first), last = place(skip);
      Object.assign(go, { className: "go", textContent: !(first < last) ? grouped(last) : `${grouped(first)} to ${grouped(last)}` });
      go.addEventListener("click", () => view.show(last));
      cell(row, go);
      cell(row, grouped(skip.count), true);
      cell(row, nonfinite(skip));
    }
    byId("more").hidden = body.rows.length >= known.length;
  }
  const total = known.reduce((sum, skip) => sum + skip.count, 0);
  byId("ledger-says").textContent = !known.length ? "The log shows no skipped step and where it is."
    : `${grouped(total)} skipped ${total === 1 ? "step" : "steps"}.`;
  byId("ledger").hidden = !known.length;
  byId("more").addEventListener("click", addRows);
  addRows();

  /* ---- buttons ---- */
  const does = { in: () => view.zoom(0.5), out: () => view.zoom(2), reset: () => view.reset(), skip: () => view.toSkip(1) };
  document.querySelectorAll("[data-do]").forEach((button) => {
    if (button.dataset.do === "skip") button.hidden = !skips.length;
    button.addEventListener("click", does[button.dataset.do]);
  });
  document.querySelectorAll("[data-step]").forEach((button) => {
    const at = Number(button.dataset[axis]);
    if (Number.isFinite(at)) button.addEventListener("click", () => {
      view.show(at, Math.max(50, (view.last - view.first) / 50));
      byId("part-scale").scrollIntoView({ block: "start" });
    });
  });
  view.draw(true);
  const begin = placeOf(data.findings[0] ?? { lines: [], step: "NaN" });
  view.move(nearest(steps, Number.isFinite(begin) ? begin : view.last));
})();
