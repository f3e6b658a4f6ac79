// What the page assumes of the steps that a log leaves out, so that its run can be drawn and replayed. It says nothing of
// the run: that is for `ampsim explain`.
"use strict";

const Logs = (() => {
  const log2 = (scale) => (scale === 0 ? -150 : scale === Infinity ? 1024 : Math.log2(scale));
  const halvings = (old, now) => Math.max(1, Math.round(log2(old) - log2(now)));

  // Every step from the first to the last, [{scale, skipped}]. The steps before a fall are taken for its skips; else the
  // scale stays until the log says otherwise.
  function fill(history) {
    const scale = [], skipped = [];
    let held = history.scale.find((value) => !Number.isNaN(value));
    history.step.forEach((step, i) => {
      if (!Number.isNaN(history.scale[i])) held = history.scale[i];
      const gap = (history.step[i + 1] ?? step + 1) - step;
      const after = Number.isNaN(history.scale[i + 1] ?? NaN) ? held : history.scale[i + 1];
      const fell = after < held ? Math.min(gap, halvings(held, after)) : 0;
      const told = gap === 1 && !Number.isNaN(history.skipped[i]);
      for (let j = 0; j < gap; j++) {
        const before = j - (gap - fell); // skips of this fall before this step
        scale.push(before > 0 ? held * 0.5 ** before : held);
        skipped.push(told ? history.skipped[i] > 0 : before >= 0);
      }
    });
    return { scale, skipped };
  }

  // A scale per step at which its gradients were finite, the largest that the record lets us assume.
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

  return { fill, ceilings };
})();
