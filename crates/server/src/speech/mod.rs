//! Splits a model's output into text for the reader, thoughts, and tool calls in the marks of its family.

mod calls;
mod elements;
mod parameters;
mod pythonic;
mod styles;
mod tools;

use riffle_engine::Engine;
pub(crate) use styles::{CallStyle, CallSyntax, ThoughtMarks};
use styles::{Message, MessageMarks};
use tools::WrittenCall;
pub(crate) use tools::{Call, KnownTools, Tool, ToolKind, shown_name};

/// The model's markup of tool calls and thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Markup {
    calls: CallStyle,
    /// The marks around thoughts, if the model writes any.
    thoughts: Option<ThoughtMarks>,
    /// The marks of messages, if an answer has several.
    messages: Option<&'static MessageMarks>,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AnswerPiece {
    Text(String),
    Thought(String),
    Call(Call),
}

/// Splits an answer into its parts while it is generated.
#[derive(Debug, Clone)]
pub(crate) struct Speech {
    markup: Markup,
    /// The tools of the request. Without tools nothing counts as a call.
    tools: KnownTools,
    /// True if an answer without marks may be a call.
    takes_unmarked: bool,
    /// True if only the first call is reported.
    is_single: bool,
    state: State,
    /// Text that may still become a mark, a call or part of the answer.
    held: String,
    /// Bytes of `held` without the beginning of a call's end.
    searched: usize,
    /// True if anything but spaces has been reported.
    has_begun: bool,
    /// True if only spaces have followed a call.
    follows_call: bool,
    /// The tool in the header of the message.
    called: Option<String>,
    calls: usize,
    /// Number of tokens in thoughts, with their marks.
    thought_tokens: usize,
    /// Number of tokens that may be part of a mark.
    held_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The header of a message.
    Header,
    Text,
    Thought,
    Call,
}

impl Markup {
    /// Finds the markup of an engine's model in its chat template.
    pub(crate) fn detect(engine: &Engine) -> Self {
        let template = engine.chat_template();
        let mentions = |text: &str| template.is_some_and(|template| template.mentions(text));
        Self {
            calls: CallStyle::shown(mentions),
            thoughts: ThoughtMarks::shown(mentions),
            messages: MessageMarks::shown(mentions),
        }
    }

    /// True if a prompt ends inside a thought.
    pub(crate) fn ends_thinking(self, prompt: &str) -> bool {
        self.thoughts.is_some_and(|marks| {
            let before = prompt.trim_end().strip_suffix(marks.title);
            before.is_some_and(|before| before.ends_with(marks.begin))
        })
    }

    /// True if a begun answer ends inside a thought.
    pub(crate) fn is_open_thought(self, answer: &str) -> bool {
        self.thoughts
            .is_some_and(|marks| answer.rfind(marks.begin) > answer.rfind(marks.end))
    }

    /// The marks around thoughts.
    pub(crate) fn thoughts(self) -> ThoughtMarks {
        self.thoughts.unwrap_or(ThoughtMarks::THINK)
    }

    pub(crate) fn calls(self) -> CallStyle {
        self.calls
    }
}

/// True if a template that mentions these texts supports thoughts.
pub(crate) fn has_thoughts(mentions: impl Fn(&str) -> bool) -> bool {
    ThoughtMarks::shown(mentions).is_some()
}

impl Speech {
    /// Parser of an answer to a prompt; `is_thinking` is true if the prompt ends inside a thought.
    pub(crate) fn new(markup: Markup, tools: KnownTools, is_thinking: bool) -> Self {
        Self {
            markup,
            tools,
            takes_unmarked: true,
            searched: 0,
            is_single: false,
            state: match markup.messages {
                _ if is_thinking => State::Thought,
                Some(_) => State::Header,
                None => State::Text,
            },
            called: None,
            held: String::new(),
            has_begun: false,
            follows_call: false,
            calls: 0,
            thought_tokens: 0,
            held_tokens: 0,
        }
    }

    /// With `is_single`, only the first call is reported.
    pub(crate) fn with_single_call(self, is_single: bool) -> Self {
        Self { is_single, ..self }
    }

    /// Without `takes_unmarked`, only text between marks is a call.
    pub(crate) fn with_unmarked_calls(self, takes_unmarked: bool) -> Self {
        Self { takes_unmarked, ..self }
    }

    /// Treats thoughts as part of the answer's text.
    pub(crate) fn without_thoughts(mut self) -> Self {
        self.markup.thoughts = None;
        self.markup.messages = None;
        self.state = State::Text;
        self
    }

    /// True if a special token's text is a mark that text is searched for.
    pub(crate) fn is_mark(&self, special: &str) -> bool {
        let style = self.markup.calls;
        let mut marks = style.begins.iter().chain(&style.end).chain(style.inner);
        (self.takes_calls() && marks.any(|mark| *mark == special))
            || self.markup.messages.is_some_and(|marks| marks.has(special))
            || self
                .markup
                .thoughts
                .is_some_and(|marks| [marks.begin, marks.end].contains(&special))
    }

