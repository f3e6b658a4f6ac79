// Reads the scales of a training log in the browser, to draw them: console text, JSON Lines, CSV, trainer_state.json, by
// the table of formats. What a log bears is said by `ampsim explain`, which reads more.
"use strict";

const Reader = (() => {
  const WORDS = /loss|scal|norm|skip|overflow|iteration|s are \(/i;
  const COMPANY = ["step", "epoch", "loss", "norm", "skipped", "wall"];
  const last = (list) => list[list.length - 1];

  function asNumber(value) {
    if (typeof value === "boolean" || typeof value === "number") return Number(value);
    if (typeof value !== "string") return null;
    if (value === "True" || value === "False") return Number(value === "True");
    const text = value.trim().replaceAll(/(?<=^\d{1,3}(?:,\d{3})*),(?=\d{3}(?:[,.]|$))/g, "").replaceAll(/(?<=\d)_(?=\d)/g, "").toLowerCase();
    const infinite = /^([-+]?)inf(?:inity)?$/.exec(text);
    if (infinite) return infinite[1] === "-" ? -Infinity : Infinity;
    if (/^[-+]?nan$/.test(text)) return NaN;
    return /^[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?$/.test(text) ? Number(text) : null;
  }

  // What names mean, by the table of formats: name -> [field, rank], or null.
  function dictionary({ names, not_training: notTraining, alone }) {
    const known = new Map(Object.entries(names).flatMap(([field, all]) => all.split(" ").map((name, rank) => [name, [field, rank]])));
    const seen = new Map(); // a log has few names, and many lines
    const strange = (words) => words.some((word) => notTraining.includes(word));
    const look = (name) => {
      const parts = name.toLowerCase().replace("eval/loss", "eval_loss").split("/");
      const plain = (text) => text.replaceAll(/[^a-z0-9_]+|(?<=[a-z])(?=loss$)/g, "_");
      const end = parts.pop(), words = plain(known.has(end) ? end : end.replace(/_step$/, "")).replaceAll(/^_+|_+$/g, "").split("_");
      if (strange(plain(parts.join("/")).split("_"))) return null;
      for (let start = 0; start < Math.min(words.length, 6); start++) {
        const rest = words.slice(start).join("_"), found = known.get(rest);
        const bare = start && alone.includes(rest) && !/^\d+$/.test(words[start - 1]);
        if (found && !bare && !strange(words.slice(0, start))) return [found[0], found[1] + 20 * start];
      }
      return null;
    };
    return (name) => {
      if (seen.size > 10000) seen.clear();
      if (!seen.has(name)) seen.set(name, look(name));
      return seen.get(name);
    };
  }

  // The fields among named values; of two names for one field the better known counts.
  function entryOf(pairs, fieldOf) {
    const entry = {}, ranks = {};
    for (const [name, value] of pairs) {
      if (name === "train_runtime") return {}; // what the Trainer says at its end: the mean of all losses
      const [field, rank] = fieldOf(name) ?? [], number = field === undefined ? null : asNumber(value);
      if (number === null || rank >= (ranks[field] ?? 999)) continue;
      ranks[field] = rank;
      entry[field] = /(?:log2|lg_loss)_scale$/.test(name) ? 2 ** Math.min(number, 1023) : number;
    }
    // Megatron and the Trainer leave losses that are not finite out of their means.
    if (entry.nans > 0 || (entry.loss === 0 && !Number.isFinite(entry.norm ?? 0))) entry.loss = Infinity;
    delete entry.nans;
    if (!COMPANY.some((field) => field in entry)) delete entry.scale; // it stands in a configuration
    return entry;
  }

  const pairsOf = (line, patterns) => patterns.flatMap((pattern) => [...line.matchAll(pattern)].map(([, name, value]) => [name, value]));

  const largest = (a, b) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : Math.max(a, b));
  const written = (value) => (value === undefined ? NaN : Number.isNaN(value) ? Infinity : value);

  class Builder {
    constructor(program) {
      Object.assign(this, { program, step: [], scale: [], skipped: [], loss: [], norm: [], changes: [], known: null });
    }

    // An entry of the last one's step adds to it; one of an earlier step replaces what came from that step on.
    add(step, { scale = NaN, skipped = NaN, loss, norm }) {
      if (scale < 0) scale = NaN; // nobody's loss scale
      const clash = this.known && this.known[0] === step && !Number.isNaN(scale) && this.known[1] !== scale;
      const again = this.step.length > 0 && step === last(this.step) && !clash;
      if (this.step.length && step <= last(this.step) && !again) this.goBack(step);
      if (!Number.isNaN(scale)) {
        if (this.known && scale !== this.known[1])
          this.changes.push({ after: this.known[0], step, old: this.known[1], new: scale });
        this.known = [step, scale];
      }
      const before = again ? this.pop() : { scale: NaN, skipped: NaN, loss: NaN, norm: NaN };
      this.step.push(step);
      this.scale.push(Number.isNaN(scale) ? before.scale : scale);
      this.skipped.push(Number.isNaN(before.skipped) ? skipped : before.skipped + (Number.isNaN(skipped) ? 0 : skipped));
      this.loss.push(largest(before.loss, written(loss)));
      this.norm.push(largest(before.norm, written(norm)));
    }

    pop() {
      return Object.fromEntries(["step", "scale", "skipped", "loss", "norm"].map((name) => [name, this[name].pop()]));
    }

    goBack(step) {
      while (this.step.length && last(this.step) >= step) this.pop();
      while (this.changes.length && last(this.changes).step >= step) {
        const gone = this.changes.pop();
        this.known = [gone.after, gone.old];
      }
      if (this.known && this.known[0] >= step) this.known = this.step.length ? [step - 1, this.known[1]] : null;
    }
  }

  // The history in a log; `table` is the table of formats.
  function read(text, table) {
    const lines = text.split("\n"), first = lines.find((line) => line.trim()) ?? "", fieldOf = dictionary(table);
    const rows = rowsOf(text, lines, first, fieldOf);
    if (!rows) return readText(lines, fieldOf, table);
    const history = new Builder(rows.program);
    rows.forEach((row, number) => {
      const { step = number, ...entry } = entryOf(Object.entries(row ?? {}), fieldOf);
      if (["scale", "norm", "loss", "skipped"].some((field) => field in entry)) history.add(step >= 0 && step < 2 ** 53 ? Math.trunc(step) : number, entry);
    });
    return history;
  }

  // The objects of a table, or null if the text is none.
  function rowsOf(text, lines, first, fieldOf) {
    const parsed = (line) => {
      try {
        return JSON.parse(line.replaceAll(/:\s*(NaN|-?Infinity)\b/g, ': "$1"')); // Python writes them bare
      } catch {
        return null;
      }
    };
    const named = (rows, program) => Object.assign(rows, { program });
    if (/^\s*\{/.test(first) && parsed(first) && !text.includes('"log_history"'))
      return named(lines.filter((line) => line.trim()).map(parsed), "JSON Lines");
    if (text.includes('"log_history"') || /^\s*(\[|\{)\s*$/.test(first)) {
      const objects = (text.match(/\{[^{}]*\}/g) ?? []).map(parsed).filter(Boolean);
      return named(objects, text.includes('"log_history"') ? "HF Trainer" : "JSON");
    }
    if (/[=:]/.test(first)) return null;
    for (const separator of ",;")
      if (first.includes(separator)) {
        const table = tableOf(lines.slice(lines.indexOf(first)), separator, fieldOf);
        if (table) return named(table, "CSV");
      }
    return null;
  }

  // The rows of a table whose first line names the columns, or null if it does not.
  function tableOf(lines, separator, fieldOf) {
    const decimal = (line) => (separator === ";" ? line.replaceAll(",", ".") : line);
    const cells = lines.filter((line) => line.trim()).map((line) => decimal(line).trimEnd().split(separator));
    const columns = cells.shift(), known = Object.keys(entryOf(columns.map((name) => [name, 1]), fieldOf));
    if (!known.some((field) => field !== "step" && field !== "skipped")) return null; // a sentence may have its comma, too
    if (!cells.slice(0, 19).flat().some((cell) => asNumber(cell) !== null)) return null;
    const row = (values) => Object.fromEntries(columns.map((name, i) => [name, values[i]]).filter(([, value]) => value));
    return cells.map(row);
  }

  function readText(lines, fieldOf, table) {
    const history = new Builder("a training log"), compiled = (text, flags) => new RegExp(text.replaceAll("NUMBER", table.number), flags);
    const PAIR = compiled(`([A-Za-z_][\\w/. -]{0,80})['"]?\\s*[:=]\\s*['"[]?\\s*(NUMBER|True|False)(?![\\w:]|\\.\\w)`, "g");
    const [SPACED, PAIR_OF, BATCH, BAR, ASIDE] = ["spaced", "pair", "batch", "bar", "aside"].map((name) => compiled(table.pattern[name], name === "spaced" ? "g" : ""));
    const [STEP, EPOCH] = ["step", "epoch"].map((name) => compiled(table.pattern.any_case[name], "i"));
    const said = table.sentence.map((each) => ({ ...each, found: compiled(each.pattern) }));
    const spellings = table.spelling.map((each) => ({ ...each, found: compiled(each.pattern, "g"), as: each.as.replaceAll(/\\(\d)/g, "$$$1") }));
    const programs = table.program.map(({ name, mark }) => [name, new RegExp(mark)]);
    const seen = { step: -1, rank: undefined, told: undefined, epoch: -1, before: 0, pair: [-1, 0, 0] };
    let columns = [], bar = [-1, 0]; // where the longest progress bar stands, and its end

    const running = () => (bar[0] < bar[1] ? bar[0] : -1); // a bar at its end may be any loop's

    // Take what a program says of an overflow; false if the line says something else.
    function sentence(line) {
      const each = said.find(({ word, found }) => line.includes(word) && found.test(line));
      if (!each || each.says) return Boolean(each);
      const found = each.found.exec(line), value = (group) => each.logarithm ? 2 ** asNumber(found[group]) : asNumber(found[group]);
      const rank = /Rank (\d+)/.exec(line)?.[1];
      if (rank !== undefined) seen.rank ??= rank;
      const again = rank === undefined ? (each.ranks ?? true) && seen.told === each.word + found[1] : rank !== seen.rank;
      const repeats = seen.told === each.repeats + found[1]; // another sentence on the same skip
      seen.told = each.word + found[1];
      if (again || repeats) return true; // each rank prints the same overflow
      seen.step = Math.max(seen.step + 1, running());
      history.add(seen.step, { scale: each.before ? value(each.before) : NaN, skipped: each.skips ?? 1 });
      return true;
    }

    // The step of a batch; an epoch begins where the last one ended, which may have had more or fewer.
    function stepIn(...numbers) {
      const [epoch, batch, batches] = numbers.map(Number), [last, before, many] = seen.pair;
      const begin = epoch === last ? before : epoch === last + 1 && many ? before + many : epoch * batches;
      seen.pair = [epoch, begin, batches];
      return begin + batch;
    }

    function stepOf(step, line) {
      const epoch = EPOCH.exec(line), batch = epoch && BATCH.exec(line), pair = PAIR_OF.exec(line);
      step ??= STEP.exec(line)?.[1] ?? (pair ? stepIn(pair[1], pair[2], pair[3]) : undefined) ?? (batch ? stepIn(epoch[1], batch[1], batch[2]) : undefined);
      step = step === undefined ? -1 : Number(step);
      if (!(step >= 0 && step < 2 ** 53)) return Math.max(seen.step + 1, running());
      if (epoch && !batch && Number(epoch[1]) > seen.epoch) { // steps may be counted anew in each epoch
        seen.before = step + seen.before <= seen.step ? seen.step + 1 - step : seen.before;
        seen.epoch = Number(epoch[1]);
      }
      return Math.trunc(step) + seen.before;
    }

    function take(line) {
      line = line.slice(0, 16384);
      const found = BAR.exec(line);
      if (found && (Number(found[2]) >= bar[1] || bar[0] === bar[1])) bar = [Number(found[1]), Number(found[2])];
      if (!WORDS.test(line)) return;
      line = line.replaceAll(/\x1b\[[0-9;?]*[A-Za-z]/g, "");
      for (const { word, found: written, as } of spellings) if (line.includes(word)) line = line.replaceAll(written, as);
      if (ASIDE.test(line) && !line.includes("OVERFLOW")) return;
      if (history.program === "a training log")
        history.program = programs.find(([, mark]) => mark.test(line))?.[0] ?? history.program;
      if (sentence(line)) return;
      const pairs = pairsOf(line, [SPACED, PAIR]), step = STEP.exec(line);
      const entry = entryOf(new Map(step ? [["_step", step[1]], ...pairs] : pairs), fieldOf);
      if (!["scale", "norm", "loss"].some((field) => field in entry)) return;
      if (line.includes("log_dist")) delete entry.skipped; // of the run, where others count since the last line
      seen.step = stepOf(entry.step, line);
      history.add(seen.step, entry);
    }

    // A row of a table that names its columns first, with the names.
    function named(line) {
      const cells = line.replaceAll(/^[ |\t]+|[ |\t]+$/g, "").split(/ *\| *|\t| {2,}/);
      if (line.includes("oss") && !/[:=]/.test(line)) {
        if (cells.length > 1 && cells.some((name) => fieldOf(name)?.[0] === "loss")) columns = cells;
      } else if (cells.length === columns.length && asNumber(cells[0]) !== null) return cells.map((value, i) => `${columns[i]}: ${asNumber(value) ?? value}`).join(" | ");
      return line;
    }

    for (const line of lines) line.split("\r").forEach((part) => take(named(part)));
    return history;
  }

  return { read };
})();
