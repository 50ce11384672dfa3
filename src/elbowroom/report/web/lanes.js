// Lanes: per timeline a group of rows on one canvas; a row is a lane, a bar a span.
const ROW = 24, BAR = 18, HEAD = 26;

function lanesChart(place, groups, onZoom, onReset) {
  const canvas = document.createElement("canvas");
  place.append(canvas);
  const rows = [];
  let height = 0;
  for (const group of groups) {
    rows.push({ head: group.title + ", " + timeText(group.step_ns), top: height });
    height += HEAD;
    for (const lane of group.lanes) {
      rows.push({ lane, title: group.title, top: height });
      height += ROW;
    }
  }
  const chart = { canvas, rows, height: height + 4, from: 0, to: Math.max(...groups.map((group) => group.step_ns)), drag: null };
  canvas.addEventListener("mousemove", (event) => moved(chart, event));
  canvas.addEventListener("mouseleave", () => { document.getElementById("tip").hidden = true; });
  canvas.addEventListener("mousedown", (event) => { chart.drag = { from: event.offsetX, to: event.offsetX }; });
  canvas.addEventListener("dblclick", onReset);
  addEventListener("mouseup", () => released(chart, onZoom));
  return chart;
}

function timeAt(chart, x) {
  const share = (x - GUTTER) / (chart.canvas.clientWidth - GUTTER - RIGHT);
  return chart.from + Math.min(1, Math.max(0, share)) * (chart.to - chart.from);
}

function released(chart, onZoom) {
  const drag = chart.drag;
  chart.drag = null;
  if (!drag) return;
  if (Math.abs(drag.to - drag.from) > 4) {
    const ends = [timeAt(chart, drag.from), timeAt(chart, drag.to)].sort((a, b) => a - b);
    onZoom(ends[0], ends[1]);
  } else drawLanes(chart);
}

function moved(chart, event) {
  if (chart.drag) {
    chart.drag.to = event.offsetX;
    drawLanes(chart);
  }
  const row = chart.rows.find((row) => row.lane && event.offsetY >= row.top && event.offsetY < row.top + ROW);
  const at = timeAt(chart, event.offsetX);
  const slack = ((chart.to - chart.from) / chart.canvas.clientWidth) * 1.5;
  const found = row && event.offsetX >= GUTTER ? spanAt(row.lane, at, slack) : -1;
  showTip(row, found, event);
}

// The narrowest span under a time: a stall may lie within what surrounds it.
function spanAt(lane, at, slack) {
  let best = -1;
  for (let i = 0; i < lane.start_ns.length; i++) {
    if (lane.start_ns[i] - slack > at) break;
    const under = at <= lane.end_ns[i] + slack;
    if (under && (best < 0 || lane.end_ns[i] - lane.start_ns[i] <= lane.end_ns[best] - lane.start_ns[best])) best = i;
  }
  return best;
}

function showTip(row, index, event) {
  const tip = document.getElementById("tip");
  tip.hidden = index < 0;
  if (index < 0) return;
  const lane = row.lane;
  const lines = [lane.texts[lane.label[index]], lane.texts[lane.detail[index]], toneName(lane.tone[index])];
  const length = lane.end_ns[index] - lane.start_ns[index];
  lines.push(timeText(lane.start_ns[index]) + " to " + timeText(lane.end_ns[index]) + ", " + timeText(length));
  if (lane.storage[index] !== null) {
    const size = lane.size_bytes[index];
    const rate = size && length ? ", " + bytesText((size * 1e9) / length) + "/s" : "";
    lines.push("storage " + lane.storage[index] + (size ? ", " + bytesText(size) + rate : ""));
  }
  tip.replaceChildren(...lines.filter(Boolean).map((line) => Object.assign(document.createElement("div"), { textContent: line })));
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
}

function toneName(tone) {
  return tone.replace("_", " ");
}

function drawLanes(chart) {
  const { canvas, rows, height } = chart;
  const width = canvas.parentElement.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = width * devicePixelRatio;
  canvas.height = height * devicePixelRatio;
  const ctx = canvas.getContext("2d");
  ctx.scale(devicePixelRatio, devicePixelRatio);
  ctx.textBaseline = "middle";
  for (const row of rows) row.lane ? drawLane(ctx, chart, row, width) : drawHead(ctx, row);
  if (chart.drag) {
    ctx.fillStyle = faded("measured", 0.18);
    ctx.fillRect(Math.min(chart.drag.from, chart.drag.to), 0, Math.abs(chart.drag.to - chart.drag.from), height);
  }
}

function drawHead(ctx, row) {
  ctx.font = "600 12.5px system-ui, sans-serif";
  ctx.fillStyle = colour("ink");
  ctx.textAlign = "left";
  ctx.fillText(row.head, GUTTER, row.top + HEAD / 2 + 2);
}

function drawLane(ctx, chart, row, width) {
  const top = row.top + (ROW - BAR) / 2;
  ctx.font = "12px system-ui, sans-serif";
  ctx.fillStyle = colour("soft");
  ctx.textAlign = "right";
  ctx.fillText(row.lane.name, GUTTER - 10, row.top + ROW / 2);
  ctx.fillStyle = colour("page");
  ctx.fillRect(GUTTER, top, width - GUTTER - RIGHT, BAR);
  ctx.save();
  ctx.beginPath();
  ctx.rect(GUTTER, row.top, width - GUTTER - RIGHT, ROW);
  ctx.clip();
  ctx.textAlign = "left";
  drawSpans(ctx, chart, row.lane, top, (width - GUTTER - RIGHT) / (chart.to - chart.from));
  ctx.restore();
}

// Bars closer than a third of a pixel to the last drawn one of their tone are left out: nobody would see them.
function drawSpans(ctx, chart, lane, top, pixelsPerNs) {
  const fills = {}, drawnTo = {};
  for (const tone of new Set(lane.tone)) fills[tone] = colour(tone);
  for (let i = 0; i < lane.start_ns.length; i++) {
    if (lane.end_ns[i] < chart.from || lane.start_ns[i] > chart.to) continue;
    const left = GUTTER + (lane.start_ns[i] - chart.from) * pixelsPerNs;
    const right = GUTTER + (lane.end_ns[i] - chart.from) * pixelsPerNs;
    const tone = lane.tone[i];
    if (right - (drawnTo[tone] ?? -1) < 0.34) continue;
    drawnTo[tone] = right;
    const gap = right - left > 3 ? 0.8 : 0;
    ctx.fillStyle = fills[tone];
    ctx.fillRect(left, top, Math.max(right - left - gap, 0.7), BAR);
    if (right - left > 46) drawLabel(ctx, lane.texts[lane.label[i]], left, right, top);
  }
}

function drawLabel(ctx, text, left, right, top) {
  const name = text.replace(/^aten\./, "").replace(/\.[a-zA-Z_]+$/, "");
  const shown = Math.floor((right - left - 10) / 6.4);
  ctx.font = "11.5px system-ui, sans-serif";
  ctx.fillStyle = "#ffffff";
  ctx.fillText(name.length > shown ? name.slice(0, Math.max(shown - 2, 1)) + ".." : name, left + 5, top + BAR / 2 + 0.5);
}
