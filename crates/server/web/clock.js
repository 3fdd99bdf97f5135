// Repeats work, or limits how often it runs.

/** Does `work` at once, then every `period_ms` while the page is visible. Returns a function that does it now. */
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

/** A function that does `work` once before the next frame, with the latest argument. */
export function oncePerPicture(work) {
    let waits = false;
    let latest;
    return (argument) => {
        latest = argument;
        if (!waits) {
            waits = true;
            // Hidden pages draw no frames, but their work continues.
            const later = document.visibilityState === "visible" ? requestAnimationFrame : setTimeout;
            later(() => {
                waits = false;
                work(latest);
            });
        }
    };
}

/** A function that does `work` after `pause_ms` without a further call. */
export function afterPause(work, pause_ms) {
    let timer = 0;
    return () => {
        clearTimeout(timer);
        timer = setTimeout(work, pause_ms);
    };
}
