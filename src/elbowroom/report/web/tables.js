// Tables: a header sorts its column, a field leaves the rows that have its words. Canvases get the name of their chart.
function cellValue(row, column) {
  const cell = row.cells[column];
  const number = Number(cell.dataset.value ?? cell.textContent);
  return Number.isNaN(number) ? cell.textContent : number;
}

function sortRows(table, column) {
  const header = table.tHead.rows[0].cells[column];
  const falls = header.getAttribute("aria-sort") !== "descending";
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", falls ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [cellValue(row, column), row]);
  rows.sort(([one], [other]) => {
    const numbers = typeof one === "number" && typeof other === "number";
    const order = numbers ? one - other : String(one).localeCompare(String(other));
    return falls ? -order : order;
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function sortable(table) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    const button = Object.assign(document.createElement("button"), { className: "sort", type: "button" });
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortRows(table, column));
    header.append(button);
  });
}

function findable(table) {
  const field = Object.assign(document.createElement("input"), { className: "find", type: "search" });
  field.placeholder = "Search, such as conv swap";
  field.setAttribute("aria-label", "Search the storages");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  table.parentElement.before(field);
}

function named(place) {
  for (const canvas of place.querySelectorAll("canvas")) {
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", place.dataset.label);
  }
}
