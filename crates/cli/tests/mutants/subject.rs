//! The files that are damaged, and the command that reads each.

use std::fs;
use std::path::{Path, PathBuf};

use super::mutation::{Harm, Mutated, any_bytes, cut, havoc};
use super::testing::{riffle, shipped_model};
use super::{gguf, json, verdict};
use riffle_testing::damage::Damage;

/// Arguments of every run of a model. A temperature makes the answer depend on every logit.
const RUN: [&str; 12] = [
    "-n",
    "16",
    "--temperature",
    "1",
    "--seed",
    "3",
    "--memory",
    "48M",
    "--threads",
    "1",
    "--page-tokens",
    "16",
];
/// Arguments of every run that writes logits.
const LOGITS: [&str; 10] = [
    "eval",
    "logits",
    "--tokens",
    "ids.json",
    "--out",
    "logits.safetensors",
    "--memory",
    "48M",
    "--threads",
    "1",
];
const IDS: &str = "[3, 5, 7, 9, 2, 11]";
const TEMPLATE: &str = "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}\
    {{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}\
    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const PROFILE: &str = "[prefill]\npolicy = \"streaming:sinks=16,window=64\"\n\n[[prefill.rules]]\nlayers = \"0-1\"\n\
    policy = \"full\"\n\n[decode]\npolicy = \"full\"\n";

/// Format of the damaged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Gguf,
    Safetensors,
    Json,
    /// A file with checksums that only Riffle writes: every byte is checked.
    Own,
    Template,
    Text,
}

/// Location of a command's answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Stdout,
    /// A file that the command writes, by its name in the folder.
    File(&'static str),
}

/// A kind of file, and the command that reads it.
pub(crate) struct Subject {
    name: String,
    format: Format,
    /// The folder with the intact files; the command's paths are relative to it.
    intact: PathBuf,
    /// The file to damage, or a folder with one file to damage.
    target: &'static str,
    arguments: Vec<String>,
    answer: Answer,
    expected: Vec<u8>,
}

/// A damaged file in its own folder, ready for the command.
pub(crate) struct Mutant {
    pub(crate) folder: PathBuf,
    /// The damaged file's name.
    pub(crate) file: String,
    pub(crate) harm: Harm,
    pub(crate) what: String,
}

impl Subject {
    /// All subjects, with intact files in folders under `root` and with their answers.
    pub(crate) fn all(root: &Path) -> Vec<Subject> {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut subjects = Vec::new();
        for (name, file) in [
            ("gguf, text", "fuzz/seeds/gguf/llama-q8_0"),
            ("gguf, llama", "crates/model/tests/vectors/gguf/llama-0.gguf"),
            ("gguf, hybrid", "crates/model/tests/vectors/gguf/qwen3_5-0.gguf"),
            ("gguf, mixed formats", "crates/model/tests/vectors/quantised/ud.gguf"),
            ("gguf, grids", "crates/model/tests/vectors/quantised/grids.gguf"),
            (
                "gguf, small floats and trits",
                "crates/model/tests/vectors/quantised/small.gguf",
            ),
        ] {
            subjects.push(Subject::gguf(root, name, &seeds.join(file)));
        }
        let vectors = seeds.join("crates/model/tests/vectors");
        subjects.extend(Subject::quantised(root, &vectors));
        subjects.extend(Subject::adapters(root, &vectors));
        subjects.push(Subject::importance(root));
        for (target, format) in [
            ("model/config.json", Format::Json),
            ("model/generation_config.json", Format::Json),
            ("model/tokenizer.json", Format::Json),
            ("model/tokenizer_config.json", Format::Json),
            ("model/model.safetensors", Format::Safetensors),
            ("model/chat_template.jinja", Format::Template),
            ("profile.toml", Format::Text),
        ] {
            subjects.push(Subject::of_run(root, target, format, &[]));
        }
        subjects.push(Subject::of_run(root, "session", Format::Own, &["--session", "session"]));
        subjects.push(Subject::of_run(
            root,
            "prefixes",
            Format::Own,
            &["--prefix-cache", "prefixes"],
        ));
        subjects.push(Subject::journal(root));
        subjects.push(Subject::record(root));
        subjects.iter_mut().for_each(Subject::learn_answer);
        subjects
    }

