// Arrow keys move through the matrix. The panel shows the cell with the focus or the pointer.
(() => {
  const table = document.querySelector(".matrix table");
  const panel = document.getElementById("panel");
  const grid = [...table.rows].map((row) => [...row.cells].slice(1));
  let current = { row: 0, column: 0 };

  function show(place) {
    const step = document.getElementById(place.dataset.step);
    panel.replaceChildren(...[...step.children].map((part) => part.cloneNode(true)));
    if (place.tagName === "TD") {
      const label = document.createElement("p");
      label.className = "cell";
      label.textContent = place.getAttribute("aria-label");
      panel.prepend(label);
    }
    for (const marked of table.querySelectorAll(".on")) marked.classList.remove("on");
    place.parentElement.cells[0].classList.add("on");
    table.rows[0].cells[place.cellIndex].classList.add("on");
  }

  function go(row, column) {
    current = {
      row: Math.min(Math.max(row, 0), grid.length - 1),
      column: Math.min(Math.max(column, 0), grid[0].length - 1),
    };
    const place = grid[current.row][current.column];
    for (const other of table.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    place.tabIndex = 0;
    return place;
  }

  const moves = {
    ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
    Home: [0, -1e6], End: [0, 1e6], PageUp: [-1e6, 0], PageDown: [1e6, 0],
  };
  table.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    go(current.row + move[0], current.column + move[1]).focus();
  });
  const inside = (event) => event.target.closest("[data-step]");
  table.addEventListener("focusin", (event) => inside(event) && show(inside(event)));
  table.addEventListener("mouseover", (event) => inside(event) && show(inside(event)));
  table.addEventListener("click", (event) => {
    const place = inside(event);
    if (!place) return;
    go(place.parentElement.rowIndex, place.cellIndex - 1).focus();
  });
  show(go(current.row, current.column));
})();
