// Reading zip archives.

const END = 0x06054b50;
const ENTRY = 0x02014b50;
const LOCAL = 0x04034b50;

/** Most bytes that one file may unfold to. */
const MOST_BYTES = 256 * 1024 * 1024;

/** A zip archive in memory. Its errors are texts for the user, without the archive's name. */
export class Zip {
    #bytes;
    #view;
    #entries = new Map();

    /** Reads the list of files of an `ArrayBuffer`. */
    constructor(buffer) {
        this.#bytes = new Uint8Array(buffer);
        this.#view = new DataView(buffer);
        this.#readList();
    }

    has(name) {
        return this.#entries.has(name);
    }

    /** A file's bytes. */
    async bytes(name) {
        const entry = this.#entries.get(name);
        if (!entry) {
            throw new Error(`lacks the file ${name}`);
        }
        if (entry.isEncrypted) {
            throw new Error("is protected by a password");
        }
        if (entry.size > MOST_BYTES) {
            throw new Error(`has a file of ${entry.size} bytes, which is more than this page unfolds`);
        }
        const start = this.#startOf(entry);
        const packed = this.#bytes.subarray(start, start + entry.packed);
        switch (entry.method) {
            case 0:
                return packed;
            case 8:
                return inflate(packed, entry.size);
            default:
                throw new Error(`is packed in a way (method ${entry.method}) that this page cannot unpack`);
        }
    }

    /** A file's text, which must be UTF-8 or UTF-16 with a mark. */
    async text(name) {
        const bytes = await this.bytes(name);
        const isWide = (bytes[0] === 0xff && bytes[1] === 0xfe) || (bytes[0] === 0xfe && bytes[1] === 0xff);
        const encoding = !isWide ? "utf-8" : bytes[0] === 0xff ? "utf-16le" : "utf-16be";
        return new TextDecoder(encoding).decode(bytes);
    }

    #readList() {
        const end = this.#findEnd();
        const count = this.#view.getUint16(end + 10, true);
        let place = this.#view.getUint32(end + 16, true);
        if (count === 0xffff || place === 0xffffffff) {
            throw new Error("is a zip archive of the 64-bit kind, which this page cannot read");
        }
        for (let number = 0; number < count; number += 1) {
            if (place + 46 > this.#bytes.length || this.#view.getUint32(place, true) !== ENTRY) {
                throw new Error("is damaged: its list of files cannot be read");
            }
            place = this.#readEntry(place);
        }
    }

    /** Reads one line of the list, and returns where the next begins. */
    #readEntry(place) {
        const view = this.#view;
        const nameBytes = view.getUint16(place + 28, true);
        const after = place + 46 + nameBytes;
        const name = new TextDecoder().decode(this.#bytes.subarray(place + 46, after));
        this.#entries.set(name, {
            isEncrypted: (view.getUint16(place + 8, true) & 1) === 1,
            method: view.getUint16(place + 10, true),
            packed: view.getUint32(place + 20, true),
            size: view.getUint32(place + 24, true),
            local: view.getUint32(place + 42, true),
        });
        return after + view.getUint16(place + 30, true) + view.getUint16(place + 32, true);
    }

    #findEnd() {
        const length = this.#bytes.length;
        // A comment of at most 65,535 bytes may follow.
        for (let place = length - 22; place >= Math.max(0, length - 22 - 0xffff); place -= 1) {
            if (this.#view.getUint32(place, true) === END) {
                return place;
            }
        }
        throw new Error("is not a whole zip archive");
    }

    #startOf(entry) {
        const { local } = entry;
        if (local + 30 > this.#bytes.length || this.#view.getUint32(local, true) !== LOCAL) {
            throw new Error("is damaged: a file in it is not where its list says");
        }
        return local + 30 + this.#view.getUint16(local + 26, true) + this.#view.getUint16(local + 28, true);
    }
}

async function inflate(packed, size) {
    const bytes = new Uint8Array(size);
    let filled = 0;
    try {
        const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
        const reader = stream.getReader();
        for (;;) {
            const { done, value } = await reader.read();
            if (done) {
                break;
            }
            // A piece that goes beyond the stated size throws.
            bytes.set(value, filled);
            filled += value.length;
        }
    } catch {
        throw new Error("is damaged: a file in it cannot be unpacked");
    }
    if (filled !== size) {
        throw new Error("is damaged: a file in it is cut short");
    }
    return bytes;
}
