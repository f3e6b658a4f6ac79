// The dynamic loss scaler as a pure state machine: ampsim/core/machine.py and quirks.py in JavaScript.
//
// A rule is data: the fields of Python's Rule, its quirks by name (rules.py writes it). Numbers are doubles here and
// there, and Math.fround rounds to float32, so that a trajectory is the same to the last bit. That is not hoped:
// tests/diagnose/test_playground.py runs every recorded trace through this file.
"use strict";

const LossScaler = (() => {
  // Dialects that this machine does not speak; the page greys them out.
  const LACKS = [];

  const round = (arithmetic, x) => (arithmetic.dtype === "float32" ? Math.fround(x) : x);
  const factor = (arithmetic, x) => (arithmetic.round_factors ? round(arithmetic, x) : x);

  function result(arithmetic, x) {
    const least = arithmetic.dtype === "float32" ? 2 ** -126 : 2 ** -1022;
    x = round(arithmetic, x);
    return arithmetic.flush_subnormals && Math.abs(x) < least ? 0 : x;
  }

  function grow(rule, scale) {
    const a = rule.arithmetic;
    let grown = result(a, scale * factor(a, rule.growth_factor));
    if (rule.max_scale !== null && round(a, rule.max_scale) < grown) grown = round(a, rule.max_scale);
    return a.keeps_finite && !Number.isFinite(grown) ? scale : grown;
  }

  function backOff(rule, scale) {
    const a = rule.arithmetic;
    let lowered;
    if (a.backoff === "multiply") lowered = result(a, scale * factor(a, rule.backoff_factor));
    else if (a.backoff === "divide") lowered = result(a, scale / factor(a, rule.growth_factor));
    else lowered = result(a, scale * round(a, 1 / factor(a, rule.growth_factor)));
    return rule.min_scale !== null && round(a, rule.min_scale) > lowered ? round(a, rule.min_scale) : lowered;
  }

  // One step of the plain machine, without quirks and without delay.
  function advance(rule, state, foundInf) {
    let { scale, growthTracker, overflowTracker } = state;
    const refill = rule.hysteresis_refill;
    if (foundInf) {
      growthTracker = 0;
      if (overflowTracker + 1 < rule.hysteresis) overflowTracker += 1;
      else {
        scale = backOff(rule, scale);
        if (refill.includes("backoff")) overflowTracker = 0;
      }
    } else {
      if (refill.includes("clean")) overflowTracker = 0;
      growthTracker += 1;
      const { growth_test: test, growth_interval: interval } = rule;
      if (test === "==" ? growthTracker === interval : growthTracker >= interval) {
        scale = grow(rule, scale);
        growthTracker = 0;
        if (refill.includes("growth")) overflowTracker = 0;
      }
    }
    return { scale, growthTracker, overflowTracker, pending: state.pending, memory: state.memory };
  }

  function giveUp(type, message) {
    throw Object.assign(new Error(message), { name: type });
  }

  const pythonFloat = (x) => (Number.isInteger(x) ? `${x}.0` : `${x}`);
  const remember = (state, facts) => ({ ...state, memory: { ...state.memory, ...facts } });

  // What single frameworks do: (quirk, the next layer in, rule, state, foundInf) -> state.
  const QUIRKS = {
    StreakStartsAt(quirk, inner, rule, state, foundInf) {
      const after = inner(rule, state, foundInf);
      return foundInf ? { ...after, growthTracker: quirk.start } : after;
    },
    RaiseAtMin(quirk, inner, rule, state, foundInf) {
      if (foundInf && state.overflowTracker + 1 >= rule.hysteresis && state.scale === rule.min_scale)
        giveUp("Exception", "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.");
      return inner(rule, state, foundInf);
    },
    Tolerance(quirk, inner, rule, state, foundInf) {
      const updates = (state.memory.updates ?? 0) + 1;
      const overflows = (state.memory.overflows ?? 0) + (foundInf ? 1 : 0);
      const tolerated = foundInf && overflows / updates < quirk.fraction;
      let after = inner(rule, state, foundInf);
      if (tolerated) after = { ...after, scale: state.scale };
      const rescaled = (foundInf && !tolerated) || (!foundInf && after.growthTracker === 0);
      return remember(after, { updates: rescaled ? 0 : updates, overflows: rescaled && foundInf ? 0 : overflows });
    },
    RaiseBelow(quirk, inner, rule, state, foundInf) {
      const after = inner(rule, state, foundInf);
      if (foundInf && after.scale <= quirk.limit)
        giveUp("FloatingPointError", `Minimum loss scale reached (${pythonFloat(quirk.limit)}). Your loss is probably ` +
          "exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size.");
      return after;
    },
    HoldAtBounds(quirk, inner, rule, state, foundInf) {
      if (foundInf && !(state.scale > quirk.low)) return state;
      if (!foundInf && !(state.scale < quirk.high)) return { ...state, growthTracker: state.growthTracker + 1 };
      return inner(rule, state, foundInf);
    },
    ClipEveryUpdate(quirk, inner, rule, state, foundInf) {
      const after = inner(rule, state, foundInf);
      const [low, high] = [round(rule.arithmetic, quirk.low), round(rule.arithmetic, quirk.high)];
      return { ...after, scale: Math.min(Math.max(after.scale, low), high) };
    },
    RampUntilOverflow(quirk, inner, rule, state, foundInf) {
      const seen = foundInf || Boolean(state.memory.overflowSeen);
      const after = inner(seen ? rule : { ...rule, growth_factor: quirk.factor }, state, foundInf);
      return seen ? remember(after, { overflowSeen: 1 }) : after;
    },
    FirstUpdateInDouble(quirk, inner, rule, state, foundInf) {
      if (state.memory.started) return inner(rule, state, foundInf);
      const held = round(rule.arithmetic, rule.init_scale);
      const plain = { ...rule.arithmetic, dtype: "float32", round_factors: false, backoff: "multiply" };
      const first = { ...rule, arithmetic: { ...plain, flush_subnormals: true, keeps_finite: true } };
      const after = inner(first, { ...state, scale: state.scale === held ? rule.init_scale : state.scale }, foundInf);
      return remember({ ...after, scale: round(rule.arithmetic, after.scale) }, { started: 1 });
    },
    RaiseAfterConsecutive(quirk, inner, rule, state, foundInf) {
      const after = inner(rule, state, foundInf);
      const inARow = foundInf ? (state.memory.inARow ?? 0) + 1 : 0;
      if (inARow > quirk.overflows)
        giveUp("RuntimeError", `('Dynamic loss scale Continuous overflow ', ${inARow}, ` +
          "' times, has exceeded maximum threshold.')");
      return remember(after, { inARow });
    },
    StepsInLog2(quirk, inner, rule, state, foundInf) {
      let log2 = state.memory.log2 ?? Math.log2(rule.init_scale);
      if (state.scale !== round(rule.arithmetic, 2 ** log2)) log2 = state.scale > 0 ? Math.log2(state.scale) : -Infinity; // it was set by hand
      log2 += foundInf ? -1 : quirk.growth;
      return remember({ ...inner(rule, state, foundInf), scale: round(rule.arithmetic, 2 ** log2) }, { log2 });
    },
  };

  const newest = (state) => (state.pending.length ? state.pending[state.pending.length - 1] : state.scale);

  // The state before the first update.
  function init(rule) {
    const start = rule.quirks.find((quirk) => quirk.name === "StreakStartsAt");
    const scale = round(rule.arithmetic, rule.init_scale);
    return { scale, growthTracker: start ? start.start : 0, overflowTracker: 0, pending: [], memory: {} };
  }

  // The state after an update. A synchronous one brings the newest scale into force at once.
  function update(rule, state, foundInf, synchronous = false) {
    let step = advance;
    for (const quirk of rule.quirks) step = QUIRKS[quirk.name].bind(null, quirk, step);
    const depth = synchronous ? 0 : rule.delay;
    if (!depth && !state.pending.length) return step(rule, state, foundInf); // the queue of one: nothing waits
    const after = step(rule, { ...state, scale: newest(state), pending: [] }, foundInf);
    const queue = [state.scale, ...state.pending, after.scale].slice(-(depth + 1));
    return { ...after, scale: queue[0], pending: queue.slice(1) };
  }

  // A rule over steps that overflow where the scale is above their ceiling, until the framework gives up.
  function play(rule, ceilings) {
    const [scales, skipped] = [new Float64Array(ceilings.length), []];
    let state = init(rule), idle = 0; // overflows that did not lower the newest scale by a whole backoff
    for (let step = 0; step < ceilings.length; step++) {
      scales[step] = state.scale;
      const foundInf = state.scale > ceilings[step], before = newest(state);
      if (foundInf) skipped.push(step);
      try {
        state = update(rule, state, foundInf);
      } catch (error) {
        return { scales: scales.slice(0, step + 1), skipped, newest: before, idle, raised: { step, error } };
      }
      if (foundInf && !(newest(state) <= before * rule.backoff_factor * (1 + 1e-6))) idle += 1;
    }
    return { scales, skipped, newest: newest(state), idle, raised: null };
  }

  return { LACKS, init, update, play };
})();

if (typeof module !== "undefined") module.exports = LossScaler;
