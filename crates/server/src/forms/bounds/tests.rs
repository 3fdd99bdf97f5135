//! Forms at a bound are compiled with a quarter of the stack, and forms beyond it are refused.

use riffle_engine::TokenConstraint;
use serde_json::{Map, Value, json};

use super::STACK_BYTES;
use crate::forms::tests::engine;
use crate::forms::{Form, Forms, grammars_of};

/// Stack of the threads that draw tokens: a quarter of theirs.
const DRAWING_STACK: usize = 512 << 10;

fn on_stack<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().stack_size(bytes);
    thread.spawn(work).unwrap().join().unwrap()
}

/// A chain of definitions; `link` makes one from the reference to the next.
fn chain(length: usize, link: fn(Value) -> Value, end: Value) -> Form {
    let next = |at: usize| json!({"$ref": format!("#/$defs/d{at}")});
    let mut definitions: Map<String, Value> = (0..length).map(|at| (format!("d{at}"), link(next(at + 1)))).collect();
    definitions.insert(format!("d{length}"), end);
    Form::Schema(json!({"$defs": definitions, "$ref": "#/$defs/d0"}))
}

fn rules(length: usize, name: &str, body: fn(&str) -> String) -> Form {
    let links = (0..length).map(|at| format!("{name}{at}: {}\n", body(&format!("{name}{}", at + 1))));
    Form::Grammar(format!(
        "start: {name}0\n{}{name}{length}: \"x\"\n",
        links.collect::<String>()
    ))
}

/// Forms of a kind, by their length.
type FormMaker = fn(usize) -> Form;

const KINDS: [(&str, FormMaker); 14] = [
    ("references", |n| chain(n, |next| next, json!({"type": "integer"}))),
    ("objects", |n| {
        chain(
            n,
            |next| json!({"type": "object", "properties": {"a": next}}),
            json!({"type": "integer"}),
        )
    }),
    ("items", |n| {
        chain(
            n,
            |next| json!({"type": "array", "items": next}),
            json!({"type": "integer"}),
        )
    }),
    ("all", |n| {
        chain(
            n,
            |next| json!({"type": "object", "allOf": [next]}),
            json!({"type": "object"}),
        )
    }),
    ("any", |n| {
        chain(
            n,
            |next| json!({"anyOf": [{"type": "null"}, {"type": "array", "items": next}]}),
            json!({"type": "null"}),
        )
    }),
    ("written out", |n| {
        let link =
            |next: Value| json!({"type": "object", "properties": {"a": {"type": "object", "$ref": next["$ref"]}}});
        chain(n, link, json!({"type": "object"}))
    }),
    ("twice written out", |n| {
        let link = |next: Value| {
            let part = json!({"type": "object", "$ref": next["$ref"]});
            json!({"type": "object", "properties": {"a": part, "b": part}})
        };
        chain(n, link, json!({"type": "object"}))
    }),
    ("required", |n| {
        let names: Vec<String> = (0..n).map(|at| format!("a{at}")).collect();
        Form::Schema(json!({"type": "object", "required": names}))
    }),
    ("rules", |n| rules(n, "a", str::to_owned)),
    ("brackets", |n| {
        rules(n, "a", |next| format!("{}{next}{}", "(".repeat(25), ")".repeat(25)))
    }),
    ("terminals", |n| {
        rules(n, "A", |next| format!("\"(\" {next} \")\" | \"y\""))
    }),
    ("negations", |n| rules(n, "A", |next| format!("~{next} | \"b\""))),
    ("templates", |n| {
        Form::Grammar(format!("start: {}b{}", "a{".repeat(n), "}".repeat(n)))
    }),
    ("pattern", |n| {
        Form::Pattern("[ab][cd]".repeat(n / 8) + &"a".repeat(n % 8))
    }),
];

#[test]
fn forms_at_the_bounds_take_a_quarter_of_the_stack_and_those_beyond_are_refused() {
    let engine = engine();
    let forms = std::sync::Arc::new(Forms::new(&engine, crate::Limits::default()).unwrap());
    let end = engine.generation_defaults().eos[0];
    for (name, kind) in KINDS {
        // The longest form within the bounds.
        let (mut within, mut beyond) = (1, 40_000);
        while beyond - within > 1 {
            let middle = usize::midpoint(within, beyond);
            match on_stack(STACK_BYTES / 4, move || grammars_of(kind(middle)).map(drop)) {
                Ok(()) => within = middle,
                Err(problem) => {
                    assert!(problem.contains("the limit"), "{name}: {problem}");
                    beyond = middle;
                }
            }
        }
        assert!(beyond < 40_000, "{name} has no bound");
        let own = std::sync::Arc::clone(&forms);
        let prepared = on_stack(STACK_BYTES / 4, move || own.prepare_now(kind(within), "form"));
        let Ok(prepared) = prepared else { continue };
        on_stack(DRAWING_STACK, move || {
            let mut answer = prepared.begin().unwrap();
            for _ in 0..4 {
                let Some(token) = first_allowed(&mut *answer, end) else {
                    break;
                };
                if answer.accept(token).unwrap_or(true) {
                    break;
                }
            }
        });
    }
}

/// The first allowed token that does not end the text.
fn first_allowed(answer: &mut dyn TokenConstraint, end: u32) -> Option<u32> {
    let allowed = answer.allowed().ok()?.to_vec();
    let is_allowed = |token: &u32| allowed[*token as usize / 32] >> (token % 32) & 1 == 1;
    (0..allowed.len() as u32 * 32)
        .filter(|token| *token != end)
        .find(is_allowed)
}
