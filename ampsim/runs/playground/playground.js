// The page: two scalers, A and B, replayed on one recorded run. Moving a slider redraws it.
"use strict";

const byId = (id) => document.getElementById(id);
const { runs, torch } = JSON.parse(byId("data").textContent);
const SIDES = { a: { name: "A", color: "ink", dash: [] }, b: { name: "B", color: "purple", dash: [6, 4] } };
const chosen = { run: runs[0], step: 0, rules: { a: torch, b: torch } };
const gradientChart = new Chart(byId("gradients").querySelector("canvas"), "gradient magnitude");
const scaleChart = new Chart(byId("scales").querySelector("canvas"), "loss scale");

// Values in words.

function scaleText(scale) {
  if (!scale) return scale === null ? "none" : "0";
  const exponent = Math.log2(scale);
  return Number.isInteger(exponent) ? powerOfTwo(exponent) : String(Number(scale.toPrecision(4)));
}

const percentText = (share) => `${(100 * share).toFixed(1)}%`;

// Sliders: a setting of the rule, its label, the value at each position, and the text of a value.

const powersOfTwo = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => 2 ** (from + i));

const SLIDERS = [
  ["init_scale", "Initial scale", powersOfTwo(-10, 48), scaleText],
  ["growth_factor", "Growth factor", [1, 1.05, 1.1, 1.25, 1.5, 2, 3, 4, 8, 16], String],
  ["backoff_factor", "Backoff factor", [0.0625, 0.125, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1], String],
  ["growth_interval", "Growth interval, steps", [1, 2, 4, 8, 15, 20, 30, 50, 100, 200, 500, 1000, 2000], String],
  ["min_scale", "Minimum scale", [null, ...powersOfTwo(-24, 40)], scaleText],
  ["max_scale", "Maximum scale", [...powersOfTwo(-10, 48), null], scaleText],
];

function makePanel(side) {
  const panel = byId("scaler").content.cloneNode(true).querySelector("fieldset");
  panel.id = `scaler-${side}`;
  panel.querySelector("legend").textContent = `Scaler ${SIDES[side].name}`;
  panel.querySelector(".recorded").onclick = () => setRule(side, chosen.run.settings);
  panel.querySelector(".torch").onclick = () => setRule(side, torch);
  for (const [setting, label, values] of SLIDERS) {
    const row = byId("slider").content.cloneNode(true), slider = row.querySelector("input");
    row.querySelector("span").textContent = label;
    Object.assign(slider, { name: setting, max: values.length - 1 });
    slider.oninput = () => setRule(side, { ...chosen.rules[side], [setting]: values[Number(slider.value)] });
    panel.append(row);
  }
  byId("scalers").append(panel);
}

function setRule(side, rule) {
  chosen.rules[side] = rule;
  for (const [setting, , values, text] of SLIDERS) {
    const slider = byId(`scaler-${side}`).querySelector(`[name=${setting}]`);
    slider.value = values.indexOf(rule[setting]);
    slider.nextElementSibling.textContent = text(rule[setting]);
    slider.setAttribute("aria-valuetext", text(rule[setting]));
  }
  draw();
}

function chooseRun(run) {
  Object.assign(chosen, { run, step: 0 });
  byId("said").textContent = run.said;
  byId("step").max = run.thresholds.length - 1;
  setRule("a", run.settings);
}

// Charts.

function gradientRange() {
  const samples = chosen.run.counts.filter((counts) => counts.length);
  const lowest = Math.min(...samples.map((counts) => counts[0]));
  const highest = Math.max(...samples.map((counts) => counts[0] + counts.length - 1));
  return [Math.max(lowest, -66), Math.min(highest, 24) + 10]; // far outliers would squeeze the rest
}

function scaleRange(replays) {
  const scales = [...replays.a.scales, ...replays.b.scales].filter((scale) => scale > 0).map(Math.log2);
  return [Math.floor(Math.min(...scales)) - 1, Math.ceil(Math.max(...scales)) + 2];
}

// Draw the number of elements of each magnitude; the color shows whether fp16 can represent them at the scales.
function drawMagnitudes(chart, scales) {
  const { counts, every } = chosen.run, held = color("blue"), lost = color("vermilion");
  const opacity = (share) => Math.min(1, Math.max(0.08, 0.08 + 0.25 * (Math.log10(share) + 4.5)));
  chart.inside((context) => counts.forEach(([lowest, ...elements], sample) => {
    const all = elements.reduce((sum, count) => sum + count, 0), scale = Math.log2(scales[sample * every]);
    elements.forEach((count, i) => {
      const exponent = lowest + i, scaled = exponent + scale;
      if (!count) return;
      context.globalAlpha = opacity(count / all);
      context.fillStyle = scaled >= FLUSHED && scaled < OVERFLOWED ? held : lost;
      chart.box(sample * every, (sample + 1) * every, exponent, exponent + 1);
    });
  }));
}

