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

document.addEventListener("DOMContentLoaded", () => {
  const here = document.querySelector(".top nav [aria-current]"), row = here && here.closest("ul");
  if (row) row.scrollLeft = here.offsetLeft - row.offsetLeft - (row.clientWidth - here.clientWidth) / 2;
  for (const button of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "Copied";
    });
  }
});
