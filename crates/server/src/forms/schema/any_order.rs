//! Writes a schema as a grammar in which the names of closed objects stand in any order, each of them once.
//!
//! llguidance compiles schemas with the declared names in their order. Its grammars have rules with a parameter of 64
//! bits. A rule with a bit for each written name replaces a rule for each set of names. Every other part of the schema
//! is compiled as a schema.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::References;
use crate::forms::OPTIONS;

/// Maximum number of names of an object: the bits of a rule's parameter.
const NAMES: usize = 64;

/// Maximum number of rules of a grammar.
const RULES: usize = 5000;

/// Maximum number of bytes of a grammar; parts of a schema contain copies of their references' targets.
const BYTES: usize = 2 << 20;

/// Maximum number of levels of nested schemas; a rule takes more stack per level than a schema.
const LEVELS: usize = 200;

/// Keywords without effect on values.
const ANNOTATIONS: [&str; 13] = [
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
    OPTIONS,
];

/// A grammar for a schema that is [prepared](super::prepare) with its options. `None` if no closed object has two
/// names, or if the grammar would be too large. Also if references name other parts than definitions.
pub(in crate::forms) fn any_order(schema: &Value) -> Option<String> {
    let references = References::new(schema).ok()?;
    if references.has_inner_documents() {
        return None;
    }
    let options = schema.get(OPTIONS)?;
    let mut rules = Rules {
        references: &references,
        schema,
        options,
        reaching: HashMap::new(),
        known: HashMap::new(),
        parts: HashMap::new(),
        lines: Vec::new(),
        bytes: 0,
        level: 0,
    };
    if !rules.reaches(schema) {
        return None;
    }
    let start = rules.value(schema)?;
    let pattern = |name: &str| options.get(name)?.as_str();
    let (line, colon, comma) = (
        pattern("whitespace_pattern")?,
        pattern("key_separator")?,
        pattern("item_separator")?,
    );
    Some(format!(
        "start: {start}\nCOLON: /{colon}/\nCOMMA: /{comma}/\n{}\n%ignore /{line}/\n%llguidance {{\"ignore_once\": true}}\n",
        rules.lines.join("\n")
    ))
}

/// Shape of a schema in the grammar.
enum Shape<'a> {
    Reference(&'a Value),
    Alternatives(&'a [Value]),
    List {
        items: &'a Value,
        least: u64,
        most: Option<u64>,
    },
    Object(Object<'a>),
    /// Compiled as a schema.
    Other,
}

struct Object<'a> {
    /// The required names first.
    names: Vec<(&'a str, &'a Value)>,
    required: usize,
    /// A schema for values that are not objects, if allowed.
    others: Option<Value>,
}

struct Rules<'a> {
    references: &'a References<'a>,
    schema: &'a Value,
    options: &'a Value,
    /// For each schema's address, true if the schema can reach an object with two names.
    reaching: HashMap<*const Value, bool>,
    /// Rules by the address of their schema.
    known: HashMap<*const Value, String>,
    /// Rules of parts compiled as schemas, by their text.
    parts: HashMap<String, String>,
    lines: Vec<String>,
    bytes: usize,
    level: usize,
}