    /// Folders with quantisations of other programs; weights or settings are damaged.
    fn quantised(root: &Path, vectors: &Path) -> Vec<Subject> {
        let whole = [
            "awq",
            "fp8-tensor",
            "gptq",
            "int8",
            "mlx",
            "mxfp4",
            "nvfp4",
            "nvfp4-modelopt",
            "packed",
            "packed-order",
        ];
        let files = [
            ("model/model.safetensors", Format::Safetensors),
            ("model/config.json", Format::Json),
        ];
        let in_parts = [
            ("model/model-00001-of-00002.safetensors", Format::Safetensors),
            ("model/model.safetensors.index.json", Format::Json),
        ];
        let damaged = whole.iter().flat_map(|layout| files.map(|file| (*layout, file)));
        let damaged = damaged.chain(in_parts.map(|file| ("fp8-block", file)));
        let subjects = damaged.map(|(layout, file)| {
            let name = format!("{layout}, {}", &file.0["model/".len()..]);
            Subject::of_logits(root, &name, &vectors.join("folders").join(layout), file, &[])
        });
        subjects.collect()
    }

    /// A model with an adapter; the adapter is damaged.
    fn adapters(root: &Path, vectors: &Path) -> Vec<Subject> {
        let mut subjects = Vec::new();
        for (file, format) in [
            ("adapter/adapter_model.safetensors", Format::Safetensors),
            ("adapter/adapter_config.json", Format::Json),
            ("adapter/adapter.gguf", Format::Gguf),
        ] {
            let adapter = if format == Format::Gguf { file } else { "adapter" };
            let more = ["--lora", adapter];
            let subject = Subject::of_logits(root, file, &vectors.join("llama-0"), (file, format), &more);
            subjects.push(subject);
        }
        subjects
    }

    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    pub(crate) fn answer(&self) -> Answer {
        self.answer
    }

    /// The answer for the intact files.
    pub(crate) fn expected(&self) -> &[u8] {
        &self.expected
    }

    /// True if the command refuses the file with a note and continues without it: a report uses the other records.
    pub(crate) fn goes_on_without(&self) -> bool {
        self.target == "records"
    }

    pub(crate) fn arguments(&self) -> &[String] {
        &self.arguments
    }

    fn new(root: &Path, name: &str, format: Format, target: &'static str, arguments: &[&str]) -> Subject {
        let intact = root.join(name.replace(['/', ',', ' '], "-"));
        fs::create_dir_all(&intact).expect("a folder");
        Subject {
            name: name.to_owned(),
            format,
            intact,
            target,
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            answer: Answer::Stdout,
            expected: Vec::new(),
        }
    }

