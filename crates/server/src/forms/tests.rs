use riffle_engine::{EngineOptions, TokenConstraint};

use super::*;

/// The shipped model.
pub(crate) fn engine() -> Arc<Engine> {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/model");
    let options = EngineOptions::default().with_context_tokens(Some(512));
    Engine::load(model, options).unwrap()
}

/// True if an answer of a form may be exactly this text, token by token.
pub(crate) fn fits(engine: &Arc<Engine>, form: Form, text: &str) -> bool {
    let forms = Forms::new(engine, crate::Limits::default()).unwrap();
    fits_form(engine, &*forms.prepare_now(form, "form").unwrap(), text)
}

/// True if an answer of a prepared form may be exactly this text.
pub(crate) fn fits_form(engine: &Arc<Engine>, form: &dyn AnswerForm, text: &str) -> bool {
    let mut answer = form.begin().unwrap();
    let mut is_complete = false;
    for token in engine.tokenizer().unwrap().encode(text, false).unwrap() {
        if is_complete || !is_allowed(&mut *answer, token) {
            return false;
        }
        is_complete = answer.accept(token).unwrap();
    }
    is_complete || is_allowed(&mut *answer, engine.generation_defaults().eos[0])
}

fn is_allowed(answer: &mut dyn TokenConstraint, token: u32) -> bool {
    answer.allowed().unwrap()[token as usize / 32] >> (token % 32) & 1 == 1
}

#[test]
fn alternatives_that_may_overlap_are_refused_in_words_of_this_server() {
    let forms = Forms::new(&engine(), crate::Limits::default()).unwrap();
    let schema = json!({"oneOf": [{"type": "integer"}, {"minimum": 2}]});
    let refused = forms.prepare_now(Form::Schema(schema), "form").unwrap_err();
    assert!(refused.message.starts_with("form: oneOf: "), "{}", refused.message);
}

fn problem(engine: &Arc<Engine>, form: Form) -> String {
    let forms = Forms::new(engine, crate::Limits::default()).unwrap();
    forms.prepare_now(form, "form").unwrap_err().message
}

#[test]
fn integers_that_a_double_cannot_hold_are_kept_or_refused() {
    let engine = engine();
    for schema in [
        json!({"const": 1234567890123456789_u64}),
        json!({"enum": [1, 9007199254740993_u64]}),
        json!({"const": 12345678901234567890_u64}),
        json!({"properties": {"a": {"const": {"b": [-9007199254740993_i64]}}}}),
        json!({"const": 1e23}),
    ] {
        let problem = problem(&engine, Form::Schema(schema));
        assert!(problem.contains("cannot be held exactly"), "{problem}");
    }
    let narrow = json!({"type": "integer", "minimum": 1234567890123456789_u64, "maximum": 1234567890123456790_u64});
    let refused = problem(&engine, Form::Schema(narrow));
    assert!(refused.contains("no number between them"), "{refused}");
    let too_large = json!({"type": "integer", "minimum": 1e19});
    assert!(problem(&engine, Form::Schema(too_large)).contains("the largest is"));
    let fits = |schema: Value, text: &str| fits(&engine, Form::Schema(schema), text);
    let signed = json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX});
    let unsigned = json!({"type": "integer", "minimum": 0, "maximum": u64::MAX});
    let lower = json!({"type": "integer", "minimum": 9007199254740993_u64});
    let upper = json!({"type": "number", "exclusiveMaximum": -9007199254740993_i64});
    assert!(fits(json!({"const": 9007199254740992_u64}), "9007199254740992"));
    assert!(fits(json!({"const": 0.1}), "0.1"));
    for text in ["0", "-7", "9007199254740993"] {
        assert!(fits(signed.clone(), text), "{text}");
    }
    assert!(fits(unsigned.clone(), "12") && !fits(unsigned, "-1"));
    assert!(!fits(signed, "9223372036854775808"));
    assert!(fits(lower.clone(), "9007199254740994") && fits(lower.clone(), "1000000000000000000"));
    assert!(!fits(lower, "9007199254740992"));
    assert!(fits(upper.clone(), "-9007199254740994") && !fits(upper, "-9007199254740992"));
}

