// Icicle: a chosen box becomes as wide as the picture. Arrows go through the tree, Enter chooses, Escape goes back up.
function icicleOf(picture) {
  const boxes = [...picture.querySelectorAll(".box")].map((box) => ({
    box, left: Number(box.dataset.left), width: Number(box.dataset.width), depth: Number(box.dataset.depth), above: null, parts: [],
  }));
  const path = [];
  for (const each of boxes) {
    path.length = each.depth;
    each.above = path[each.depth - 1] || null;
    if (each.above) each.above.parts.push(each);
    path.push(each);
  }
  return { picture, boxes, chosen: boxes[0], focused: boxes[0], said: picture.parentElement.querySelector(".said") };
}

function isWithin(each, chosen) {
  for (let at = each; at; at = at.above) if (at === chosen) return true;
  return false;
}

function placeBoxes(icicle) {
  const { boxes, chosen } = icicle;
  for (const each of boxes) {
    const inside = isWithin(each, chosen), around = isWithin(chosen, each);
    each.box.style.display = inside || around ? "" : "none";
    const left = around ? 0 : (each.left - chosen.left) / chosen.width;
    const width = around ? 1 : each.width / chosen.width;
    each.box.setAttribute("x", left * 100 + "%");
    each.box.setAttribute("width", width * 100 + "%");
    each.box.classList.toggle("around", around && each !== chosen);
    each.box.querySelector("text").style.visibility = width * icicle.picture.clientWidth < 30 ? "hidden" : "";
  }
}

function focusBox(icicle, each) {
  if (!each) return;
  icicle.focused.box.setAttribute("tabindex", "-1");
  icicle.focused = each;
  each.box.setAttribute("tabindex", "0");
  each.box.focus();
}

function chooseBox(icicle, each) {
  if (!each) return;
  icicle.chosen = each;
  placeBoxes(icicle);
  focusBox(icicle, each);
  icicle.said.textContent = each.box.getAttribute("aria-label");
}

function isShown(each) {
  return each.box.style.display !== "none";
}

function besideBox(each, by) {
  const all = each.above ? each.above.parts.filter(isShown) : [each];
  return all[all.indexOf(each) + by];
}

function boxAfterKey(icicle, key) {
  const at = icicle.focused;
  switch (key) {
    case "ArrowDown": return at.parts.find(isShown);
    case "ArrowUp": return at.above;
    case "ArrowLeft": return besideBox(at, -1);
    case "ArrowRight": return besideBox(at, 1);
    case "Home": return icicle.boxes[0];
    case "End": return icicle.boxes.filter(isShown).at(-1);
  }
  return null;
}

function pressed(icicle, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Enter" || event.key === " ") chooseBox(icicle, icicle.focused);
  else if (event.key === "Escape" || event.key === "Backspace") chooseBox(icicle, icicle.chosen.above);
  else {
    const next = boxAfterKey(icicle, event.key);
    if (next === null && !event.key.startsWith("Arrow")) return;
    focusBox(icicle, next);
  }
  event.preventDefault();
}

function startIcicle(picture) {
  const icicle = icicleOf(picture);
  for (const each of icicle.boxes) {
    each.box.setAttribute("tabindex", each === icicle.focused ? "0" : "-1");
    each.box.addEventListener("click", () => chooseBox(icicle, each === icicle.chosen ? each.above || each : each));
    each.box.addEventListener("focus", () => { icicle.said.textContent = each.box.getAttribute("aria-label"); });
  }
  picture.addEventListener("keydown", (event) => pressed(icicle, event));
  addEventListener("resize", () => placeBoxes(icicle));
  addEventListener("beforeprint", () => { icicle.chosen = icicle.boxes[0]; placeBoxes(icicle); });
  placeBoxes(icicle);
}
