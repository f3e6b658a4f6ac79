"use strict";
/* Charts over the steps of a run: they share one cursor and one range, and are thinned to the pixels at any zoom. */

function unpack(column) {
  const [[kind, text]] = Object.entries(column), raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new { float64: Float64Array, float32: Float32Array, uint8: Uint8Array }[kind](bytes.buffer);
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const superscript = (k) => String(k).replace(/./g, (c) => "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"["0123456789-".indexOf(c)]);
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

const byId = (id) => document.getElementById(id);
/** Whether anything is known of a series. */
const has = (values) => values.some((value) => !Number.isNaN(value));

/** Pixels of a canvas per pixel of the page. */
const ratio = () => devicePixelRatio || 1;

/** Draws inside of a chart's axes, or also in the margin above them, in pixels of the canvas. */
function within(plot, draw, above = 0) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left - above, bbox.top - above, bbox.width + 2 * above, bbox.height + above);
  ctx.clip();
  ctx.textAlign = "left";
  draw(ctx, (x) => plot.valToPos(x, "x", true), (y) => plot.valToPos(y, "y", true), bbox);
  ctx.restore();
}

/** Ticks at whole numbers. */
const whole = (_, __, low, high, step) => {
  const by = Math.max(1, Math.ceil(step)), found = [];
  for (let k = Math.ceil(low / by) * by; k <= high; k += by) found.push(k);
  return found;
};

/** The index of the first element that is not below a value. */
function search(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (sorted[mid] < value) low = mid + 1; else high = mid;
  }
  return low;
}

/** The index of the element nearest to a value. */
function nearest(sorted, value) {
  const i = clamp(search(sorted, value), 0, sorted.length - 1);
  return i > 0 && value - sorted[i - 1] < sorted[i] - value ? i - 1 : i;
}

/** The points of a series from one index to another: of each of `columns` the first, least, largest and last. */
function thin(steps, values, from, to, columns) {
  const x = [], y = [], all = to - from + 1;
  const per = all > 4 * columns ? all / columns : 1;
  for (let c = 0; Math.floor(from + c * per) <= to; c++) {
    const end = Math.min(Math.floor(from + (c + 1) * per) - 1, to);
    let first = -1, least = -1, most = -1, last = -1;
    for (let i = Math.floor(from + c * per); i <= end; i++) {
      if (!Number.isFinite(values[i])) continue;
      if (first < 0) first = least = most = i;
      if (values[i] < values[least]) least = i;
      if (values[i] > values[most]) most = i;
      last = i;
    }
    if (first < 0) continue;
    for (const i of [...new Set([first, least, most, last])].sort((a, b) => a - b)) {
      x.push(steps[i]);
      y.push(values[i]);
    }
  }
  return [x, y];
}

class View {
  /** steps: increasing; skips: indices into it; onMove: called with the index of the cursor. */
  constructor(steps, skips, onMove) {
    Object.assign(this, { steps, skips, onMove, charts: [], at: steps.length - 1, pending: false });
    this.first = steps[0];
    this.last = steps[steps.length - 1];
    this.reset();
    addEventListener("resize", () => this.draw());
    for (const media of ["print", "(prefers-color-scheme: dark)"]) {
      matchMedia(media).addEventListener("change", () => this.draw(true));
    }
    addEventListener("beforeprint", () => { document.documentElement.classList.add("printing"); this.draw(true); });
    addEventListener("afterprint", () => { document.documentElement.classList.remove("printing"); this.draw(true); });
  }

  reset() { this.range(this.first, this.last); }

  range(low, high) {
    const all = Math.max(this.last - this.first, 1), span = clamp(high - low, Math.min(4, all), all);
    this.low = clamp((low + high - span) / 2, this.first, this.first + all - span);
    this.high = this.low + span;
    this.draw();
  }

  zoom(factor, around = this.steps[this.at]) {
    const middle = clamp(around, this.low, this.high);
    this.range(middle - (middle - this.low) * factor, middle + (this.high - middle) * factor);
  }

  /** Puts the cursor on an entry and brings it into sight. */
  move(index, spoken = false) {
    this.at = clamp(index, 0, this.steps.length - 1);
    const step = this.steps[this.at], span = this.high - this.low;
    if (step < this.low || step > this.high) this.range(step - span / 2, step + span / 2);
    for (const chart of this.charts) chart.placeCursor();
    this.onMove(this.at, spoken);
  }

  /** Shows a step with its surroundings. */
  show(step, around = 50) {
    this.range(step - around, step + around);
    this.move(nearest(this.steps, step), true);
  }

  toSkip(direction) {
    const i = search(this.skips, this.at + (direction > 0 ? 1 : 0)) - (direction > 0 ? 0 : 1);
    if (i >= 0 && i < this.skips.length) this.move(this.skips[i], true);
  }

  /** Draws all charts in the next frame, or at once. */
  draw(now = false) {
    if (now) for (const chart of this.charts) chart.draw();
    else if (!this.pending) {
      this.pending = true;
      requestAnimationFrame(() => { this.pending = false; this.draw(true); });
    }
  }
}

