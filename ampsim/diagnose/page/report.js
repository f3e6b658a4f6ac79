"use strict";
/* The part of the report: its charts, the list of skipped steps, and the readout of a step. */

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [steps, scale, skipped, norm, loss] = ["step", "scale", "skipped", "norm", "loss"].map((name) => unpack(data[name]));
  const log2Scale = scale.map((s) => s > 0 ? Math.log2(s) : s === 0 ? LOWEST : NaN);
  const { rows, bad, names } = data.ledger; // rows: [first step, last step, skips, scale]
  const skips = rows.map((row) => nearest(steps, row[1]));

  const grouped = (x) => x.toLocaleString("en", { maximumFractionDigits: 0 });
  const short = (x) => Number.isNaN(x) ? "not finite" : x === Infinity ? "inf or NaN" : String(Number(x.toPrecision(4)));
  const powerOfTwo = (s) => Number.isInteger(Math.log2(s)) ? "2" + superscript(Math.log2(s)) : "";
  const named = (s) => s >= 1 && s < 1e7 ? [grouped(s), powerOfTwo(s) && `(${powerOfTwo(s)})`].join(" ").trim()
    : powerOfTwo(s) || short(s);

  /* ---- the step under the cursor ---- */
  function say(i, spoken) {
    const parts = [`Step ${grouped(steps[i])}`];
    if (!Number.isNaN(scale[i])) parts.push(`scale ${named(scale[i])}`);
    if (skipped[i] > 0) parts.push(skipped[i] > 1 ? `${grouped(skipped[i])} skipped` : "skipped");
    if (!Number.isNaN(norm[i])) parts.push(`norm ${short(norm[i])}`);
    if (!Number.isNaN(loss[i])) parts.push(`loss ${short(loss[i])}`);
    byId("readout").setAttribute("aria-live", spoken ? "polite" : "off");
    byId("readout").textContent = parts.join(" · ");
  }
  const view = new View(steps, skips, say);

  /* ---- what is drawn besides the lines ---- */
  function drawSkips(plot) {
    within(plot, (ctx, x, _, box) => {
      ctx.fillStyle = css("vermilion");
      let last = -Infinity;
      const wide = Math.max(1, Math.round(1.2 * ratio()));
      for (let k = Math.max(search(skips, search(steps, view.low)) - 1, 0); k < skips.length; k++) {
        const left = Math.round(x(steps[skips[k]]));
        if (left > box.left + box.width) break;
        if (left < last + wide) continue;
        last = left;
        ctx.fillRect(left - (wide >> 1), box.top, wide, 11 * ratio());
      }
    });
  }

  function drawFindings(plot) {
    within(plot, (ctx, x, _, box) => {
      ctx.strokeStyle = ctx.fillStyle = css("vermilion");
      ctx.lineWidth = ratio();
      ctx.setLineDash([4 * ratio(), 3 * ratio()]);
      ctx.font = `600 ${12 * ratio()}px system-ui, "DejaVu Sans", sans-serif`;
      const ends = [], labels = []; // ends: of the rows of labels
      for (const [kind, step] of [...data.findings].sort((a, b) => a[1] - b[1])) {
        const left = x(step), wide = ctx.measureText(kind).width;
        ctx.beginPath();
        ctx.moveTo(left, box.top);
        ctx.lineTo(left, box.top + box.height);
        ctx.stroke();
        const right = left + wide + 10 * ratio() < box.left + box.width;
        const from = right ? left + 5 * ratio() : left - wide - 5 * ratio();
        const free = ends.findIndex((end) => end < from), row = free < 0 ? ends.length : free;
        ends[row] = from + wide + 4 * ratio();
        labels.push([kind, from, box.top + (26 + 15 * row) * ratio()]);
      }
      ctx.setLineDash([]);
      ctx.lineWidth = 4 * ratio();
      ctx.lineJoin = "round";
      ctx.strokeStyle = css("ground");
      for (const label of labels) ctx.strokeText(...label); // a halo
      for (const label of labels) ctx.fillText(...label);
    });
  }

  const line = (id, values, options) => {
    if (has(values)) new Chart(view, byId(id), { values, ...options });
    else byId("part-" + id).hidden = true;
  };
  line("scale", log2Scale, {
    label: "Loss scale over the steps, logarithmic, with skipped steps", height: 250, stepped: true, room: 1,
    tick: (k) => k === LOWEST ? "0" : "2" + superscript(k), splits: whole,
    over: (plot) => { drawSkips(plot); drawFindings(plot); },
  });

  /* ---- exponents ---- */
  if (data.exponents) drawExponents(data.exponents, { view, steps, log2Scale, drawSkips });
  else for (const id of ["part-heat", "part-lost"]) byId(id).hidden = true;

  /* ---- norm and loss ---- */
  line("norm", norm.map((v) => v > 0 ? Math.log10(v) : NaN), {
    label: "Gradient norm over the steps, logarithmic", height: 190, room: 0.15, over: drawSkips,
    splits: (_, __, low, high, step) => high - low > 3 ? whole(_, __, low, high, step)
      : whole(_, __, Math.floor(low), high, 1).flatMap((k) => [k, k + Math.log10(2), k + Math.log10(5)])
        .filter((k) => low <= k && k <= high),
    tick: (k) => Number.isInteger(k) && Math.abs(k) > 2 ? "10" + superscript(k) : short(10 ** k),
  });
  line("loss", loss, { label: "Loss over the steps", height: 190, tick: short, over: drawSkips });

  /* ---- the ledger ---- */
  const body = byId("ledger").tBodies[0], PAGE = 25;
  const cell = (row, text, number) => {
    const made = row.insertCell();
    if (number) made.className = "number";
    made.append(text);
  };
  const told = Object.keys(bad).map(Number).sort((a, b) => a - b);
  function what(first, last) {
    const step = told[search(told, first)];
    if (!(step <= last)) return "";
    const [seen, all] = bad[step], groups = {};
    for (const [i, says] of seen) (groups[says.replace("has ", "").replace("nan", "NaN")] ??= []).push(names[i]);
    const words = Object.entries(groups).map(([says, found]) => `${says}: ${found.join(", ")}`).join("; ");
    return words + (all > seen.length ? `; ${grouped(all - seen.length)} more` : "");
  }
  function addRows() {
    for (const [first, last, count, at] of rows.slice(body.rows.length, body.rows.length + PAGE)) {
      const row = body.insertRow(), go = document.createElement("button");
      Object.assign(go, { className: "go", textContent: first === last ? grouped(first) : `${grouped(first)} to ${grouped(last)}` });
      go.addEventListener("click", () => { view.show((first + last) / 2, Math.max(50, last - first)); });
      cell(row, go);
      cell(row, grouped(count), true);
      cell(row, at === null ? "" : named(at), true);
      cell(row, what(first, last));
    }
    byId("more").hidden = body.rows.length >= rows.length;
  }
  const total = rows.reduce((sum, row) => sum + row[2], 0);
  byId("ledger-says").textContent = !rows.length ? "The log does not give the step number of any skipped step."
    : `${grouped(total)} skipped ${total === 1 ? "step" : "steps"} with known step numbers, from counts or messages in the log.`;
  byId("ledger").hidden = !rows.length;
  byId("ledger").classList.toggle("ones", rows.every((row) => row[2] === 1));
  byId("ledger").classList.toggle("nameless", !told.length);
  byId("more").addEventListener("click", addRows);
  addRows();

  /* ---- buttons ---- */
  const does = { in: () => view.zoom(0.5), out: () => view.zoom(2), reset: () => view.reset(), skip: () => view.toSkip(1) };
  document.querySelectorAll("[data-do]").forEach((button) => {
    if (button.dataset.do === "skip") button.hidden = !skips.length;
    button.addEventListener("click", does[button.dataset.do]);
  });
  document.querySelectorAll("[data-step]").forEach((button) => {
    button.addEventListener("click", () => {
      view.show(Number(button.dataset.step), Math.max(50, (view.last - view.first) / 50));
      byId("part-scale").scrollIntoView({ block: "start" });
    });
  });
  view.draw(true);
  view.move(nearest(steps, data.findings.length ? data.findings[0][1] : view.last));
})();
