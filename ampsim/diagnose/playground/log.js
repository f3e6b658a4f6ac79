// Reads a training log in the browser, as ampsim/diagnose/readers does, and infers what it leaves unsaid, as
// ampsim/diagnose/infer.py does; tests hold the two against each other.
"use strict";

const Logs = (() => {
  const NUMBER = "[-+]?(?:\\d[\\d_]*(?:\\.\\d*)?(?:e[-+]?\\d+)?|\\.\\d+(?:e[-+]?\\d+)?|nan|inf(?:inity)?)";
  const PAIR = new RegExp(`['"]?([a-z_][\\w/. -]*?)['"]?\\s*[:=]\\s*['"]?(${NUMBER})(?![\\w.:])`, "gi");
  const STEP = /\b(?:step|iter|iteration|update)s?[\s:=#]+(\d+)\b/i;
  const DEEPSPEED = /OVERFLOW!.*loss scale: ([\d.eE+-]+), (?:reducing to ([\d.eE+-]+)|but hysteresis)/;
  const FAIRSEQ = /overflow detected.*?setting loss scale to: ([\d.eE+-]+)/;
  const PROGRAMS = [
    ["Megatron", /\biteration\s+\d+\/\s*\d+\s*\|/],
    ["DeepSpeed", /\[deepspeed\]|\[deepscale\]|OVERFLOW! Rank|\[logging\.py:\d+:log_dist\]/],
    ["fairseq", /num_updates|setting loss scale to/],
    ["HF Trainer", /['"]learning_rate['"]:.*['"]epoch['"]:/],
  ];
  const TOLERANCE = 1e-4, LIKELY_BACKOFF = 0.4, FITTED = 3000;
  const close = (a, b) => Math.abs(a - b) <= TOLERANCE * Math.abs(b);
  const last = (list) => list[list.length - 1];

  function asNumber(value) {
    if (typeof value === "boolean" || typeof value === "number") return Number(value);
    if (typeof value !== "string") return null;
    const text = value.trim().replaceAll(",", "").replaceAll(/(?<=\d)_(?=\d)/g, "").toLowerCase();
    const infinite = /^([-+]?)inf(?:inity)?$/.exec(text);
    if (infinite) return infinite[1] === "-" ? -Infinity : Infinity;
    if (/^[-+]?nan$/.test(text)) return NaN;
    return /^[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?$/.test(text) ? Number(text) : null;
  }

  // Each known name's [field, rank], from NAMES of readers/fields.py; names met in the log are added.
  const rankedNames = (names) => new Map(Object.entries(names).flatMap(([field, all]) =>
    all.split(" ").map((name, rank) => [name, [field, rank]])));

  function fieldOf(name, ranked) {
    if (!ranked.has(name)) {
      const plain = last(name.split("/")).trim().toLowerCase().replaceAll(/[^a-z0-9_]+/g, "_");
      const words = plain.replaceAll(/^_+|_+$/g, "").split("_"); // "INFO step" is a step
      const found = words.slice(0, 6).map((_, i) => ranked.get(words.slice(i).join("_"))).find(Boolean);
      if (ranked.size > 10000) return found; // a log has few names, and many lines
      ranked.set(name, found);
    }
    return ranked.get(name);
  }

  // The fields among named values; of two names for one field the better known counts.
  function entryOf(pairs, ranked) {
    const entry = {}, ranks = {};
    for (const [name, value] of pairs) {
      const found = fieldOf(name, ranked);
      const number = found && asNumber(value);
      if (number === undefined || number === null || found[1] >= (ranks[found[0]] ?? 99)) continue;
      ranks[found[0]] = found[1];
      entry[found[0]] = name.endsWith("log2_scale") ? 2 ** number : number;
    }
    return entry;
  }

  function* pairsOf(line) {
    for (const part of line.split(/[|,{}]/)) {
      const mark = part.includes(":") ? part.indexOf(":") : part.indexOf("=");
      if (mark < 0) continue;
      const unquoted = (text) => text.replaceAll(/^[\s'"]+|[\s'"]+$/g, "");
      const value = unquoted(part.slice(mark + 1));
      if (asNumber(value) !== null && !value.includes(",")) yield [unquoted(part.slice(0, mark)), value];
      else for (const found of part.matchAll(PAIR)) yield [found[1], found[2]];
    }
  }

  class Builder {
    constructor() {
      Object.assign(this, { program: "a training log", step: [], scale: [], skipped: [], loss: [], norm: [], changes: [] });
      this.known = null;
    }

    // An entry whose step is not beyond the last one's replaces what came from that step on.
    add(step, { scale = NaN, skipped = NaN, loss, norm }) {
      while (this.step.length && last(this.step) >= step)
        for (const column of [this.step, this.scale, this.skipped, this.loss, this.norm]) column.pop();
      while (this.changes.length && last(this.changes).step >= step) {
        const gone = this.changes.pop();
        this.known = [gone.after, gone.old];
      }
      if (this.known && this.known[0] >= step) this.known = this.step.length ? [step - 1, this.known[1]] : null;
      if (!Number.isNaN(scale)) {
        if (this.known && scale !== this.known[1])
          this.changes.push({ after: this.known[0], step, old: this.known[1], new: scale });
        this.known = [step, scale];
      }
      const written = (value) => (value === undefined ? NaN : Number.isNaN(value) ? Infinity : value);
      this.step.push(step);
      this.scale.push(scale);
      this.skipped.push(skipped);
      this.loss.push(written(loss));
      this.norm.push(written(norm));
    }
  }

  // The history in a log: console text, JSON Lines, CSV, trainer_state.json.
  function read(text, names) {
    const history = new Builder(), ranked = rankedNames(names);
    const lines = text.split(/\r?\n/);
    const first = lines.find((line) => line.trim()) ?? "";
    const rows = rowsOf(text, lines, first);
    if (rows) {
      history.program = rows.program;
      rows.forEach((row, number) => {
        const { step = number, ...entry } = entryOf(Object.entries(row ?? {}), ranked);
        if (Object.keys(entry).length) history.add(Math.trunc(step), entry);
      });
      return history;
    }
    let step = -1, scale, total = 0, rank;
    for (const line of lines) {
      if (history.program === "a training log")
        history.program = PROGRAMS.find(([, mark]) => mark.test(line))?.[0] ?? history.program;
      const overflow = DEEPSPEED.exec(line) ?? FAIRSEQ.exec(line);
      if (overflow) {
        const named = /Rank (\d+)/.exec(line)?.[1] ?? "";
        rank ??= named;
        if (rank !== named) continue; // each rank prints the same overflow
        const deepspeed = DEEPSPEED.test(line);
        history.add(++step, { scale: deepspeed ? Number(overflow[1]) : scale ?? NaN, skipped: 1 });
        const left = deepspeed ? overflow[2] : overflow[1];
        if (left !== undefined) scale = Number(left);
        continue;
      }
      const entry = entryOf(pairsOf(line), ranked);
      entry.step ??= STEP.exec(line)?.[1] && Number(STEP.exec(line)[1]);
      if (!["scale", "norm", "loss"].some((field) => field in entry)) continue;
      step = Math.trunc(entry.step ?? step + 1);
      if ("skipped" in entry && history.program === "DeepSpeed") [total, entry.skipped] = [entry.skipped, entry.skipped - total];
      scale = entry.scale ?? scale;
      history.add(step, entry);
    }
    return history;
  }

  // The objects of a table, or null if the text is none.
  function rowsOf(text, lines, first) {
    const parsed = (line) => {
      try {
        return JSON.parse(line.replaceAll(/:\s*(NaN|-?Infinity)\b/g, ': "$1"')); // Python writes them bare
      } catch {
        return null;
      }
    };
    if (text.includes('"log_history"') && parsed(text)?.log_history)
      return Object.assign(parsed(text).log_history, { program: "HF Trainer" });
    if (first.trimStart().startsWith("{") && parsed(first))
      return Object.assign(lines.filter((line) => line.trim()).map(parsed), { program: "JSON Lines" });
    if (!first.includes(",") || /[=:]/.test(first) || !/loss|scale|norm/i.test(first)) return null;
    const columns = first.split(",");
    const cells = lines.slice(lines.indexOf(first) + 1).filter((line) => line.trim()).map((line) => line.split(","));
    const row = (values) => Object.fromEntries(columns.map((name, i) => [name, values[i]]).filter(([, value]) => value));
    return Object.assign(cells.map(row), { program: "CSV" });
  }

  const backoffs = (old, now, factor = 0.5) => now <= 0
    ? 1 + Math.ceil(Math.log(2 ** -149 / old) / Math.log(factor))
    : Math.max(1, Math.round(Math.log(now / old) / Math.log(factor)));

  const consecutive = (history) => history.step.every((step, i) => !i || step === history.step[i - 1] + 1);

  // The rule behind a history, as far as its changes show it.
  function infer(history) {
    const rises = history.changes.filter((change) => change.new > change.old && change.old > 0);
    const falls = history.changes.filter((change) => change.new < change.old);
    const growth = rises.length ? Math.min(...rises.map((change) => change.new / change.old)) : null;
    const lower = falls.filter((change) => change.new > 0).map((change) => change.new / change.old);
    let backoff = lower.length ? Math.max(...lower) : null;
    if (backoff !== null && backoff < LIKELY_BACKOFF && falls.every((change) => change.step - change.after > 1)) backoff = null;
    const skips = falls.map((change) => ({ change, least: backoffs(change.old, change.new, backoff ?? 0.5) }));
    let interval = null;
    history.changes.slice(1).forEach((second, i) => {
      const earlier = history.changes[i];
      if (growth !== null && earlier.new > earlier.old && Math.abs(second.new / second.old / growth - 1) <= TOLERANCE)
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

  // The dialects that make this very trajectory of these skips, under knobs that the log implies.
  function fitting(filled, known, dialects) {
    const seen = filled.scale.slice(1, FITTED);
    return dialects.filter((dialect) => {
      const rule = Runs.ruleOf(dialect, knobsOf(dialect, filled, known));
      let state = LossScaler.init(rule);
      try {
        return seen.every((scale, step) => close((state = LossScaler.update(rule, state, filled.skipped[step])).scale, scale));
      } catch {
        return false; // it gives up where the run went on
      }
    });
  }

  function knobsOf(dialect, filled, known) {
    const interval = known.interval && known.interval - (Number(dialect.interval) || 0); // flax grows a step after it
    const values = { init: filled.scale[0], interval, growth: known.growth, backoff: known.backoff };
    const pairs = Object.entries(values).filter(([name, value]) => name in dialect.parameters && value !== null);
    return Object.fromEntries(pairs.map(([name, value]) => [dialect.parameters[name], value]));
  }

  return { read, infer, fill, ceilings, fitting, knobsOf, backoffs, consecutive };
})();
