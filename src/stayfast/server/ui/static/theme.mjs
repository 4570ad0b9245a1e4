// Sets the theme as early as a module can where the user has chosen one; else the system's preference applies.
export const THEMES = ["auto", "light", "dark"];
const NAME = "stayfast.theme";

export function readTheme() {
  try {
    const stored = localStorage.getItem(NAME);
    return THEMES.includes(stored) ? stored : "auto";
  } catch {
    return "auto"; // storage is blocked
  }
}

export function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(NAME, theme);
  } catch { /* the choice lasts as long as the page */ }
}

/** Whether the page is dark now: for what is drawn on a canvas. */
export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

applyTheme(readTheme());
