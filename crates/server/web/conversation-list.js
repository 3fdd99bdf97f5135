// The list of conversations, and the search in it.

import { isRunning } from "./answers.js";
import { button, byId, element, setText } from "./elements.js";

/** Shows the conversations that the search finds. `actions` are {open, rename, remove}, functions of a conversation. */
export function showConversations(conversations, current, actions) {
    const list = byId("conversation-list");
    const focused = focusIn(list);
    const found = conversations.filter(matches(byId("search").value));
    list.replaceChildren(...found.map((conversation) => entry(conversation, conversation === current, actions)));
    byId("search").hidden = conversations.length === 0;
    setText(byId("no-conversations"), conversations.length > 0 ? "No conversation has these words." : "Conversations are kept in this browser.");
    byId("no-conversations").hidden = found.length > 0;
    if (focused) {
        list.querySelector(`[data-id="${focused.id}"] [data-part="${focused.part}"]`)?.focus();
    }
}

/** True for conversations with every word: in their name, a message or the name of a document. */
function matches(search) {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    return ({ title, nodes }) => {
        if (words.length === 0) {
            return true;
        }
        const parts = [...nodes.values()].flatMap(({ text, documents }) => [text, ...(documents ?? []).map(({ name }) => name)]);
        const whole = [title, ...parts].join("\n").toLowerCase();
        return words.every((word) => whole.includes(word));
    };
}

function entry(conversation, isCurrent, actions) {
    const { id, title } = conversation;
    const open = button(title, () => actions.open(conversation), { class: "open", title, "data-part": "open" });
    if (isCurrent) {
        open.setAttribute("aria-current", "true");
    }
    const busy = isRunning(conversation) ? element("span", { class: "busy", role: "img", "aria-label": "being answered" }) : null;
    const rename = button("", () => actions.rename(conversation), {
        class: "icon rename",
        "aria-label": `Rename ${title}`,
        title: "Rename",
        "data-part": "rename",
    });
    const remove = button("", () => actions.remove(conversation), {
        class: "icon delete",
        "aria-label": `Delete ${title}`,
        title: "Delete",
        "data-part": "delete",
    });
    return element("li", { "data-id": id }, open, busy, rename, remove);
}

/** The button of the list that has the focus. An update of the list would lose it. */
function focusIn(list) {
    const focused = document.activeElement;
    const line = list.contains(focused) ? focused.closest("[data-id]") : null;
    return line && { id: line.dataset.id, part: focused.dataset.part };
}
