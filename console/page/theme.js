// Sets the chosen colour theme, or that of the system, before the page is first drawn, so that it does not flash.
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    let chosen = null;
    try {
      chosen = localStorage.getItem("theme");
    } catch {
      // The browser forbids storage: the system's theme is used.
    }
    document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : dark.matches ? "dark" : "light";
  };
  dark.addEventListener("change", show);
  show();
}
