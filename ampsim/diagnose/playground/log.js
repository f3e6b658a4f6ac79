// What a training log leaves unsaid, as ampsim/diagnose/infer.py infers it: skips, the rule, the dialects that fit; and
// what the page assumes of the steps that a log leaves out. Tests hold the two against each other.
"use strict";

const Logs = (() => {
  const { counted, power, times } = Words;
  const TOLERANCE = 1e-4, LIKELY_BACKOFF = 0.4, LEAST_BACKOFF = 1 / 64, FITTED = 3000;
  const close = (a, b) => Math.abs(a - b) <= TOLERANCE * Math.abs(b);
  const log2 = (scale) => (scale === 0 ? -150 : scale === Infinity ? 1024 : Math.log2(scale));
  const backoffs = (old, now, factor = 0.5) => Math.max(1, Math.round((log2(old) - log2(now)) / -Math.log2(factor)));
  // A scale that is printed as 0 may be small, and takes a step per backoff.
  const proved = ({ after, step, new: now }, least) => (now === 0 ? Math.min(least, Math.max(1, step - after)) : least);

  const consecutive = (history) => history.step.every((step, i) => !i || step === history.step[i - 1] + 1);

  // The rule behind a history, as far as its changes show it.
  function infer(history) {
    const ratios = history.changes.filter(({ old }) => old > 0 && old < Infinity).map((change) => change.new / change.old);
    const falls = history.changes.filter((change) => change.new < change.old);
    const growth = ratios.reduce((least, ratio) => (ratio > 1 + TOLERANCE && ratio < (least ?? Infinity) ? ratio : least), null);
    let backoff = ratios.reduce((most, ratio) => (ratio < 0.99 && ratio > (most ?? 0) ? ratio : most), null);
    const apart = falls.every((change) => change.step - change.after > 1);
    if (backoff !== null && backoff < (apart ? LIKELY_BACKOFF : LEAST_BACKOFF)) backoff = null; // several skips at once
    const skips = falls.map((change) => ({ change, least: proved(change, backoffs(change.old, change.new, backoff ?? 0.5)) }));
    let interval = null;
    history.changes.slice(1).forEach((second, i) => {
      const earlier = history.changes[i];
      if (growth !== null && earlier.new > earlier.old && earlier.old > 0 && second.old > 0 &&
        Math.abs(second.new / second.old / growth - 1) <= TOLERANCE)
        interval = Math.min(interval ?? Infinity, second.step - earlier.step);
    });
    return { growth, backoff, interval, skips, least: skips.reduce((sum, each) => sum + each.least, 0) };
  }

  // Every step from the first to the last, [{scale, skipped}]: what the log leaves out is assumed. The steps before a
  // fall are taken for its skips; else the scale stays until the log says otherwise.
  function fill(history, known) {
    const scale = [], skipped = [];
    let held = history.scale.find((value) => !Number.isNaN(value));
    history.step.forEach((step, i) => {
      if (!Number.isNaN(history.scale[i])) held = history.scale[i];
      const gap = (history.step[i + 1] ?? step + 1) - step;
      const after = Number.isNaN(history.scale[i + 1] ?? NaN) ? held : history.scale[i + 1];
      const fell = after < held ? Math.min(gap, backoffs(held, after, known.backoff ?? 0.5)) : 0;
      const told = gap === 1 && !Number.isNaN(history.skipped[i]);
      for (let j = 0; j < gap; j++) {
        const before = j - (gap - fell); // skips of this fall before this step
        scale.push(before > 0 ? held * (known.backoff ?? 0.5) ** before : held);
        skipped.push(told ? history.skipped[i] > 0 : before >= 0);
      }
    });
    return { scale, skipped };
  }

  // A scale per step at which its gradients were finite, the largest that the record lets us assume: ceilings_of.
  function ceilings({ scale, skipped }) {
    const at = skipped.flatMap((bad, step) => (bad ? [step] : []));
    const top = scale.reduce((most, value) => Math.max(most, value), 0);
    let right = 0;
    return scale.map((value, step) => {
      if (!at.length) return Math.max(value, top);
      while (right < at.length - 1 && at[right] < step) right += 1;
      const left = Math.max(right - 1, 0);
      const nearest = Math.abs(at[left] - step) <= Math.abs(at[right] - step) ? at[left] : at[right];
      return skipped[step] ? value / 2 : Math.max(value, scale[nearest] / 2);
    });
  }

  // The dialects that make this very trajectory of these skips, under knobs that the log implies; torch's first.
  function fitting(filled, known, dialects) {
    const seen = filled.scale.slice(1, FITTED);
    const fits = dialects.filter((dialect) => {
      const rule = Runs.ruleOf(dialect, knobsOf(dialect, filled, known));
      let state = LossScaler.init(rule);
      try {
        return seen.every((scale, step) => close((state = LossScaler.update(rule, state, filled.skipped[step])).scale, scale));
      } catch {
        return false; // it gives up where the run went on
      }
    });
    const others = (dialect) => Number(!dialect.name.startsWith("torch."));
    return fits.sort((a, b) => others(a) - others(b));
  }

  function knobsOf(dialect, filled, known) {
    const interval = known.interval && known.interval - (Number(dialect.interval) || 0); // flax grows a step after it
    const values = { init: filled.scale[0], interval, growth: known.growth, backoff: known.backoff };
    const pairs = Object.entries(values).filter(([name, value]) => name in dialect.parameters && value !== null);
    return Object.fromEntries(pairs.map(([name, value]) => [dialect.parameters[name], value]));
  }

  // What is known of a log, in sentences.
  function sentences(history, known, filled, fits, named) {
    const scales = history.scale.filter((scale) => !Number.isNaN(scale)), rises = history.changes.length - known.skips.length;
    const end = history.step[history.step.length - 1], more = fits.length > 3 ? ` and ${fits.length - 3} more` : "";
    const said = [
      `Read: steps ${history.step[0]} to ${end}, from ${history.program}. The scale began at ${power(scales[0])}, ended at ` +
        `${power(scales[scales.length - 1])}, grew ${counted(rises, "time")} and fell ${counted(known.skips.length, "time")}.`,
      consecutive(history)
        ? `Skipped: ${filled.skipped.filter(Boolean).length} of ${counted(filled.scale.length, "step")}.`
        : `Skipped: at least ${counted(known.least, "step")}, by how far the scale fell between the lines of the log.`,
    ];
    const longest = known.skips.reduce((most, each) => (each.least > (most?.least ?? 3) ? each : most), undefined);
    if (longest)
      said.push(`The longest fall, ${power(longest.change.old)} to ${power(longest.change.new)} between steps ` +
        `${longest.change.after} and ${longest.change.step}, is ${longest.least} backoffs.`);
    const rule = [known.growth && `grows by ${times(known.growth)}`, known.backoff && `backs off by ${times(known.backoff)}`,
      known.interval && `grows after ${counted(known.interval, "clean step")}`].filter(Boolean);
    if (rule.length) said.push(`Rule: ${rule.join(", ")}.`);
    if (fits.length) said.push(`Dialect: ${fits.slice(0, 3).join(", ")}${more} would have made this very trajectory; it is rule A now.`);
    else if (named) said.push(`Dialect: ${named}, by the form of the log; it is rule A now.`);
    else said.push("No dialect makes this trajectory from what the log tells; rule A is torch's.");
    said.push("What is wrong, and what to try: ampsim explain LOG.");
    return said;
  }

  return { infer, fill, ceilings, fitting, knobsOf, backoffs, consecutive, sentences };
})();
