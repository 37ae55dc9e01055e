// A click on a heading sorts its table: numbers by size, the rest as words; another click turns it.
document.querySelectorAll("table").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells];
  const number = (text) => parseFloat(text.replace(/,/g, ""));
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const rises = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", rises ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    const key = (row) => row.cells[column].textContent;
    const compare = (a, b) => {
      const [one, other] = [number(key(a)), number(key(b))];
      if (isNaN(one) && isNaN(other)) return key(a).localeCompare(key(b));
      if (isNaN(one) || isNaN(other)) return isNaN(one) ? 1 : -1;  // what is none stays last
      return (one - other) * (rises ? 1 : -1);
    };
    const words = rows.every((row) => isNaN(number(key(row))));
    rows.sort(compare);
    if (words && !rises) rows.reverse();
    table.tBodies[0].append(...rows);
  }));
});
