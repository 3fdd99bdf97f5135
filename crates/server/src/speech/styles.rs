//! The marks of model families: a row for each form of calls and thoughts.

/// A family's form of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallStyle {
    /// Texts of a chat template that identify the style.
    hints: &'static [&'static str],
    /// Marks that begin calls.
    pub(crate) begins: &'static [&'static str],
    /// The end mark; `None` if the answer's end ends the call.
    pub(crate) end: Option<&'static str>,
    /// Special tokens that may stand between the start mark and the end mark.
    pub(super) inner: &'static [&'static str],
    pub(crate) syntax: CallSyntax,
}

/// The text between the marks of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallSyntax {
    /// One object `{"name": …, "arguments": {…}}`, or several; or `<function=…>` (Qwen3-Coder, Nemotron 3), or a name
    /// with `<arg_key>` and `<arg_value>` (GLM).
    Object,
    /// A list of such objects.
    List,
    /// A list of objects, or `name[ARGS]{…}`.
    Named,
    /// `call:name{key:<escape>value<escape>}`.
    Escaped,
    /// `call:name{key:<|"|>value<|"|>}`.
    Quoted,
    /// `[name(key="value")]`.
    Pythonic,
    /// An element for each call, with an element for each parameter.
    Invoked(&'static InvokeMarks),
    /// A name and an object for each call, between marks.
    Sections(&'static SectionMarks),
    /// Only the arguments: the header of the message has the name.
    Headed,
    /// The whole answer is `{"name": …, "parameters": {…}}`, with or without a mark or a fence.
    Bare,
}

/// The elements of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvokeMarks {
    /// The beginning of a call, up to its name.
    pub(super) call: &'static str,
    pub(super) call_end: &'static str,
    /// The beginning of a parameter, up to its name.
    pub(super) parameter: &'static str,
    pub(super) parameter_end: &'static str,
}

/// The marks of a call with its arguments as an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SectionMarks {
    pub(super) call: &'static str,
    /// Mark between the name and the arguments.
    pub(super) separator: &'static str,
    pub(super) call_end: &'static str,
}

const DSML: InvokeMarks = InvokeMarks {
    call: "<｜DSML｜invoke name=\"",
    call_end: "</｜DSML｜invoke>",
    parameter: "<｜DSML｜parameter name=\"",
    parameter_end: "</｜DSML｜parameter>",
};

const ATEM: InvokeMarks = InvokeMarks {
    call: "<atem:invoke name=\"",
    call_end: "</atem:invoke>",
    parameter: "<atem:parameter name=\"",
    parameter_end: "</atem:parameter>",
};

const MINIMAX: InvokeMarks = InvokeMarks {
    call: "<invoke name=\"",
    call_end: "</invoke>",
    parameter: "<parameter name=\"",
    parameter_end: "</parameter>",
};

const DEEPSEEK: SectionMarks = SectionMarks {
    call: "<｜tool▁call▁begin｜>",
    separator: "<｜tool▁sep｜>",
    call_end: "<｜tool▁call▁end｜>",
};

const KIMI: SectionMarks = SectionMarks {
    call: "<|tool_call_begin|>",
    separator: "<|tool_call_argument_begin|>",
    call_end: "<|tool_call_end|>",
};

/// A style of calls between two marks of the template.
const fn between(marks: &'static [&'static str; 1], end: &'static str, syntax: CallSyntax) -> CallStyle {
    CallStyle {
        hints: marks,
        begins: marks,
        end: Some(end),
        inner: &[],
        syntax,
    }
}

