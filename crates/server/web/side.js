// The list at the side: on narrow screens it lies over the conversation and is opened by a button.

import { isDialogOpen } from "./dialogs.js";
import { byId } from "./elements.js";

/** Sets up the buttons of the list. */
export function setUpSide() {
    byId("side-open").addEventListener("click", () => {
        document.body.classList.add("is-side-open");
        byId("side-open").setAttribute("aria-expanded", "true");
        byId("main").inert = true;
        byId("side-close").focus();
    });
    const close = () => {
        closeSide();
        byId("side-open").focus();
    };
    byId("side-close").addEventListener("click", close);
    byId("shade").addEventListener("click", close);
    // This handler runs first, because Escape closes the topmost part.
    document.addEventListener(
        "keydown",
        (event) => {
            if (event.key === "Escape" && document.body.classList.contains("is-side-open") && !isDialogOpen()) {
                event.stopImmediatePropagation();
                close();
            }
        },
        { capture: true },
    );
    matchMedia("(min-width: 52rem)").addEventListener("change", closeSide);
}

/** Closes the list on narrow screens. */
export function closeSide() {
    document.body.classList.remove("is-side-open");
    byId("side-open").setAttribute("aria-expanded", "false");
    byId("main").inert = false;
}
