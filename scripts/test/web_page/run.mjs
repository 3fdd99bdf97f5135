// Runs the checks, one after the other, and says which failed.

import * as conversation from "./conversation.mjs";
import * as documents from "./documents.mjs";
import { MODEL, pictures, startBrowser, startServer } from "./harness.mjs";
import * as keeping from "./keeping.mjs";
import * as looks from "./looks.mjs";
import * as work from "./work.mjs";

const wanted = process.argv[2] ?? "";
const checks = [...documents.checks, ...conversation.checks, ...work.checks, ...keeping.checks, ...looks.checks].filter(({ name }) => name.includes(wanted));

const browser = await startBrowser();
const server = await startServer(MODEL);
let failed = 0;
try {
    for (const check of checks) {
        const start = Date.now();
        const tabs = [];
        const opened = (tab) => {
            tabs.push(tab);
            return tab;
        };
        try {
            await check(browser, server.url, opened);
            for (const tab of tabs) {
                const troubles = tab.troubles.filter((trouble) => !check.allows?.test(trouble));
                if (troubles.length > 0) {
                    throw new Error(`the browser complains:\n${troubles.join("\n")}`);
                }
            }
            console.log(`ok      ${check.name} (${((Date.now() - start) / 1000).toFixed(1)} s)`);
        } catch (error) {
            failed += 1;
            console.log(`FAILED  ${check.name}: ${error.message}`);
            await tabs.at(-1)?.picture(`failed-${check.name}`).catch(() => {});
        }
        for (const tab of tabs) {
            await tab.close().catch(() => {});
        }
    }
} finally {
    await browser.close();
    await server.stop();
}
console.log(`${checks.length - failed} of ${checks.length} checks passed; pictures in ${pictures}`);
process.exitCode = failed > 0 || checks.length === 0 ? 1 : 0;
