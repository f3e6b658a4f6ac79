// What the page computes of a rule over a run: the rule that the sliders say, T1's budget, what fp16 flushes.
"use strict";

const Runs = (() => {
  const FLUSHED = -25; // log2 of half of fp16's smallest subnormal: below, rounding gives zero
  const OVERFLOWED = 16; // log2 of where fp16 overflows, 65520, rounded up to a binade

  const log2 = (scale) => (scale > 0 && Number.isFinite(scale) ? Math.log2(scale) : null);

  // The rule of a dialect under knobs: fields of a Rule; what is undefined stays as the framework has it. The interval
  // is the framework's own: flax grows a step after it, Chainer spreads one growth over it.
  function ruleOf(dialect, knobs) {
    const given = Object.fromEntries(Object.entries(knobs).filter(([, value]) => value !== undefined));
    const rule = { ...dialect.rule, ...given };
    if (knobs.growth_interval !== undefined && dialect.interval === "spread")
      Object.assign(rule, { growth_factor: 2 ** (1 / knobs.growth_interval), growth_interval: 1 });
    else if (knobs.growth_interval !== undefined) rule.growth_interval += dialect.interval ?? 0;
    if (knobs.min_scale !== undefined)
      rule.quirks = rule.quirks.map((quirk) => ("low" in quirk ? { ...quirk, low: knobs.min_scale ?? 0 } : quirk));
    if (dialect.clamps_init && rule.init_scale > rule.max_scale) rule.init_scale = rule.max_scale;
    return rule;
  }

  // T1 of ampsim/core/theory: no history of this many updates has more skips. Null where it does not hold: an
  // overflow that did not lower the scale, or growths by another factor.
  function budget(rule, played, updates) {
    if (played.idle || rule.quirks.some((quirk) => quirk.name === "RampUntilOverflow")) return null;
    const [a, b] = [Math.log2(rule.growth_factor), -Math.log2(rule.backoff_factor)];
    const descent = Math.log2(played.scales[0]) - Math.log2(played.newest);
    const rho = a / b;
    return (rho * updates + (rule.growth_interval * descent) / b) / (rule.growth_interval + rho);
  }

  // The share of a sample's elements that fp16 makes zero at a scale; a binade that is cut counts in part.
  function flushed(counts, log2Scale) {
    const [lowest, ...elements] = counts;
    let lost = 0, all = 0;
    elements.forEach((many, i) => {
      all += many;
      lost += many * Math.min(1, Math.max(0, FLUSHED - (lowest + i + log2Scale)));
    });
    return all ? lost / all : 0;
  }

  // The first step at which two played runs differ, in the scale in force or in what is skipped; -1 if none.
  function firstDifference(a, b) {
    const [skipsA, skipsB] = [new Set(a.skipped), new Set(b.skipped)];
    const length = Math.max(a.scales.length, b.scales.length);
    for (let step = 0; step < length; step++)
      if (!Object.is(a.scales[step], b.scales[step]) || skipsA.has(step) !== skipsB.has(step)) return step;
    return -1;
  }

  // Each step's share that is made zero, null where the framework had given up; undefined without histograms.
  function losses(run, played) {
    if (!run.counts) return undefined;
    return run.counts.map((counts, sample) => {
      const scale = played.scales[sample * run.every];
      return scale === undefined ? null : flushed(counts, Math.log2(scale));
    });
  }

  return { FLUSHED, OVERFLOWED, log2, ruleOf, budget, flushed, firstDifference, losses };
})();