function drawOverflows(chart, thresholds) {
  chart.inside((context) => {
    context.fillStyle = color("line");
    thresholds.forEach((threshold, step) => chart.box(step, step + 1, Math.log2(threshold), chart.high));
  });
}

function drawCharts(replays, difference) {
  const { thresholds } = chosen.run;
  gradientChart.begin(thresholds.length, ...gradientRange());
  scaleChart.begin(thresholds.length, ...scaleRange(replays));
  drawMagnitudes(gradientChart, replays.a.scales);
  drawOverflows(scaleChart, thresholds);
  for (const chart of [gradientChart, scaleChart]) {
    chart.mark(chosen.step, "sky", 1);
    if (difference >= 0) chart.mark(difference, "orange", 2);
  }
  Object.entries(SIDES).forEach(([side, look], row) => {
    const exponents = replays[side].scales.map(Math.log2);
    scaleChart.steppedLine(exponents, look.color, look.dash);
    for (const edge of [OVERFLOWED, FLUSHED]) {
      gradientChart.steppedLine(exponents.map((exponent) => edge - exponent), look.color, look.dash);
    }
    replays[side].skipped.forEach((skip, step) => skip && gradientChart.mark(step, look.color, 1.25, 3 + 13 * row, 10));
  });
}

// Text.

function zerosAt({ scales }, sample) {
  return zeroShare(chosen.run.counts[sample], scales[sample * chosen.run.every]);
}

function showResults(side, replayed) {
  const panel = byId(`scaler-${side}`), { counts } = chosen.run;
  const skips = replayed.skipped.filter(Boolean).length;
  const zeros = counts.reduce((sum, _, sample) => sum + zerosAt(replayed, sample), 0) / counts.length;
  panel.querySelector(".skips").textContent = `${skips} of ${replayed.skipped.length}`;
  panel.querySelector(".zeros").textContent = percentText(zeros);
  panel.querySelector(".final").textContent = scaleText(replayed.finalScale);
}

function showStep(replays) {
  const { run, step } = chosen, threshold = run.thresholds[step];
  const says = Object.entries(SIDES).map(([side, { name }]) => {
    const zeros = percentText(zerosAt(replays[side], Math.floor(step / run.every)));
    const skipped = replays[side].skipped[step] ? ", skipped" : "";
    return `${name}: scale ${scaleText(replays[side].scales[step])}${skipped}, ${zeros} rounded to zero`;
  });
  says.push(threshold > 0 ? `overflows above scale ${scaleText(threshold)}` : "overflows at any scale");
  byId("step").value = step;
  byId("readout").textContent = `Step ${step}. ${says.join(" · ")}`;
  byId("step").setAttribute("aria-valuetext", byId("readout").textContent);
}

function showDifference(step, scaleA, scaleB) {
  byId("difference").textContent = step < 0
    ? "A and B have the same scale at each step."
    : `A and B first differ at step ${step}: A has scale ${scaleText(scaleA)}, B has scale ${scaleText(scaleB)}.`;
}

// Events.

function draw() {
  const { run, rules } = chosen;
  const replays = { a: replay(rules.a, run.thresholds), b: replay(rules.b, run.thresholds) };
  const difference = replays.a.scales.findIndex((scale, step) => scale !== replays.b.scales[step]);
  drawCharts(replays, difference);
  showDifference(difference, replays.a.scales[difference], replays.b.scales[difference]);
  showStep(replays);
  for (const side of Object.keys(SIDES)) showResults(side, replays[side]);
}

function lookAt(step) {
  chosen.step = step;
  draw();
}

for (const side of Object.keys(SIDES)) makePanel(side);
for (const chart of [gradientChart, scaleChart]) {
  chart.canvas.onpointermove = (event) => lookAt(chart.stepAt(event));
}
byId("run").append(...runs.map((run) => new Option(run.title)));
byId("run").onchange = () => chooseRun(runs[byId("run").selectedIndex]);
byId("step").oninput = () => lookAt(Number(byId("step").value));
matchMedia("(prefers-color-scheme: dark)").onchange = draw;
addEventListener("resize", draw);
setRule("b", torch);
chooseRun(runs[0]);
