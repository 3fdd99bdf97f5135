//! The texts of options, and their error messages.

use std::borrow::Cow;

use riffle_attention::Format;
use riffle_engine::{
    CompressOptions, DraftSpec, TokenSelection, activations_note, described_activations, parse_bytes, parse_kv_type,
    rename_options,
};
use riffle_model::{Activations, ModelConfig, WeightFormat};

#[test]
fn drafts_are_spelled_as_they_print() {
    for text in [
        "none",
        "auto",
        "ngram",
        "sparse:quest@1",
        "ngram@15",
        "sparse:mass:budget=64",
        "ngram+sparse:streaming:sinks=4,window=64",
        "model:some/model.gguf",
        "ngram+model:a@b/c+d.gguf@7",
        "mtp",
        "mtp@3",
        "ngram+mtp@2",
    ] {
        let spec: DraftSpec = text.parse().unwrap();
        assert_eq!(spec.to_string().parse::<DraftSpec>().unwrap(), spec, "{text}");
    }
    assert!(DraftSpec::default().is_none());
    let [short, long] = ["sparse", "sparse:streaming:window=512"].map(|text| text.parse::<DraftSpec>().unwrap());
    assert_eq!(short, long);
}

#[test]
fn other_words_and_policies_that_learn_are_refused() {
    for (text, said) in [
        ("", "it must be"),
        ("mtp:2", "it must be"),
        ("mtp+ngram", "it must be"),
        ("auto@3", "it must be"),
        ("ngram@0", "it must be"),
        ("ngram@16", "it must be"),
        ("ngram@", "it must be"),
        ("ngram+", "it must be"),
        ("ngram+quest", "it must be"),
        ("model:", "it must be"),
        ("model:small.gguf@99", "it must be"),
        ("sparse:nothing", "nothing"),
        ("sparse:h2o", "must not evict"),
        ("sparse:xattention", "xattention"),
    ] {
        let message = text.parse::<DraftSpec>().unwrap_err().to_string();
        assert!(message.contains(said), "{text}: {message}");
    }
}

#[test]
fn methods_are_spelled_as_they_print_and_other_words_are_refused() {
    for text in ["echo:0.5", "kvzip:0.3", "expected:1"] {
        assert_eq!(text.parse::<CompressOptions>().unwrap().to_string(), text);
    }
    for bad in [
        "kvzip",
        "kvzip:",
        "kvzip:0",
        "kvzip:1.5",
        "zip:0.3",
        "expected:nan",
        ":0.3",
    ] {
        let message = bad.parse::<CompressOptions>().unwrap_err().to_string();
        assert!(message.contains("METHOD:KEEP"), "{bad}: {message}");
    }
}

fn loud(text: &str) -> Cow<'_, str> {
    rename_options(text, |field, value| {
        (field == "slots").then(|| format!("SLOTS {}", value.unwrap_or("?")))
    })
}

#[test]
fn known_options_are_renamed_and_everything_else_stays() {
    assert_eq!(
        loud("use `slots=4`, or a smaller `slots`"),
        "use SLOTS 4, or a smaller SLOTS ?"
    );
    for text in ["", "slots", "`", "`slots", "`other`", "`a b`c`", "``", "`slots =4`"] {
        assert_eq!(loud(text), text);
    }
    assert_eq!(loud("`open `slots`"), "`open SLOTS ?");
    assert_eq!(loud("`slots=a=b`"), "SLOTS a=b");
}

fn config(weight_format: WeightFormat) -> ModelConfig {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/model");
    let mut config = riffle_model::inspect(path).unwrap().config;
    config.weight_format = weight_format;
    config.has_bf16_weights = weight_format == WeightFormat::Bf16;
    config
}

#[test]
fn quantised_weights_are_said_to_round_whatever_was_asked_for() {
    let config = config(WeightFormat::Q4K);
    for activations in [Activations::Exact, Activations::Rounded] {
        let text = described_activations(&config, activations, false);
        assert_eq!(text, "rounded to 8 bits for quantised weights");
        let note = activations_note(&config, activations, false).unwrap();
        assert!(
            note.contains("quantised weights") && note.contains("bf16 weights on the CPU"),
            "{note}"
        );
    }
}

#[test]
fn bf16_weights_take_what_was_asked_for_on_the_cpu() {
    let config = config(WeightFormat::Bf16);
    let text = |activations| described_activations(&config, activations, false);
    assert_eq!(text(Activations::Exact), "exact (f32) for bf16 weights");
    assert_eq!(text(Activations::Rounded), "rounded to bf16 for bf16 weights");
    assert_eq!(activations_note(&config, Activations::Rounded, false), None);
    assert!(activations_note(&config, Activations::Rounded, true).is_some());
}

#[test]
fn kv_types_are_one_for_both_or_one_each() {
    assert_eq!(parse_kv_type("f16").unwrap(), (Format::F16, Format::F16));
    assert_eq!(parse_kv_type("q8_0:q4_0").unwrap(), (Format::Q8_0, Format::Q4_0));
    assert_eq!(parse_kv_type("Q8_0:BF16").unwrap(), (Format::Q8_0, Format::Bf16));
    let message = parse_kv_type("q9").unwrap_err().to_string();
    assert!(
        message.contains("\"q9\"") && message.contains("f32, f16, bf16"),
        "{message}"
    );
    assert!(parse_kv_type("f16:").is_err());
}

#[test]
fn bytes_take_binary_units_and_refuse_the_rest() {
    assert_eq!(parse_bytes("memory_budget_bytes", "4096").unwrap(), 4096);
    assert_eq!(parse_bytes("memory_budget_bytes", "1.5G").unwrap(), 3 << 29);
    assert_eq!(parse_bytes("memory_budget_bytes", "900MiB").unwrap(), 900 << 20);
    for bad in ["", "G", "-1", "1X", "nan", "inf", "1e300"] {
        assert!(parse_bytes("memory_budget_bytes", bad).is_err(), "{bad}");
    }
}

#[test]
fn a_selection_is_written_as_it_is_parsed() {
    for text in ["0.2", "0.25,layers=3", "1,layers=1,observed=8,pooled=7"] {
        let selection: TokenSelection = text.parse().unwrap();
        assert_eq!(selection.to_string(), text);
    }
    for text in ["", "0", "nan", "1.01", "0.2,layers", "0.2,layers=0", "0.2,rows=3"] {
        let error = text.parse::<TokenSelection>().unwrap_err().to_string();
        assert!(error.contains("token_selection"), "{error}");
    }
}
