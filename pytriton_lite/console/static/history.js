// Samples of the server's counters, and the rates between them.

export const SAMPLE_MS = 2000;
export const MOST_SAMPLES = 150;

/** The key of a version. */
export function keyOf(version) {
  return `${version.namespace}/${version.model}/${version.version}`;
}

const ADDED = ["inferences", "executions", "succeeded", "failed", "rejected", "responses", "total_ns", "queue_ns", "compute_ns"];

function difference(now, before) {
  const found = {};
  for (const name of ADDED) found[name] = now[name] - (before?.[name] ?? 0);
  return found;
}

/** What happened between two samples to *versions* together; null where there is nothing to compare with. */
function between(versions, before, seconds) {
  const sum = Object.fromEntries(ADDED.map((name) => [name, 0]));
  let compared = 0;
  for (const version of versions) {
    const earlier = before.get(keyOf(version));
    // Counters begin anew when a version is loaded again.
    const isSame = earlier && earlier.succeeded <= version.succeeded && earlier.executions <= version.executions;
    if (!isSame) continue;
    compared += 1;
    const change = difference(version, earlier);
    for (const name of ADDED) sum[name] += change[name];
  }
  if (!compared || seconds <= 0) return null;
  const each = (ns) => (sum.succeeded ? ns / sum.succeeded / 1e6 : null);
  return {
    requests: sum.succeeded / seconds,
    inferences: sum.inferences / seconds,
    failures: (sum.failed + sum.rejected) / seconds,
    latency_ms: each(sum.total_ns),
    queue_ms: each(sum.queue_ns),
    compute_ms: each(sum.compute_ns),
    batch: sum.executions ? sum.inferences / sum.executions : null,
  };
}

function workersOf(versions) {
  const instances = versions.flatMap((version) => version.instances);
  return {
    workers: instances.length,
    ready: instances.filter((instance) => instance.state === "READY").length,
    busy: instances.filter((instance) => instance.batches > 0).length,
  };
}

function pointOf(sample, model) {
  const versions = model === null ? sample.versions : sample.byModel.get(model) ?? [];
  return {
    time_ms: sample.time_ms,
    ...(between(versions, sample.before, sample.seconds) ?? {}),
    waiting: versions.reduce((sum, version) => sum + version.waiting, 0),
    ...workersOf(versions),
  };
}

/** The last five minutes, as far as this page has seen them. */
export class History {
  constructor() {
    this.latest = null;
    this.samples = [];
  }

  /** Takes a document of /console/statistics. */
  add(statistics) {
    const before = new Map((this.latest?.versions ?? []).map((version) => [keyOf(version), version]));
    const seconds = this.latest ? (statistics.time_ms - this.latest.time_ms) / 1000 : 0;
    const byModel = new Map();
    for (const version of statistics.versions) {
      if (!byModel.has(version.model)) byModel.set(version.model, []);
      byModel.get(version.model).push(version);
    }
    this.samples.push({ time_ms: statistics.time_ms, versions: statistics.versions, byModel, before, seconds });
    if (this.samples.length > MOST_SAMPLES) this.samples.shift();
    this.latest = statistics;
  }

  /** Forgets everything: the server that comes back may be another one, whose clock and counters begin anew. */
  clear() {
    this.latest = null;
    this.samples = [];
  }

  /** A point for each sample, of the versions of *model*, or of all for null. */
  points(model = null) {
    return this.samples.map((sample) => pointOf(sample, model));
  }

  /** The last of `points`; null before the first sample. */
  now(model = null) {
    const sample = this.samples.at(-1);
    return sample ? pointOf(sample, model) : null;
  }

  /** Batch sizes of *model* and how many executions had them, since it was loaded. */
  batches(model) {
    const counts = new Map();
    for (const version of this.latest?.versions ?? []) {
      if (version.model !== model) continue;
      for (const [size, count] of version.batches) counts.set(size, (counts.get(size) ?? 0) + count);
    }
    return [...counts].sort(([one], [other]) => one - other);
  }
}
