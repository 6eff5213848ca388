// Before the page is drawn, so that it does not flash: the colours that were chosen, else the system's.
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    let chosen = null;
    try {
      chosen = localStorage.getItem("theme");
    } catch {
      // A browser that keeps nothing: the system's colours.
    }
    document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : dark.matches ? "dark" : "light";
  };
  dark.addEventListener("change", show);
  show();
}
