"use strict";
/* The report's own part: which charts there are, the heat maps, the ledger of skips, and what is said of a step. */

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const [steps, scale, skipped, norm, loss] = ["step", "scale", "skipped", "norm", "loss"].map((name) => unpack(data[name]));
  const byId = (id) => document.getElementById(id);
  const has = (values) => values.some((value) => !Number.isNaN(value));
  const LOWEST = -150; // below float32's least number: where a scale of 0 is drawn
  const log2Scale = scale.map((s) => s > 0 ? Math.log2(s) : s === 0 ? LOWEST : NaN);
  const { rows, inferred, bad, names } = data.ledger; // rows: [first step, last step, skips, scale]
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

  /* ---- what is drawn besides the lines; in pixels of the canvas ---- */
  const ratio = () => devicePixelRatio || 1;
  function within(plot, draw) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.textAlign = "left";
    draw(ctx, (x) => plot.valToPos(x, "x", true), (y) => plot.valToPos(y, "y", true), bbox);
    ctx.restore();
  }

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
  const whole = (_, __, low, high, step) => {
    const by = Math.max(1, Math.ceil(step)), found = [];
    for (let k = Math.ceil(low / by) * by; k <= high; k += by) found.push(k);
    return found;
  };

  line("scale", log2Scale, {
    label: "Loss scale over the steps, logarithmic, with skipped steps", height: 250, stepped: true, room: 1,
    tick: (k) => k === LOWEST ? "0" : "2" + superscript(k), splits: whole,
    over: (plot) => { drawSkips(plot); drawFindings(plot); },
  });

  /* ---- exponents ---- */
  const heat = data.exponents;
  if (heat) drawExponents(heat);
  else for (const id of ["part-heat", "part-lost"]) byId(id).hidden = true;

  function drawExponents({ step, lowest, bins, layers, window: edges }) {
    const levels = unpack(heat.levels), lost = unpack(heat.lost), scaled = has(log2Scale);
    let layer = 0, pictures = {};
    const at = (k) => k < 1 ? step[0] - ((step[1] ?? step[0] + 1) - step[0]) / 2 : k >= step.length
      ? step[k - 1] + (step[k - 1] - (step[k - 2] ?? step[k - 1] - 1)) / 2 : (step[k - 1] + step[k]) / 2;

    /** A canvas of one colour with a pixel per sample and row. */
    function picture(colour, rows, alpha) {
      const canvas = Object.assign(document.createElement("canvas"), { width: step.length, height: rows });
      const ctx = canvas.getContext("2d"), image = ctx.createImageData(step.length, rows);
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
      for (let k = 0; k < step.length; k++) for (let row = 0; row < rows; row++) {
        image.data.set([r, g, b, alpha(k, row)], 4 * (row * step.length + k));
      }
      ctx.putImageData(image, 0, 0);
      return canvas;
    }

    /** Stretches the columns of a picture over the steps that each stands for: one image, or printers show seams. */
    function stretch(plot, x, drawn, top, bottom) {
      const { left, width } = plot.bbox, canvas = Object.assign(document.createElement("canvas"), { width, height: drawn.height });
      const ctx = canvas.getContext("2d");
      ctx.imageSmoothingEnabled = plot.ctx.imageSmoothingEnabled = false;
      for (let k = 0; k < step.length; k++) {
        if (at(k + 1) < view.low || at(k) > view.high) continue;
        const from = Math.round(x(at(k)) - left), to = Math.round(x(at(k + 1)) - left);
        ctx.drawImage(drawn, k, 0, 1, drawn.height, from, 0, Math.max(to - from, 1), drawn.height);
      }
      plot.ctx.drawImage(canvas, left, top, width, bottom - top);
    }

    function ofLayer(name) {
      const key = [name, layer, css(name)].join();
      const level = (k, row) => levels[(layer * step.length + k) * bins + bins - 1 - row];
      return pictures[key] ??= picture(css(name), bins, (k, row) => level(k, row) && 20 + 0.92 * level(k, row));
    }

    /** Traces an edge of fp16's window over the visible steps. */
    function edge(ctx, x, y, size, backwards = false) {
      const from = Math.max(search(steps, view.low) - 1, 0), to = Math.min(search(steps, view.high) + 1, steps.length - 1);
      const [xs, ys] = thin(steps, log2Scale, from, to, 1000), points = [];
      xs.forEach((step, i) => {
        if (i) points.push([x(step), y(size - ys[i - 1])]);
        points.push([x(step), y(size - ys[i])]);
      });
      if (points.length) points.push([x(view.high), points[points.length - 1][1]]);
      for (const [left, top] of backwards ? points.reverse() : points) ctx.lineTo(left, top);
    }

    function drawHeat(plot) {
      within(plot, (ctx, x, y, box) => {
        const top = y(lowest + bins), bottom = y(lowest);
        ctx.fillStyle = css("panel");
        ctx.fillRect(box.left, box.top, box.width, box.height);
        if (scaled) stretch(plot, x, ofLayer("vermilion"), top, bottom);
        ctx.save();
        if (scaled) {
          ctx.beginPath();
          edge(ctx, x, y, edges.overflowed);
          edge(ctx, x, y, edges.flushed, true);
          ctx.closePath();
          ctx.clip();
        }
        ctx.fillStyle = css("ground");
        ctx.fillRect(box.left, box.top, box.width, box.height);
        stretch(plot, x, ofLayer("blue"), top, bottom);
        ctx.restore();
        if (!scaled) return;
        ctx.strokeStyle = css("ink");
        for (const [name, dash, wide] of [["overflowed", [], 1.5], ["flushed", [], 1.5], ["normal", [1.5, 3], 1.2]]) {
          ctx.beginPath();
          ctx.setLineDash(dash.map((length) => length * ratio()));
          ctx.lineWidth = wide * ratio();
          edge(ctx, x, y, edges[name]);
          ctx.stroke();
        }
      });
    }

    function heatBounds() {
      let [low, high] = [lowest, lowest + bins];
      const seen = log2Scale.filter((s) => s > LOWEST);
      if (seen.length) { // the window at its usual place belongs to the picture, its flights do not
        const at = (share) => seen[Math.floor(share * (seen.length - 1))], usual = seen.sort() && at(0.5);
        low = Math.min(low, edges.flushed - Math.min(at(0.95), usual + 8));
        high = Math.max(high, edges.overflowed - Math.max(at(0.05), usual - 8));
      }
      return [low - 2, high + 2];
    }
    const [low, high] = heatBounds();
    byId("window-says").hidden = byId("window-key").hidden = !scaled;

    const select = byId("layer");
    layers.forEach((name, i) => select.append(new Option(name, i)));
    const choose = (i) => {
      layer = clamp(i, 0, layers.length - 1);
      select.value = layer;
      pictures = {};
      view.draw();
    };
    select.addEventListener("change", () => choose(Number(select.value)));
    const keys = { ArrowUp: () => choose(layer - 1), ArrowDown: () => choose(layer + 1) };
    new Chart(view, byId("heat"), {
      label: "Exponents of the gradients over the steps, with the window of fp16", height: 340, bounds: () => [low, high],
      splits: whole, tick: (k) => "2" + superscript(k), under: drawHeat, over: drawSkips, keys,
    });

    const most = lost.reduce((a, b) => b > a ? b : a, 0);
    if (!has(lost)) byId("part-lost").hidden = true;
    if (most < 5e-5) {
      byId("lost-says").textContent = "At the scale of the step fp16 makes less than 0.01 % of any layer's nonzero elements zero.";
      byId("lost-key").hidden = byId("lost").hidden = true;
      return;
    }
    const shown = layers.length, tall = clamp(Math.floor(640 / shown), 2, 22), strips = {};
    new Chart(view, byId("lost"), {
      label: "Share of the gradients that fp16 makes zero, by layer, over the steps", height: shown * tall + 40,
      bounds: () => [0, shown], splits: () => [], tick: () => "", keys,
      onY: (y) => choose(Math.floor(shown - y)),
      under: (plot) => within(plot, (ctx, x, y, box) => {
        const colour = css("vermilion");
        strips[colour] ??= picture(colour, shown, (k, row) => {
          const share = lost[row * step.length + k];
          return share > 0 ? 12 + 243 * Math.sqrt(share) : 0;
        });
        ctx.fillStyle = css("panel");
        ctx.fillRect(box.left, box.top, box.width, box.height);
        stretch(plot, x, strips[colour], y(shown), y(0));
      }),
      over: (plot) => within(plot, (ctx, _, y, box) => {
        ctx.strokeStyle = css("ink");
        ctx.lineWidth = 1.5 * ratio();
        ctx.strokeRect(box.left + 1, y(shown - layer), box.width - 2, y(0) - y(1));
        if (tall < 13) return;
        ctx.font = `${(tall > 15 ? 12 : 11) * ratio()}px system-ui, "DejaVu Sans", sans-serif`;
        ctx.textBaseline = "middle";
        layers.forEach((name, i) => {
          const text = name.length > 40 ? "…" + name.slice(-39) : name, middle = y(shown - i - 0.5);
          ctx.globalAlpha = 0.75;
          ctx.fillStyle = css("ground");
          ctx.fillRect(box.left + 4 * ratio(), middle - 6.5 * ratio(), ctx.measureText(text).width + 8 * ratio(), 13 * ratio());
          ctx.globalAlpha = 1;
          ctx.fillStyle = css("ink");
          ctx.fillText(text, box.left + 8 * ratio(), middle);
        });
      }),
    });
  }

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
      cell(row, (inferred ? "at least " : "") + grouped(count), true);
      cell(row, at === null ? "" : named(at), true);
      cell(row, what(first, last));
    }
    byId("more").hidden = body.rows.length >= rows.length;
  }
  const total = rows.reduce((sum, row) => sum + row[2], 0);
  byId("ledger-says").textContent = !rows.length ? "No step is known to have been skipped."
    : inferred ? `The record does not name the skipped steps. By how far the scale fell there were at least ${grouped(total)}.`
    : `${grouped(total)} skipped.`;
  byId("ledger").hidden = !rows.length;
  byId("ledger").classList.toggle("ones", rows.every((row) => row[2] === 1) && !inferred);
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
