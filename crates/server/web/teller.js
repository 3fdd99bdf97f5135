// Tells a screen reader about an answer.

import { announce } from "./elements.js";
import { countOf } from "./numbers.js";

/** Characters of an answer that a screen reader gets at a time. */
const MOST_SPOKEN = 1200;

/** Tells a screen reader the progress of an answer, with pauses. */
export class Teller {
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
