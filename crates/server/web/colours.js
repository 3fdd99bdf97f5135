// Light and dark colours: those of the system until the user chooses.

import { byId } from "./elements.js";

const THEME = "riffle.theme";

/** Sets up the button for the colours. */
export function setUpColours() {
    byId("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
    nameTheme();
}

function isDark() {
    const { theme } = document.documentElement.dataset;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    try {
        localStorage.setItem(THEME, theme);
    } catch {
        // Without storage the choice is valid until the page is closed.
    }
    nameTheme();
}

function nameTheme() {
    const name = isDark() ? "Light colours" : "Dark colours";
    byId("theme").setAttribute("aria-label", name);
    byId("theme").title = name;
}
