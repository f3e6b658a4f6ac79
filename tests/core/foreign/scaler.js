// The playground's machine as a program for `ampsim traces judge`: node scaler.js machine.js
"use strict";
const LossScaler = require(process.argv[2]);

function real(text) {
  const [, whole, fraction, exponent] = /^0x(\d)\.?([0-9a-f]*)p([+-]\d+)$/.exec(text);
  // In two factors, as 2 ** -1074 is a number and 1 / 2 ** 1074 is none.
  const [mantissa, power] = [parseInt(whole + fraction, 16), Number(exponent) - 4 * fraction.length];
  const half = Math.trunc(power / 2);
  return mantissa * 2 ** half * 2 ** (power - half);
}

const revive = (key, value) => (/^0x/.test(value) ? real(value) : value === "inf" ? Infinity : value);

function answer({ config, found_inf: foundInf, synchronous = [] }) {
  const outcome = [];
  let state = LossScaler.init(config);
  for (const [step, flag] of foundInf.entries()) {
    try {
      state = LossScaler.update(config, state, flag === 1, synchronous[step] === 1);
    } catch (error) {
      if (!error.name || error instanceof TypeError) throw error;
      return [...outcome, "gives up"];
    }
    outcome.push(Number.isFinite(state.scale) ? state.scale : "inf");
  }
  return outcome;
}

require("readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => console.log(JSON.stringify(answer(JSON.parse(line, revive)))));
