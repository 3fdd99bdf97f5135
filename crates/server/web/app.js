// The page: which conversation is open, and what happens to it.

import { isRunning, stopAll, stopAnswer, writeAnswer } from "./answers.js";
import { oncePerPicture } from "./clock.js";
import { Composer } from "./composer.js";
import { showConversations } from "./conversation-list.js";
import { addQuestion, createConversation, deleteConversation, loadConversations, newAnswer, saveConversation } from "./conversations.js";
import { askForKeyText, askForName, askToDelete, isDialogOpen, showText } from "./dialogs.js";
import { keepText, textOf } from "./document-texts.js";
import { OFFERED } from "./documents.js";
import { announce, byId, notify, setText } from "./elements.js";
import { MessageList } from "./messages.js";
import { countOf } from "./numbers.js";
import { setKeyAsker } from "./server.js";
import { watchServer } from "./server-state.js";
import { setUpSettings, showOwnPolicies } from "./settings.js";

const OPEN = "riffle.open";

/** How much of an answer a screen reader is given at once. */
const MOST_SPOKEN = 1200;

const conversations = loadConversations();
let current = conversations.find(({ id }) => id === sessionStorage.getItem(OPEN)) ?? createConversation();

const messages = new MessageList({ resume: goOn, again: answerAgain, openDocument: openKept });
const composer = new Composer(() => current, { send, stop: () => stopAnswer(current), openDocument: (document, text) => showText(document.name, text) });
const drawSoon = oncePerPicture(() => messages.update(current));
const listActions = { open: openConversation, rename, remove };

setKeyAsker(askForKeyText);
setUpSettings(() => announce("Settings saved"));
const lookNow = watchServer((status) => {
    showOwnPolicies(status);
    byId("no-template").hidden = status.has_chat_template;
    composer.showRoom();
});
byId("files").accept = OFFERED;
byId("new").addEventListener("click", () => openConversation(createConversation()));
addEventListener("pagehide", () => stopAll(conversations));
setUpSide();
openConversation(current);

function openConversation(conversation) {
    const isOther = conversation !== current;
    current = conversation;
    sessionStorage.setItem(OPEN, conversation.id);
    notify("");
    if (isOther) {
        composer.clear();
    }
    messages.show(conversation);
    closeSide();
    showAll();
    composer.focus();
}

/** Shows the list, the title and the buttons anew. */
function showAll() {
    showConversations(conversations, current, listActions);
    setText(byId("title"), current.title);
    document.title = current.messages.length > 0 ? `${current.title} – Riffle` : "Riffle";
    composer.setBusy(isRunning(current));
}

async function send(text, documents) {
    const conversation = current;
    const kept = documents.map(({ id, name, kind, note, tokens }) => ({ id, name, kind, note, tokens }));
    for (const document of documents) {
        if (!(await keepText(document.id, document.text))) {
            notify("This browser cannot keep the document: after a reload it is gone.");
        }
    }
    const answer = addQuestion(conversation, text, kept);
    moveToTop(conversation);
    keep(conversation);
    await write(conversation, answer);
}

/** Goes on with an answer that was stopped or cut, or tries again. */
function goOn(answer) {
    write(current, answer);
    composer.focus();
}

function answerAgain(answer) {
    Object.assign(answer, newAnswer());
    goOn(answer);
}

async function write(conversation, answer) {
    const teller = new Teller();
    const done = writeAnswer(conversation, answer, () => {
        teller.tell(answer);
        if (conversation === current) {
            drawSoon();
        }
    });
    messages.toEnd();
    showAll();
    lookNow();
    await done;
    keep(conversation);
    showAll();
    lookNow();
}

function keep(conversation) {
    if (!saveConversation(conversation)) {
        notify("This browser has no room for this conversation: delete old ones. After a reload the latest messages are gone.");
    }
}

function moveToTop(conversation) {
    const place = conversations.indexOf(conversation);
    if (place >= 0) {
        conversations.splice(place, 1);
    }
    conversations.unshift(conversation);
}

async function rename(conversation) {
    const name = await askForName(conversation.title);
    if (name) {
        Object.assign(conversation, { title: name, isNamed: true });
        keep(conversation);
        showAll();
    }
}

async function remove(conversation) {
    if (!(await askToDelete(conversation.title))) {
        return;
    }
    stopAnswer(conversation);
    conversations.splice(conversations.indexOf(conversation), 1);
    await deleteConversation(conversation);
    announce("Deleted");
    if (conversation === current) {
        openConversation(createConversation());
    } else {
        showAll();
    }
}

async function openKept(document) {
    try {
        await showText(document.name, await textOf(document.id));
    } catch (error) {
        notify(error.message);
    }
}

/** Tells a screen reader how an answer comes along, without talking all the time. */
class Teller {
    #state = "";
    #quarter = 0;

    tell(answer) {
        if (answer.state === "reading") {
            this.#tellReading(answer.progress);
        }
        if (answer.state === this.#state) {
            return;
        }
        this.#state = answer.state;
        if (answer.state === "answering") {
            announce("The answer begins");
        } else if (answer.state === "stopped") {
            announce("Stopped");
        } else if (answer.state === "failed") {
            announce(`Not answered: ${answer.error}`);
        } else if (answer.state === "done") {
            const rest = answer.text.length > MOST_SPOKEN ? " … The rest is in the conversation." : "";
            announce(`Answer: ${answer.text.slice(0, MOST_SPOKEN)}${rest}`);
        }
    }

    #tellReading({ read, tokens }) {
        const quarter = Math.floor((4 * read) / Math.max(1, tokens));
        if (this.#state !== "reading") {
            announce(`Reading ${countOf(tokens, "token")}`);
        } else if (quarter > this.#quarter && quarter < 4) {
            announce(`${quarter * 25}% read`);
        }
        this.#quarter = quarter;
    }
}

/** On narrow screens the list lies over the conversation and is opened by a button. */
function setUpSide() {
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
    // Before anybody else hears of the key: Escape ends what lies on top.
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

function closeSide() {
    document.body.classList.remove("is-side-open");
    byId("side-open").setAttribute("aria-expanded", "false");
    byId("main").inert = false;
}
