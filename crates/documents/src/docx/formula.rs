//! Formulas as one line of text.

/// An open element of a formula.
#[derive(Debug, Default)]
struct Element {
    name: String,
    text: String,
    /// Parts with their own names, such as a numerator.
    parts: Vec<(String, String)>,
    /// Sign and brackets of the element, if they are not the usual ones.
    sign: Option<String>,
    open: Option<String>,
    close: Option<String>,
}

/// Deepest nesting of elements; deeper ones count as one.
const DEPTH: usize = 256;

/// A formula under construction.
#[derive(Debug, Default)]
pub(super) struct Formula {
    elements: Vec<Element>,
    deeper: usize,
}

impl Formula {
    pub(super) fn start(&mut self, name: &str, value: impl Fn() -> Option<String>) {
        if self.elements.len() >= DEPTH {
            self.deeper += 1;
            return;
        }
        // Properties are in a separate element within the one that they describe.
        let about = self
            .elements
            .len()
            .checked_sub(2)
            .and_then(|at| self.elements.get_mut(at));
        if let Some(about) = about {
            match name {
                "chr" => about.sign = value(),
                "begChr" => about.open = value().or_else(|| Some(String::new())),
                "endChr" => about.close = value().or_else(|| Some(String::new())),
                _ => {}
            }
        }
        self.elements.push(Element {
            name: name.to_owned(),
            ..Element::default()
        });
    }

    pub(super) fn text(&mut self, text: &str) {
        if let Some(last) = self.elements.last_mut() {
            last.text.push_str(text);
        }
    }

    /// Ends an element. Returns the formula after its last element.
    pub(super) fn end(&mut self) -> Option<String> {
        if self.deeper > 0 {
            self.deeper -= 1;
            return None;
        }
        let ended = self.elements.pop()?;
        let name = ended.name.clone();
        let text = ended.written();
        let Some(above) = self.elements.last_mut() else {
            return Some(text);
        };
        match &*name {
            "num" | "den" | "sup" | "sub" | "deg" | "fName" | "lim" | "e" | "mr" => above.parts.push((name, text)),
            _ => above.text.push_str(&text),
        }
        None
    }
}

impl Element {
    fn written(self) -> String {
        let part = |name: &str| {
            let found = self.parts.iter().find(|(known, _)| known == name);
            found.map(|(_, text)| text.clone()).unwrap_or_default()
        };
        let all = |name: &str, between: &str| {
            let found = self.parts.iter().filter(|(known, _)| known == name);
            found.map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(between)
        };
        let raised = |sign: char, name: &str| match part(name) {
            text if text.is_empty() => text,
            text => format!("{sign}{}", grouped(text)),
        };
        match &*self.name {
            "f" => format!("{}/{}", grouped(part("num")), grouped(part("den"))),
            "sSup" | "sSub" | "sSubSup" | "sPre" => {
                format!("{}{}{}", part("e"), raised('_', "sub"), raised('^', "sup"))
            }
            "rad" if part("deg").is_empty() => format!("√{}", grouped(part("e"))),
            "rad" => format!("root_{}{}", grouped(part("deg")), grouped(part("e"))),
            "nary" => {
                let sign = self.sign.clone().unwrap_or_else(|| "∫".to_owned());
                format!("{sign}{}{} {}", raised('_', "sub"), raised('^', "sup"), part("e"))
            }
            "d" => {
                let (open, close) = (
                    self.open.as_deref().unwrap_or("("),
                    self.close.as_deref().unwrap_or(")"),
                );
                format!("{open}{}{close}", all("e", "|"))
            }
            "func" => format!("{} {}", part("fName"), part("e")),
            "limLow" | "limUpp" => format!("{}_{}", part("e"), grouped(part("lim"))),
            "m" | "eqArr" => [all("mr", " ; "), all("e", " ; ")].concat(),
            "mr" => all("e", " , "),
            _ => {
                let parts: String = self.parts.iter().map(|(_, text)| text.as_str()).collect();
                format!("{}{parts}", self.text)
            }
        }
    }
}

/// Puts several signs in parentheses. One sign or a number stays as it is.
fn grouped(words: String) -> String {
    let is_one = words.chars().count() <= 1 || words.chars().all(|c| c.is_ascii_digit());
    if is_one { words } else { format!("({words})") }
}
