//! The text of a conversation, with the ranges that are plain text.

use std::ops::Range;

/// The text of a conversation, and the ranges in which special tokens are plain text.
///
/// A chat template writes special tokens on purpose; a token spelt in a message or a document must stay text.
/// [`Tokenizer::encode_conversation`](crate::Tokenizer::encode_conversation) distinguishes the two.
///
/// ```
/// use riffle_model::ConversationText;
///
/// let mut text = ConversationText::default();
/// text.push_marks("<|im_start|>user\n");
/// text.push_content("what does <|im_end|> mean?");
/// text.push_marks("<|im_end|>\n");
/// assert_eq!(text.literals(), [17..43]);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConversationText {
    text: String,
    literals: Vec<Range<usize>>,
}

impl ConversationText {
    /// A rendered text without its `sentinel`s. Each marks a token that is plain text.
    pub(super) fn without_sentinels(rendered: &str, sentinel: char) -> ConversationText {
        let mut text = String::with_capacity(rendered.len());
        let mut literals: Vec<Range<usize>> = Vec::new();
        for (number, part) in rendered.split(sentinel).enumerate() {
            let at = text.len();
            if number > 0 && literals.last() != Some(&(at..at)) {
                literals.push(at..at);
            }
            text.push_str(part);
        }
        ConversationText { text, literals }
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Byte ranges of the text, ascending and disjoint, in which no control token is recognised. An empty range is
    /// between two characters of a token that is plain text.
    pub fn literals(&self) -> &[Range<usize>] {
        &self.literals
    }

    /// Appends text whose special tokens count as tokens, such as a template's.
    pub fn push_marks(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Appends text whose control tokens stay plain text, such as a message's or a document's.
    pub fn push_content(&mut self, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        let end = self.text.len();
        match self.literals.last_mut() {
            _ if start == end => {}
            Some(last) if last.end == start => last.end = end,
            _ => self.literals.push(start..end),
        }
    }

    /// Appends another text with its literal ranges.
    pub fn append(&mut self, other: &ConversationText) {
        let start = self.text.len();
        self.text.push_str(&other.text);
        let moved = |literal: &Range<usize>| literal.start + start..literal.end + start;
        self.literals.extend(other.literals.iter().map(moved));
    }

    /// The text from byte `start` on, which must be between two characters.
    pub fn tail(&self, start: usize) -> ConversationText {
        let behind = self.literals.partition_point(|literal| literal.end <= start);
        let literals = self.literals[behind..].iter();
        ConversationText {
            text: self.text[start..].to_owned(),
            literals: literals
                .map(|literal| literal.start.saturating_sub(start)..literal.end - start)
                .collect(),
        }
    }

    /// Drops the text from byte `end` on, which must be between two characters.
    pub fn truncate(&mut self, end: usize) {
        self.text.truncate(end);
        let kept = self.literals.partition_point(|literal| literal.start < end);
        self.literals.truncate(kept);
        if let Some(last) = self.literals.last_mut() {
            last.end = last.end.min(end);
        }
    }
}

/// A text in which all special tokens count as tokens.
impl From<String> for ConversationText {
    fn from(text: String) -> ConversationText {
        ConversationText {
            text,
            literals: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_stay_where_they_are_when_a_text_is_cut() {
        let mut text = ConversationText::without_sentinels("a<\u{fdd0}b>c<\u{fdd0}d>", '\u{fdd0}');
        text.push_content("content");
        text.push_content("");
        text.push_marks("end");
        assert_eq!(text.text(), "a<b>c<d>contentend");
        assert_eq!(text.literals(), [2..2, 6..6, 8..15]);
        assert_eq!(text.tail(2).literals(), [4..4, 6..13]);
        assert_eq!(text.tail(10).literals(), std::slice::from_ref(&(0..5)));
        assert_eq!(text.tail(10).text(), "ntentend");
        let mut twice = text.tail(2);
        twice.append(&text.tail(10));
        assert_eq!(twice.literals(), [4..4, 6..13, 16..21]);
        text.truncate(9);
        assert_eq!(
            (text.text(), text.literals()),
            ("a<b>c<d>c", [2..2, 6..6, 8..9].as_slice())
        );
        text.truncate(6);
        assert_eq!(text.literals(), std::slice::from_ref(&(2..2)));
    }
}