impl<'a> Rules<'a> {
    fn shape(&self, schema: &'a Value) -> Shape<'a> {
        let Value::Object(fields) = schema else {
            return Shape::Other;
        };
        let keywords = fields.keys().map(String::as_str);
        let mut keywords: Vec<&str> = keywords.filter(|keyword| !ANNOTATIONS.contains(keyword)).collect();
        keywords.sort_unstable();
        match keywords[..] {
            ["$ref"] => self.target(fields).map_or(Shape::Other, Shape::Reference),
            ["anyOf"] => match &fields["anyOf"] {
                Value::Array(parts) => Shape::Alternatives(parts),
                _ => Shape::Other,
            },
            _ if fields.get("type").is_some_and(|kind| kind == "array") => {
                list(fields, &keywords).unwrap_or(Shape::Other)
            }
            _ => Object::closed(fields, &keywords).map_or(Shape::Other, Shape::Object),
        }
    }

    fn target(&self, fields: &'a Map<String, Value>) -> Option<&'a Value> {
        match self.references.targets(fields["$ref"].as_str()?)[..] {
            [target] => Some(target),
            _ => None,
        }
    }

    /// True if the rules of a schema contain an object with two names.
    fn reaches(&mut self, schema: &'a Value) -> bool {
        let place = std::ptr::from_ref(schema);
        if let Some(reaches) = self.reaching.get(&place) {
            return *reaches;
        }
        // A recursive schema reaches no more than its other parts.
        self.reaching.insert(place, false);
        let reaches = match self.shape(schema) {
            Shape::Reference(target) => self.reaches(target),
            Shape::Alternatives(parts) => parts.iter().any(|part| self.reaches(part)),
            Shape::List { items, .. } => self.reaches(items),
            Shape::Object(object) => {
                object.names.len() > 1 || object.names.iter().any(|(_, value)| self.reaches(value))
            }
            Shape::Other => false,
        };
        self.reaching.insert(place, reaches);
        reaches
    }

    /// The rule of a schema's values.
    fn value(&mut self, schema: &'a Value) -> Option<String> {
        if !self.reaches(schema) {
            return self.part(schema.clone());
        }
        let place = std::ptr::from_ref(schema);
        if let Some(rule) = self.known.get(&place) {
            return Some(rule.clone());
        }
        if self.level == LEVELS {
            return None;
        }
        let rule = format!("v{}", self.known.len());
        self.known.insert(place, rule.clone());
        self.level += 1;
        let body = match self.shape(schema) {
            Shape::Reference(target) => self.value(target)?,
            Shape::Alternatives(parts) => self.alternatives(parts)?,
            Shape::List { items, least, most } => self.list(items, least, most)?,
            Shape::Object(object) => self.object(&rule, object)?,
            Shape::Other => self.part(schema.clone())?,
        };
        self.level -= 1;
        self.push(format!("{rule}: {body}"))?;
        Some(rule)
    }

    fn push(&mut self, line: String) -> Option<()> {
        self.bytes += line.len();
        self.lines.push(line);
        (self.lines.len() <= RULES && self.bytes <= BYTES).then_some(())
    }

    /// Alternatives without objects of two names are one part, because llguidance drops impossible ones.
    fn alternatives(&mut self, parts: &'a [Value]) -> Option<String> {
        let (reaching, others): (Vec<&Value>, Vec<&Value>) = parts.iter().partition(|part| self.reaches(part));
        let mut rules = Vec::with_capacity(reaching.len() + 1);
        if !others.is_empty() {
            rules.push(self.part(json!({"anyOf": others}))?);
        }
        for part in reaching {
            rules.push(self.value(part)?);
        }
        Some(rules.join(" | "))
    }

    fn list(&mut self, items: &'a Value, least: u64, most: Option<u64>) -> Option<String> {
        let item = self.value(items)?;
        let further = match (least.saturating_sub(1), most) {
            (least, Some(most)) => format!("{{{least},{}}}", most - 1),
            (0, None) => "*".to_owned(),
            (least, None) => format!("{{{least},}}"),
        };
        let optional = if least == 0 { "?" } else { "" };
        Some(format!("\"[\" ({item} (COMMA {item}){further}){optional} \"]\""))
    }

    fn object(&mut self, rule: &str, object: Object<'a>) -> Option<String> {
        let Object {
            names,
            required,
            others,
        } = object;
        let (mut first, mut further) = (Vec::with_capacity(names.len()), Vec::with_capacity(names.len()));
        for (bit, (name, value)) in names.into_iter().enumerate() {
            let value = self.value(value)?;
            let name = literal(&json!(name).to_string());
            self.push(format!("{rule}n{bit}: {name} COLON {value}"))?;
            first.push(format!("{rule}n{bit} {rule}r::0x{:x}", 1_u64 << bit));
            further.push(format!(
                "COMMA {rule}n{bit} {rule}r::set_bit({bit}) %if bit_clear({bit})"
            ));
        }
        let end = match required {
            0 => "\"\"".to_owned(),
            _ => format!("\"\" %if is_ones([0:{required}])"),
        };
        self.push(format!("{rule}r::_: {end} | {}", further.join(" | ")))?;
        let optional = if required == 0 { "?" } else { "" };
        let object = format!("\"{{\" ({}){optional} \"}}\"", first.join(" | "));
        Some(match others {
            None => object,
            Some(others) => format!("{object} | {}", self.part(others)?),
        })
    }

    /// The rule of a part compiled as a schema.
    fn part(&mut self, mut part: Value) -> Option<String> {
        if part == Value::Bool(true) {
            part = json!({});
        }
        if let Some(fields) = part.as_object_mut() {
            for keyword in ["$defs", "$id", "definitions"] {
                fields.remove(keyword);
            }
            fields.insert(OPTIONS.to_owned(), self.options.clone());
        }
        if holds_reference(&part) {
            self.add_definitions(&mut part)?;
        }
        let text = part.to_string();
        if let Some(rule) = self.parts.get(&text) {
            return Some(rule.clone());
        }
        let rule = format!("p{}", self.parts.len());
        self.push(format!("{rule}: %json {text}"))?;
        self.parts.insert(text, rule.clone());
        Some(rule)
    }

    /// Copies the definitions that a part refers to; `None` if its references name something else.
    fn add_definitions(&self, part: &mut Value) -> Option<()> {
        for keyword in ["$defs", "definitions"] {
            if let Some(definitions) = self.schema.get(keyword) {
                part[keyword] = definitions.clone();
            }
        }
        let mut names_definitions = true;
        each_reference(part, &mut |reference| {
            names_definitions &= reference.starts_with("#/$defs/") || reference.starts_with("#/definitions/");
        });
        names_definitions.then_some(())
    }
}

fn list<'a>(fields: &'a Map<String, Value>, keywords: &[&str]) -> Option<Shape<'a>> {
    let taken = ["items", "maxItems", "minItems", "type"];
    if !keywords.iter().all(|keyword| taken.contains(keyword)) {
        return None;
    }
    let count = |keyword: &str| fields.get(keyword).map(Value::as_u64);
    let least = count("minItems").unwrap_or(Some(0))?;
    let most = match count("maxItems") {
        None => None,
        Some(most) => Some(most?),
    };
    most.is_none_or(|most| most >= least.max(1)).then_some(Shape::List {
        items: fields.get("items").filter(|items| items.is_object())?,
        least,
        most,
    })
}

