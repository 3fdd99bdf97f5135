// The page: the open conversation, and the actions on it.

import { isRunning, stopAll, stopAnswer, writeAnswer } from "./answers.js";
import { afterPause, oncePerPicture } from "./clock.js";
import { setUpColours } from "./colours.js";
import { Composer } from "./composer.js";
import { showConversations } from "./conversation-list.js";
import { listenToOtherTabs } from "./conversation-store.js";
import {
    addAnswer,
    addQuestion,
    createConversation,
    deleteConversation,
    goTo,
    isUnderWay,
    loadConversation,
    loadConversations,
    saveConversation,
    stopIfSilent,
    takeMessage,
} from "./conversations.js";
import { askForKeyText, askForName, askToDelete, showText } from "./dialogs.js";
import { keepText, textOf } from "./document-texts.js";
import { OFFERED } from "./documents.js";
import { announce, byId, notify, setText } from "./elements.js";
import { asMarkdown, download, exported, imported } from "./exchange.js";
import { MessageList } from "./messages.js";
import { count } from "./numbers.js";
import { setKeyAsker } from "./server.js";
import { watchServer } from "./server-state.js";
import { settings, setUpSettings, showOwnPolicies } from "./settings.js";
import { closeSide, setUpSide } from "./side.js";
import { Teller } from "./teller.js";

const OPEN = "riffle.open";

const NO_ROOM = "This browser has no room for this conversation: export it and delete old ones. After a reload its latest messages may be gone.";

/** Time between two checks of answers that other tabs write. */
const LOOK_MS = 2000;

/** Null if this browser cannot read its conversations. */
const loaded = await loadConversations().catch(() => null);
const conversations = loaded ?? [];
let current = conversations.find(({ id }) => id === sessionStorage.getItem(OPEN)) ?? createConversation(settings.system);

const messages = new MessageList({ goOn, again: answerAgain, edit, goTo: goToBranch, openDocument: openKept, openPassage });
const composer = new Composer(() => current, {
    send,
    stop: () => stopAnswer(current),
    openDocument: (document) => showText(document.name, document.text),
    refusal: () => (isUnderWay(current.messages.at(-1) ?? {}) ? "Another tab has an answer written here. Ask when it is done." : ""),
});
const drawSoon = oncePerPicture(() => messages.update(current));
const listActions = { open: openConversation, rename, remove };

setKeyAsker(askForKeyText);
setUpSettings({ get: () => current.system, set: setInstructions }, () => announce("Settings saved"));
setUpColours();
const lookNow = watchServer((status) => {
    showOwnPolicies(status);
    byId("no-template").hidden = status.has_chat_template;
    // A page of a book has some 400 tokens.
    const pages = count(Math.floor(status.context_tokens / 400));
    setText(byId("capabilities"), `${status.model} reads up to ${count(status.context_tokens)} tokens, some ${pages} pages of a book.`);
    composer.showRoom();
});
byId("files").accept = OFFERED;
byId("new").addEventListener("click", () => openConversation(createConversation(settings.system)));
byId("search").addEventListener("input", afterPause(showAll, 120));
addEventListener("pagehide", () => stopAll(conversations));
setUpSide();
setUpExchange();
listenToOtherTabs(takeFromOtherTab);
setInterval(stopSilentAnswers, LOOK_MS);
openConversation(current);
if (loaded === null) {
    notify("This browser cannot open its conversations. They are not shown, and new ones are gone after a reload.");
}

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

/** Updates the list, the title and the buttons. */
function showAll() {
    showConversations(conversations, current, listActions);
    setText(byId("title"), current.title);
    document.title = current.messages.length > 0 ? `${current.title} – Riffle` : "Riffle";
    composer.setBusy(isRunning(current));
}

async function send(text, documents) {
    const conversation = current;
    const named = documents.map(({ id, name, kind, note, tokens }) => ({ id, name, kind, note, tokens }));
    for (const document of documents) {
        if (!(await keepText(document.id, document))) {
            notify("This browser cannot keep the document: after a reload it is gone.");
        }
    }
    await ask(conversation, ...addQuestion(conversation, text, named));
}

/** Asks a question in other words. The earlier question stays as a branch. */
async function edit(question, text) {
    if (!isRunning(current)) {
        await ask(current, ...addQuestion(current, text, question.documents, question.parent ?? null));
    }
}

async function ask(conversation, question, answer) {
    moveToTop(conversation);
    keep(conversation, question, answer);
    await write(conversation, answer);
}

/** Continues an answer that was stopped or cut, or tries again. */
function goOn(answer) {
    moveToTop(current);
    write(current, answer);
    composer.focus();
}

