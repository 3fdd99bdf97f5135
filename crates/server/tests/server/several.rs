//! Several models in one server, in memory that does not hold all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use riffle_engine::{Engine, EngineOptions, PrefixCacheOptions};
use riffle_server::{Limits, ModelSource, ModelsPlan, Server, ServerOptions};
use riffle_testing::{fixture, write_mixture};
use serde_json::{Value, json};

use crate::testing::{Running, options, run, start_on, text};

/// Names of the models: a dense one, one with recurrent layers, and a mixture of experts.
const NAMES: [&str; 3] = ["dense", "hybrid", "mixture"];

const BODIES_BYTES: usize = 4 << 20;

/// The three models with their files.
struct Three {
    folder: tempfile::TempDir,
}

impl Three {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, from) in [("dense", "model"), ("hybrid", "model-hybrid")] {
            copy(&fixture(from), &folder.path().join(name));
        }
        fs::create_dir(folder.path().join("mixture")).unwrap();
        write_mixture(&folder.path().join("mixture"));
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn sources(&self) -> Vec<ModelSource> {
        let engine = EngineOptions::default()
            .with_context_tokens(Some(4096))
            .with_pool_tokens(Some(8192))
            .with_batch_tokens(512)
            .with_chunk_tokens(256)
            .with_page_tokens(64);
        let source = |name: &&str| ModelSource {
            name: (*name).to_owned(),
            path: self.path(name),
            options: engine.clone(),
        };
        NAMES.iter().map(source).collect()
    }

    fn plan(&self, memory_bytes: u64) -> ModelsPlan {
        let refused = &mut |name: &str, error| panic!("{name}: {error}");
        ModelsPlan::new(self.sources(), Some(memory_bytes), 2, BODIES_BYTES as u64, refused)
    }

    /// A plan with memory for one model, but not for two.
    fn tight_plan(&self) -> ModelsPlan {
        let roomy = self.plan(4 << 30);
        assert!(roomy.fits_all());
        let totals = || roomy.models().iter().map(|model| model.plan().total_bytes);
        let (most, least) = (totals().max().unwrap(), totals().min().unwrap());
        let beside = (4 << 30) - roomy.room_bytes();
        let plan = self.plan(beside + most + least / 2);
        assert!(!plan.fits_all() && plan.models().len() == 3);
        plan
    }

    fn start(&self, options: ServerOptions) -> Running {
        run(Server::bind_models(&self.tight_plan(), options).unwrap())
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn small(options: ServerOptions) -> ServerOptions {
    ServerOptions {
        parallel: 2,
        limits: Limits {
            body_bytes: 1 << 20,
            bodies_bytes: BODIES_BYTES,
            ..options.limits
        },
        ..options
    }
}

/// The loaded models.
fn loaded(server: &Running) -> Vec<String> {
    let models = server.get("/api/ps").json()["models"].as_array().unwrap().clone();
    models
        .iter()
        .map(|model| model["name"].as_str().unwrap().to_owned())
        .collect()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A request of one of three kinds, and its answer's text.
fn ask(server: &Running, name: &str, kind: usize, prompt: &str) -> Value {
    let tokens = 6;
    match kind {
        0 => {
            let body = json!({"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0});
            server.ask("/v1/completions", &body)["choices"][0]["text"].clone()
        }
        1 => {
            let options = json!({"num_predict": tokens, "temperature": 0});
            let body = json!({"model": format!("{name}:latest"), "prompt": prompt, "raw": true, "stream": false, "options": options});
            server.ask("/api/generate", &body)["response"].clone()
        }
        _ => {
            let body = json!({"model": name, "prompt": prompt, "n_predict": tokens, "temperature": 0, "stream": true});
            let events = server.stream("/completion", &body).events();
            let texts = events.iter().filter_map(|event| event["content"].as_str());
            json!(texts.collect::<String>())
        }
    }
}

#[test]
fn models_asked_in_any_order_answer_as_each_does_alone_and_never_take_more_than_the_plan() {
    let three = Three::new();
    let prompts = ["In the beginning", "And God said, Let there be", "Thus saith the LORD"];
    let plan = three.tight_plan();
    let alone: Vec<Vec<Value>> = plan
        .models()
        .iter()
        .map(|model| {
            let engine = Engine::load(three.path(model.name()), model.options().clone()).unwrap();
            let server = start_on(&engine, small(options()));
            prompts.iter().map(|prompt| ask(&server, "any", 0, prompt)).collect()
        })
        .collect();
    let server = three.start(small(options()));
    let most_loaded = Mutex::new(0);
    std::thread::scope(|scope| {
        for seed in 1..=3_u64 {
            let (server, alone, most_loaded) = (&server, &alone, &most_loaded);
            scope.spawn(move || {
                let mut bits = seed;
                let mut below = |end: u64| {
                    bits = bits
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    ((bits >> 33) % end) as usize
                };
                for _ in 0..8 {
                    let (model, kind, prompt) = (below(3), below(3), below(3));
                    let answer = ask(server, NAMES[model], kind, prompts[prompt]);
                    assert_eq!(answer, alone[model][prompt], "{} {kind} {prompt}", NAMES[model]);
                    let now = loaded(server).len();
                    let mut most = most_loaded.lock().unwrap();
                    *most = now.max(*most);
                }
            });
        }
    });
    assert_eq!(most_loaded.into_inner().unwrap(), 1, "two do not fit");
    let loads: f64 = NAMES
        .iter()
        .map(|name| server.metric(&format!("riffle:model_loads_total{{model=\"{name}\"}}")))
        .sum();
    assert!(loads >= 3.0, "{loads}");
}

#[test]
fn a_model_that_leaves_keeps_its_prompts_on_disk() {
    let three = Three::new();
    let folder = tempfile::tempdir().unwrap();
    let server = three.start(ServerOptions {
        prefix_cache: Some(PrefixCacheOptions {
            folder: folder.path().to_owned(),
            budget_bytes: 1 << 30,
        }),
        ..small(options())
    });
    let read = |name: &str| {
        let body = json!({"model": name, "prompt": text(3000), "max_tokens": 2, "temperature": 0});
        let answer = server.ask("/v1/completions", &body);
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap();
        (answer["choices"][0]["text"].clone(), cached)
    };
    let first: Vec<_> = NAMES.iter().map(|name| read(name)).collect();
    assert_eq!(loaded(&server), ["mixture"]);
    for (name, (answer, cached)) in NAMES.iter().zip(first) {
        assert_eq!(cached, 0, "{name}");
        let (again, cached) = read(name);
        assert_eq!(again, answer, "{name}");
        assert!(cached > 500, "{name}: {cached} tokens");
    }
}

#[test]
fn lists_have_all_models_and_load_none() {
    let three = Three::new();
    let server = three.start(small(options()));
    let ids = |path: &str, list: &str, id: &str| -> Vec<String> {
        let body = server.get(path).json();
        let models = body[list].as_array().unwrap().iter();
        models.map(|model| model[id].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("/v1/models", "data", "id"), NAMES);
    assert_eq!(ids("/api/tags", "models", "name"), NAMES);
    assert_eq!(server.get("/v1/models/hybrid").json()["id"], "hybrid");
    let shown = server.ask("/api/show", &json!({"model": "mixture:latest"}));
    assert!(
        shown["details"]["family"].as_str().unwrap().starts_with("qwen3"),
        "{shown}"
    );
    assert_eq!(server.get("/props?model=hybrid").json()["model_alias"], "hybrid");
    assert_eq!(server.get("/props").json()["model_alias"], "dense");
    assert_eq!(server.get("/slots?model=mixture").json().as_array().unwrap().len(), 2);
    let status = server.get("/status?model=mixture").json();
    assert_eq!(
        (&status["models"], &status["is_loaded"]),
        (&json!(NAMES), &json!(false))
    );
    for path in ["/health", "/ready", "/version", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert!(loaded(&server).is_empty());
    // A request without a name uses the first model.
    server.complete("In the beginning", json!({"max_tokens": 1}));
    assert_eq!(loaded(&server), ["dense"]);
}

#[test]
fn a_name_that_no_model_has_is_refused_with_those_that_there_are_in_the_shape_of_each_api() {
    let three = Three::new();
    let server = three.start(small(options()));
    let messages = json!([{"role": "user", "content": "a"}]);
    for (path, place) in [
        ("/v1/chat/completions", "/error/message"),
        ("/v1/messages", "/error/message"),
        ("/api/chat", "/error"),
        ("/tokenize", "/error/message"),
    ] {
        let body = json!({"model": "llama", "messages": messages, "max_tokens": 1, "content": "a"});
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 404, "{path}: {}", refused.body);
        let message = refused.json().pointer(place).unwrap().as_str().unwrap().to_owned();
        let names = "ask for \"dense\", \"hybrid\" or \"mixture\"";
        assert!(message.contains(names), "{path}: {message}");
    }
    for path in ["/v1/models/llama", "/props?model=llama", "/lora-adapters?model=llama"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert_eq!(
        server
            .post("/v1/completions", &json!({"model": 1, "prompt": "a"}))
            .status,
        400
    );
    assert_eq!(
        server
            .send("POST", "/v1/completions", "Content-Type: application/json\r\n", "{")
            .whole()
            .status,
        400
    );
    assert_eq!(server.get("/v1/completions").status, 405);
    assert!(loaded(&server).is_empty(), "nothing of this loads a model");
}

#[test]
fn a_request_says_how_long_its_model_stays() {
    let three = Three::new();
    let server = three.start(ServerOptions {
        unload_after: Some(Duration::from_secs(3600)),
        ..small(options())
    });
    let generate = |more: Value| {
        let mut body = json!({"model": "dense", "stream": false, "options": {"num_predict": 1}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/api/generate", &body)
    };
    let expires = || {
        let text = server.get("/api/ps").json()["models"][0]["expires_at"]
            .as_str()
            .unwrap()
            .to_owned();
        let time = humantime_seconds(&text);
        time - unix_seconds()
    };
    assert_eq!(generate(json!({}))["done_reason"], "load");
    assert!((3500.0..=3601.0).contains(&expires()), "{}", expires());
    generate(json!({"prompt": "a", "keep_alive": "5m"}));
    assert!((200.0..=301.0).contains(&expires()), "{}", expires());
    generate(json!({"prompt": "a", "keep_alive": -1}));
    assert!(expires() > 1e9, "{}", expires());
    let left = generate(json!({"keep_alive": 0}));
    assert_eq!(left["done_reason"], "unload");
    wait_until("it leaves", || loaded(&server).is_empty());
    generate(json!({"prompt": "a", "keep_alive": "200ms"}));
    wait_until("it leaves", || loaded(&server).is_empty());
    let refused = server.post("/api/generate", &json!({"model": "dense", "keep_alive": "soon"}));
    assert_eq!(refused.status, 400, "{}", refused.body);
}

fn unix_seconds() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_secs_f64()
}

fn humantime_seconds(text: &str) -> f64 {
    let time = humantime::parse_rfc3339(text).unwrap();
    time.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
}

/// A stream without an end, until it is dropped.
fn long_answer(server: &Running, name: &str) -> crate::testing::Stream {
    let body = json!({"model": name, "prompt": "a", "max_tokens": 3900, "ignore_eos": true, "stream": true,
        "riffle": {"draft": "none", "allow_loops": true}});
    let mut answer = server.stream("/v1/completions", &body);
    answer.event().unwrap();
    answer
}

#[test]
fn a_model_in_use_makes_others_wait_and_then_refuses_them_with_a_time() {
    let three = Three::new();
    let options = small(options());
    let server = three.start(ServerOptions {
        limits: Limits {
            room_wait: Duration::from_millis(100),
            ..options.limits
        },
        ..options
    });
    let answer = long_answer(&server, "dense");
    let refused = server.post(
        "/v1/completions",
        &json!({"model": "hybrid", "prompt": "a", "max_tokens": 1}),
    );
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(
        refused.head.to_ascii_lowercase().contains("retry-after: 10"),
        "{}",
        refused.head
    );
    assert!(
        refused.body.contains("because \\\"dense\\\" is in use"),
        "{}",
        refused.body
    );
    // No request waits for the other model: this one accepts requests again.
    assert_eq!(loaded(&server), ["dense"]);
    server.ask(
        "/v1/completions",
        &json!({"model": "dense", "prompt": "a", "max_tokens": 1}),
    );
    drop(answer);
}

#[test]
fn a_client_that_goes_leaves_the_queue_of_its_model() {
    let three = Three::new();
    let server = three.start(small(options()));
    let answer = long_answer(&server, "dense");
    let body = json!({"model": "hybrid", "prompt": "a", "max_tokens": 1}).to_string();
    let mut gone = server.connect();
    std::io::Write::write_all(
        &mut gone,
        format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    )
    .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(gone);
    // A waiting request for another model would block this one.
    server.ask(
        "/v1/completions",
        &json!({"model": "dense", "prompt": "a", "max_tokens": 1}),
    );
    drop(answer);
    server.ask(
        "/v1/completions",
        &json!({"model": "dense", "prompt": "b", "max_tokens": 1}),
    );
    assert_eq!(loaded(&server), ["dense"]);
}

#[test]
fn a_server_that_ends_lets_answers_go_on_and_refuses_whoever_waits_for_a_model() {
    let three = Three::new();
    let refused = (0..20).find_map(|_| {
        let server = three.start(ServerOptions {
            grace: Duration::from_secs(60),
            ..small(options())
        });
        let answer = long_answer(&server, "dense");
        let refused = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| server.post("/v1/completions", &json!({"model": "hybrid", "prompt": "a"})));
            std::thread::sleep(Duration::from_millis(100));
            server.tell_to_stop();
            waiting.join().unwrap()
        });
        assert_eq!(answer.events().last(), Some(&json!("[DONE]")));
        server.stop();
        // On a busy machine the answer may end before the server is told to, and then nobody waits.
        (refused.status != 200).then_some(refused)
    });
    let refused = refused.expect("no request waited when the server ended");
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("shutting down"), "{}", refused.body);
}

#[test]
fn a_server_ends_while_a_model_loads() {
    let three = Three::new();
    for pause_ms in [0, 5, 20, 60] {
        let server = three.start(small(options()));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                server.post(
                    "/v1/completions",
                    &json!({"model": "hybrid", "prompt": "a", "max_tokens": 1}),
                )
            });
            std::thread::sleep(Duration::from_millis(pause_ms));
            server.tell_to_stop();
            let answer = asking.join();
            // The client may connect after the shutdown.
            assert!(answer.is_err() || [200, 503].contains(&answer.unwrap().status));
        });
        server.stop();
    }
}