class Chart {
  /**
   * options: label: for who cannot see it; height; values: of each step, may be absent; tick: value -> text;
   * stepped; bounds: () => [low, high], else of the values; splits: see uPlot; under, over: (uPlot) => void, what is
   * drawn besides; onY: called with the height that was clicked; keys: key -> function
   */
  constructor(view, host, options) {
    Object.assign(this, { view, host, options });
    host.tabIndex = 0;
    host.setAttribute("role", "group");
    host.setAttribute("aria-roledescription", "chart");
    host.setAttribute("aria-describedby", "readout");
    this.plot = new uPlot(this.settings(), [[view.first, view.last], [null, null]], host);
    this.cursor = this.plot.over.appendChild(Object.assign(document.createElement("div"), { className: "cursor" }));
    host.addEventListener("keydown", (event) => this.onKey(event));
    this.followPointers(this.plot.over);
    view.charts.push(this);
  }

  settings() {
    const { options } = this, font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
    const axis = { font, stroke: () => css("faint"), ticks: { stroke: () => css("line"), width: 1, size: 4 } };
    return {
      width: this.width(), height: options.height, legend: { show: false }, padding: [options.margin ?? 12, 12, 0, 0],
      cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: false, auto: false }, y: { auto: false } },
      axes: [
        { ...axis, size: 30, space: 80, grid: { show: false }, values: (_, at) => at.map((x) => Number.isInteger(x) ? x.toLocaleString("en") : "") },
        { ...axis, size: 62, splits: options.splits, grid: { show: !options.under, stroke: () => css("grid"), width: 1 },
          values: (_, at) => at.map(options.tick) },
      ],
      series: [{}, {
        stroke: () => css("blue"), width: 1.6, spanGaps: true,
        paths: options.stepped ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
        points: { show: (plot) => plot.data[0].length < 60, size: 5, fill: () => css("blue") },
      }],
      hooks: {
        drawClear: [(plot) => options.under?.(plot)],
        draw: [(plot) => options.over?.(plot)],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 4) return;
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          this.view.range(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
        }],
      },
    };
  }

  width() {
    return document.documentElement.classList.contains("printing") ? 660 : Math.max(this.host.clientWidth, 200);
  }

  draw() {
    const { view, options, plot } = this, width = this.width();
    if (plot.width !== width) plot.setSize({ width, height: options.height });
    let points = [[view.low, view.high], [null, null]];
    if (options.values) {
      const from = Math.max(search(view.steps, view.low) - 1, 0);
      const to = Math.min(search(view.steps, view.high) + 1, view.steps.length - 1);
      points = thin(view.steps, options.values, from, to, width);
    }
    const [low, high] = options.bounds ? options.bounds() : this.boundsOf(points[1]);
    plot.batch(() => {
      plot.setData(points, false);
      plot.setScale("x", { min: view.low, max: view.high > view.low ? view.high : view.low + 1 });
      plot.setScale("y", { min: low, max: high });
    });
    plot.redraw(false);
    const [first, last] = [Math.round(view.low), Math.round(view.high)].map((step) => step.toLocaleString("en"));
    this.host.setAttribute("aria-label", `${options.label}, steps ${first} to ${last}`);
    this.placeCursor();
  }

  boundsOf(values) {
    let low = Infinity, high = -Infinity;
    for (const y of values) { low = Math.min(low, y); high = Math.max(high, y); }
    if (low > high) return [0, 1];
    const room = Math.max((high - low) * 0.08, this.options.room ?? 1e-9);
    return [low - room, high + room];
  }

  placeCursor() {
    const left = this.plot.valToPos(this.view.steps[this.view.at], "x");
    this.cursor.hidden = !(left >= 0 && left <= this.plot.over.clientWidth);
    this.cursor.style.transform = `translateX(${left}px)`;
  }

  onKey(event) {
    const { view } = this, stride = event.shiftKey ? 1 : 10;
    const does = {
      ArrowLeft: () => view.move(view.at - stride, true), ArrowRight: () => view.move(view.at + stride, true),
      Home: () => view.move(0, true), End: () => view.move(view.steps.length - 1, true),
      "+": () => view.zoom(0.5), "=": () => view.zoom(0.5), "-": () => view.zoom(2), "0": () => view.reset(),
      Escape: () => view.reset(), n: () => view.toSkip(1), p: () => view.toSkip(-1), ...this.options.keys,
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }

  /** Moves the cursor under a mouse or a finger; uPlot itself selects with the mouse. */
  followPointers(over) {
    const inside = (event, side) => event[side === "x" ? "clientX" : "clientY"] - over.getBoundingClientRect()[side];
    over.addEventListener("pointerdown", (event) => this.options.onY?.(this.plot.posToVal(inside(event, "y"), "y")));
    over.addEventListener("pointermove", (event) => {
      const at = clamp(this.plot.posToVal(inside(event, "x"), "x"), this.view.low, this.view.high);
      this.view.move(nearest(this.view.steps, at));
    });
    over.addEventListener("dblclick", () => this.view.reset());
  }
}
