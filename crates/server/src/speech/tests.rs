use serde_json::json;

use super::*;

const MARKED: [CallStyle; 7] = [
    CallStyle::Tagged,
    CallStyle::Mistral,
    CallStyle::Phi,
    CallStyle::Gemma,
    CallStyle::Pythonic,
    CallStyle::Gemma4,
    CallStyle::Bare,
];

fn tools() -> KnownTools {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let named = |name: &str| Tool::function(json!({"name": name, "parameters": parameters}));
    KnownTools::new(["weather", "a", "b"].map(named).to_vec())
}

fn speech(calls: CallStyle, takes_calls: bool) -> Speech {
    let tools = if takes_calls { tools() } else { KnownTools::default() };
    Speech::new(
        Markup {
            calls,
            thoughts: Some(ThoughtMarks::THINK),
        },
        tools,
        false,
    )
}

/// Splits a text that arrives in pieces of `size` characters into text, thoughts and calls.
fn told(mut speech: Speech, text: &str, size: usize) -> (String, String, Vec<(String, String)>) {
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    let letters: Vec<char> = text.chars().collect();
    let mut pieces: Vec<AnswerPiece> = Vec::new();
    for part in letters.chunks(size) {
        pieces.extend(speech.push(&part.iter().collect::<String>()));
    }
    pieces.extend(speech.finish());
    for piece in pieces {
        match piece {
            AnswerPiece::Text(text) => said.push_str(&text),
            AnswerPiece::Thought(text) => thought.push_str(&text),
            AnswerPiece::Call(call) => calls.push((call.name.clone(), call.input_text())),
        }
    }
    (said, thought, calls)
}

