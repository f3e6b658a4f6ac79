// The rule of torch.amp.GradScaler with bounds on the scale, as in ampsim/core/machine.py.
//
// Numbers are doubles here and in Python, and Math.fround rounds to float32. A test runs generated runs through both.
"use strict";

const FLUSHED = -25; // log2 of the magnitude up to which fp16 rounds to zero
const OVERFLOWED = 16; // log2 of the magnitude from which fp16 overflows, 65520, to the next power of two

function grow(rule, scale) {
  const grown = Math.min(Math.fround(scale * rule.growth_factor), Math.fround(rule.max_scale ?? Infinity));
  return Number.isFinite(grown) ? grown : scale;
}

function backOff(rule, scale) {
  return Math.max(Math.fround(scale * rule.backoff_factor), Math.fround(rule.min_scale ?? 0));
}

// Replay a rule on a run, whose step overflows where the scale is above the threshold of the step.
function replay(rule, thresholds) {
  const scales = [], skipped = [];
  let scale = Math.fround(rule.init_scale), cleanSteps = 0;
  for (const threshold of thresholds) {
    const overflow = scale > threshold;
    scales.push(scale);
    skipped.push(overflow);
    cleanSteps = overflow ? 0 : cleanSteps + 1;
    if (overflow) scale = backOff(rule, scale);
    else if (cleanSteps === rule.growth_interval) {
      scale = grow(rule, scale);
      cleanSteps = 0;
    }
  }
  return { scales, skipped, finalScale: scale };
}

// The share of elements that fp16 rounds to zero at a scale. `counts` is the lowest exponent, then the number of
// elements from 2^exponent up to 2^(exponent + 1), and so on. A bin that the edge of fp16 cuts counts in part.
function zeroShare([lowest, ...counts], scale) {
  const edge = FLUSHED - Math.log2(scale) - lowest; // in bins from the lowest
  const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
  const zeros = counts.map((count, bin) => count * Math.min(1, Math.max(0, edge - bin)));
  return counts.length ? sum(zeros) / sum(counts) : 0;
}

if (typeof module !== "undefined") module.exports = { replay, zeroShare };
