// Reads histories from standard input, plays each with the machine named as the argument, and writes as JSON what
// each scale became, and how the scaler gave up if it did.
"use strict";
const LossScaler = require(process.argv[2]);
const revive = (key, value) => (value === "inf" ? Infinity : value);
const tasks = JSON.parse(require("fs").readFileSync(0, "utf8"), revive);

function play({ rule, found_inf: foundInf, is_async: isAsync }) {
  const scale = [];
  let state = LossScaler.init(rule);
  for (let step = 0; step < foundInf.length; step++) {
    try {
      state = LossScaler.update(rule, state, foundInf[step] === 1, isAsync !== null && isAsync[step] === false);
    } catch (error) {
      if (!error.name || error instanceof TypeError) throw error;
      return { scale, raised: { step, type: error.name, msg: error.message } };
    }
    scale.push(Number.isFinite(state.scale) ? state.scale : String(state.scale));
  }
  return { scale, raised: null };
}

process.stdout.write(JSON.stringify({ lacks: LossScaler.LACKS, played: tasks.map(play) }));
