//! Structured output: answers held to a JSON schema, a pattern or a grammar, by `llguidance`.
//!
//! A form is prepared once and answers with it begin from copies. The tokens that may come next are worked out on a thread of their
//! own while the engine computes the logits they are drawn from.

mod bounds;
pub(crate) mod calls;
mod compile;
mod constraint;
mod schema;
pub(crate) mod thoughts;
mod vocabulary;
mod worker;

use std::sync::{Arc, OnceLock};

use axum::http::StatusCode;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use riffle_engine::{AnswerForm, Engine};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::fields::{Fields, text_of};
use compile::Compilers;
use constraint::PreparedForm;
use worker::Worker;

/// A form that an answer shall have.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    Schema(Value),
    /// Text that a regular expression matches as a whole.
    Pattern(String),
    /// Text of a grammar in llguidance's variant of Lark.
    Grammar(String),
}

impl Form {
    /// JSON that a schema describes, which may be given as text.
    ///
    /// # Errors
    /// For text that is no JSON; `place` is the field it came from.
    pub fn schema(schema: Value, place: &str) -> Result<Self, Failure> {
        let Value::String(text) = schema else {
            return Ok(Self::Schema(schema));
        };
        let parsed = crate::json::parse(text.as_bytes());
        parsed
            .map(Self::Schema)
            .map_err(|error| Failure::field(place, format!("the schema is not valid JSON: {error}")))
    }

    /// One of several texts.
    ///
    /// # Errors
    /// Where there is none; `place` is the field they came from.
    pub fn choice(texts: &[String], place: &str) -> Result<Self, Failure> {
        if texts.is_empty() {
            return Err(Failure::field(place, "it must have at least one choice"));
        }
        let texts = texts.iter().map(|text| json!(text).to_string());
        Ok(Self::Grammar(format!(
            "start: {}",
            texts.collect::<Vec<_>>().join(" | ")
        )))
    }
}

/// Prepares forms for one model.
pub(crate) struct Forms {
    engine: Arc<Engine>,
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    limits: crate::Limits,
    compilers: Compilers,
    worker: Worker,
}

impl Forms {
    pub(crate) fn new(engine: &Arc<Engine>, limits: crate::Limits) -> std::io::Result<Self> {
        Ok(Self {
            engine: Arc::clone(engine),
            factory: OnceLock::new(),
            limits,
            compilers: Compilers::new(),
            worker: Worker::start()?,
        })
    }

    /// Prepares a form; `place` is the field it came from.
    pub(crate) async fn prepare(self: &Arc<Self>, form: Form, place: &str) -> Result<Arc<dyn AnswerForm>, Failure> {
        let most = self.limits.form_bytes;
        let bytes = match &form {
            Form::JsonObject => 0,
            Form::Schema(schema) => schema.to_string().len(),
            Form::Pattern(text) | Form::Grammar(text) => text.len(),
        };
        if bytes > most {
            return Err(Failure::field(
                place,
                format!("it has {bytes} bytes, {most} are the limit"),
            ));
        }
        let (own, at) = (Arc::clone(self), place.to_owned());
        let prepare = move || own.prepare_now(form, &at);
        self.compilers.run(place, self.limits.form_time, prepare).await
    }

    /// Prepares a form on this thread, whose stack has [`bounds::STACK_BYTES`].
    fn prepare_now(&self, form: Form, place: &str) -> Result<Arc<dyn AnswerForm>, Failure> {
        let factory = self.factory.get_or_init(|| vocabulary::factory(&self.engine));
        let factory = factory
            .as_ref()
            .map_err(|problem| Failure::new(StatusCode::NOT_IMPLEMENTED, problem.clone()))?;
        let grammar = grammar_of(form).map_err(|problem| refused(place, problem))?;
        let matcher = Matcher::new(factory.create_parser(grammar));
        // What may come first is computed once, so that a form that is too wide fails here and not in an answer.
        let problem = match matcher.get_error() {
            None => matcher
                .deep_clone()
                .compute_mask_or_eos()
                .err()
                .map(|error| error.to_string()),
            problem => problem,
        };
        match problem {
            None => Ok(Arc::new(PreparedForm::new(matcher, self.worker.clone()))),
            Some(problem) => Err(refused(place, one_line(&problem))),
        }
    }
}