    fn takes_calls(&self) -> bool {
        !self.tools.is_empty()
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the next text of the answer, and returns the pieces that are certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<AnswerPiece> {
        let was_thinking = self.state == State::Thought;
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.advance(&mut pieces) {}
        self.held_tokens += 1;
        if was_thinking || self.state == State::Thought {
            self.thought_tokens += std::mem::take(&mut self.held_tokens);
        } else if self.held.is_empty() {
            self.held_tokens = 0;
        }
        pieces
    }

    /// Number of [pushed](Self::push) texts, one per token, that were part of a thought.
    pub(crate) fn thought_tokens(&self) -> usize {
        self.thought_tokens
    }

    /// The remaining pieces at the end of the answer.
    pub(crate) fn finish(&mut self) -> Vec<AnswerPiece> {
        let mut pieces = Vec::new();
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Text if self.may_be_unmarked_call(&held) => {
                let calls = calls::parse_unmarked(&held, &self.tools);
                self.push_calls_or_text(calls, &held, ("", ""), &mut pieces);
            }
            // A message that ends in its header is empty.
            State::Header if self.markup.messages.is_some_and(|marks| marks.may_be_header(&held)) => {}
            State::Header | State::Text => self.push_text(held, &mut pieces),
            State::Thought => push_thought(held, &mut pieces),
            State::Call => self.parse_calls(&held, (self.markup.calls.begin(), ""), &mut pieces),
        }
        pieces
    }

    /// Splits the held text as far as its meaning is certain. True if the rest may give more.
    fn advance(&mut self, pieces: &mut Vec<AnswerPiece>) -> bool {
        match self.state {
            State::Header => self.advance_header(),
            State::Text => self.advance_text(pieces),
            State::Thought => {
                let thought_end = [self.markup.thoughts().end];
                let ends = self.markup.messages.map_or(&thought_end[..], |marks| marks.ends);
                match first_of(&self.held, ends) {
                    Some((at, end)) => {
                        push_thought(self.take_before(at, end), pieces);
                        self.state = self.state_between_messages();
                        true
                    }
                    None => {
                        let certain = self.held.len() - open_end(&self.held, ends);
                        push_thought(self.take_before(certain, ""), pieces);
                        false
                    }
                }
            }
            State::Call => self.advance_call(pieces),
        }
    }

    /// Returns the text before `at`, and keeps the text after the mark there.
    fn take_before(&mut self, at: usize, mark: &str) -> String {
        let rest = self.held.split_off(at);
        std::mem::replace(&mut self.held, rest[mark.len()..].to_owned())
    }

    /// The state after a thought or a message.
    fn state_between_messages(&self) -> State {
        match self.markup.messages {
            Some(_) => State::Header,
            None => State::Text,
        }
    }

    fn advance_header(&mut self) -> bool {
        let Some(marks) = self.markup.messages else {
            self.state = State::Text;
            return true;
        };
        if !marks.may_be_header(&self.held) {
            // An answer with a form has no header.
            self.state = State::Text;
            return true;
        }
        let Some(at) = self.held.find(marks.body) else {
            return false;
        };
        let header = self.take_before(at, marks.body);
        (self.state, self.called) = match marks.message(&header, self.markup.calls) {
            Message::Thought => (State::Thought, None),
            Message::Call(name) if self.takes_calls() => (State::Call, Some(name.to_owned())),
            Message::Call(_) | Message::Text => (State::Text, None),
        };
        self.searched = 0;
        true
    }

    fn advance_call(&mut self, pieces: &mut Vec<AnswerPiece>) -> bool {
        let style = self.markup.calls;
        let (at, end) = match (&self.called, style.end) {
            (Some(_), _) => {
                let ends = self.markup.messages.map_or(&[][..], |marks| marks.ends);
                let Some(found) = first_of(&self.held, ends) else {
                    return false;
                };
                found
            }
            (None, None) => return false,
            (None, Some(end)) => {
                let Some(at) = calls::end_of(style, &self.held, end, self.searched) else {
                    self.searched = self.held.len() - open_end(&self.held, &[end]);
                    return false;
                };
                (at, end)
            }
        };
        let is_message = self.called.is_some();
        let call = self.take_before(at, end);
        self.parse_calls(&call, (style.begin(), if is_message { "" } else { end }), pieces);
        self.state = if is_message { State::Header } else { State::Text };
        true
    }

