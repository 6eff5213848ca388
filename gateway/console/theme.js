// Before the page is drawn, so that it does not flash: the colours that were chosen, else the system's.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing: the system's colours.
}