fn refused(place: &str, problem: String) -> Failure {
    Failure::field(place, problem).with_code("unsupported_schema")
}

/// A form as llguidance takes it.
///
/// # Errors
/// For a form beyond the bounds, or one that cannot be held exactly.
fn grammar_of(form: Form) -> Result<TopLevelGrammar, String> {
    Ok(match form {
        Form::JsonObject => TopLevelGrammar::from_json_schema(with_options(json!({"type": "object"}))?),
        Form::Schema(mut schema) => {
            refuse_options(&schema)?;
            bounds::check_schema(&schema)?;
            schema::prepare(&mut schema)?;
            TopLevelGrammar::from_json_schema(with_options(schema)?)
        }
        Form::Pattern(pattern) => {
            bounds::check_pattern(&pattern)?;
            TopLevelGrammar::from_regex(&pattern)
        }
        Form::Grammar(grammar) => TopLevelGrammar::from_lark(bounds::prepared_grammar(&grammar)?),
    })
}

/// The field of a schema that holds how it is read.
const OPTIONS: &str = "x-guidance";

/// Levels that lines are indented for where a schema sets no bound, and the most where it does.
const OPEN_LEVELS: usize = 6;
const MOST_LEVELS: usize = 16;

/// Columns that a level is indented by at most.
const COLUMNS_PER_LEVEL: usize = 4;

/// A schema with the options that it is read by. A space stands only behind a colon or a comma. A line break may stand between any two
/// parts of JSON, and the next line is indented by no more than the schema's depth needs: a small model that takes the likeliest token would
/// go on with white space for long.
///
/// # Errors
/// For references beyond a bound.
fn with_options(schema: Value) -> Result<Value, String> {
    // One level more: the value may stand in a call.
    let levels = match schema::levels(&schema)? {
        Some(levels) => (levels + 1).min(MOST_LEVELS),
        None => OPEN_LEVELS,
    };
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        schema => schema,
    };
    if let Some(fields) = schema.as_object_mut() {
        let options = json!({
            "whitespace_pattern": line_break(levels),
            "key_separator": ": ?",
            "item_separator": ", ?",
        });
        fields.insert(OPTIONS.to_owned(), options);
    }
    Ok(schema)
}

/// A pattern of a line break and the indentation of so many levels.
fn line_break(levels: usize) -> String {
    format!(r"\n[ \t]{{0,{}}}", levels * COLUMNS_PER_LEVEL)
}

/// A schema may not change how schemas are read.
fn refuse_options(schema: &Value) -> Result<(), String> {
    match schema.get(OPTIONS) {
        None => Ok(()),
        Some(_) => Err(format!("{OPTIONS} is not taken: a schema is read as it stands")),
    }
}

