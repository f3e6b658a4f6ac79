"use strict";
/* The heat maps of a report: gradients against the representable range of fp16, and the underflow of each layer. */

const LOWEST = -150; // below float32's least number: where a scale of 0 is drawn

function drawExponents(heat, { view, steps, log2Scale, drawSkips }) {
  const { step, lowest, bins, layers, window: edges } = heat;
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

  /** Traces an edge of fp16's representable range over the visible steps. */
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
    if (seen.length) { // show the range at its usual place, but not its extremes
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
    label: "Exponents of the gradients over the steps, with the representable range of fp16", height: 340, bounds: () => [low, high],
    splits: whole, tick: (k) => "2" + superscript(k), under: drawHeat, over: drawSkips, keys,
  });

  const most = lost.reduce((a, b) => b > a ? b : a, 0);
  if (!has(lost)) byId("part-lost").hidden = true;
  if (most < 5e-5) {
    byId("lost-says").textContent = "At the loss scale of the step, less than 0.01 % of the nonzero elements of any layer underflow in fp16.";
    byId("lost-key").hidden = byId("lost").hidden = true;
    return;
  }
  const shown = layers.length, tall = clamp(Math.floor(640 / shown), 2, 22), strips = {};
  new Chart(view, byId("lost"), {
    label: "Share of the gradients that underflow in fp16, by layer, over the steps", height: shown * tall + 40,
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