impl CallStyle {
    /// Qwen, Hermes, Qwen3-Coder, Nemotron 3, GLM.
    pub(crate) const TAGGED: Self = between(&["<tool_call>"], "</tool_call>", CallSyntax::Object);
    /// Mistral.
    pub(crate) const MISTRAL: Self = Self {
        end: None,
        inner: &["[ARGS]"],
        ..between(&["[TOOL_CALLS]"], "", CallSyntax::Named)
    };
    /// Phi.
    pub(crate) const PHI: Self = between(&["<|tool_call|>"], "<|/tool_call|>", CallSyntax::List);
    /// Nemotron Nano 2.
    pub(crate) const NEMOTRON: Self = between(&["<TOOLCALL>"], "</TOOLCALL>", CallSyntax::List);
    /// Gemma.
    pub(crate) const GEMMA: Self = between(&["<start_function_call>"], "<end_function_call>", CallSyntax::Escaped);
    /// LFM2 and LFM3. Their templates contain the marks of tool lists, and not always the marks of calls.
    pub(crate) const LFM: Self = Self {
        hints: &["<|tool_call_start|>", "<|tool_list_start|>"],
        ..between(&["<|tool_call_start|>"], "<|tool_call_end|>", CallSyntax::Pythonic)
    };
    /// Gemma 4.
    pub(crate) const GEMMA_4: Self = Self {
        inner: &[super::calls::QUOTE],
        ..between(&["<|tool_call>"], "<tool_call|>", CallSyntax::Quoted)
    };
    /// Muse Glimmer.
    pub(crate) const MUSE: Self = between(
        &["<atem:function_calls>"],
        "</atem:function_calls>",
        CallSyntax::Invoked(&ATEM),
    );
    /// MiniMax-M2.
    pub(crate) const MINIMAX: Self = between(
        &["<minimax:tool_call>"],
        "</minimax:tool_call>",
        CallSyntax::Invoked(&MINIMAX),
    );
    /// DeepSeek-V4.
    pub(crate) const DSML: Self = Self {
        hints: &["｜DSML｜", "+ 'tool_calls>"],
        inner: &["｜DSML｜"],
        ..between(
            &["<｜DSML｜tool_calls>"],
            "</｜DSML｜tool_calls>",
            CallSyntax::Invoked(&DSML),
        )
    };
    /// DeepSeek-V3.2.
    pub(crate) const DSML_FUNCTIONS: Self = Self {
        hints: &["｜DSML｜", "function_calls>"],
        begins: &["<｜DSML｜function_calls>"],
        end: Some("</｜DSML｜function_calls>"),
        ..Self::DSML
    };
    /// DeepSeek-V3, R1 and V3.1.
    pub(crate) const DEEPSEEK: Self = Self {
        inner: &["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
        ..between(
            &["<｜tool▁calls▁begin｜>"],
            "<｜tool▁calls▁end｜>",
            CallSyntax::Sections(&DEEPSEEK),
        )
    };
    /// Kimi K2 and Kimi Linear.
    pub(crate) const KIMI: Self = Self {
        inner: &[
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ],
        ..between(
            &["<|tool_calls_section_begin|>"],
            "<|tool_calls_section_end|>",
            CallSyntax::Sections(&KIMI),
        )
    };
    /// gpt-oss (harmony).
    pub(crate) const HARMONY: Self = Self {
        hints: &["<|channel|>analysis<|message|>"],
        begins: &[],
        end: None,
        inner: &[],
        syntax: CallSyntax::Headed,
    };
    /// Llama and Gemma 3.
    pub(crate) const BARE: Self = Self {
        hints: &[],
        begins: &["<|python_tag|>"],
        end: None,
        inner: &[],
        syntax: CallSyntax::Bare,
    };

    /// The styles, in the order of the search through a template.
    pub(super) const ALL: [Self; 14] = [
        Self::TAGGED,
        Self::MISTRAL,
        Self::PHI,
        Self::NEMOTRON,
        Self::GEMMA,
        Self::LFM,
        Self::GEMMA_4,
        Self::MUSE,
        Self::MINIMAX,
        Self::DSML_FUNCTIONS,
        Self::DSML,
        Self::DEEPSEEK,
        Self::KIMI,
        Self::HARMONY,
    ];

    /// The style of a template.
    pub(super) fn shown(mentions: impl Fn(&str) -> bool) -> Self {
        let is_shown = |style: &Self| match style.syntax {
            // The template assembles the marks from parts.
            CallSyntax::Invoked(marks) if *marks == DSML => style.hints.iter().all(|hint| mentions(hint)),
            _ => style.hints.iter().any(|hint| mentions(hint)),
        };
        Self::ALL.into_iter().find(is_shown).unwrap_or(Self::BARE)
    }

    /// The start mark that a call may omit.
    pub(super) fn begin(self) -> &'static str {
        self.begins.first().copied().unwrap_or("")
    }
}

