// The signs of LaTeX formulas.

const pairs = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => pair.split("=")));

/** Letters and signs that stand for themselves. */
export const SYMBOLS = pairs(`
alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ pi=π varpi=ϖ
rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ
Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂ nabla=∇ hbar=ℏ ell=ℓ Re=ℜ Im=ℑ aleph=ℵ emptyset=∅ varnothing=∅ forall=∀ exists=∃ nexists=∄
angle=∠ triangle=△ square=□ blacksquare=■ top=⊤ bot=⊥ imath=ı jmath=ȷ wp=℘ degree=° dots=… ldots=… cdots=⋯ vdots=⋮ ddots=⋱ dotsc=… dotsb=⋯
prime=′ backslash=\\ surd=√ checkmark=✓ dagger=† ddagger=‡ S=§ P=¶`);

/** Signs between terms. */
export const OPERATORS = pairs(`
times=× div=÷ cdot=⋅ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙ cap=∩ cup=∪ sqcup=⊔ setminus=∖ wedge=∧ land=∧
vee=∨ lor=∨ neg=¬ lnot=¬ le=≤ leq=≤ leqslant=⩽ ge=≥ geq=≥ geqslant=⩾ ne=≠ neq=≠ ll=≪ gg=≫ equiv=≡ sim=∼ simeq=≃ approx=≈ cong=≅ propto=∝
prec=≺ succ=≻ preceq=⪯ succeq=⪰ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ subsetneq=⊊ in=∈ ni=∋ notin=∉ mid=∣ nmid=∤ parallel=∥ perp=⊥ models=⊨
vdash=⊢ to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ implies=⟹ impliedby=⟸ iff=⟺ mapsto=↦
longrightarrow=⟶ longleftarrow=⟵ longmapsto=⟼ Longrightarrow=⟹ Longleftrightarrow=⟺ hookrightarrow=↪ uparrow=↑ downarrow=↓ updownarrow=↕ nearrow=↗
searrow=↘ rightharpoonup=⇀ leftharpoonup=↼ rightleftharpoons=⇌ leadsto=⇝ therefore=∴ because=∵ colon=: coloneqq=≔ triangleq=≜ doteq=≐ asymp=≍
bowtie=⋈ ltimes=⋉ rtimes=⋊ amalg=⨿ diamond=⋄ bigcirc=◯ lt=< gt=>`);

/** Large signs that have limits, such as sums. */
export const LARGE = pairs(`
sum=∑ prod=∏ coprod=∐ int=∫ iint=∬ iiint=∭ oint=∮ bigcup=⋃ bigcap=⋂ bigvee=⋁ bigwedge=⋀ bigoplus=⨁ bigotimes=⨂ bigodot=⨀ bigsqcup=⨆`);

/** Names that are written upright. */
export const FUNCTIONS = `arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf limsup ln log max min Pr sec sin sinh sup tan tanh`.split(" ");

/** Widths of white space. */
export const SPACES = { ",": "0.17em", ":": "0.22em", ">": "0.22em", ";": "0.28em", "!": "-0.17em", quad: "1em", qquad: "2em", space: "0.28em", enspace: "0.5em", thinspace: "0.17em" };

/** Signs above a term, or below it. */
export const ACCENTS = {
    hat: ["^"], widehat: ["^"], bar: ["¯"], overline: ["‾"], vec: ["→"], overrightarrow: ["→"], tilde: ["~"], widetilde: ["~"], dot: ["˙"], ddot: ["¨"],
    check: ["ˇ"], breve: ["˘"], acute: ["´"], grave: ["`"], mathring: ["˚"], overbrace: ["⏞"], underbrace: ["⏟", true], underline: ["_", true],
};

/** Commands that change letters. */
export const ALPHABETS = {
    mathbb: "double", mathcal: "script", mathscr: "script", mathfrak: "fraktur", mathbf: "bold", boldsymbol: "bold", bm: "bold", mathrm: "normal", mathit: "italic",
    mathsf: "sans", mathtt: "mono", rm: "normal",
};

/** Brackets, as they stand behind `\left`, `\right` and `\big`. */
export const DELIMITERS = {
    "(": "(", ")": ")", "[": "[", "]": "]", "|": "|", "/": "/", ".": "", "<": "⟨", ">": "⟩", "\\{": "{", "\\}": "}", "\\|": "‖", "\\langle": "⟨", "\\rangle": "⟩",
    "\\lfloor": "⌊", "\\rfloor": "⌋", "\\lceil": "⌈", "\\rceil": "⌉", "\\lvert": "|", "\\rvert": "|", "\\vert": "|", "\\lVert": "‖", "\\rVert": "‖", "\\Vert": "‖",
    "\\lbrace": "{", "\\rbrace": "}", "\\lbrack": "[", "\\rbrack": "]", "\\backslash": "\\", "\\uparrow": "↑", "\\downarrow": "↓",
};

/** Tables: the brackets around them, and the side of each column. */
export const FENCES = {
    matrix: { sides: "middle" }, smallmatrix: { sides: "middle" }, pmatrix: { sides: "middle", signs: ["(", ")"] }, bmatrix: { sides: "middle", signs: ["[", "]"] },
    Bmatrix: { sides: "middle", signs: ["{", "}"] }, vmatrix: { sides: "middle", signs: ["|", "|"] }, Vmatrix: { sides: "middle", signs: ["‖", "‖"] },
    cases: { sides: "left", signs: ["{", ""] }, array: { sides: "middle" }, aligned: { sides: "right left" }, align: { sides: "right left" }, alignat: { sides: "right left" },
    split: { sides: "right left" }, gathered: { sides: "middle" }, gather: { sides: "middle" }, equation: { sides: "middle" }, eqnarray: { sides: "right middle left" },
};

/** First letters of alphabets in Unicode: capitals, small letters, digits. */
const FIRST = {
    bold: [0x1d400, 0x1d41a, 0x1d7ce], italic: [0x1d434, 0x1d44e], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e], double: [0x1d538, 0x1d552, 0x1d7d8],
    sans: [0x1d5a0, 0x1d5ba, 0x1d7e2], mono: [0x1d670, 0x1d68a, 0x1d7f6],
};

/** Letters outside the alphabets' blocks, because Unicode had them earlier. */
const OLDER = {
    double: pairs("C=ℂ H=ℍ N=ℕ P=ℙ Q=ℚ R=ℝ Z=ℤ"), script: pairs("B=ℬ E=ℰ F=ℱ H=ℋ I=ℐ L=ℒ M=ℳ R=ℛ e=ℯ g=ℊ o=ℴ"),
    fraktur: pairs("C=ℭ H=ℌ I=ℑ R=ℜ Z=ℨ"), italic: pairs("h=ℎ"),
};

/** A letter or digit of an alphabet; others stay. */
export function styledLetter(letter, alphabet) {
    const older = OLDER[alphabet]?.[letter];
    const first = FIRST[alphabet];
    if (older || !first) {
        return older ?? letter;
    }
    const code = letter.codePointAt(0);
    const kinds = [["A", "Z"], ["a", "z"], ["0", "9"]];
    const kind = kinds.findIndex(([low, high]) => letter >= low && letter <= high);
    return kind >= 0 && first[kind] ? String.fromCodePoint(first[kind] + code - kinds[kind][0].codePointAt(0)) : letter;
}
