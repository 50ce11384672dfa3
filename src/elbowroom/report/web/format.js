"use strict";

// Texts for axes and tips. Bytes in powers of 1024, times from nanoseconds.
function bytesText(sizeBytes) {
  for (const [unit, size, digits] of [["GiB", 2 ** 30, 2], ["MiB", 2 ** 20, 1], ["KiB", 2 ** 10, 1]]) {
    if (Math.abs(sizeBytes) >= size) return (sizeBytes / size).toFixed(digits) + " " + unit;
  }
  return sizeBytes + " B";
}

function timeText(durationNs) {
  for (const [unit, length, digits] of [["s", 1e9, 3], ["ms", 1e6, 2], ["us", 1e3, 1]]) {
    if (Math.abs(durationNs) >= length) return (durationNs / length).toFixed(digits) + " " + unit;
  }
  return Math.round(durationNs) + " ns";
}

// Distances between grid lines of a bytes axis: 1, 2, 5, 10, ... 500 of each unit, so that labels are round.
const BYTE_STEPS = [];
for (let unit = 1; unit < 2 ** 50; unit *= 1024) {
  for (const factor of [1, 2, 5, 10, 20, 50, 100, 200, 500]) BYTE_STEPS.push(factor * unit);
}

function timeTick(atNs) {
  return atNs === 0 ? "0" : timeText(atNs).replace(/\.?0+ /, " ");
}

function bytesTick(sizeBytes, step) {
  const units = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
  const [unit, size] = units.find((entry) => step >= entry[1] || sizeBytes >= 10 * entry[1]) || ["B", 1];
  const value = sizeBytes / size;
  return sizeBytes === 0 ? "0" : (Number.isInteger(value) ? value : value.toFixed(1)) + " " + unit;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

function faded(name, share) {
  return "color-mix(in srgb, " + colour(name) + " " + Math.round(share * 100) + "%, transparent)";
}

// Width left and right of the plots, the same in both charts so that times stand above each other.
const GUTTER = 88, RIGHT = 16;

// The key of each curve of a chart, with its value at the cursor; look(series) gives the colour and style of its line.
function chartKeys(place, allSeries, look) {
  for (const series of allSeries) {
    const key = Object.assign(document.createElement("i"), { className: "key" });
    [key.style.borderTopColor, key.style.borderTopStyle] = look(series);
    const entry = document.createElement("span");
    entry.append(key, series.label, document.createElement("b"));
    place.append(entry);
  }
  place.append(document.createElement("b"));
}
