// Numbers in words.
"use strict";

const Words = (() => {
  const times = (value) => String(+value.toPrecision(3));
  const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
  const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`);

  function power(value) {
    if (value === 0) return "0";
    if (!Number.isFinite(value)) return "∞";
    const log2 = Math.log2(value);
    if (!Number.isInteger(log2)) return value >= 1e6 || value < 1e-3 ? value.toExponential(2) : times(value);
    return `2${[...String(log2)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit] ?? "⁻").join("")}`;
  }

  return { times, counted, percent, power };
})();
