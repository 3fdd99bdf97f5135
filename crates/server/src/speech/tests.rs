use serde_json::json;

use super::*;

/// Every style with calls inside a text.
fn marked() -> Vec<CallStyle> {
    let headed = |style: &CallStyle| style.syntax == CallSyntax::Headed;
    let all = CallStyle::ALL.into_iter().filter(|style| !headed(style));
    all.chain([CallStyle::BARE]).collect()
}

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
            messages: None,
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

/// The call in the form of DeepSeek's templates.
fn dsml(block: &str) -> String {
    format!(
        "<｜DSML｜{block}>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Bern</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜{block}>"
    )
}

const WEATHER: &str = r#"{"name": "weather", "arguments": {"city": "Bern", "days": 2}}"#;

/// Checks that a text in the marks of a style is the call of [`WEATHER`] and nothing else, for every cut into pieces.
fn finds_the_call(style: CallStyle, text: &str) {
    let call = ("weather".to_owned(), r#"{"city":"Bern","days":2}"#.to_owned());
    for size in [1, 2, 3, 7, 1000] {
        let (said, thought, calls) = told(speech(style, true), text, size);
        assert_eq!((said.trim(), thought.as_str()), ("", ""), "{style:?} {text}");
        assert_eq!(
            calls,
            std::slice::from_ref(&call),
            "{style:?} in pieces of {size}: {text}"
        );
    }
}

#[test]
fn calls_of_every_family_are_found_however_the_text_is_cut() {
    let json = WEATHER;
    let cases = [
        (CallStyle::TAGGED, format!("<tool_call>\n{json}\n</tool_call>")),
        (
            CallStyle::TAGGED,
            "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>".to_owned(),
        ),
        (CallStyle::MISTRAL, format!("[TOOL_CALLS] [{json}]")),
        (
            CallStyle::MISTRAL,
            r#"[TOOL_CALLS]weather[ARGS]{"city": "Bern", "days": 2}"#.to_owned(),
        ),
        (CallStyle::PHI, format!("<|tool_call|>[{json}]<|/tool_call|>")),
        (
            CallStyle::GEMMA,
            "<start_function_call>call:weather{city:<escape>Bern<escape>,days:2}<end_function_call>".to_owned(),
        ),
        (
            CallStyle::LFM,
            "<|tool_call_start|>[weather(city=\"Bern\", days=2)]<|tool_call_end|>".to_owned(),
        ),
        (
            CallStyle::GEMMA_4,
            r#"<|tool_call>call:weather{city:<|"|>Bern<|"|>,days:2}<tool_call|>"#.to_owned(),
        ),
        (CallStyle::BARE, json.replace("arguments", "parameters")),
        (CallStyle::BARE, format!("<|python_tag|>{json}")),
        (CallStyle::BARE, format!("```json\n{json}\n```")),
        (CallStyle::TAGGED, json.to_owned()),
        (CallStyle::MISTRAL, format!("```json\n{json}\n```")),
    ];
    cases.iter().for_each(|(style, text)| finds_the_call(*style, text));
}

#[test]
fn calls_in_elements_and_sections_are_found_however_the_text_is_cut() {
    let json = WEATHER;
    let cases = [
        (CallStyle::NEMOTRON, format!("<TOOLCALL>[{json}]</TOOLCALL>")),
        (
            CallStyle::TAGGED,
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>".to_owned(),
        ),
        (
            CallStyle::MUSE,
            "<atem:function_calls>\n<atem:invoke name=\"weather\">\n<atem:parameter name=\"city\">Bern</atem:parameter>\n<atem:parameter name=\"days\">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>".to_owned(),
        ),
        (
            CallStyle::MINIMAX,
            "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Bern</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n</minimax:tool_call>".to_owned(),
        ),
        (CallStyle::DSML, dsml("tool_calls")),
        (CallStyle::DSML_FUNCTIONS, dsml("function_calls")),
        (
            CallStyle::DEEPSEEK,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bern\", \"days\": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>".to_owned(),
        ),
        (
            CallStyle::DEEPSEEK,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Bern\", \"days\": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>".to_owned(),
        ),
        (
            CallStyle::KIMI,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Bern\", \"days\": 2}<|tool_call_end|><|tool_calls_section_end|>".to_owned(),
        ),
    ];
    cases.iter().for_each(|(style, text)| finds_the_call(*style, text));
}

#[test]
fn several_calls_and_the_text_before_them_keep_their_order() {
    let text = "I look it up.\n<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"b\", \"arguments\": {\"x\": \"</tool\"}}</tool_call>";
    for size in [1, 5, 1000] {
        let (said, _, calls) = told(speech(CallStyle::TAGGED, true), text, size);
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
    for style in marked() {
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
    let mut speech = speech(CallStyle::TAGGED, true);
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
        let (said, _, calls) = told(speech(CallStyle::TAGGED, true), call, size);
        assert_eq!(
            (said.as_str(), calls[0].1.as_str()),
            ("", r#"{"city":"x </tool_call> y"}"#)
        );
        assert_eq!(told(speech(CallStyle::TAGGED, true), broken, size).0, broken);
    }
}

#[test]
fn data_that_was_asked_for_is_never_a_call() {
    let text = r#"{"name": "weather", "arguments": {"city": "Bern"}}"#;
    for style in marked() {
        let data = speech(style, true).with_unmarked_calls(false);
        assert_eq!(told(data, text, 3).0, text);
    }
}

#[test]
fn marks_of_thoughts_behind_text_are_text() {
    for text in ["Use <think> and </think> as tags.", "a </think> b", "x <think>y"] {
        for size in [1, 4, 1000] {
            let (said, thought, _) = told(speech(CallStyle::TAGGED, true), text, size);
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
            calls: CallStyle::TAGGED,
            thoughts: None,
            messages: None,
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
    assert_eq!(told(speech(CallStyle::TAGGED, false), text, 3).0, text);
}

#[test]
fn tokens_of_thoughts_are_counted_with_their_marks() {
    for (tokens, thoughts) in [
        (&["<think>", "hm", "</think>", "Yes", "."][..], 3),
        (&["<", "think", ">", "a", "b", "</th", "ink>", "Yes"][..], 7),
        (&["<", "b", ">", "Yes"][..], 0),
    ] {
        let mut speech = speech(CallStyle::TAGGED, false);
        for token in tokens {
            drop(speech.push(token));
        }
        assert_eq!(speech.thought_tokens(), thoughts, "{tokens:?}");
    }
}

#[test]
fn thoughts_are_told_apart_also_where_the_prompt_began_them() {
    for size in [1, 3, 1000] {
        let (said, thought, _) = told(speech(CallStyle::TAGGED, false), "<think>\nhm\n</think>\n\nYes.", size);
        assert_eq!((said.trim(), thought.trim()), ("Yes.", "hm"));
        let begun = Speech::new(
            Markup {
                calls: CallStyle::TAGGED,
                thoughts: Some(ThoughtMarks::THINK),
                messages: None,
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
        calls: CallStyle::GEMMA_4,
        thoughts: Some(ThoughtMarks::CHANNEL),
        messages: None,
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

#[test]
fn messages_of_gpt_oss_are_thoughts_texts_and_calls_by_their_headers() {
    let markup = Markup {
        calls: CallStyle::HARMONY,
        thoughts: None,
        messages: Some(&MessageMarks::HARMONY),
    };
    let thought = "<|channel|>analysis<|message|>Hm, weather.<|end|>";
    let call = r#"{"city":"Bern","days":2}"#;
    let cases = [
        (
            format!("{thought}<|start|>assistant<|channel|>final<|message|>Sunny."),
            "Sunny.",
            0,
        ),
        (
            format!(
                "{thought}<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{call}"
            ),
            "",
            1,
        ),
        (
            format!(
                "{thought}<|start|>assistant<|channel|>commentary<|message|>I ask.<|end|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{call}<|call|>"
            ),
            "I ask.",
            1,
        ),
        (format!("{thought}<|start|>assistant<|channel|>final"), "", 0),
    ];
    for (text, said, calls) in cases {
        for size in [1, 2, 7, 1000] {
            let found = told(Speech::new(markup, tools(), false), &text, size);
            assert_eq!((found.0.as_str(), found.1.as_str()), (said, "Hm, weather."), "{text}");
            let call = ("weather".to_owned(), call.to_owned());
            assert_eq!(found.2, vec![call; calls], "{text}");
        }
    }
    // Requested JSON has no message header.
    let data = told(Speech::new(markup, tools(), false), r#"{"to": "x"}"#, 1);
    assert_eq!(data.0, r#"{"to": "x"}"#);
    assert!(Speech::new(markup, KnownTools::default(), false).is_mark("<|channel|>"));
}

#[test]
fn messages_of_muse_go_to_the_model_itself_to_a_tool_or_to_the_reader() {
    let markup = Markup {
        calls: CallStyle::MUSE,
        thoughts: None,
        messages: Some(&MessageMarks::MUSE),
    };
    let text = " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Wait.<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n<atem:invoke name=\"weather\">\n<atem:parameter name=\"city\">a <|b\nc</atem:parameter>\n</atem:invoke>\n</atem:function_calls>";
    for size in [1, 3, 1000] {
        let (said, thought, calls) = told(Speech::new(markup, tools(), false), text, size);
        assert_eq!((said.as_str(), thought.as_str()), ("Wait.", "Hm."));
        assert_eq!(calls, [("weather".to_owned(), r#"{"city":"a <|b\nc"}"#.to_owned())]);
    }
}

#[test]
fn a_template_shows_the_marks_of_its_family() {
    let shown = |template: &str| CallStyle::shown(|text| template.contains(text));
    for (template, style) in [
        ("{{ '<tool_call>' + tc.name }}", CallStyle::TAGGED),
        ("'<TOOLCALL>[{'", CallStyle::NEMOTRON),
        (
            "set dsml_token = '｜DSML｜' … '</' + dsml_token + 'tool_calls>'",
            CallStyle::DSML,
        ),
        (
            "set dsml_token = '｜DSML｜' … '</' + dsml_token + 'function_calls>'",
            CallStyle::DSML_FUNCTIONS,
        ),
        ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'", CallStyle::DEEPSEEK),
        ("<|tool_calls_section_begin|>", CallStyle::KIMI),
        ("<atem:function_calls>", CallStyle::MUSE),
        (
            "\"<|channel|>analysis<|message|>\" in message.content",
            CallStyle::HARMONY,
        ),
        ("plain", CallStyle::BARE),
    ] {
        assert_eq!(shown(template), style, "{template}");
    }
}
