// Checks of what happens to documents.

import { readFileSync } from "node:fs";

import { PRINTED, book, pdf, zip } from "./files.mjs";
import { Tab, expect, post } from "./harness.mjs";

const PROPHETS = readFileSync("fixtures/text/prophets.txt", "utf8");

async function a_text_is_counted_as_the_server_counts_it(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    const text = PROPHETS.slice(0, 20_000);
    await tab.drop(["prophets.txt", text]);
    await tab.documents(1);
    const counted = await (await post(`${url}/tokenize`, { content: text })).json();
    const shown = await tab.text("#composer-documents .document-size");
    expect(shown.includes(counted.count.toLocaleString("en")), `${shown} lacks ${counted.count}`);
    const room = await tab.text("#room");
    expect(room.includes(counted.count.toLocaleString("en")) && room.includes("131,072"), `the room says ${room}`);
    expect((await tab.textOfDocument()) === text, "the text is not the file's");
}

async function a_book_is_read_in_the_order_of_its_spine(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await tab.drop(["book.epub", book()]);
    await tab.documents(1);
    const text = await tab.textOfDocument();
    const wanted = "Morning\n\nThe keeper rose & wrote her first line.\n\n- bread\n\n- salt\n\nEvening\n\nThe lamp was lit.\n\noil | two pints\n";
    expect(text.endsWith(wanted), `the book reads\n${JSON.stringify(text)}`);
}

async function html_is_read_as_one_sees_it(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    const source = `<html><head><title>no</title></head><body><p>One <b>two</b>,<br>three<script>alert(1)</script></p>
<pre>a\n  b</pre><p hidden>no</p><img src=x onerror="alert(1)" alt="a boat"><ul><li><h3>head</h3>line</ul>&lt;b&gt;</body></html>`;
    await tab.drop(["page.html", source]);
    await tab.documents(1);
    const text = await tab.textOfDocument();
    const wanted = "One two,\nthree\n\na\n  b\n\nno\n\n[Picture: a boat]\n\n- head\n\nline\n\n<b>\n";
    expect(text === wanted, `the page reads ${JSON.stringify(text)}`);
}

async function pdf_is_read_page_by_page(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    const pages = [["The first line of the", "first page (of three)."], [], ["Third page, after an inter-", "rupted word."]];
    await tab.drop(["three.pdf", pdf(pages)]);
    await tab.documents(1);
    const text = await tab.textOfDocument();
    const wanted = "The first line of the\nfirst page (of three).\n\nThird page, after an interrupted word.\n";
    expect(text === wanted, `the file reads ${JSON.stringify(text)}`);
}

async function columns_of_a_printed_pdf_are_read_one_after_the_other(browser, url, opened) {
    const printer = await browser.newPage();
    await printer.setContent(PRINTED);
    const bytes = await printer.pdf();
    await printer.close();
    const tab = opened(await Tab.open(browser, url));
    await tab.drop(["tides.pdf", bytes]);
    await tab.documents(1);
    const text = (await tab.textOfDocument()).replace(/\s+/g, " ");
    const order = ["Tides of the bay", "Left one. The tide comes in twice a day", "Left two.", "look for crabs below them", "Right one.", "Right two. Nobody"];
    const places = order.map((part) => text.indexOf(part));
    expect(places.every((place, index) => place >= 0 && place >= (places[index - 1] ?? 0)), `the order is ${places}: ${text}`);
}

async function what_has_no_text_is_refused_in_one_line(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    const cases = [
        [["scan.pdf", pdf([[], []])], "scan.pdf: its 2 pages hold no text"],
        [["broken.pdf", Buffer.from("%PDF-1.4\nnothing")], "broken.pdf: this PDF file is damaged"],
        [["other.zip", zip([["x.xml", "<w/>", true]])], "other.zip: this is no text and no document that riffle reads"],
        [["cut.epub", book().subarray(0, 900)], "cut.epub: this EPUB file is damaged"],
        [["picture.png", Buffer.from([0x89, 0x50, 0, 0, 1])], "picture.png: this is no text"],
        [["empty.txt", ""], "empty.txt: it holds no text"],
    ];
    for (const [file, wanted] of cases) {
        await tab.drop(file);
        await tab.until((wanted) => document.querySelector("#notice p")?.textContent.startsWith(wanted), wanted, 10_000, wanted);
        await tab.documents(0);
    }
    await tab.ask("What is in it?");
    await tab.until(() => document.querySelector("#notice p")?.textContent.startsWith("The document was not added"), "the word that the document is missing");
    expect((await tab.page.$(".question")) === null, "a question about a document that is not there was sent");
}
what_has_no_text_is_refused_in_one_line.allows = /status of 422/;

