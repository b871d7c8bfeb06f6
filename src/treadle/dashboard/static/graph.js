// The graph of a group or a workflow: drag to pan, zoom, search, and go from one failed item to the next. It
// is a box that scrolls, also without this script. What was chosen stays when the page follows the store.
"use strict";
(() => {
  const box = document.getElementById("graph");
  const tools = document.getElementById("graph-tools");
  if (!box) return;
  const search = tools.querySelector("input");
  const said = tools.querySelector("output");
  const svg = () => box.querySelector("svg");
  const links = () => [...svg().querySelectorAll("a")];
  const failed = () => links().filter((link) => link.querySelector(".node.dead"));
  const words = () => search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = () => links().filter((link) => words().every((word) => link.textContent.toLowerCase().includes(word)));
  let scale = 1;
  let at = null; // the id of the node that was gone to last

  // The point (x, y) of the box stays where it is.
  function zoom(to, x = box.clientWidth / 2, y = box.clientHeight / 2) {
    const { width, height } = svg().viewBox.baseVal;
    const [left, top] = [(box.scrollLeft + x) / scale, (box.scrollTop + y) / scale];
    scale = Math.min(2.5, Math.max(0.08, to));
    svg().style.width = `${width * scale}px`;
    svg().style.height = `${height * scale}px`;
    box.scrollTo(left * scale - x, top * scale - y);
  }
  function whole() {
    const { width, height } = svg().viewBox.baseVal;
    return Math.min(1, (box.clientWidth - 8) / width, (box.clientHeight - 8) / height);
  }
  function centre(link) {
    const [node, frame] = [link.getBoundingClientRect(), box.getBoundingClientRect()];
    const x = node.left + node.width / 2 - frame.left - frame.width / 2;
    const y = node.top + node.height / 2 - frame.top - frame.height / 2;
    box.scrollBy(x, y);
  }
  function goTo(link) {
    at = link.id;
    if (scale < 0.6) zoom(1);
    centre(link);
    mark();
  }
  function next() {
    const found = search.value ? hits() : failed();
    if (!found.length) { said.textContent = search.value ? "nothing found" : "nothing failed"; return; }
    const place = (found.findIndex((link) => link.id === at) + 1) % found.length;
    goTo(found[place]);
    said.textContent = `${place + 1} of ${found.length}`;
  }
  function unmark() {
    for (const name of ["data-hit", "data-at"]) for (const link of svg().querySelectorAll(`a[${name}]`)) link.removeAttribute(name);
  }
  // What is found stands out, in the picture and in the list below it.
  function mark() {
    const found = new Set(hits().map((link) => link.id));
    unmark();
    box.toggleAttribute("data-searching", Boolean(search.value));
    if (search.value) for (const id of found) document.getElementById(id).setAttribute("data-hit", "");
    if (at) document.getElementById(at)?.setAttribute("data-at", "");
    for (const row of document.querySelectorAll("tr[data-node]")) row.hidden = !found.has(row.dataset.node);
    tools.querySelector("[data-next]").textContent = search.value ? `Next found (${found.size})` : `Next failed (${failed().length})`;
  }

  tools.hidden = false;
  search.addEventListener("input", () => { said.textContent = ""; mark(); });
  search.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); next(); } });
  const press = { next, in: () => zoom(scale * 1.3), out: () => zoom(scale / 1.3), fit: () => zoom(whole()) };
  tools.addEventListener("click", (event) => press[event.target.closest("button")?.value]?.());
  document.addEventListener("keydown", (event) => {
    if (event.target.closest?.("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = { n: "next", "+": "in", "-": "out", 0: "fit" }[event.key];
    if (action) { event.preventDefault(); press[action](); }
  });
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const frame = box.getBoundingClientRect();
    zoom(scale * Math.exp(-event.deltaY / 300), event.clientX - frame.left, event.clientY - frame.top);
  }, { passive: false });

  let held = null; // where the mouse was last, while its button is down
  let moved = false;
  box.addEventListener("pointerdown", (event) => {
    moved = false;
    if (event.pointerType === "mouse" && event.button === 0) held = [event.clientX, event.clientY];
  });
  box.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [x, y] = [event.clientX - held[0], event.clientY - held[1]];
    if (!moved && Math.hypot(x, y) < 4) return;
    if (!moved) box.setPointerCapture(event.pointerId);
    moved = true;
    held = [event.clientX, event.clientY];
    box.scrollBy(-x, -y);
  });
  for (const end of ["pointerup", "pointercancel"]) box.addEventListener(end, () => { held = null; });
  box.addEventListener("dragstart", (event) => event.preventDefault());
  box.addEventListener("click", (event) => { if (moved) event.preventDefault(); }, true);

  document.addEventListener("showing", unmark); // the picture is compared with the new one
  document.addEventListener("shown", () => { zoom(scale); mark(); });
  if (whole() > 0.6) zoom(whole());
  else {
    const first = failed()[0] ?? links().find((link) => link.querySelector(".node.running")) ?? links()[0];
    if (first) centre(first);
  }
  mark();
})();
