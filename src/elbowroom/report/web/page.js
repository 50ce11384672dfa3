// Puts the charts on the page, and keeps the time ranges of memory and lanes the same.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const storages = document.querySelector("table.storages");
  if (storages) {
    sortable(storages);
    findable(storages);
  }
  for (const picture of document.querySelectorAll(".icicle")) startIcicle(picture);
  if (data.pareto) {
    const place = document.getElementById("pareto");
    paretoKeys(document.getElementById("pareto-keys"), data.pareto);
    const plot = paretoChart(place, data.pareto);
    named(place);
    addEventListener("resize", () => plot.setSize({ width: place.clientWidth, height: 300 }));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw());
  }
  if (!data.memory) return;
  const place = document.getElementById("memory");
  const whole = [0, data.memory.at_ns[data.memory.at_ns.length - 1]];
  const zoom = (from, to) => plot.setScale("x", { min: from, max: to });
  const lanes = lanesChart(document.getElementById("lanes"), data.lanes, zoom, () => zoom(whole[0], whole[1]));
  const follow = (from, to) => {
    lanes.from = from;
    lanes.to = to;
    drawLanes(lanes);
  };
  const lanesPlace = document.getElementById("lanes");
  memoryKeys(document.getElementById("memory-keys"), data.memory);
  const plot = memoryChart(place, data.memory, follow);
  zoom(whole[0], whole[1]);
  named(place);
  named(lanesPlace);
  for (const chart of [place, lanesPlace]) zoomedByKeys(chart, () => plot.scales.x, whole, zoom);

  const keys = document.getElementById("lane-keys");
  const tones = new Set(data.lanes.flatMap((group) => group.lanes.flatMap((lane) => lane.tone)));
  for (const tone of ["forward", "backward", "optimizer", "other", "stall", "recompute", "swap_out", "swap_back"]) {
    if (!tones.has(tone)) continue;
    const key = Object.assign(document.createElement("i"), { className: "key" });
    key.style.background = "var(--" + tone + ")";
    const entry = document.createElement("span");
    entry.append(key, toneName(tone));
    keys.append(entry);
  }

  const redraw = () => {
    plot.setSize({ width: place.clientWidth, height: 300 });
    plot.redraw();
    drawLanes(lanes);
  };
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
