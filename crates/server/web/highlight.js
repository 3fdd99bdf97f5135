// Colours of code: comments, texts, numbers and words of the language.

/** Longer code stays plain. */
const LONGEST = 60_000;

const words = (text) => new Set(text.trim().split(/\s+/));
const C_WORDS = "break case const continue default do else enum extern for goto if inline return sizeof static struct switch typedef union void volatile while";
const C_TYPES = "bool char double float int long short signed size_t unsigned auto true false nullptr NULL";
const SCRIPT = `async await break case catch class const continue debugger default delete do else export extends false finally for from function get if import in
instanceof let new null of return set static super switch this throw true try typeof undefined var void while with yield`;

const SLASHES = String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
const HASH = String.raw`#[^\n]*`;
const QUOTES = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const TICKS = "`(?:[^`\\\\]|\\\\[^])*`?";

const LANGUAGES = {
    python: [HASH, String.raw`[rbfuRBFU]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${QUOTES})`,
        words(`and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass
        raise return try while with yield True False None self`)],
    javascript: [SLASHES, `${QUOTES}|${TICKS}`, words(SCRIPT)],
    typescript: [SLASHES, `${QUOTES}|${TICKS}`, words(`${SCRIPT} abstract any as boolean declare enum implements interface keyof namespace never number private protected public readonly string type unknown`)],
    rust: [SLASHES, String.raw`b?r#*"[^]*?"#*|b?"(?:[^"\\]|\\[^])*"?|b?'(?:[^'\\\n]|\\[^'\n]+)'`,
        words(`as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super
        trait true type unsafe use where while bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize String Vec Option Result Some None Ok Err Box`)],
    c: [SLASHES, QUOTES, words(`${C_WORDS} ${C_TYPES}`)],
    cpp: [SLASHES, QUOTES, words(`${C_WORDS} ${C_TYPES} catch class concept constexpr delete explicit friend namespace new noexcept operator override private protected public
        requires template this throw try typename using virtual std string vector`)],
    java: [SLASHES, `"""[^]*?"""|${QUOTES}`, words(`${C_WORDS} abstract assert boolean byte catch char class double extends final finally float implements import instanceof int interface long
        native new null package private protected public record short super synchronized this throw throws true false try var yield String`)],
    go: [SLASHES, `${QUOTES}|${TICKS}`, words(`break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct
        switch type var true false nil bool byte error float32 float64 int int32 int64 rune string uint uint8 any make len append`)],
    shell: [HASH, QUOTES, words(`case do done elif else esac exit export fi for function if in local return set shift then until while cd echo grep sed awk cat sudo`)],
    sql: [String.raw`--[^\n]*|\/\*[^]*?(?:\*\/|$)`, QUOTES, words(`select from where and or not insert into values update set delete create table alter drop index view join left right inner outer
        on group by order having limit offset union all as distinct null is in like between case when then else end primary key foreign references default begin commit with`), true],
    json: ["(?!)", QUOTES, words("true false null")],
    toml: [HASH, `"""[^]*?"""|'''[^]*?'''|${QUOTES}`, words("true false")],
    yaml: [HASH, QUOTES, words("true false null yes no")],
    css: [String.raw`\/\*[^]*?(?:\*\/|$)`, QUOTES, words("important media supports import from to and not var calc none auto inherit")],
    html: ["<!--[^]*?(?:-->|$)", QUOTES, words("html head body div span p a ul ol li script style link meta title table tr td th form input button h1 h2 h3 img class id href src")],
};

const OTHER_NAMES = {
    py: "python", python3: "python", js: "javascript", jsx: "javascript", mjs: "javascript", node: "javascript", ts: "typescript", tsx: "typescript", rs: "rust", h: "c",
    "c++": "cpp", cc: "cpp", hpp: "cpp", cs: "java", csharp: "java", kotlin: "java", kt: "java", swift: "java", scala: "java", golang: "go", bash: "shell", sh: "shell", zsh: "shell", console: "shell",
    yml: "yaml", ini: "toml", jsonc: "json", xml: "html", svg: "html", scss: "css", dockerfile: "shell", makefile: "shell", postgresql: "sql", ruby: "python", rb: "python",
};

/** Nodes of code: texts, and spans with a class for what has a colour. */
export function highlighted(text, language) {
    const name = language.toLowerCase();
    const known = LANGUAGES[OTHER_NAMES[name] ?? name];
    if (!known || text.length > LONGEST) {
        return [text];
    }
    const [comment, quoted, keywords, ignoresCase] = known;
    const pattern = new RegExp(`(?<comment>${comment})|(?<quoted>${quoted})|(?<number>\\b(?:0[xob][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?)\\w*)|(?<word>[\\p{L}_][\\p{L}\\p{N}_]*)`, "gu");
    const nodes = [];
    let plain = "";
    let end = 0;
    const push = (kind, part) => {
        if (plain) {
            nodes.push(plain);
            plain = "";
        }
        const span = document.createElement("span");
        span.className = `code-${kind}`;
        span.textContent = part;
        nodes.push(span);
    };
    for (const match of text.matchAll(pattern)) {
        plain += text.slice(end, match.index);
        end = match.index + match[0].length;
        const { comment: isComment, quoted: isQuoted, number: isNumber, word } = match.groups;
        if (word !== undefined && !keywords.has(ignoresCase ? word.toLowerCase() : word)) {
            text[end] === "(" ? push("call", word) : (plain += word);
        } else if (match[0]) {
            push(isComment ? "comment" : isQuoted ? "text" : isNumber ? "number" : "word", match[0]);
        }
    }
    plain += text.slice(end);
    return plain ? [...nodes, plain] : nodes;
}
