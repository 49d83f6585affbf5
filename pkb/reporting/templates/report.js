"use strict";
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const field = (id) => document.getElementById(id);
  const problems = all("details.problem");
  const rows = new Map(all("tr.row").map((row) => [row.dataset.problem, row]));
  const ranks = new Map(problems.map((part) => [part, Object.fromEntries(
    part.dataset.ranks.trim().split(" ").filter(Boolean).map((pair) => pair.split(":")))]));

  const pickedRuns = () => new Set(all(".pick-run").filter((box) => box.checked).map((box) => box.value));

  function hasOutcome(part, outcome, picked) {
    const found = Object.entries(ranks.get(part)).filter(([run]) => picked.has(run)).map(([, rank]) => rank);
    const solved = found.filter((rank) => rank === "fast" || rank === "solved").length;
    switch (outcome) {
      case "fast": return found.includes("fast");
      case "solved": return solved > 0;
      case "unsolved": return solved === 0;
      case "mixed": return solved > 0 && solved < found.length;
      default: return true;
    }
  }

  function filter() {
    const text = field("find").value.trim().toLowerCase();
    const group = field("group").value, word = field("parallelism").value, outcome = field("outcome").value;
    const picked = pickedRuns();
    const shown = new Set();
    for (const part of problems) {
      const name = part.id.slice(2);
      const fits = (!text || part.dataset.name.includes(text)) && (!group || part.dataset.group === group)
        && (!word || part.dataset.parallelism.split("|").includes(word)) && hasOutcome(part, outcome, picked);
      part.hidden = !fits;
      rows.get(name).hidden = !fits;
      if (fits) shown.add(name);
    }
    for (const mark of all("svg a[data-problem]")) {
      mark.toggleAttribute("hidden", !shown.has(mark.dataset.problem) || !picked.has(mark.dataset.run));
    }
    field("shown").value = `${shown.size} of ${problems.length} problems`;
  }

  function showRuns() {
    const picked = pickedRuns();
    for (const part of all("[data-run]")) part.toggleAttribute("hidden", !picked.has(part.dataset.run));
    filter();
  }

  function openTarget() {
    const target = location.hash.startsWith("#p-") && document.getElementById(location.hash.slice(1));
    if (!target) return;
    target.hidden = false;
    target.open = true;
    target.scrollIntoView();
  }

  for (const id of ["find", "group", "parallelism", "outcome"]) field(id).addEventListener("input", filter);
  for (const box of all(".pick-run")) box.addEventListener("change", showRuns);
  field("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme:dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  addEventListener("hashchange", openTarget);
  showRuns();
  openTarget();
})();