impl<'a> Object<'a> {
    /// A closed object with no keywords besides its names.
    fn closed(fields: &'a Map<String, Value>, keywords: &[&str]) -> Option<Self> {
        let taken = ["additionalProperties", "properties", "required", "type"];
        if !keywords.iter().all(|keyword| taken.contains(keyword)) || fields.get("additionalProperties")? != false {
            return None;
        }
        let others = match fields.get("type")? {
            Value::String(kind) if kind == "object" => None,
            Value::Array(kinds) if kinds.iter().any(|kind| kind == "object") => {
                let others: Vec<&Value> = kinds.iter().filter(|kind| *kind != "object").collect();
                (!others.is_empty()).then(|| json!({"type": others}))
            }
            _ => return None,
        };
        let properties = fields.get("properties")?.as_object()?;
        let required: Vec<&str> = match fields.get("required") {
            Some(Value::Array(names)) => names.iter().map(Value::as_str).collect::<Option<_>>()?,
            Some(_) => return None,
            None => Vec::new(),
        };
        let is_met = |name: &str| properties.get(name).is_some_and(|value| *value != false);
        let is_wide = properties.len() > NAMES || properties.is_empty();
        if is_wide || !required.iter().all(|name| is_met(name)) {
            return None;
        }
        let names = properties.iter().filter(|(_, value)| **value != false);
        let names = names.map(|(name, value)| (name.as_str(), value));
        let (mut names, optional): (Vec<_>, Vec<_>) = names.partition(|(name, _)| required.contains(name));
        let required = names.len();
        names.extend(optional);
        (!names.is_empty()).then_some(Self {
            names,
            required,
            others,
        })
    }
}

fn holds_reference(schema: &Value) -> bool {
    let mut holds = false;
    each_reference(schema, &mut |_| holds = true);
    holds
}

/// Calls `take` with every reference, and with data that looks like one.
fn each_reference(value: &Value, take: &mut impl FnMut(&str)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| each_reference(item, take)),
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                take(reference);
            }
            fields.values().for_each(|value| each_reference(value, take));
        }
        _ => {}
    }
}

/// A text in a grammar.
fn literal(text: &str) -> String {
    json!(text).to_string()
}
