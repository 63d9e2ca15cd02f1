// What pages do beyond links and forms: questions before what can't be undone, copying, and polls that know when to wait.

let pressed = false;
document.addEventListener("pointerdown", () => { pressed = true; });
for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => setTimeout(() => { pressed = false; }, 50));

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !window.confirm(question)) event.preventDefault();
});

const polls = (element) => (element.getAttribute("hx-trigger") || "").startsWith("every");

document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden && polls(event.detail.elt)) event.preventDefault();
});

// A button that is being pressed must not be replaced under the finger.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (pressed && polls(event.detail.requestConfig.elt)) event.detail.shouldSwap = false;
});

// What goes on beyond an edge says so.
const fade = (place) => {
  for (const row of place.querySelectorAll("nav ul, .scroll")) {
    const tell = () => {
      row.classList.toggle("goes-before", row.scrollLeft > 4);
      row.classList.toggle("goes-on", row.scrollLeft + row.clientWidth < row.scrollWidth - 4);
    };
    row.addEventListener("scroll", tell, { passive: true });
    new ResizeObserver(tell).observe(row);
  }
};
document.addEventListener("htmx:afterSettle", (event) => fade(event.detail.elt));

document.addEventListener("DOMContentLoaded", () => {
  for (const here of document.querySelectorAll("nav li [aria-current]")) {
    const row = here.closest("ul");
    row.scrollLeft = here.offsetLeft - row.offsetLeft - (row.clientWidth - here.clientWidth) / 2;
  }
  fade(document);
  for (const form of document.querySelectorAll("[data-drop]")) {
    const zone = form.querySelector(".drop"), input = form.querySelector("input[type=file]"), said = form.querySelector("[data-dropped]");
    const tell = () => { said.textContent = [...input.files].map((file) => file.name).join(", "); };
    for (const name of ["dragenter", "dragover"]) zone.addEventListener(name, (event) => { event.preventDefault(); zone.classList.add("over"); });
    for (const name of ["dragleave", "drop"]) zone.addEventListener(name, () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => { event.preventDefault(); input.files = event.dataTransfer.files; tell(); });
    input.addEventListener("change", tell);
  }
  for (const button of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "Copied";
    });
  }
});