    /// Logits of a model in a folder with one damaged file, or with the damaged adapter in `more`.
    fn of_logits(
        root: &Path,
        name: &str,
        model: &Path,
        (target, format): (&'static str, Format),
        more: &[&str],
    ) -> Subject {
        let arguments = [&LOGITS[..], &["--model", "model"], more].concat();
        let mut subject = Subject::new(root, name, format, target, &arguments);
        copy_folder(model, &subject.intact.join("model"));
        if !more.is_empty() {
            copy_folder(
                &model.with_file_name("adapters").join("llama-all"),
                &subject.intact.join("adapter"),
            );
        }
        fs::write(subject.intact.join("ids.json"), IDS).expect("a file");
        subject.answer = Answer::File("logits.safetensors");
        subject
    }

    /// An importance matrix for a quantisation.
    fn importance(root: &Path) -> Subject {
        let arguments = [
            "quantize",
            "model",
            "out.gguf",
            "--imatrix",
            "imatrix.gguf",
            "--no-check",
            "--threads",
            "1",
        ];
        let mut subject = Subject::new(root, "importance", Format::Gguf, "imatrix.gguf", &arguments);
        copy_model(&subject.intact.join("model"));
        fs::write(subject.intact.join("text.txt"), book(2000)).expect("a file");
        let output = riffle()
            .args(["calibrate", "--model", "model", "--imatrix", "imatrix.gguf", "text.txt"])
            .current_dir(&subject.intact)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        subject.answer = Answer::File("out.gguf");
        subject
    }

    /// A GGUF file: its answer to a prompt if it has a tokenizer, its logits otherwise.
    fn gguf(root: &Path, name: &str, file: &Path) -> Subject {
        let logits = [&LOGITS[..], &["--model", "model.gguf"]].concat();
        let mut run = vec![
            "run",
            "--model",
            "model.gguf",
            "--prompt",
            "In the beginning",
            "--ctx",
            "64",
        ];
        run.extend(RUN);
        let has_text = name.ends_with("text");
        let arguments: &[&str] = if has_text { &run } else { &logits };
        let mut subject = Subject::new(root, name, Format::Gguf, "model.gguf", arguments);
        fs::copy(file, subject.intact.join("model.gguf")).expect("a copy");
        fs::write(subject.intact.join("ids.json"), IDS).expect("a file");
        if !has_text {
            subject.answer = Answer::File("logits.safetensors");
        }
        subject
    }

    /// `riffle run` on the shipped model with a chat template, a profile and the arguments in `more`.
    fn of_run(root: &Path, target: &'static str, format: Format, more: &[&str]) -> Subject {
        let mut arguments = vec!["run", "--model", "model", "--file", "prompt.txt", "--ctx", "512"];
        arguments.extend(RUN);
        if format == Format::Text {
            arguments.extend(["--profile", "profile.toml"]);
        }
        arguments.extend(more);
        let subject = Subject::new(root, target, format, target, &arguments);
        copy_model(&subject.intact.join("model"));
        fs::write(subject.intact.join("model/chat_template.jinja"), TEMPLATE).expect("a file");
        fs::write(subject.intact.join("profile.toml"), PROFILE).expect("a file");
        fs::write(subject.intact.join("prompt.txt"), book(600)).expect("a file");
        if !more.is_empty() {
            // The session or the cache of a first run over a shorter text.
            fs::write(subject.intact.join("first.txt"), book(400)).expect("a file");
            let first = subject.arguments.iter().map(|argument| match argument.as_str() {
                "prompt.txt" => "first.txt",
                same => same,
            });
            let output = riffle()
                .args(first)
                .current_dir(&subject.intact)
                .output()
                .expect("it runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        subject
    }

    /// A perplexity measurement that continues from an almost complete journal.
    fn journal(root: &Path) -> Subject {
        let arguments = [
            "eval",
            "perplexity",
            "--model",
            "model",
            "--text",
            "text.txt",
            "--window",
            "64",
            "--policy",
            "streaming:sinks=16,window=32",
            "--memory",
            "48M",
            "--threads",
            "1",
            "--resume",
            "journal",
        ];
        let subject = Subject::new(root, "journal", Format::Own, "journal", &arguments);
        copy_model(&subject.intact.join("model"));
        fs::write(subject.intact.join("text.txt"), book(900)).expect("a file");
        let output = riffle()
            .args(arguments)
            .current_dir(&subject.intact)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = subject.intact.join("journal");
        let whole = fs::read_to_string(&path).expect("a journal");
        let kept = whole.trim_end().rfind('\n').expect("several lines") + 1;
        fs::write(path, &whole[..kept]).expect("a file");
        subject
    }

    /// A record for a report.
    fn record(root: &Path) -> Subject {
        let arguments = ["eval", "report", "records", "--markdown"];
        let subject = Subject::new(root, "record", Format::Json, "records", &arguments);
        let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results/records");
        fs::create_dir(subject.intact.join("records")).expect("a folder");
        let mut paths: Vec<PathBuf> = files_in(&records);
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        for path in paths {
            let small = fs::metadata(&path).expect("a file").len() < 200_000;
            if small {
                let name = path.file_name().expect("a file has a name");
                fs::copy(&path, subject.intact.join("records").join(name)).expect("a copy");
            }
        }
        subject
    }

    fn learn_answer(&mut self) {
        let place = self.intact.with_extension("learned");
        copy_folder(&self.intact, &place);
        let run = verdict::run(self, &place);
        assert_eq!(run.status, Some(0), "{}: the intact files: {}", self.name, run.stderr);
        self.expected = run.answer;
        assert!(!self.expected.is_empty(), "{}: an answer", self.name);
        fs::remove_dir_all(place).expect("the folder is ours");
    }

    /// A damaged copy in `place`; earlier contents are removed.
    pub(crate) fn mutant(&self, damage: &mut Damage, place: &Path) -> Mutant {
        _ = fs::remove_dir_all(place);
        copy_folder(&self.intact, place);
        let mut path = place.join(self.target);
        if path.is_dir() {
            let files = files_in(&path);
            path = files[damage.below(files.len())].clone();
        }
        let bytes = fs::read(&path).expect("an intact file");
        let mutated = self.damaged(damage, &bytes);
        // The file is a hard link to the intact one, so it is replaced and not overwritten.
        fs::remove_file(&path).expect("the copy is ours");
        fs::write(&path, &mutated.bytes).expect("a file");
        let file = path.strip_prefix(place).expect("the file is in its place").display();
        let name = path.file_name().expect("a file has a name");
        Mutant {
            folder: place.to_owned(),
            file: name.to_string_lossy().into_owned(),
            harm: mutated.harm,
            what: format!("{file}: {}", mutated.what),
        }
    }

    fn damaged(&self, damage: &mut Damage, bytes: &[u8]) -> Mutated {
        match self.format {
            Format::Gguf => gguf::damaged(damage, bytes),
            Format::Json => json::damaged(damage, bytes),
            Format::Safetensors => safetensors(damage, bytes),
            Format::Own => match damage.below(4) {
                0 => cut(damage, bytes),
                1 => havoc(damage, bytes, Harm::Structure),
                _ => any_bytes(damage, bytes, Harm::Structure),
            },
            Format::Template => template(damage, bytes),
            // A truncated text may be legal.
            Format::Text => Mutated {
                harm: Harm::Content,
                ..match damage.below(2) {
                    0 => havoc(damage, bytes, Harm::Content),
                    _ => any_bytes(damage, bytes, Harm::Content),
                }
            },
        }
    }
}

/// Damages the header of a safetensors file, its length, or the file's end. The header fixes the place of every
/// tensor, so no change of it alone is legal.
fn safetensors(damage: &mut Damage, bytes: &[u8]) -> Mutated {
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let (header, data) = bytes[8..].split_at(length);
    let join = |length: u64, header: &[u8]| [&length.to_le_bytes()[..], header, data].concat();
    match damage.below(8) {
        0 => cut(damage, bytes),
        1 => {
            let number = damage.choose(&riffle_testing::damage::NUMBERS);
            Mutated {
                bytes: join(number, header),
                harm: Harm::Structure,
                what: format!("the header's length set to {number}"),
            }
        }
        2 => any_bytes(damage, bytes, Harm::Content),
        _ => {
            let mutated = json::damaged(damage, header);
            Mutated {
                bytes: join(mutated.bytes.len() as u64, &mutated.bytes),
                harm: Harm::Structure,
                what: format!("header: {}", mutated.what),
            }
        }
    }
}

/// Puts a hostile piece into a template. Any text may be a legal template.
fn template(damage: &mut Damage, bytes: &[u8]) -> Mutated {
    let pieces = [
        "{%%}".to_owned(),
        "{%".to_owned(),
        "{{ }}".to_owned(),
        format!("{{{{ {} 1 }}}}", "not ".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "1+".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(50_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(50_000)),
        format!("{{{{ x{} }}}}", "|upper".repeat(50_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(50_000), "]".repeat(50_000)),
        "{% if 1 %}".repeat(50_000),
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}".to_owned(),
        "{% set ns = namespace(a=1) %}{% for i in range(90000) %}{% set ns.a = namespace(a=ns.a) %}{% endfor %}{{ ns }}".to_owned(),
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
            .to_owned(),
        "{{ messages | tojson(indent=100000000000) }}".to_owned(),
        "{{ 'a\\nb' | indent(100000000000) }}".to_owned(),
        "{{ '%99999999999d' | format(1) }}".to_owned(),
        "{{ '{:>99999999999}'.format(1) }}".to_owned(),
        "{{ 'x' * 99999999999 }}".to_owned(),
        "{{ range(99999999999) | list }}".to_owned(),
        "{{ messages | slice(100000000000) | list }}".to_owned(),
        "{{ messages | batch(100000000000, 'x') | list }}".to_owned(),
        "{{ raise_exception('\\x1b[2J\u{1b}[31m\u{202e}') }}".to_owned(),
        "{{ strftime_now('%9999999999Y') }}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
    ];
    if damage.below(4) == 0 {
        return Mutated {
            harm: Harm::Content,
            ..havoc(damage, bytes, Harm::Content)
        };
    }
    let piece = &pieces[damage.below(pieces.len())];
    // Half of the pieces go to the beginning, a quarter to the end, and a quarter anywhere.
    let at = match damage.below(4) {
        0 => damage.below(bytes.len()),
        1 => bytes.len(),
        _ => 0,
    };
    let mut hurt = bytes.to_vec();
    hurt.splice(at..at, piece.bytes());
    Mutated {
        bytes: hurt,
        harm: Harm::Content,
        what: format!("{:?}… put at byte {at}", piece.chars().take(60).collect::<String>()),
    }
}

/// The first bytes of the shipped book.
fn book(bytes: usize) -> String {
    let path = shipped_model().join("../text/zechariah.txt");
    let text = fs::read_to_string(path).expect("the book");
    text.chars().take(bytes).collect()
}

fn copy_model(folder: &Path) {
    fs::create_dir(folder).expect("a folder");
    for file in files_in(&shipped_model()) {
        fs::copy(&file, folder.join(file.file_name().expect("a file has a name"))).expect("a copy");
    }
}

/// Copies a folder with its subfolders. Model files are linked, because no command writes to them.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let copy = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy_folder(&path, &copy);
        } else if from.ends_with("model") {
            fs::hard_link(&path, copy).expect("a link");
        } else {
            fs::copy(&path, copy).expect("a copy");
        }
    }
}

/// The files of a folder in the order of their names.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    paths
}