#[test]
fn no_name_can_be_made_longer_where_a_declared_one_was_meant() {
    let engine = engine();
    let fits = |schema: &Value, text: &str| fits(&engine, Form::Schema(schema.clone()), text);
    let person = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"],
    });
    for text in [
        r#"{"city": "Bern", "name": "Ada", "age": 36}"#,
        r#"{"name": "Ada", "age": 36}"#,
        r#"{"name": "Ada"}"#,
    ] {
        assert!(fits(&person, text), "{text}");
    }
    assert!(!fits(&person, r#"{"name": "Ada", "city ": "Bern"}"#));
    let nested =
        json!({"$defs": {"P": person}, "anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/P"}}]});
    assert!(!fits(&nested, r#"[{"name": "Ada", "city ": "Bern"}]"#));
    let open = json!({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": true});
    assert!(fits(&open, r#"{"a": 1, "b": 2}"#));
    let undeclared = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["b"]});
    assert!(fits(&undeclared, r#"{"a": 1, "b": [2]}"#));
}

#[test]
fn a_declared_name_may_follow_later_where_other_names_are_taken() {
    let engine = engine();
    let fits = |schema: &Value, text: &str| fits(&engine, Form::Schema(schema.clone()), text);
    let person = |others: Value| {
        json!({
            "type": "object",
            "properties": {"city": {"type": "string"}, "name": {"type": "string"}, "a.g": {"type": "integer"}},
            "required": ["name"],
            "additionalProperties": others,
        })
    };
    let open = person(json!(true));
    let texts = person(json!({"type": "string"}));
    for text in [
        r#"{"city": "Bern", "name": "Ada", "a.g": 36}"#,
        r#"{"name": "Ada", "a.g": 36, "city": "Bern"}"#,
        r#"{"name": "Ada", "more": "b", "city": "Bern", "a.g": 36}"#,
        r#"{"city": "Bern", "name": "Ada", "more": "b", "a.g": 36}"#,
    ] {
        assert!(fits(&open, text) && fits(&texts, text), "{text}");
        let list = json!({"$defs": {"P": open}, "type": "array", "items": {"$ref": "#/$defs/P"}});
        assert!(fits(&list, &format!("[{text}]")), "{text}");
    }
    assert!(fits(&open, r#"{"name": "Ada", "axg": []}"#) && !fits(&texts, r#"{"name": "Ada", "axg": []}"#));
    for text in [
        r#"{"name": "Ada", "city": 5}"#,
        r#"{"name": "Ada", "a.g": "old"}"#,
        r#"{"city": "Bern"}"#,
        r#"{"city": "Bern", "name": "Ada", "city": "Basel"}"#,
    ] {
        assert!(!fits(&open, text), "{text}");
    }
    let wide: serde_json::Map<String, Value> = (0..200).map(|at| (format!("p{at}"), json!({"const": at}))).collect();
    let wide = json!({"type": "object", "properties": wide, "required": ["p9"], "additionalProperties": true});
    assert!(fits(&wide, r#"{"p1": 1, "p9": 9, "more": {}}"#));
    let named = json!({
        "type": "object",
        "properties": {"a": {"const": 1}, "b": {"$ref": "#/properties/a"}},
        "additionalProperties": true,
    });
    assert!(fits(&named, r#"{"a": 1, "b": 1, "c": 2}"#));
}

#[test]
fn parts_of_a_conjunction_leave_each_other_room() {
    let engine = engine();
    let base = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]});
    let more = json!({"properties": {"b": {"const": 2}}, "required": ["b"]});
    for schema in [
        json!({"allOf": [base, more]}),
        json!({"$defs": {"Base": base}, "allOf": [{"$ref": "#/$defs/Base"}, more]}),
        json!({"$defs": {"Base": base}, "$ref": "#/$defs/Base", "properties": {"b": {"const": 2}}, "required": ["b"]}),
    ] {
        assert!(
            fits(&engine, Form::Schema(schema.clone()), r#"{"a": 1, "b": 2}"#),
            "{schema}"
        );
    }
}

#[test]
fn a_reference_to_itself_is_refused_in_words_that_say_so() {
    let engine = engine();
    for schema in [
        json!({"$ref": "#"}),
        json!({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}, "type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}),
    ] {
        let problem = problem(&engine, Form::Schema(schema));
        assert!(problem.contains("leads back to itself"), "{problem}");
    }
    let list = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
    assert!(fits(&engine, Form::Schema(list), r#"{"next": {"next": {}}}"#));
}

#[test]
fn a_reference_to_another_document_is_refused_by_its_name() {
    let engine = engine();
    for reference in [
        "http://example.com/item.json",
        "item.json#/$defs/a",
        "file:///etc/item.json",
    ] {
        let schema = json!({"type": "object", "properties": {"a": {"$ref": reference}}});
        let problem = problem(&engine, Form::Schema(schema));
        assert!(
            problem.contains(&format!("{reference:?} names another document")),
            "{problem}"
        );
    }
    let own = json!({
        "$id": "https://example.org/list.json",
        "$defs": {"I": {"$id": "item.json", "const": {"$ref": "http://example.com/"}}},
        "type": "array",
        "items": {"$ref": "item.json"},
    });
    assert!(fits(&engine, Form::Schema(own), r#"[{"$ref":"http://example.com/"}]"#));
}

#[test]
fn json_may_be_indented_but_not_be_filled_with_spaces() {
    let engine = engine();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let grammar = Form::Grammar(format!("start: %json {schema}"));
    for text in ["{\"a\":1}", "{\"a\": 1}", "{\n    \"a\": 1\n}", "{\n\t\"a\": 1\n}"] {
        assert!(fits(&engine, Form::Schema(schema.clone()), text), "{text}");
        assert!(fits(&engine, grammar.clone(), text), "{text}");
    }
    for text in [
        "{ \"a\":1}",
        "{\"a\" :1}",
        "{\"a\":  1}",
        "{\"a\":1 }",
        "{\n\n\"a\": 1}",
        &format!("{{\n{}\"a\": 1}}", " ".repeat(9)),
    ] {
        assert!(!fits(&engine, Form::Schema(schema.clone()), text), "{text:?}");
        assert!(!fits(&engine, grammar.clone(), text), "{text:?}");
    }
    let any = |text: &str| fits(&engine, Form::Schema(json!(true)), text);
    assert!(any("[1, \"b\"]") && any("[1,\n        \"b\"\n]"));
    assert!(!any(&format!("[\n{}1]", " ".repeat(25))));
}

#[test]
fn names_of_a_closed_object_stand_in_any_order_and_each_once() {
    let engine = engine();
    let fits = |schema: &Value, text: &str| fits(&engine, Form::Schema(schema.clone()), text);
    let person = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    });
    let people = json!({
        "$defs": {"P": person, "N": {"enum": [1, 2]}},
        "type": ["object", "null"],
        "properties": {
            "list": {"type": "array", "items": {"$ref": "#/$defs/P"}, "minItems": 1, "maxItems": 2},
            "first": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/P"}, {"type": "integer"}]},
            "numbers": {"type": "object", "additionalProperties": {"$ref": "#/$defs/N"}},
            "next": {"$ref": "#"},
        },
        "required": ["first"],
    });
    for text in [
        r#"{"city": "Bern", "name": "Ada", "age": 36}"#,
        r#"{"age":36,"city":"Bern","name":"Ada"}"#,
        "{\n  \"age\": 36,\n  \"name\": \"Ada\"\n}",
    ] {
        assert!(fits(&person, text), "{text}");
        for nested in [
            format!("{{\"list\": [{text}, {text}], \"first\": null}}"),
            format!("{{\"first\": {text}, \"list\": [\n{text}\n]}}"),
            format!("{{\"next\": {{\"numbers\": {{\"a\": 1}}, \"first\": 5}}, \"first\": {text}}}"),
        ] {
            assert!(fits(&people, &nested), "{nested}");
        }
    }
    assert!(fits(&people, "null"));
    for text in [
        r#"{"age": 36, "city": "Bern"}"#,
        r#"{"age": 36, "name": "Ada", "age": 36}"#,
        r#"{"name": "Ada", "age": "36"}"#,
        r#"{"name": "Ada", "age": 36, "more": 1}"#,
        r#"{"name": "Ada", "age": 36,}"#,
        "{}",
    ] {
        assert!(!fits(&person, text), "{text}");
        assert!(!fits(&people, &format!("{{\"first\": {text}}}")), "{text}");
    }
    let person = r#"{"age": 36, "name": "Ada"}"#;
    for text in [
        r#"{"first": 1, "list": []}"#,
        r#"{"first": 1, "numbers": {"a": 3}}"#,
        r#"{"first": 1, "next": {}}"#,
        &format!("{{\"first\": 1, \"list\": [{person}, {person}, {person}]}}"),
    ] {
        assert!(!fits(&people, text), "{text}");
    }
}

#[test]
fn objects_with_more_names_than_a_rule_counts_keep_the_order_of_the_schema() {
    let engine = engine();
    let wide = |names: usize| {
        let name = |at: usize| (format!("p{at}"), json!({"const": at}));
        let names: serde_json::Map<String, Value> = (0..names).map(name).collect();
        let required: Vec<String> = names.keys().cloned().collect();
        json!({"type": "object", "properties": names, "required": required, "additionalProperties": false})
    };
    let text = |order: &mut dyn Iterator<Item = usize>| {
        let fields: Vec<String> = order.map(|at| format!("\"p{at}\":{at}")).collect();
        format!("{{{}}}", fields.join(","))
    };
    for (names, takes_any) in [(64, true), (65, false)] {
        let fits = |text: &str| fits(&engine, Form::Schema(wide(names)), text);
        assert!(fits(&text(&mut (0..names))));
        assert!(!fits(&text(&mut (1..names))));
        assert_eq!(fits(&text(&mut (0..names).rev())), takes_any, "{names} names");
    }
}

#[test]
fn objects_in_each_other_take_any_order_within_a_quarter_of_the_stack_and_deeper_ones_do_not() {
    let engine = engine();
    let deep = |levels: usize| {
        (0..levels).fold(json!({"type": "string"}), |schema, _| {
            json!({"type": "object", "properties": {"a": schema, "b": {"type": "null"}}, "additionalProperties": false})
        })
    };
    for (levels, takes_any) in [(200, true), (201, false)] {
        let (engine, schema) = (Arc::clone(&engine), deep(levels));
        let thread = std::thread::Builder::new().stack_size(bounds::STACK_BYTES / 4);
        let check = move || {
            let fits = |text: &str| fits(&engine, Form::Schema(schema.clone()), text);
            assert!(fits(r#"{"a": {"b": null}, "b": null}"#));
            assert_eq!(fits(r#"{"b": null, "a": {}}"#), takes_any, "{levels} levels");
        };
        thread.spawn(check).unwrap().join().unwrap();
    }
}
