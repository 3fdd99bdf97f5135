//! Chains of schemas, patterns and grammars: long, deep, wide, circular, or nearly valid.

use serde_json::{Map, Value, json};

/// A source of choices: returns a number below its argument.
pub type Choose<'a> = &'a mut dyn FnMut(usize) -> usize;

/// Fields of a request for an answer of some form.
pub fn form(choose: Choose<'_>) -> Value {
    match choose(6) {
        0 | 1 => {
            let schema = schema(choose);
            match choose(3) {
                0 => json!({"guided_json": schema.to_string()}),
                _ => {
                    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
                }
            }
        }
        2 => json!({"guided_regex": pattern(choose)}),
        3 => {
            let texts: Vec<String> = (0..length(choose))
                .map(|at| format!("choice {at} \"\\\u{7f}"))
                .collect();
            json!({"guided_choice": texts})
        }
        4 => json!({"guided_grammar": format!("start: value\nvalue: %json {}\n", schema(choose))}),
        _ => json!({"guided_grammar": grammar(choose)}),
    }
}

/// A random length, mostly short, at times long.
fn length(choose: Choose<'_>) -> usize {
    match choose(8) {
        0 => 5000,
        1 | 2 => 1 + choose(2000),
        3 => 0,
        _ => 1 + choose(40),
    }
}

/// A schema.
pub fn schema(choose: Choose<'_>) -> Value {
    let (length, kind, is_round) = (length(choose), choose(9), choose(3) == 0);
    let mut definitions = Map::new();
    for at in 0..length {
        let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
        let link = match kind {
            0 => next,
            1 => json!({"type": "object", "properties": {"a": next, "b": {"$ref": "#"}}}),
            2 => json!({"type": "array", "items": next}),
            3 => json!({"allOf": [next, {"type": "object"}]}),
            4 => json!({"anyOf": [next, {"type": "null"}]}),
            5 => {
                json!({"type": "object", "properties": {"a": {"type": "object", "$ref": next["$ref"]}, "b": {"type": "object", "$ref": next["$ref"]}}})
            }
            6 => json!({"oneOf": [{"type": "array", "prefixItems": [next]}, next]}),
            7 => {
                json!({"type": "object", "patternProperties": {format!("^{}", "x?".repeat(at % 9)): next}, "required": [format!("x{at}")]})
            }
            _ => json!({"$anchor": format!("n{at}"), "additionalProperties": {"$ref": format!("#n{}", at + 1)}}),
        };
        definitions.insert(format!("d{at}"), link);
    }
    let end = match (is_round, choose(6)) {
        (true, _) => json!({"$ref": "#/$defs/d0"}),
        (false, 0) => json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX}),
        (false, 1) => json!({"enum": [9007199254740993_u64, 1e300]}),
        (false, 2) => json!({"type": "string", "pattern": pattern(choose)}),
        (false, 3) => (0..60).fold(json!({"type": "null"}), |inner, _| json!({"items": inner})),
        (false, 4) => json!({"const": {"$ref": "#/nowhere"}}),
        _ => json!({"type": "object", "minLength": 1, "minItems": 99999999, "required": ["a"]}),
    };
    definitions.insert(format!("d{length}"), end);
    json!({"$defs": definitions, "$ref": "#/$defs/d0"})
}

/// A regular expression.
pub fn pattern(choose: Choose<'_>) -> String {
    let length = length(choose);
    match choose(7) {
        0 => "(".repeat(length),
        1 => format!("{}a{}", "(".repeat(length), "b?)*".repeat(length)),
        2 => "a?b*".repeat(length),
        3 => format!("{}x{}", "(".repeat(length % 9), "{1,99})".repeat(length % 9)),
        4 => "[^a-z]|".repeat(length),
        5 => "\\p{L}{0,999}".repeat(length % 50),
        _ => "(?i)[[:alpha:]]+\\u{10ffff}(?=a)\\1".repeat(length % 50),
    }
}

/// A grammar.
pub fn grammar(choose: Choose<'_>) -> String {
    let (length, kind, is_round) = (length(choose), choose(8), choose(3) == 0);
    let name = if kind < 4 { "a" } else { "A" };
    let mut text = format!("start: {name}0\n");
    for at in 0..length {
        let next = format!("{name}{}", at + 1);
        let body = match kind {
            0 | 4 => next,
            1 => format!("{}{next}{}", "(".repeat(at % 28), ")".repeat(at % 28)),
            2 => format!("\"x\" {next}? | {next}* \"y\""),
            3 => format!("{next} {next}"),
            5 => format!("~{next} | /[ab]{{0,9}}/"),
            6 => format!("({next} | \"b\")+"),
            _ => format!("{next} & /(.|\\n)*/"),
        };
        text.push_str(&format!("{name}{at}: {body}\n"));
    }
    let end = match (is_round, choose(4)) {
        (true, _) => format!("{name}0"),
        (false, 0) => format!("{}b{}", "a{".repeat(length), "}".repeat(length)),
        (false, 1) => format!("/{}/", pattern(choose)),
        (false, 2) => "%json {\"type\": ".to_owned(),
        _ => "\"end\"".to_owned(),
    };
    text.push_str(&format!("{name}{length}: {end}\n"));
    text
}