async function a_document_that_does_not_fit_is_refused_before_it_is_sent(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await tab.drop(["long.txt", PROPHETS.repeat(3) + PROPHETS.slice(0, 50_000)]);
    await tab.until(() => document.querySelector("#notice p"), "a refusal");
    const line = await tab.text("#notice p");
    expect(/^long\.txt has [\d,]+ tokens\. The context holds 131,072\. Add a shorter document, or a part of it\.$/.test(line), line);
    await tab.picture("too-long");
    await tab.accessible("a refusal");
}

async function a_document_is_read_once_for_several_questions(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await tab.drop(["prophets.txt", PROPHETS.slice(3_000, 12_000)]);
    await tab.documents(1);
    await tab.ask("Who speaks?");
    await tab.state(["answering"]);
    await tab.page.keyboard.press("Escape");
    await tab.state(["stopped"]);
    await tab.ask("And who hears?");
    await tab.state(["answering"]);
    await tab.page.waitForFunction(() => document.querySelectorAll(".answer").length === 2);
    await tab.page.keyboard.press("Escape");
    await tab.state(["stopped"]);
    await limitAnswers(tab, 5);
    await tab.ask("Is that all?");
    await tab.state(["done"]);
    const { timings } = await tab.kept();
    expect(timings.cache_n > 2000 && timings.prompt_n < 400, `${timings.cache_n} tokens were found read, ${timings.prompt_n} were not`);
    expect((await tab.answer()).summary.includes("already read"), "the page does not say what was found read");
}

async function reading_shows_progress_and_goes_on_where_it_was_stopped(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await limitAnswers(tab, 40);
    await tab.drop(["prophets.txt", PROPHETS]);
    await tab.documents(1);
    await tab.ask("What is told here?");
    await tab.state(["reading"]);
    await tab.until(() => /left$/.test(document.querySelector(".answer summary").textContent), "the time left");
    const bar = () => tab.page.$eval(".answer progress", (bar) => bar.value);
    const first = await bar();
    await tab.until((first) => document.querySelector(".answer progress").value > first + 0.1, "progress", 60_000, first);
    await tab.until(() => document.querySelector("#server-requests").textContent.startsWith("1 running"), "the request in the panel");
    await tab.picture("reading");
    await tab.accessible("reading");
    await tab.until(() => document.querySelector(".answer progress").value > 0.5, "half of the prompt read", 60_000);
    await tab.page.keyboard.press("Escape");
    await tab.state(["stopped"], 2000);
    const { summary } = await tab.answer();
    const read = Number(/^Stopped: ([\d,]+) of [\d,]+ tokens read$/.exec(summary)?.[1].replaceAll(",", ""));
    expect(read > 1000, `the line says ${summary}`);
    await tab.until(() => document.querySelector("#server-requests").textContent.startsWith("0 running"), "the server's rest", 6000);
    await tab.picture("stopped");
    await tab.press("Go on");
    await tab.state(["done"]);
    const { timings } = await tab.kept();
    // The batch that was stopped is read again from its beginning.
    expect(timings.cache_n > 0 && timings.cache_n > read - 4096, `${timings.cache_n} tokens were found read of ${read}`);
    await tab.picture("read");
}

async function a_page_that_is_closed_while_it_reads_resumes_after_a_reload(browser, url, opened) {
    const tab = opened(await Tab.open(browser, url));
    await limitAnswers(tab, 10);
    await tab.drop(["prophets.txt", PROPHETS.slice(20_000, 60_000)]);
    await tab.documents(1);
    await tab.ask("Who is it?");
    await tab.until(() => document.querySelector(".answer progress")?.value > 0.6, "some of the prompt read", 60_000);
    await tab.page.reload({ waitUntil: "networkidle2" });
    await tab.state(["stopped"], 3000);
    await tab.press("Go on");
    await tab.state(["done"]);
    const { timings } = await tab.kept();
    expect(timings.cache_n > 2000, `${timings.cache_n} tokens were found read`);
}

/** Sets how long answers may be, in the settings. */
export async function limitAnswers(tab, tokens) {
    await tab.page.click("#settings-open");
    await tab.page.$eval("#max-tokens", (field, tokens) => (field.value = tokens), tokens);
    await tab.page.click("#settings-dialog [value=ok]");
    await tab.until(() => !document.querySelector("dialog[open]"), "the end of the settings");
}

export const checks = [
    a_text_is_counted_as_the_server_counts_it,
    a_book_is_read_in_the_order_of_its_spine,
    html_is_read_as_one_sees_it,
    pdf_is_read_page_by_page,
    columns_of_a_printed_pdf_are_read_one_after_the_other,
    what_has_no_text_is_refused_in_one_line,
    a_document_that_does_not_fit_is_refused_before_it_is_sent,
    a_document_is_read_once_for_several_questions,
    reading_shows_progress_and_goes_on_where_it_was_stopped,
    a_page_that_is_closed_while_it_reads_resumes_after_a_reload,
];