/** Requests another answer beside this one. */
function answerAgain(answer) {
    const another = addAnswer(current, answer.parent);
    another.isAgain = true;
    moveToTop(current);
    keep(current, another);
    goOn(another);
}

function goToBranch(message) {
    if (!isRunning(current)) {
        goTo(current, message);
        keep(current);
        messages.update(current);
        composer.refresh();
    }
}

function setInstructions(text) {
    current.system = text;
    keep(current);
    composer.refresh();
}

async function write(conversation, answer) {
    const teller = new Teller();
    const show = () => {
        teller.tell(answer);
        if (conversation === current) {
            drawSoon();
        }
    };
    const done = writeAnswer(conversation, answer, show, keep);
    messages.toEnd();
    showAll();
    lookNow();
    await done;
    keep(conversation, answer);
    showAll();
    lookNow();
}

/** Keeps the changes of a conversation, unless a tab has deleted it. */
async function keep(conversation, ...changed) {
    if (!conversations.includes(conversation)) {
        return;
    }
    const isKept = await saveConversation(conversation, ...changed);
    if (!isKept) {
        notify(NO_ROOM);
    } else if (byId("notice").textContent.startsWith(NO_ROOM)) {
        notify("");
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
    try {
        await deleteConversation(conversation);
    } catch {
        moveToTop(conversation);
        notify("This browser could not delete the conversation.");
        return;
    }
    announce("Deleted");
    if (conversation === current) {
        openConversation(createConversation(settings.system));
    } else {
        showAll();
    }
}

/**
 * Takes the changes that another tab has kept. A conversation that it deleted stays open here; a further question keeps
 * it again.
 */
async function takeFromOtherTab({ id, header, messages: kept, isDeleted }) {
    const place = conversations.findIndex((conversation) => conversation.id === id);
    const known = conversations[place] ?? (current.id === id ? current : null);
    if (isDeleted && place >= 0) {
        conversations.splice(place, 1);
    } else if (known) {
        kept.forEach((message) => takeMessage(known, message));
        if (header) {
            Object.assign(known, { title: header.title, isNamed: header.isNamed, changed: header.changed });
        }
    } else if (header) {
        await takeConversation(id);
    }
    showAll();
    if (known && known === current) {
        messages.update(current);
    }
}

/** Takes a conversation that another tab began. */
async function takeConversation(id) {
    const conversation = await loadConversation(id).catch(() => null);
    const own = conversations.find((other) => other.id === id);
    if (own) {
        conversation?.nodes.forEach((message) => takeMessage(own, message));
    } else if (conversation) {
        conversations.unshift(conversation);
    }
}

/** Lets this tab continue answers whose tab was closed or crashed. */
function stopSilentAnswers() {
    if (!isRunning(current) && current.messages.some(stopIfSilent)) {
        messages.update(current);
    }
}

async function openKept(document) {
    await openPassage(document);
}

/** Shows a kept document, at a passage if one is given. */
async function openPassage({ id, name }, start, end) {
    try {
        await showText(name, await textOf(id), start, end);
    } catch (error) {
        notify(error.message);
    }
}

/** Export and import, in the settings. */
function setUpExchange() {
    byId("export-one").addEventListener("click", () => download(`${fileNameOf(current.title)}.md`, "text/markdown", asMarkdown(current)));
    byId("export-all").addEventListener("click", async () => {
        download("riffle-conversations.json", "application/json", await exported(conversations));
    });
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", async ({ target }) => {
        const [file] = target.files;
        target.value = "";
        byId("settings-dialog").close();
        try {
            await takeImported(await imported(await file.text()));
        } catch (error) {
            notify(error.message);
        }
    });
}

/** Adds the conversations of a file. An existing conversation gets the messages that it lacks. */
async function takeImported(found) {
    for (const conversation of found) {
        const own = conversations.find(({ id }) => id === conversation.id);
        const all = [...conversation.nodes.values()];
        if (own) {
            const lacking = all.filter(({ id }) => !own.nodes.has(id));
            lacking.forEach((message) => own.nodes.set(message.id, message));
            await keep(own, ...lacking);
        } else {
            conversations.push(conversation);
            await keep(conversation, ...all);
        }
    }
    conversations.sort((a, b) => b.changed - a.changed);
    messages.update(current);
    showAll();
    announce(`${found.length} conversations imported`);
}

function fileNameOf(title) {
    return title.replace(/[^\p{L}\p{N} ._-]+/gu, "").trim().slice(0, 60) || "conversation";
}
