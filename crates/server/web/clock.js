// Work that is done again and again, or not too often.

/** Does `work` at once, and then every `period_ms` while the page can be seen. Returns a function that does it now. */
export function whileVisible(work, period_ms) {
    let timer = 0;
    const round = async () => {
        clearTimeout(timer);
        if (document.visibilityState === "visible") {
            await work();
            clearTimeout(timer);
            timer = setTimeout(round, period_ms);
        }
    };
    document.addEventListener("visibilitychange", round);
    round();
    return round;
}

/** A function that does `work` with its latest argument when the next picture is drawn, once. */
export function oncePerPicture(work) {
    let waits = false;
    let latest;
    return (argument) => {
        latest = argument;
        if (!waits) {
            waits = true;
            // Hidden pages draw no pictures, and go on all the same.
            const later = document.visibilityState === "visible" ? requestAnimationFrame : setTimeout;
            later(() => {
                waits = false;
                work(latest);
            });
        }
    };
}

/** A function that does `work` once nobody has called it for `pause_ms`. */
export function afterPause(work, pause_ms) {
    let timer = 0;
    return () => {
        clearTimeout(timer);
        timer = setTimeout(work, pause_ms);
    };
}