/// The marks around a thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThoughtMarks {
    pub(crate) begin: &'static str,
    /// A fixed word after the begin mark, which is removed from the thought.
    pub(super) title: &'static str,
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
    pub(super) const CHANNEL: Self = Self {
        begin: "<|channel>",
        title: "thought",
        end: "<channel|>",
    };
    /// Seed-OSS.
    const SEED: Self = Self {
        begin: "<seed:think>",
        title: "",
        end: "</seed:think>",
    };
    /// Ministral 3 and Magistral.
    const MISTRAL: Self = Self {
        begin: "[THINK]",
        title: "",
        end: "[/THINK]",
    };

    /// The marks in a template.
    pub(super) fn shown(mentions: impl Fn(&str) -> bool) -> Option<Self> {
        let all = [Self::THINK, Self::CHANNEL, Self::SEED, Self::MISTRAL];
        all.into_iter()
            .find(|marks| mentions(marks.begin) || mentions(marks.end))
    }
}

/// Marks of families whose answers have several messages, each with a header for its kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MessageMarks {
    /// The mark before a header; the first header of an answer follows it, in the prompt.
    begin: &'static str,
    /// The mark after a header.
    pub(super) body: &'static str,
    /// Marks that end a message.
    pub(super) ends: &'static [&'static str],
    /// Other special tokens of headers.
    inner: &'static [&'static str],
    /// Words of a header that mark its message as a thought.
    thought: &'static str,
    /// Words of a template that identify the marks.
    hint: &'static str,
}

/// A message by its header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    Text,
    Thought,
    /// Arguments of the tool with this name.
    Call(&'a str),
}

/// The longest header.
const LONGEST_HEADER: usize = 512;

impl MessageMarks {
    /// gpt-oss: `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`, and calls with
    /// ` to=functions.name` in their header.
    pub(super) const HARMONY: Self = Self {
        begin: "<|start|>",
        body: "<|message|>",
        ends: &["<|end|>", "<|call|>", "<|return|>"],
        inner: &["<|channel|>", "<|constrain|>"],
        thought: "<|channel|>analysis",
        hint: "<|channel|>analysis<|message|>",
    };
    /// Muse Glimmer: ` to=self<|message|>…<|eom|><|start|>assistant to=user<|message|>…`.
    pub(super) const MUSE: Self = Self {
        begin: "<|start|>",
        body: "<|message|>",
        ends: &["<|eom|>", "<|eot|>"],
        inner: &[],
        thought: "to=self",
        hint: "<atem:function_calls>",
    };

    /// The marks in a template.
    pub(super) fn shown(mentions: impl Fn(&str) -> bool) -> Option<&'static Self> {
        const HARMONY: &MessageMarks = &MessageMarks::HARMONY;
        const MUSE: &MessageMarks = &MessageMarks::MUSE;
        [HARMONY, MUSE].into_iter().find(|marks| mentions(marks.hint))
    }

    /// True if a special token is one of the marks.
    pub(super) fn has(&self, special: &str) -> bool {
        [self.begin, self.body].contains(&special) || self.ends.contains(&special) || self.inner.contains(&special)
    }

    /// True if a text may be the beginning of a header.
    pub(super) fn may_be_header(&self, text: &str) -> bool {
        let text = text.trim_start();
        let begins = [self.begin, "assistant", "to="]
            .into_iter()
            .chain(self.inner.iter().copied());
        let fits = |begin: &str| begin.starts_with(text) || text.starts_with(begin);
        text.len() <= LONGEST_HEADER && begins.into_iter().any(fits)
    }

    /// The message after a header.
    pub(super) fn message<'a>(&self, header: &'a str, style: CallStyle) -> Message<'a> {
        let recipient = header.split_once("to=").map(|(_, rest)| {
            let end = rest.find(|letter: char| letter.is_whitespace() || letter == '<');
            let name = &rest[..end.unwrap_or(rest.len())];
            name.strip_prefix("functions.").unwrap_or(name)
        });
        match recipient {
            Some(name) if style.syntax == CallSyntax::Headed => Message::Call(name),
            _ if header.contains(self.thought) => Message::Thought,
            _ => Message::Text,
        }
    }
}
