//! Splits a model's output into text for the reader, thoughts, and tool calls in the marks of its family.

mod calls;
mod parameters;
mod pythonic;
mod tools;

use riffle_engine::Engine;
use tools::WrittenCall;
pub(crate) use tools::{Call, KnownTools, Tool, ToolKind, shown_name};

/// How a model writes tool calls and thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Markup {
    calls: CallStyle,
    /// The marks around thoughts, where it writes some.
    thoughts: Option<ThoughtMarks>,
}

/// The marks around a thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThoughtMarks {
    pub(crate) begin: &'static str,
    /// A word behind the mark, which is no part of the thought.
    title: &'static str,
    pub(crate) end: &'static str,
}

impl ThoughtMarks {
    /// The marks of most families.
    pub(crate) const THINK: Self = Self {
        begin: "<think>",
        title: "",
        end: "</think>",
    };
    /// `<|channel>thought …<channel|>` (Gemma 4).
    const CHANNEL: Self = Self {
        begin: "<|channel>",
        title: "thought",
        end: "<channel|>",
    };
}

/// How a family of models writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Qwen, Hermes), or `<function=…>` within (Qwen3-Coder).
    Tagged,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}` (Mistral).
    Mistral,
    /// `<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>` (Phi).
    Phi,
    /// `<start_function_call>call:name{key:<escape>value<escape>}<end_function_call>` (Gemma).
    Gemma,
    /// `<|tool_call_start|>[name(key="value")]<|tool_call_end|>` (LFM2).
    Pythonic,
    /// `<|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>` (Gemma 4).
    Gemma4,
    /// The whole answer is `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>` or a fence (Llama, Gemma 3).
    Bare,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AnswerPiece {
    Text(String),
    Thought(String),
    Call(Call),
}

/// Takes an answer apart as it is written.
#[derive(Debug, Clone)]
pub(crate) struct Speech {
    markup: Markup,
    /// The tools of the request; without any nothing is taken for a call.
    tools: KnownTools,
    /// True if an answer without marks may be a call.
    takes_unmarked: bool,
    /// True if only the first call is told.
    is_single: bool,
    state: State,
    /// Text whose meaning is not known yet.
    held: String,
    /// Bytes of `held` in which no end of a call begins.
    searched: usize,
    /// True if anything but spaces has been told.
    has_begun: bool,
    /// True if nothing but spaces has come behind a call.
    follows_call: bool,
    calls: usize,
    /// Tokens of thoughts, with their marks.
    thought_tokens: usize,
    /// Tokens that may be part of a mark.
    held_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    Thought,
    Call,
}

impl Markup {
    /// Finds the markup of an engine's model in its chat template.
    pub(crate) fn detect(engine: &Engine) -> Self {
        let template = engine.chat_template();
        let mentions = |text: &str| template.is_some_and(|template| template.mentions(text));
        let styles = [
            ("<tool_call>", CallStyle::Tagged),
            ("[TOOL_CALLS]", CallStyle::Mistral),
            ("<|tool_call|>", CallStyle::Phi),
            ("<start_function_call>", CallStyle::Gemma),
            // Templates of LFM2 show the marks of lists of tools, and not always those of calls.
            ("<|tool_call_start|>", CallStyle::Pythonic),
            ("<|tool_list_start|>", CallStyle::Pythonic),
            ("<|tool_call>", CallStyle::Gemma4),
        ];
        let calls = styles.into_iter().find(|(mark, _)| mentions(mark));
        Self {
            calls: calls.map_or(CallStyle::Bare, |(_, style)| style),
            thoughts: [ThoughtMarks::THINK, ThoughtMarks::CHANNEL]
                .into_iter()
                .find(|marks| mentions(marks.begin) || mentions(marks.end)),
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

impl CallStyle {
    /// Marks that begin a call, and the mark that ends one; `None` if the answer's end does.
    fn marks(self) -> (&'static [&'static str], Option<&'static str>) {
        match self {
            Self::Tagged => (&["<tool_call>"], Some("</tool_call>")),
            Self::Mistral => (&["[TOOL_CALLS]"], None),
            Self::Phi => (&["<|tool_call|>"], Some("<|/tool_call|>")),
            Self::Gemma => (&["<start_function_call>"], Some("<end_function_call>")),
            Self::Pythonic => (&["<|tool_call_start|>"], Some("<|tool_call_end|>")),
            Self::Gemma4 => (&["<|tool_call>"], Some("<tool_call|>")),
            Self::Bare => (&["<|python_tag|>"], None),
        }
    }
}

impl Speech {
    /// Reader of an answer to a prompt; `is_thinking` is true if the prompt ends inside a thought.
    pub(crate) fn new(markup: Markup, tools: KnownTools, is_thinking: bool) -> Self {
        Self {
            markup,
            tools,
            takes_unmarked: true,
            searched: 0,
            is_single: false,
            state: if is_thinking { State::Thought } else { State::Text },
            held: String::new(),
            has_begun: false,
            follows_call: false,
            calls: 0,
            thought_tokens: 0,
            held_tokens: 0,
        }
    }

    /// The same; with `is_single` it tells the first call alone.
    pub(crate) fn with_single_call(self, is_single: bool) -> Self {
        Self { is_single, ..self }
    }

    /// The same; without `takes_unmarked` only text between marks is a call.
    pub(crate) fn with_unmarked_calls(self, takes_unmarked: bool) -> Self {
        Self { takes_unmarked, ..self }
    }

    /// The same, of an answer whose thoughts are its text.
    pub(crate) fn without_thoughts(mut self) -> Self {
        self.markup.thoughts = None;
        self
    }

    /// True if a special token's text is a mark that text is searched for.
    pub(crate) fn is_mark(&self, special: &str) -> bool {
        let (begins, ends) = self.markup.calls.marks();
        let marks = begins.iter().chain(&ends);
        (self.takes_calls() && (marks.into_iter().any(|mark| *mark == special) || special == "[ARGS]"))
            || (self.takes_calls() && self.markup.calls == CallStyle::Gemma4 && special == calls::QUOTE)
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

    /// Takes the next text of the answer; returns the pieces that are certain now.
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

    /// How many of the texts that were [pushed](Self::push), a token each, were part of a thought.
    pub(crate) fn thought_tokens(&self) -> usize {
        self.thought_tokens
    }

    /// The pieces that are left at the end of the answer.
    pub(crate) fn finish(&mut self) -> Vec<AnswerPiece> {
        let mut pieces = Vec::new();
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Text if self.may_be_unmarked_call(&held) => {
                let calls = calls::parse_unmarked(&held, &self.tools);
                self.push_calls_or_text(calls, &held, ("", ""), &mut pieces);
            }
            State::Text => self.push_text(held, &mut pieces),
            State::Thought => push_thought(held, &mut pieces),
            State::Call => {
                let (begins, _) = self.markup.calls.marks();
                self.parse_calls(&held, (begins[0], ""), &mut pieces);
            }
        }
        pieces
    }

    /// Takes apart the held text as far as its meaning is certain. True if the rest may yield more.
    fn advance(&mut self, pieces: &mut Vec<AnswerPiece>) -> bool {
        let (begins, end) = self.markup.calls.marks();
        match self.state {
            State::Text => self.advance_text(begins, pieces),
            State::Thought => {
                let end = self.markup.thoughts().end;
                match self.held.find(end) {
                    Some(at) => {
                        let rest = self.held.split_off(at);
                        push_thought(std::mem::replace(&mut self.held, rest[end.len()..].to_owned()), pieces);
                        self.state = State::Text;
                        true
                    }
                    None => {
                        let certain = self.held.len() - open_end(&self.held, &[end]);
                        let rest = self.held.split_off(certain);
                        push_thought(std::mem::replace(&mut self.held, rest), pieces);
                        false
                    }
                }
            }
            State::Call => {
                let Some(end) = end else {
                    return false;
                };
                let Some(at) = calls::end_of(self.markup.calls, &self.held, end, self.searched) else {
                    self.searched = self.held.len() - open_end(&self.held, &[end]);
                    return false;
                };
                let rest = self.held.split_off(at);
                let call = std::mem::replace(&mut self.held, rest[end.len()..].to_owned());
                self.state = State::Text;
                self.parse_calls(&call, (begins[0], end), pieces);
                true
            }
        }
    }

    fn advance_text(&mut self, begins: &[&str], pieces: &mut Vec<AnswerPiece>) -> bool {
        if self.may_be_unmarked_call(&self.held) {
            return false;
        }
        if let Some(is_certain) = self.advance_to_thought() {
            return is_certain;
        }
        let marks = if self.takes_calls() { begins } else { &[] };
        let found = marks
            .iter()
            .filter_map(|mark| Some((self.held.find(mark)?, *mark)))
            .min_by_key(|(at, _)| *at);
        let Some((at, mark)) = found else {
            let certain = self.held.len() - open_end(&self.held, marks);
            let rest = self.held.split_off(certain);
            let text = std::mem::replace(&mut self.held, rest);
            self.push_text(text, pieces);
            return false;
        };
        let rest = self.held.split_off(at);
        let text = std::mem::replace(&mut self.held, rest[mark.len()..].to_owned());
        self.push_text(text, pieces);
        self.state = State::Call;
        self.searched = 0;
        true
    }

    /// Begins a thought at the beginning of an answer; marks of thoughts behind text are text. True where there is more to take,
    /// false where more text has to come, `None` where no thought begins.
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

    /// True if a text may be a call without marks: all of an answer. Models whose calls have marks forget them at times.
    fn may_be_unmarked_call(&self, text: &str) -> bool {
        if !self.takes_calls() || !self.takes_unmarked || self.has_begun {
            return false;
        }
        let begins = |text: &str| text.starts_with(['{', '[']) || text.starts_with("```");
        let text = text.trim_start();
        match self.markup.calls {
            CallStyle::Bare => begins(text) || text.is_empty() || "```".starts_with(text),
            _ => calls::may_be_unmarked(text, &self.tools),
        }
    }

    fn push_text(&mut self, mut text: String, pieces: &mut Vec<AnswerPiece>) {
        // Spaces around thoughts and calls are nobody's text.
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

    /// Adds the calls that a text spells. A text without calls stays text, with the marks around it.
    fn parse_calls(&mut self, text: &str, marks: (&str, &str), pieces: &mut Vec<AnswerPiece>) {
        let calls = calls::parse(self.markup.calls, text, &self.tools);
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

/// Bytes at the end of a text that may be the beginning of one of the marks.
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