fn one_line(problem: &str) -> String {
    const LONGEST: usize = 300;
    if problem.contains("coerce_one_of") {
        // llguidance names an option that clients cannot set.
        return "oneOf: it cannot be told that its alternatives exclude one another: use anyOf".to_owned();
    }
    if problem.contains("Current row has") {
        return "too many things may come first: ask for fewer alternatives or optional properties".to_owned();
    }
    let line = problem.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

/// Takes `response_format` and the fields in which other servers take patterns and grammars.
pub(crate) fn take_form(fields: &mut Fields) -> Result<Option<(Form, String)>, Failure> {
    let mut forms = Vec::new();
    let place = fields.name("response_format");
    if let Some(mut format) = fields.object("response_format")? {
        if let Some(form) = form_of(&mut format, &place)? {
            forms.push((form, place));
        }
        format.finish()?;
    }
    if let Some(mut outputs) = fields.object("structured_outputs")? {
        let place = fields.name("structured_outputs");
        take_outputs(&mut outputs, "", &place, &mut forms)?;
        outputs.finish()?;
    }
    take_outputs(fields, "guided_", "", &mut forms)?;
    if let Some(schema) = fields.value("json_schema") {
        forms.push((Form::Schema(schema), fields.name("json_schema")));
    }
    fields.refuse(
        "grammar",
        &[json!("")],
        "grammars in GBNF are not taken: send one in Lark as response_format {\"type\": \"grammar\", \"grammar\": …}",
    )?;
    // Clients give one form under the names of several servers.
    forms.dedup_by(|next, before| next.0 == before.0);
    match forms.len() {
        0 | 1 => Ok(forms.pop()),
        _ => Err(Failure::field(
            forms.swap_remove(1).1,
            "the request asks for another form already: ask for one",
        )),
    }
}

/// The fields in which vLLM takes forms.
fn take_outputs(
    fields: &mut Fields,
    prefix: &str,
    place: &str,
    forms: &mut Vec<(Form, String)>,
) -> Result<(), Failure> {
    let at = |name: &str| match place {
        "" => format!("{prefix}{name}"),
        place => format!("{place}.{name}"),
    };
    if let Some(schema) = fields.value(&format!("{prefix}json")) {
        forms.push((Form::schema(schema, &at("json"))?, at("json")));
    }
    if let Some(pattern) = fields.text(&format!("{prefix}regex"))? {
        forms.push((Form::Pattern(pattern), at("regex")));
    }
    if let Some(grammar) = fields.text(&format!("{prefix}grammar"))? {
        forms.push((Form::Grammar(grammar), at("grammar")));
    }
    if let Some(choices) = fields.list(&format!("{prefix}choice"))? {
        let choices = choices.into_iter().map(|choice| text_of(choice, &at("choice")));
        let choices = choices.collect::<Result<Vec<_>, _>>()?;
        forms.push((Form::choice(&choices, &at("choice"))?, at("choice")));
    }
    Ok(())
}

/// The form that an object with a `type` asks for.
pub(crate) fn form_of(format: &mut Fields, place: &str) -> Result<Option<Form>, Failure> {
    match format.required_text("type")?.as_str() {
        "text" => Ok(None),
        "json_object" => match format.value("schema") {
            Some(schema) => Ok(Some(Form::Schema(schema))),
            None => Ok(Some(Form::JsonObject)),
        },
        "json_schema" => {
            let schema = match format.object("json_schema")? {
                // As chat completions nest it.
                Some(mut nested) => {
                    nested.pass_over(&["name", "description", "strict"]);
                    let schema = nested.value("schema");
                    nested.finish()?;
                    schema
                }
                // As responses spell it, and llama.cpp.
                None => {
                    format.pass_over(&["name", "description", "strict"]);
                    format.value("schema")
                }
            };
            let schema = schema
                .ok_or_else(|| Failure::field(format!("{place}.json_schema.schema"), "this field is required"))?;
            Ok(Some(Form::Schema(schema)))
        }
        "regex" => Ok(Some(Form::Pattern(format.required_text("pattern")?))),
        "grammar" => Ok(Some(Form::Grammar(format.required_text("grammar")?))),
        other => Err(Failure::field(
            format!("{place}.type"),
            format!("{other:?} is not known: use text, json_object, json_schema, regex or grammar"),
        )),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use riffle_engine::{EngineOptions, TokenConstraint};

    use super::*;

    /// The shipped model.
    pub(crate) fn engine() -> Arc<Engine> {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/model");
        let options = EngineOptions {
            context_tokens: Some(512),
            ..EngineOptions::default()
        };
        Engine::load(model, options).unwrap()
    }

    /// Whether an answer of a form may be this text, taken token by token, and end there.
    pub(crate) fn fits(engine: &Arc<Engine>, form: Form, text: &str) -> bool {
        let forms = Forms::new(engine, crate::Limits::default()).unwrap();
        fits_form(engine, &*forms.prepare_now(form, "form").unwrap(), text)
    }

    /// True if an answer of a prepared form may be this text and end there.
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
        let nested = json!({"$defs": {"P": person}, "anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/P"}}]});
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
        let wide: serde_json::Map<String, Value> =
            (0..200).map(|at| (format!("p{at}"), json!({"const": at}))).collect();
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
}
