// Memory over time: one stepped line per curve, the budget as a line across.
const TONES = {
  "kept": { colour: "kept", width: 1.2, dash: [], fill: 0.08 },
  "simulated": { colour: "simulated", width: 1.8, dash: [6, 4], fill: 0 },
  "measured": { colour: "measured", width: 1.8, dash: [], fill: 0.14 },
  "simulated-reserved": { colour: "simulated", width: 1, dash: [2, 3], fill: 0 },
  "measured-reserved": { colour: "measured", width: 1, dash: [2, 3], fill: 0 },
  "kept-reserved": { colour: "kept", width: 1, dash: [2, 3], fill: 0 },
  "simulated-lower": { colour: "lower", width: 1.2, dash: [6, 4], fill: 0 },
  "measured-lower": { colour: "lower", width: 1.2, dash: [], fill: 0 },
  "first": { colour: "first", width: 1.8, dash: [], fill: 0.1 },
  "second": { colour: "second", width: 1.8, dash: [6, 4], fill: 0 },
  "first-reserved": { colour: "first", width: 1, dash: [2, 3], fill: 0 },
  "second-reserved": { colour: "second", width: 1, dash: [2, 3], fill: 0 },
  "first-lower": { colour: "first-lower", width: 1.2, dash: [], fill: 0 },
  "second-lower": { colour: "second-lower", width: 1.2, dash: [6, 4], fill: 0 },
};

function memorySeries(series) {
  const tone = TONES[series.tone];
  return {
    label: series.label,
    stroke: () => colour(tone.colour),
    fill: tone.fill ? () => faded(tone.colour, tone.fill) : undefined,
    width: tone.width,
    dash: tone.dash,
    paths: uPlot.paths.stepped({ align: 1 }),
    points: { show: false },
  };
}

// The budget is drawn after the curves, with its name at the right end.
function drawBudget(plot, budgetBytes) {
  if (budgetBytes == null || budgetBytes > plot.scales.y.max) return;
  const { ctx, bbox } = plot;
  const y = plot.valToPos(budgetBytes, "y", true);
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("budget");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = 12 * devicePixelRatio + "px system-ui, sans-serif";
  ctx.textAlign = "right";
  const text = "budget " + bytesText(budgetBytes);
  const right = bbox.left + bbox.width - 6 * devicePixelRatio, width = ctx.measureText(text).width;
  ctx.fillStyle = faded("card", 0.85);
  ctx.fillRect(right - width - 4 * devicePixelRatio, y - 18 * devicePixelRatio, width + 8 * devicePixelRatio, 16 * devicePixelRatio);
  ctx.fillStyle = colour("budget");
  ctx.fillText(text, right, y - 6 * devicePixelRatio);
  ctx.restore();
}

// Keys of a chart that has the focus: + and - zoom about the middle, arrows move, Home, 0 and Escape show all again.
function zoomedByKeys(place, shown, whole, zoom) {
  place.tabIndex = 0;
  place.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const found = rangeAfter(event.key, shown(), whole);
    if (!found) return;
    event.preventDefault();
    zoom(found[0], found[1]);
  });
}

function rangeAfter(key, shown, whole) {
  const length = shown.max - shown.min, most = whole[1] - whole[0], middle = (shown.min + shown.max) / 2;
  const half = { "+": length / 4, "=": length / 4, "-": length, "_": length }[key];
  const by = { ArrowLeft: -length / 4, ArrowRight: length / 4 }[key];
  if (["Home", "0", "Escape"].includes(key) || 2 * half >= most) return whole;
  if (half !== undefined) return within(middle - half, middle + half, whole);
  return by === undefined ? null : within(shown.min + by, shown.max + by, whole);
}

// The range moved into the whole, with its length kept.
function within(from, to, whole) {
  const by = Math.max(0, whole[0] - from) - Math.max(0, to - whole[1]);
  return [from + by, to + by];
}

function memoryKeys(place, memory) {
  chartKeys(place, memory.series, (series) => {
    const tone = TONES[series.tone];
    return ["var(--" + tone.colour + ")", tone.dash.length ? "dashed" : "solid"];
  });
}

function showValues(plot, memory) {
  const at = plot.cursor.idx;
  const values = document.querySelectorAll("#memory-keys b");
  memory.series.forEach((series, i) => {
    values[i].textContent = at == null || series.size_bytes[at] == null ? "" : bytesText(series.size_bytes[at]);
  });
  values[memory.series.length].textContent = at == null ? "" : "at " + timeText(memory.at_ns[at]);
}

function memoryChart(place, memory, onRange) {
  const axis = { stroke: () => colour("soft"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false } };
  const font = "12px system-ui, sans-serif";
  const yAxis = { ...axis, font, size: GUTTER, incrs: BYTE_STEPS,
    values: (_, ticks, __, ___, step) => ticks.map((tick) => bytesTick(tick, step)) };
  const xAxis = { ...axis, font, size: 30, space: 90, values: (_, ticks) => ticks.map(timeTick) };
  const options = {
    width: place.clientWidth,
    height: 300,
    padding: [12, RIGHT, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 6 }, drag: { x: true, y: false }, y: false },
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, (high || 1) * 1.08] } },
    axes: [xAxis, yAxis],
    series: [{}, ...memory.series.map(memorySeries)],
    hooks: {
      draw: [(plot) => drawBudget(plot, memory.budget_bytes)],
      setCursor: [(plot) => showValues(plot, memory)],
      setScale: [(plot, key) => key === "x" && onRange(plot.scales.x.min, plot.scales.x.max)],
    },
  };
  return new uPlot(options, [memory.at_ns, ...memory.series.map((series) => series.size_bytes)], place);
}
