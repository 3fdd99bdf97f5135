// The server's state, live.

import { whileVisible } from "./clock.js";
import { byId, element, setText } from "./elements.js";
import { bytes, count } from "./numbers.js";
import { askForKey, chooseModel, getStatus } from "./server.js";

const PERIOD_MS = 1500;

/** The server's latest `status`; null before the first. */
export const serverState = { status: null };

/** Updates the panel. `changed(status)` is called for each answer of the server. */
export function watchServer(changed) {
    const look = async () => {
        try {
            serverState.status = await getStatus();
            showStatus(serverState.status);
            changed(serverState.status);
        } catch (error) {
            showTrouble(error);
        }
    };
    const lookNow = whileVisible(look, PERIOD_MS);
    byId("server-model").addEventListener("change", ({ target }) => {
        chooseModel(target.value);
        lookNow();
    });
    byId("server-key").addEventListener("click", async () => {
        await askForKey();
        lookNow();
    });
    return lookNow;
}

function showStatus(status) {
    byId("server").dataset.state = status.running + status.waiting > 0 ? "busy" : "idle";
    byId("server-key").hidden = true;
    setText(byId("server-line"), status.model);
    byId("server-line").title = status.model;
    showModels(status);
    setText(byId("server-requests"), `${count(status.running)} running, ${count(status.waiting)} waiting`);
    setText(byId("server-kept"), count(status.idle));
    setText(byId("server-ram"), `${bytes(status.kv_ram_bytes)} of ${bytes(status.kv_most_bytes)}`);
    setText(byId("server-disk"), bytes(status.kv_disk_bytes));
    setText(byId("server-context"), `${count(status.context_tokens)} tokens`);
    byId("server-usage").value = status.kv_usage;
}

/** Offers the models of a server that has several. */
function showModels({ model, models }) {
    const list = byId("server-model");
    list.hidden = models.length < 2;
    byId("server-line").hidden = !list.hidden;
    const isSame = list.options.length === models.length && models.every((name, at) => list.options[at].value === name);
    if (!isSame) {
        list.replaceChildren(...models.map((name) => element("option", { value: name }, name)));
    }
    if (document.activeElement !== list) {
        list.value = model;
    }
}

function showTrouble(error) {
    byId("server").dataset.state = "trouble";
    const needsKey = error.status === 401;
    byId("server-key").hidden = !needsKey;
    setText(byId("server-line"), needsKey ? "asks for a key" : "cannot be reached");
}
