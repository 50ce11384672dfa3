// Budget against step time: a stepped line per planner, for a plan of few bytes serves a larger budget too.
const LINES = ["measured", "simulated", "backward", "lower", "budget", "input", "other", "temporary"];

function paretoSeries(series) {
  const ink = LINES[series.colour % LINES.length];
  return {
    label: series.label,
    stroke: () => colour(ink),
    width: series.is_bound ? 1.2 : 1.8,
    dash: series.is_bound ? [2, 3] : [],
    paths: series.is_bound ? uPlot.paths.linear() : uPlot.paths.stepped({ align: 1 }),
    points: { show: !series.is_bound, size: 6 },
    spanGaps: true,
  };
}

// A line across at the time of the step that keeps everything, with its name at the left end.
function drawKept(plot, keptNs) {
  const { ctx, bbox } = plot;
  const y = plot.valToPos(keptNs, "y", true);
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("soft");
  ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = 12 * devicePixelRatio + "px system-ui, sans-serif";
  ctx.textAlign = "left";
  ctx.fillText("everything kept, simulated " + timeText(keptNs), bbox.left + 6 * devicePixelRatio, y + 15 * devicePixelRatio);
  ctx.restore();
}

function paretoKeys(place, pareto) {
  chartKeys(place, pareto.series, (series) => [
    "var(--" + LINES[series.colour % LINES.length] + ")", series.is_bound ? "dotted" : "solid"]);
}

function showPareto(plot, pareto) {
  const at = plot.cursor.idx;
  const values = document.querySelectorAll("#pareto-keys b");
  pareto.series.forEach((series, i) => {
    const stepNs = at == null ? null : series.step_ns[at];
    values[i].textContent = stepNs == null ? "" : timeText(stepNs) + " (" + (stepNs / pareto.kept_step_ns).toFixed(3) + "x)";
  });
  values[pareto.series.length].textContent = at == null ? "" : "in " + bytesText(pareto.budget_bytes[at]);
}

function paretoChart(place, pareto) {
  const axis = { stroke: () => colour("soft"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false } };
  const font = "12px system-ui, sans-serif";
  const all = pareto.series.flatMap((series) => series.step_ns).filter((value) => value != null).concat(pareto.kept_step_ns);
  const low = Math.min(...all), high = Math.max(...all), room = (high - low || high || 1) * 0.08;
  const options = {
    width: place.clientWidth,
    height: 300,
    padding: [12, RIGHT, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 6 }, drag: { x: false, y: false }, y: false },
    scales: { x: { time: false }, y: { range: () => [Math.max(0, low - 2 * room), high + room] } },
    axes: [
      { ...axis, font, size: 30, space: 70, incrs: Array.from({ length: 50 }, (_, power) => 2 ** power),
        values: (_, ticks) => ticks.map((tick) => bytesText(tick).replace(/\.?0+ /, " ")) },
      { ...axis, font, size: GUTTER, values: (_, ticks) => ticks.map(timeTick) },
    ],
    series: [{}, ...pareto.series.map(paretoSeries)],
    hooks: {
      draw: [(plot) => drawKept(plot, pareto.kept_step_ns)],
      setCursor: [(plot) => showPareto(plot, pareto)],
    },
  };
  return new uPlot(options, [pareto.budget_bytes, ...pareto.series.map((series) => series.step_ns)], place);
}