#[test]
fn calls_of_every_family_are_found_however_the_text_is_cut() {
    let call = ("weather".to_owned(), r#"{"city":"Bern","days":2}"#.to_owned());
    let json = r#"{"name": "weather", "arguments": {"city": "Bern", "days": 2}}"#;
    let cases = [
        (CallStyle::Tagged, format!("<tool_call>\n{json}\n</tool_call>")),
        (
            CallStyle::Tagged,
            "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>".to_owned(),
        ),
        (CallStyle::Mistral, format!("[TOOL_CALLS] [{json}]")),
        (
            CallStyle::Mistral,
            r#"[TOOL_CALLS]weather[ARGS]{"city": "Bern", "days": 2}"#.to_owned(),
        ),
        (CallStyle::Phi, format!("<|tool_call|>[{json}]<|/tool_call|>")),
        (
            CallStyle::Gemma,
            "<start_function_call>call:weather{city:<escape>Bern<escape>,days:2}<end_function_call>".to_owned(),
        ),
        (
            CallStyle::Pythonic,
            "<|tool_call_start|>[weather(city=\"Bern\", days=2)]<|tool_call_end|>".to_owned(),
        ),
        (
            CallStyle::Gemma4,
            r#"<|tool_call>call:weather{city:<|"|>Bern<|"|>,days:2}<tool_call|>"#.to_owned(),
        ),
        (CallStyle::Bare, json.replace("arguments", "parameters")),
        (CallStyle::Bare, format!("<|python_tag|>{json}")),
        (CallStyle::Bare, format!("```json\n{json}\n```")),
        (CallStyle::Tagged, json.to_owned()),
        (CallStyle::Mistral, format!("```json\n{json}\n```")),
    ];
    for (style, text) in cases {
        for size in [1, 2, 3, 7, 1000] {
            let (said, thought, calls) = told(speech(style, true), &text, size);
            assert_eq!((said.trim(), thought.as_str()), ("", ""), "{style:?} {text}");
            assert_eq!(
                calls,
                std::slice::from_ref(&call),
                "{style:?} in pieces of {size}: {text}"
            );
        }
    }
}

#[test]
fn several_calls_and_the_text_before_them_keep_their_order() {
    let text = "I look it up.\n<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"b\", \"arguments\": {\"x\": \"</tool\"}}</tool_call>";
    for size in [1, 5, 1000] {
        let (said, _, calls) = told(speech(CallStyle::Tagged, true), text, size);
        assert_eq!(said, "I look it up.\n");
        let calls: Vec<_> = calls
            .iter()
            .map(|(name, arguments)| format!("{name}{arguments}"))
            .collect();
        assert_eq!(calls, ["a{}", "b{\"x\":\"</tool\"}"]);
    }
}

#[test]
fn what_is_no_call_stays_text_to_the_last_letter() {
    let texts = [
        "<tool_call>{not json}</tool_call> and more",
        "{\"name\": 5}",
        "[1, 2, 3]",
        "a < b, <tool_cal",
        "[TOOL_CALLS",
        "`code` and ```more```",
        "```json\n{\"names\": [1]}\n```",
        "{\"name\": \"a",
        "```\n{ \"na",
    ];
    for style in MARKED {
        for text in texts {
            for size in [1, 4, 1000] {
                let (said, _, calls) = told(speech(style, true), text, size);
                assert_eq!((said.as_str(), calls.len()), (text, 0), "{style:?}");
            }
        }
    }
}

#[test]
fn what_cannot_be_a_call_any_more_is_told_at_once() {
    let mut speech = speech(CallStyle::Tagged, true);
    assert!(speech.push("```").is_empty());
    assert!(speech.push("json\n{").is_empty());
    assert_eq!(
        speech.push("\"a\": 1"),
        [AnswerPiece::Text("```json\n{\"a\": 1".to_owned())]
    );
    assert_eq!(speech.push(", 2"), [AnswerPiece::Text(", 2".to_owned())]);
}

#[test]
fn an_end_mark_in_an_argument_does_not_end_the_call() {
    let call = r#"<tool_call>{"name": "a", "arguments": {"city": "x </tool_call> y"}}</tool_call>"#;
    let broken = "<tool_call>{\"name\": \"a</tool_call> and more";
    for size in [1, 4, 1000] {
        let (said, _, calls) = told(speech(CallStyle::Tagged, true), call, size);
        assert_eq!(
            (said.as_str(), calls[0].1.as_str()),
            ("", r#"{"city":"x </tool_call> y"}"#)
        );
        assert_eq!(told(speech(CallStyle::Tagged, true), broken, size).0, broken);
    }
}

#[test]
fn data_that_was_asked_for_is_never_a_call() {
    let text = r#"{"name": "weather", "arguments": {"city": "Bern"}}"#;
    for style in MARKED {
        let data = speech(style, true).with_unmarked_calls(false);
        assert_eq!(told(data, text, 3).0, text);
    }
}

#[test]
fn marks_of_thoughts_behind_text_are_text() {
    for text in ["Use <think> and </think> as tags.", "a </think> b", "x <think>y"] {
        for size in [1, 4, 1000] {
            let (said, thought, _) = told(speech(CallStyle::Tagged, true), text, size);
            assert_eq!((said.as_str(), thought.as_str()), (text, ""));
        }
    }
}

#[test]
fn a_call_has_the_names_of_the_client() {
    let function = |name: &str| Tool::function(json!({"name": name, "parameters": {}}));
    let tools = KnownTools::new(vec![
        function("list").within("mcp__files"),
        Tool::custom("apply_patch", ""),
    ]);
    let speech = Speech::new(
        Markup {
            calls: CallStyle::Tagged,
            thoughts: None,
        },
        tools,
        false,
    );
    let call = |name: &str, arguments: &str| {
        let text = format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {arguments}}}</tool_call>");
        match speech.clone().push(&text).as_slice() {
            [AnswerPiece::Call(call)] => call.clone(),
            other => panic!("{other:?}"),
        }
    };
    for name in ["mcp__files__list", "list"] {
        let call = call(name, "{}");
        assert_eq!(
            (call.name.as_str(), call.namespace.as_deref()),
            ("list", Some("mcp__files"))
        );
    }
    let patch = call("apply_patch", r#"{"input": "*** Begin"}"#);
    assert!(patch.is_custom());
    assert_eq!(patch.input_text(), "*** Begin");
}

#[test]
fn without_tools_nothing_is_a_call() {
    let text = "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>";
    assert_eq!(told(speech(CallStyle::Tagged, false), text, 3).0, text);
}

#[test]
fn tokens_of_thoughts_are_counted_with_their_marks() {
    for (tokens, thoughts) in [
        (&["<think>", "hm", "</think>", "Yes", "."][..], 3),
        (&["<", "think", ">", "a", "b", "</th", "ink>", "Yes"][..], 7),
        (&["<", "b", ">", "Yes"][..], 0),
    ] {
        let mut speech = speech(CallStyle::Tagged, false);
        for token in tokens {
            drop(speech.push(token));
        }
        assert_eq!(speech.thought_tokens(), thoughts, "{tokens:?}");
    }
}

#[test]
fn thoughts_are_told_apart_also_where_the_prompt_began_them() {
    for size in [1, 3, 1000] {
        let (said, thought, _) = told(speech(CallStyle::Tagged, false), "<think>\nhm\n</think>\n\nYes.", size);
        assert_eq!((said.trim(), thought.trim()), ("Yes.", "hm"));
        let begun = Speech::new(
            Markup {
                calls: CallStyle::Tagged,
                thoughts: Some(ThoughtMarks::THINK),
            },
            KnownTools::default(),
            true,
        );
        let (said, thought, _) = told(begun, "hm</think>Yes.", size);
        assert_eq!((said.as_str(), thought.as_str()), ("Yes.", "hm"));
    }
}

#[test]
fn thoughts_of_gemma_4_end_at_their_own_mark_and_have_no_title() {
    let markup = Markup {
        calls: CallStyle::Gemma4,
        thoughts: Some(ThoughtMarks::CHANNEL),
    };
    let text = "<|channel>thought\nHm, thought.\n<channel|>Bern.<|tool_call>call:a{<|\"|>k<|\"|>:{},list:[{x:<|\"|>}<tool_call|>{<|\"|>},-1.5e2,true,null]}<tool_call|>";
    for size in 1..text.len() {
        let (said, thought, calls) = told(Speech::new(markup, tools(), false), text, size);
        assert_eq!(
            (said.as_str(), thought.as_str()),
            ("Bern.", "\nHm, thought.\n"),
            "{size}"
        );
        let arguments = r#"{"k":{},"list":[{"x":"}<tool_call|>{"},-150.0,true,null]}"#;
        assert_eq!(calls, [("a".to_owned(), arguments.to_owned())], "{size}");
    }
    assert!(markup.ends_thinking("<|turn>model\n<|channel>thought\n"));
    assert!(!markup.ends_thinking("<|turn>model\n<|channel>thought\n<channel|>"));
}
