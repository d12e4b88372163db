// Asking again and again, with care: never while nobody looks, and more seldom where an answer takes its time.

import { connection } from "./api.js";

const SHARE = 5;
const LONGEST_MS = 10_000;

/**
 * Calls *task* now and every *ms*; behind one that was slow it waits five times as long as that took, and ten seconds at most.
 * Nothing is asked while the page is hidden or the server lost. The returned function ends it; `again` asks at once.
 */
export function every(ms, task) {
  let timer = 0;
  let isRunning = false;
  let isOver = false;
  let isLost = false;

  async function run() {
    clearTimeout(timer);
    if (isOver || isRunning || isLost || document.hidden) return;
    isRunning = true;
    const began = performance.now();
    try {
      await task();
    } finally {
      isRunning = false;
      const took = performance.now() - began;
      if (!isOver) timer = setTimeout(run, Math.max(ms, Math.min(took * SHARE, LONGEST_MS)));
    }
  }

  function onLost() {
    isLost = true;
    clearTimeout(timer);
  }

  function onBack() {
    isLost = false;
    run();
  }

  document.addEventListener("visibilitychange", run);
  connection.addEventListener("lost", onLost);
  connection.addEventListener("back", onBack);
  run();

  function end() {
    isOver = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", run);
    connection.removeEventListener("lost", onLost);
    connection.removeEventListener("back", onBack);
  }
  end.again = run;
  return end;
}
