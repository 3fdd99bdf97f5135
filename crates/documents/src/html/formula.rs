//! Formulas as text: their LaTeX annotation, otherwise one line with `^`, `_` and `/`.

use super::tree::{NodeId, Tree};

/// The text of a `math` element.
pub(super) fn text(tree: &Tree, math: NodeId) -> String {
    let words = match source(tree, math) {
        Some(source) => source,
        None => row(tree, math),
    };
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The LaTeX annotation of a formula.
fn source(tree: &Tree, math: NodeId) -> Option<String> {
    let mut left = vec![math];
    while let Some(node) = left.pop() {
        let is_tex = tree
            .attribute(node, "encoding")
            .is_some_and(|encoding| encoding.to_ascii_lowercase().contains("tex"));
        if is_tex && tree.element(node).is_some_and(|(name, _)| name == "annotation") {
            let words: String = tree.children(node).filter_map(|child| tree.text(child)).collect();
            return Some(words).filter(|words| !words.trim().is_empty());
        }
        // Annotations are beside the formula, never within its parts.
        if matches!(tree.element(node), Some(("math" | "semantics", _))) {
            left.extend(tree.children(node));
        }
    }
    None
}

/// The children of an element, concatenated.
fn row(tree: &Tree, node: NodeId) -> String {
    tree.children(node).map(|child| part(tree, child)).collect()
}

fn part(tree: &Tree, node: NodeId) -> String {
    if let Some(words) = tree.text(node) {
        // White space between elements is not part of the formula.
        return words.trim().to_owned();
    }
    let Some((name, _)) = tree.element(node) else {
        return String::new();
    };
    let children: Vec<NodeId> = tree
        .children(node)
        .filter(|child| tree.element(*child).is_some())
        .collect();
    let of = |at: usize| children.get(at).map(|child| part(tree, *child)).unwrap_or_default();
    match name {
        "annotation" | "annotation-xml" => String::new(),
        "mtext" | "ms" => format!(" {} ", row(tree, node)),
        "mo" => match &*row(tree, node) {
            // Invisible signs.
            "\u{2061}" | "\u{2062}" | "\u{2063}" | "\u{2064}" => String::new(),
            "," | ";" => format!("{} ", row(tree, node)),
            sign => sign.to_owned(),
        },
        "mspace" => " ".to_owned(),
        "mfrac" => format!("{}/{}", grouped(of(0)), grouped(of(1))),
        "msup" | "mover" => format!("{}^{}", of(0), grouped(of(1))),
        "msub" | "munder" => format!("{}_{}", of(0), grouped(of(1))),
        "msubsup" | "munderover" => format!("{}_{}^{}", of(0), grouped(of(1)), grouped(of(2))),
        "msqrt" => format!("√{}", grouped(row(tree, node))),
        "mroot" => format!("root_{}{}", grouped(of(1)), grouped(of(0))),
        "mtr" | "mlabeledtr" => children
            .iter()
            .map(|cell| part(tree, *cell))
            .collect::<Vec<_>>()
            .join(" , "),
        "mtable" => children
            .iter()
            .map(|row| part(tree, *row))
            .collect::<Vec<_>>()
            .join(" ; "),
        "mfenced" => format!(
            "({})",
            children
                .iter()
                .map(|child| part(tree, *child))
                .collect::<Vec<_>>()
                .join(", ")
        ),
        _ => row(tree, node),
    }
}

/// Several signs in parentheses.
fn grouped(words: String) -> String {
    let is_one = words.chars().count() <= 1 || words.chars().all(|c| c.is_ascii_digit());
    if is_one { words } else { format!("({})", words.trim()) }
}
