for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const number = (cell) => parseFloat(cell.textContent.replace(/,/g, ""));
  for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((one, two) => {
        const [a, b] = [one.cells[column], two.cells[column]];
        const [x, y] = [number(a), number(b)];
        const order = isNaN(x) || isNaN(y) ? (isNaN(x) - isNaN(y)) || a.textContent.localeCompare(b.textContent) : x - y;
        return down && !(isNaN(x) || isNaN(y)) ? -order : order;
      });
      body.append(...rows);
    });
  }
}
for (const field of document.querySelectorAll("input[type=search]")) {
  const { table } = field.dataset;
  const found = table ? document.getElementById(table).tBodies[0].rows : field.parentElement.querySelectorAll("details.prompt");
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    for (const one of found) one.hidden = !one.textContent.toLowerCase().includes(wanted);
  });
}