#[test]
fn a_model_whose_file_is_gone_or_damaged_is_one_line_and_the_others_go_on() {
    let three = Three::new();
    let server = three.start(small(options()));
    let file = three.path("hybrid").join("model.safetensors");
    let whole = fs::read(&file).unwrap();
    let asked = json!({"model": "hybrid", "prompt": "a", "max_tokens": 1});
    let damages: [&dyn Fn(); 2] = [&|| fs::remove_file(&file).unwrap(), &|| {
        fs::write(&file, &whole[..1000]).unwrap()
    }];
    for damage in damages {
        damage();
        let failed = server.post("/v1/completions", &asked);
        assert_eq!(failed.status, 500, "{}", failed.body);
        let message = failed.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(
            message.starts_with("the model \"hybrid\" cannot be loaded: ") && !message.contains('\n'),
            "{message}"
        );
        server.ask(
            "/v1/completions",
            &json!({"model": "dense", "prompt": "a", "max_tokens": 1}),
        );
    }
    fs::write(&file, &whole).unwrap();
    server.ask("/v1/completions", &asked);
}

#[test]
fn two_models_of_one_name_and_no_model_are_refused_and_one_that_never_fits_is_left_out() {
    let three = Three::new();
    let plan_of = |sources: Vec<ModelSource>, bytes: u64| {
        let mut refused = Vec::new();
        let plan = ModelsPlan::new(sources, Some(bytes), 2, 0, &mut |name, error| {
            refused.push(format!("{name}: {error}"));
        });
        (plan, refused)
    };
    let mut same = three.sources();
    same[2].name = "dense".to_owned();
    let (plan, _) = plan_of(same, 4 << 30);
    let error = Server::bind_models(&plan, options()).err().unwrap().to_string();
    assert!(error.contains("two models have this name"), "{error}");
    let (plan, refused) = plan_of(three.sources(), 1 << 20);
    assert_eq!(refused.len(), 3, "{refused:?}");
    assert!(
        refused[0].starts_with("dense: ") && !refused[0].contains('\n'),
        "{refused:?}"
    );
    assert!(Server::bind_models(&plan, options()).is_err());
    let mut gone = three.sources();
    gone[1].path = "/no/such/model".into();
    let (plan, refused) = plan_of(gone, 4 << 30);
    assert_eq!((plan.models().len(), refused.len()), (2, 1));
}
