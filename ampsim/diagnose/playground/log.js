// Reads a training log in the browser, as ampsim/diagnose/readers does, and infers what it leaves unsaid, as
// ampsim/diagnose/infer.py does; tests hold the two against each other.
"use strict";

const Logs = (() => {
  const NUMBER = "[-+]?(?:\\d[\\d_]*(?:\\.\\d*)?(?:e[-+]?\\d+)?|\\.\\d+(?:e[-+]?\\d+)?|nan|inf(?:inity)?)";
  const PAIR = new RegExp(`['"]?([a-z_][\\w/. -]{0,60}?)['"]?\\s*[:=]\\s*['"]?(${NUMBER})(?![\\w.:])`, "gi");
  const STEP = /\b(?:step|iter|iteration|update)s?[\s:=#]+(\d+)\b/i;
  const SPACED = new RegExp(`\\b(loss_scale|gnorm|grad_norm|num_updates|loss)\\s+(${NUMBER})(?=[\\s(]|$)`, "gi");
  const EPOCH = /\bepoch\W{0,4}(\d{1,9})/i;
  const BAR = /\b(\d{1,9})\/(\d{1,9}) \[[\d:?]+</;
  const COLOUR = /\x1b\[[0-9;?]*[A-Za-z]/g;
  const DEEPSPEED = /OVERFLOW!.*loss scale: ([\d.eE+-]+), (?:reducing to ([\d.eE+-]+)|but hysteresis)/;
  const FAIRSEQ = /overflow detected.*?setting loss scale to: ([\d.eE+-]+)/;
  const APEX = /Gradient overflow.*?reducing loss scale to ([\d.eE+-]+)/;
  const PRINTED_AS_ZERO = { Megatron: 0.05, fairseq: 0.0005 };
  const NOT_TRAINING = new Set(("eval val valid validation test best param params weight weights act actv activation aux " +
    "moe gate lr").split(" "));
  const ALONE = new Set(["norm", "scale", "scaler", "skip"]);
  const PROGRAMS = [
    ["Megatron", /\biteration\s+\d+\/\s*\d+\s*\|/],
    ["DeepSpeed", /\[deepspeed\]|\[deepscale\]|OVERFLOW! Rank|\[logging\.py:\d+:log_dist\]/],
    ["fairseq", /num_updates|setting loss scale to/],
    ["apex", /reducing loss scale to/],
    ["HF Trainer", /['"]learning_rate['"]:.*['"]epoch['"]:/],
  ];
  const TOLERANCE = 1e-4, LIKELY_BACKOFF = 0.4, LEAST_BACKOFF = 1 / 64, FITTED = 3000;
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

  function fieldOf(name, ranked, seen) {
    if (!seen.has(name)) {
      if (seen.size > 10000) seen.clear(); // a log has few names, and many lines
      seen.set(name, lookUp(name.toLowerCase(), ranked));
    }
    return seen.get(name);
  }

  // The field and rank of a name's last words: "INFO step" is a step, "moe_gate_loss" no loss.
  function lookUp(name, ranked) {
    const plain = (text) => text.replaceAll(/[^a-z0-9_]+/g, "_");
    const path = name.split("/"), words = plain(path.pop()).replaceAll(/^_+|_+$/g, "").split("_");
    if (plain(path.join("/")).split("_").some((word) => NOT_TRAINING.has(word))) return undefined;
    for (let start = 0; start < Math.min(words.length, 6); start++) {
      const known = ranked.get(words.slice(start).join("_"));
      const alone = start && ALONE.has(words[start]) && !/^\d+$/.test(words[start - 1]);
      if (known && !alone && !words.slice(0, start).some((word) => NOT_TRAINING.has(word))) return [known[0], known[1] + 20 * start];
    }
    return undefined;
  }

  // The fields among named values; of two names for one field the better known counts.
  function entryOf(pairs, ranked) {
    const entry = {}, ranks = {}, seen = (ranked.seen ??= new Map());
    for (const [name, value] of pairs) {
      const found = fieldOf(name, ranked, seen);
      const number = found && asNumber(value);
      if (number === undefined || number === null || found[1] >= (ranks[found[0]] ?? 999)) continue;
      ranks[found[0]] = found[1];
      entry[found[0]] = name.endsWith("log2_scale") ? 2 ** Math.min(number, 1023) : number;
    }
    const { nans = 0, ...fields } = entry; // Megatron and the Trainer leave losses that are not finite out of their means
    if (nans > 0 || (fields.loss === 0 && !Number.isFinite(fields.norm ?? 0))) fields.loss = Infinity;
    return fields;
  }

  function* pairsOf(line) {
    for (const part of line.split(/[|,{}]/)) {
      const mark = part.includes(":") ? part.indexOf(":") : part.indexOf("=");
      const spaced = () => [...part.matchAll(SPACED)].map((found) => [found[1], found[2]]);
      if (mark < 0) {
        yield* spaced();
        continue;
      }
      const unquoted = (text) => text.replaceAll(/^[\s'"]+|[\s'"]+$/g, "");
      const value = unquoted(part.slice(mark + 1));
      if (asNumber(value) !== null && !value.includes(",")) yield [unquoted(part.slice(0, mark)), value];
      else {
        const pairs = [...part.matchAll(PAIR)].map((found) => [found[1], found[2]]);
        yield* pairs.length ? pairs : spaced();
      }
    }
  }

  class Builder {
    constructor() {
      Object.assign(this, { program: "a training log", step: [], scale: [], skipped: [], loss: [], norm: [], changes: [] });
      this.known = null;
    }

    // An entry of the last one's step adds to it; one of an earlier step replaces what came from that step on.
    add(step, { scale = NaN, skipped = NaN, loss, norm }) {
      if (scale < 0) scale = NaN;
      const clash = this.known && this.known[0] === step && !Number.isNaN(scale) && this.known[1] !== scale;
      const again = this.step.length && last(this.step) === step && !clash;
      if (!again) this.goBack(step);
      if (!Number.isNaN(scale)) {
        if (this.known && scale !== this.known[1])
          this.changes.push({ after: this.known[0], step, old: this.known[1], new: scale });
        this.known = [step, scale];
      }
      const written = (value) => (value === undefined ? NaN : Number.isNaN(value) ? Infinity : value);
      const values = { step, scale, skipped, loss: written(loss), norm: written(norm) };
      if (again) this.merge(values);
      else for (const [name, value] of Object.entries(values)) this[name].push(value);
    }

    goBack(step) {
      while (this.step.length && last(this.step) >= step)
        for (const column of [this.step, this.scale, this.skipped, this.loss, this.norm]) column.pop();
      while (this.changes.length && last(this.changes).step >= step) {
        const gone = this.changes.pop();
        this.known = [gone.after, gone.old];
      }
      if (this.known && this.known[0] >= step) this.known = this.step.length ? [step - 1, this.known[1]] : null;
    }

    merge(values) {
      const either = (a, b, both) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : both(a, b));
      const ways = { scale: (a, b) => b, skipped: (a, b) => a + b, loss: Math.max, norm: Math.max };
      for (const [name, way] of Object.entries(ways)) this[name].push(either(this[name].pop(), values[name], way));
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
    const reader = new Lines(history, ranked);
    for (const line of lines) for (const part of line.split("\r")) reader.take(part.slice(0, 1 << 14).replaceAll(COLOUR, ""));
    return history;
  }

  // Console text, a line at a time: TextReader of readers/text.py.
  class Lines {
    constructor(history, ranked) {
      Object.assign(this, { history, ranked, step: -1, scale: undefined, rank: undefined });
      Object.assign(this, { counted: 0, total: 0, overflows: 0, bar: [-1, 0], epoch: [-1, 0] });
    }

    take(line) {
      const bar = BAR.exec(line), { history } = this;
      if (bar && Number(bar[2]) >= this.bar[1]) this.bar = [Number(bar[1]), Number(bar[2])];
      if (history.program === "a training log")
        history.program = PROGRAMS.find(([, mark]) => mark.test(line))?.[0] ?? history.program;
      if (this.sentence(line)) return;
      const entry = entryOf(pairsOf(line), this.ranked);
      const total = line.includes("log_dist") && "skipped" in entry; // of the run; other programs count since the last line
      if (!total && !["scale", "norm", "loss"].some((field) => field in entry)) return;
      if (total) {
        const skipped = Math.max(0, entry.skipped - this.total - this.counted);
        [this.total, this.counted, entry.skipped] = [entry.skipped, 0, skipped];
      }
      if (entry.scale === 0) entry.scale = PRINTED_AS_ZERO[history.program] ?? 0;
      const step = this.stepOf(entry.step, line);
      if (total && step > this.step && this.scale !== undefined) entry.scale ??= this.scale;
      this.step = step;
      this.scale = entry.scale ?? this.scale;
      history.add(step, entry);
    }

    // The step of an entry: its number, the progress bar's, or the next.
    stepOf(step, line) {
      const number = step ?? Number(STEP.exec(line)?.[1] ?? NaN);
      if (!(number >= 0 && number < 2 ** 53)) return Math.max(this.step + 1, this.bar[0]);
      const epoch = Number(EPOCH.exec(line)?.[1] ?? this.epoch[0]), whole = Math.trunc(number);
      if (epoch > this.epoch[0]) {
        const anew = number + this.epoch[1] + this.overflows <= this.step; // steps are counted anew in each epoch
        this.epoch = [epoch, anew ? this.step + 1 - whole - this.overflows : this.epoch[1]];
      }
      return whole + this.epoch[1] + this.overflows;
    }

    // Whether the line says of an overflow what it did.
    sentence(line) {
      const deepspeed = DEEPSPEED.exec(line), halved = FAIRSEQ.exec(line) ?? APEX.exec(line);
      if (deepspeed) {
        const named = /Rank (\d+)/.exec(line)?.[1] ?? "";
        this.rank ??= named;
        if (this.rank === named) this.overflow(Number(deepspeed[1]), deepspeed[2]); // each rank prints the same
      } else if (halved && (FAIRSEQ.test(line) || Number(halved[1]) !== this.scale)) {
        this.overflow(2 * Number(halved[1]), halved[1]);
      }
      return Boolean(deepspeed ?? halved);
    }

    overflow(scale, left) {
      this.step = Math.max(this.step + 1, this.bar[0]);
      this.counted += 1;
      if (this.history.program === "fairseq") this.overflows += 1; // its updates count no skipped step
      this.history.add(this.step, { scale, skipped: 1 });
      if (left !== undefined) this.scale = Number(left);
    }
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

  const log2 = (scale) => (scale === 0 ? -150 : scale === Infinity ? 1024 : Math.log2(scale));
  const backoffs = (old, now, factor = 0.5) => Math.max(1, Math.round((log2(old) - log2(now)) / -Math.log2(factor)));

  const consecutive = (history) => history.step.every((step, i) => !i || step === history.step[i - 1] + 1);

  // The rule behind a history, as far as its changes show it.
  function infer(history) {
    const falls = history.changes.filter((change) => change.new < change.old);
    const known = history.changes.filter(({ old }) => old > 0 && old < Infinity).map((change) => change.new / change.old);
    const up = known.filter((ratio) => ratio > 1 + TOLERANCE && ratio < Infinity);
    const down = known.filter((ratio) => ratio > 0 && ratio < 0.99);
    const growth = up.length ? Math.min(...up) : null;
    const least = falls.every((change) => change.step - change.after > 1) ? LIKELY_BACKOFF : LEAST_BACKOFF;
    let backoff = down.length ? Math.max(...down) : null;
    if (backoff !== null && backoff < least) backoff = null;
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
