// The report of an answer: its progress, the text that was read, the pages that were kept.

import { element } from "./elements.js";
import { count, countOf, large, seconds, share, timeLeft } from "./numbers.js";

/** The line above an answer. */
export function summaryOf(answer) {
    const { progress } = answer;
    switch (answer.state) {
        case "waiting":
            return "Waiting for the server";
        case "reading": {
            const left = progress.seconds_left === null ? "" : `, ${timeLeft(progress.seconds_left)}`;
            return `Reading: ${count(progress.read)} of ${countOf(progress.tokens, "token")}${left}`;
        }
        case "answering":
            return "Answering";
        case "stopped":
            return stoppedLine(answer);
        case "failed":
            return answer.text ? "Ended by an error" : "Not answered";
        default:
            return answer.report ? reportLine(answer) : "Answered";
    }
}

/** Share of the prompt that has been read, from 0 to 1; null if there is nothing to show. */
export function shareRead(answer) {
    if (answer.state === "waiting") {
        return 0;
    }
    const { progress } = answer;
    const isShown = progress && (answer.state === "reading" || (answer.state === "stopped" && !answer.text));
    return isShown ? Math.min(1, progress.read / Math.max(1, progress.tokens)) : null;
}

/** All facts about a finished answer, as a list of terms. */
export function detailsOf({ report, timings }) {
    const rows = [
        ["Policy for reading", report.prefill],
        ["Policy for answering", report.decode],
        ["Pairs of tokens read", pairsLine(report)],
        ["Attention kept", massLine(report.kept_mass)],
    ];
    if (timings) {
        rows.push(
            ["Prompt", promptLine(timings)],
            ["Answer", `${countOf(timings.predicted_n, "token")}, ${count(timings.predicted_per_second)} a second`],
        );
    }
    rows.push(["Time", `waited ${seconds(report.waited_s)}, read ${seconds(report.read_s)}, answered ${seconds(report.answered_s)}`]);
    return element("dl", {}, ...rows.flatMap(([term, text]) => [element("dt", {}, term), element("dd", {}, text)]));
}

function stoppedLine({ text, progress }) {
    if (text) {
        return "Stopped while answering";
    }
    if (!progress) {
        return "Stopped";
    }
    return `Stopped: ${count(progress.read)} of ${countOf(progress.tokens, "token")} read`;
}

function reportLine({ report, timings }) {
    const parts = [];
    if (timings) {
        const cached = timings.cache_n > 0 ? ` (${count(timings.cache_n)} already read)` : "";
        parts.push(`${countOf(timings.cache_n + timings.prompt_n, "token")}${cached} in ${seconds(report.read_s)}`);
    }
    if (report.share_read < 1) {
        parts.push(`${share(report.share_read)} of the text looked at`);
    }
    if (report.kept_mass) {
        parts.push(`${share(report.kept_mass.mean)} of the attention kept`);
    }
    if (report.ended_by === "loop") {
        parts.push("ended, since it repeats itself");
    }
    return parts.join(" · ");
}

function pairsLine(report) {
    return `${large(report.pairs_read)} of ${large(report.pairs_causal)} (${share(report.share_read)})`;
}

function massLine(mass) {
    if (!mass) {
        return "not measured: switch it on in the settings";
    }
    const first = `${share(mass.mean)} on average, ${share(mass.first_percentile)} at the lowest hundredth`;
    return `${first}, over ${countOf(mass.samples, "sample")}; mean error of outputs ${mass.mean_output_error.toPrecision(2)}`;
}

function promptLine(timings) {
    const total = timings.cache_n + timings.prompt_n;
    const found = `${count(timings.cache_n)} found read`;
    const rate = timings.prompt_n > 0 ? `${count(timings.prompt_n)} read now, ${count(timings.prompt_per_second)} a second` : "none read now";
    return `${countOf(total, "token")}: ${found}, ${rate}`;
}