    fn advance_text(&mut self, pieces: &mut Vec<AnswerPiece>) -> bool {
        if self.may_be_unmarked_call(&self.held) {
            return false;
        }
        if let Some(is_certain) = self.advance_to_thought() {
            return is_certain;
        }
        let begins = if self.takes_calls() {
            self.markup.calls.begins
        } else {
            &[]
        };
        let ends = self.markup.messages.map_or(&[][..], |marks| marks.ends);
        let marks: Vec<&'static str> = begins.iter().chain(ends).copied().collect();
        let Some((at, mark)) = first_of(&self.held, &marks) else {
            let certain = self.held.len() - open_end(&self.held, &marks);
            let text = self.take_before(certain, "");
            self.push_text(text, pieces);
            return false;
        };
        let text = self.take_before(at, mark);
        self.push_text(text, pieces);
        self.state = if ends.contains(&mark) {
            State::Header
        } else {
            State::Call
        };
        (self.called, self.searched) = (None, 0);
        true
    }

    /// Begins a thought at the start of an answer; marks of thoughts after text are text. True if more can be split,
    /// false if more text is needed, `None` if no thought begins.
    fn advance_to_thought(&mut self) -> Option<bool> {
        let marks = self.markup.thoughts.filter(|_| !self.has_begun)?;
        let text = self.held.trim_start();
        for (mark, title, state) in [(marks.begin, marks.title, State::Thought), (marks.end, "", State::Text)] {
            if let Some(rest) = text.strip_prefix(mark) {
                if rest.len() < title.len() && title.starts_with(rest) {
                    return Some(false);
                }
                self.held = rest.strip_prefix(title).unwrap_or(rest).to_owned();
                self.state = state;
                return Some(true);
            }
            if !text.is_empty() && mark.starts_with(text) {
                return Some(false);
            }
        }
        None
    }

    /// True if a whole answer may be a call without marks. Models whose calls have marks sometimes forget them.
    fn may_be_unmarked_call(&self, text: &str) -> bool {
        if !self.takes_calls() || !self.takes_unmarked || self.has_begun {
            return false;
        }
        let begins = |text: &str| text.starts_with(['{', '[']) || text.starts_with("```");
        let text = text.trim_start();
        match self.markup.calls.syntax {
            CallSyntax::Bare => begins(text) || text.is_empty() || "```".starts_with(text),
            _ => calls::may_be_unmarked(text, &self.tools),
        }
    }

    fn push_text(&mut self, mut text: String, pieces: &mut Vec<AnswerPiece>) {
        // Spaces around thoughts and calls are dropped.
        if self.follows_call {
            text = text.trim_start().to_owned();
        }
        let is_blank = text.trim().is_empty();
        if is_blank && !self.has_begun && (self.markup.thoughts.is_some() || self.takes_calls()) {
            return;
        }
        if !text.is_empty() {
            self.has_begun |= !is_blank;
            self.follows_call = false;
            pieces.push(AnswerPiece::Text(text));
        }
    }

    /// Adds the calls that a text spells. A text without calls stays text, with its marks.
    fn parse_calls(&mut self, text: &str, marks: (&str, &str), pieces: &mut Vec<AnswerPiece>) {
        let calls = match self.called.take() {
            Some(name) => calls::parse_arguments(name, text).map(|call| vec![call]),
            None => calls::parse(self.markup.calls.syntax, text, &self.tools),
        };
        self.push_calls_or_text(calls, text, marks, pieces);
    }

    fn push_calls_or_text(
        &mut self,
        calls: Option<Vec<WrittenCall>>,
        text: &str,
        (begin, end): (&str, &str),
        pieces: &mut Vec<AnswerPiece>,
    ) {
        match calls {
            Some(mut calls) if !calls.is_empty() => {
                if self.is_single {
                    calls.truncate(1usize.saturating_sub(self.calls));
                }
                self.calls += calls.len();
                (self.has_begun, self.follows_call) = (true, true);
                pieces.extend(calls.into_iter().map(|call| AnswerPiece::Call(self.tools.call(call))));
            }
            _ => self.push_text(format!("{begin}{text}{end}"), pieces),
        }
    }
}

fn push_thought(thought: String, pieces: &mut Vec<AnswerPiece>) {
    if !thought.is_empty() {
        pieces.push(AnswerPiece::Thought(thought));
    }
}

/// The first of the marks in a text, and its position.
fn first_of(text: &str, marks: &[&'static str]) -> Option<(usize, &'static str)> {
    let places = marks.iter().filter_map(|mark| Some((text.find(mark)?, *mark)));
    places.min_by_key(|(at, _)| *at)
}

/// Bytes at the end of a text that may begin one of the marks.
fn open_end(text: &str, marks: &[&str]) -> usize {
    let open = |mark: &str| {
        let longest = text.len().min(mark.len() - 1);
        (1..=longest)
            .rev()
            .find(|length| {
                text.is_char_boundary(text.len() - length)
                    && mark.as_bytes().starts_with(&text.as_bytes()[text.len() - length..])
            })
            .unwrap_or(0)
    };
    marks.iter().map(|mark| open(mark)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
