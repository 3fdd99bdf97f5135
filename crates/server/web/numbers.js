// Numbers in plain English.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 12,345 */
export function count(number) {
    return whole.format(number);
}

/** "1 token", "12,345 tokens" */
export function countOf(number, one, many = `${one}s`) {
    return `${count(number)} ${Math.round(number) === 1 ? one : many}`;
}

/** "512 B", "1.4 GiB" */
export function bytes(number) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (number >= 1000 && unit < units.length - 1) {
        number /= 1024;
        unit += 1;
    }
    return `${unit === 0 || number >= 100 ? count(number) : number.toFixed(1)} ${units[unit]}`;
}

/** "0.42 s", "12.3 s", "3 min 20 s", "2 h 5 min" */
export function seconds(number) {
    if (number < 1) {
        return `${number.toFixed(2)} s`;
    }
    if (number < 60) {
        return `${number.toFixed(1)} s`;
    }
    if (number < 3600) {
        const rest = Math.round(number % 60);
        return `${Math.floor(number / 60)} min ${rest} s`;
    }
    return `${Math.floor(number / 3600)} h ${Math.round((number % 3600) / 60)} min`;
}

/** "about 20 s left", "about 3 min left" */
export function timeLeft(number) {
    if (number < 10) {
        return "a few seconds left";
    }
    if (number < 90) {
        return `about ${Math.ceil(number / 5) * 5} s left`;
    }
    if (number < 5400) {
        return `about ${Math.round(number / 60)} min left`;
    }
    return `about ${(number / 3600).toFixed(1)} h left`;
}

/** "11%", "0.4%", "99.96%": shares near 0 or 1 have more digits. */
export function share(part) {
    const percent = part * 100;
    if (percent === 0 || percent === 100) {
        return `${percent}%`;
    }
    if (percent > 99 && percent < 100) {
        return `${(Math.floor(percent * 100) / 100).toFixed(2)}%`;
    }
    return percent < 10 ? `${percent.toPrecision(2)}%` : `${percent.toFixed(0)}%`;
}

/** "1.2 billion" */
export function large(number) {
    const words = [
        [1e15, "quadrillion"],
        [1e12, "trillion"],
        [1e9, "billion"],
        [1e6, "million"],
    ];
    for (const [size, word] of words) {
        if (number >= size) {
            return `${(number / size).toFixed(2)} ${word}`;
        }
    }
    return count(number);
}
