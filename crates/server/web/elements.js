// Building pieces of the page.

/** The element of the page that has this id. */
export function byId(id) {
    return document.getElementById(id);
}

/** An element with its children. `class`, `aria-…` and `data-…` become attributes, the others properties. */
export function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
        if (value === undefined || value === null) {
            continue;
        }
        if (name === "class") {
            made.className = value;
        } else if (name.includes("-") || name === "role" || name === "for") {
            made.setAttribute(name, value);
        } else {
            made[name] = value;
        }
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
}

/** A button that does `action`. `name` is what a screen reader says where `text` says too little. */
export function button(text, action, properties = {}) {
    const made = element("button", { type: "button", ...properties }, text);
    made.addEventListener("click", action);
    return made;
}

/** Sets a text. An equal text does not change the page. */
export function setText(node, text) {
    if (node.textContent !== text) {
        node.textContent = text;
    }
}

let latest = 0;

/** Lets a screen reader say a text when it is free. */
export function announce(text) {
    // A screen reader does not repeat an equal text; a space makes it different.
    latest = 1 - latest;
    byId("announcer").textContent = text + (latest ? "\u00a0" : "");
}

/** Shows a line above the question until it is closed or another takes its place. */
export function notify(text) {
    const notice = byId("notice");
    if (!text) {
        notice.replaceChildren();
        return;
    }
    const close = button("Close", () => notify(""), { class: "quiet" });
    notice.replaceChildren(element("p", {}, text), close);
}

/** Copies a text and says so on the button. */
export async function copyText(text, from) {
    const before = from.textContent;
    let after = "Copied";
    try {
        await navigator.clipboard.writeText(text);
    } catch {
        after = copyBySelection(text) ? "Copied" : "Not copied";
    }
    from.textContent = after;
    announce(after);
    setTimeout(() => setText(from, before), 1500);
}

/** For pages of other machines without https, which have no clipboard. */
function copyBySelection(text) {
    const area = element("textarea", { class: "for-readers", value: text });
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
}
