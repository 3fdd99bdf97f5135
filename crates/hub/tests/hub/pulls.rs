//! Pulls that succeed.

use std::fs;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use riffle_hub::{Activity, Beginning, HubError, ModelName, Offer, PullSteps, Pulled, Settings, find, pull, pull_with};

use crate::{name, pull_named, settings};
use riffle_testing::hub::{Fault, Hub, bytes, sum};

#[test]
fn a_gguf_file_is_pulled_into_python_s_layout_and_found() {
    let weights = bytes(100_000, 1);
    let hub = Hub::start(&[
        ("README.md", bytes(10, 2)),
        ("m-Q4_K_M.gguf", weights.clone()),
        ("m-Q8_0.gguf", bytes(2000, 3)),
    ]);
    let cache = tempfile::tempdir().expect("a folder");
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(pulled.quantisation.as_deref(), Some("Q4_K_M"));
    assert_eq!(pulled.others, ["Q8_0"]);
    assert_eq!((pulled.bytes, pulled.bytes_downloaded), (100_000, 100_000));
    assert_eq!(fs::read(&pulled.path).expect("a file"), weights);
    let folder = cache.path().join("models--owner--model");
    assert_eq!(
        fs::read_to_string(folder.join("refs/main")).expect("a reference"),
        riffle_testing::hub::COMMIT
    );
    let link = folder
        .join("snapshots")
        .join(riffle_testing::hub::COMMIT)
        .join("m-Q4_K_M.gguf");
    assert_eq!(link, pulled.path);
    // Without links, the file itself lies there.
    if cfg!(unix) {
        let target = fs::read_link(&link).expect("a link");
        assert_eq!(target.to_str(), Some(format!("../../blobs/{}", sum(&weights)).as_str()));
    }
    assert!(hub.asked_for("m-Q8_0.gguf").is_empty() && hub.asked_for("README.md").is_empty());
    for text in ["owner/model", "owner/model:q4_k_m", "owner/model/m-Q4_K_M.gguf"] {
        assert_eq!(find(cache.path(), &name(text)).expect(text), pulled.path);
    }
    let again = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(again.bytes_downloaded, 0);
    assert_eq!(
        hub.asked_for("m-Q4_K_M.gguf").len(),
        1,
        "what is there is not asked for"
    );
}

fn pull_looking(
    settings: &Settings,
    model: &ModelName,
    look: &mut dyn FnMut(&Beginning<'_>) -> Result<(), String>,
) -> Result<Pulled, HubError> {
    let steps = PullSteps {
        choose: &mut |_| None,
        look,
        progress: &mut |_| ControlFlow::Continue(()),
    };
    pull_with(settings, model, steps)
}

#[test]
fn a_small_file_is_shown_once_it_is_there() {
    let hub = Hub::start(&[("m-Q4_K_M.gguf", bytes(5000, 4))]);
    let cache = tempfile::tempdir().expect("a folder");
    let mut seen = Vec::new();
    let mut look = |beginning: &Beginning<'_>| {
        if let Beginning::Head(path, whole) = beginning {
            seen.push((fs::read(path).expect("a file").len(), *whole));
        }
        Ok(())
    };
    pull_looking(&settings(&hub, cache.path()), &name("owner/model"), &mut look).expect("pulled");
    assert_eq!(seen, [(5000, 5000)]);
}

#[test]
fn a_caller_chooses_among_the_quantisations_of_a_repository() {
    let hub = Hub::start(&[
        ("UD/m-UD-Q8_K_XL-00001-of-00002.gguf", bytes(3000, 1)),
        ("UD/m-UD-Q8_K_XL-00002-of-00002.gguf", bytes(4000, 2)),
        ("m-IQ4_XS.gguf", bytes(2000, 3)),
        ("m-Q4_K_M.gguf", bytes(2500, 4)),
        ("m-Q6_K-00001-of-00002.gguf", bytes(2500, 5)),
        ("mmproj-F16.gguf", bytes(2500, 6)),
    ]);
    let pulled = |text: &str, choose: &mut dyn FnMut(&[Offer]) -> Option<usize>| {
        let cache = tempfile::tempdir().expect("a folder");
        let steps = PullSteps {
            choose,
            look: &mut |_| Ok(()),
            progress: &mut |_| ControlFlow::Continue(()),
        };
        pull_with(&settings(&hub, cache.path()), &name(text), steps).expect("pulled")
    };
    let mut offered = Vec::new();
    let split = pulled("owner/model", &mut |offers| {
        offered = offers.to_vec();
        offers.iter().position(|offer| offer.files == 2)
    });
    let offered: Vec<_> = offered
        .iter()
        .map(|offer| (offer.quantisation.as_deref(), offer.files, offer.bytes))
        .collect();
    let expected = [
        (Some("UD-Q8_K_XL"), 2, 7000),
        (Some("IQ4_XS"), 1, 2000),
        (Some("Q4_K_M"), 1, 2500),
    ];
    assert_eq!(offered, expected, "models of which files are missing are not offered");
    assert_eq!((split.quantisation.as_deref(), split.bytes), (Some("UD-Q8_K_XL"), 7000));
    assert!(split.path.ends_with("UD/m-UD-Q8_K_XL-00001-of-00002.gguf"));
    assert_eq!(
        pulled("owner/model", &mut |_| None).quantisation.as_deref(),
        Some("Q4_K_M")
    );
    let named = pulled("owner/model:Q8_K_XL", &mut |_| panic!("the name chooses"));
    assert_eq!(named.quantisation.as_deref(), Some("UD-Q8_K_XL"));
}

#[test]
fn the_beginning_of_a_large_file_is_shown_before_the_rest_comes() {
    let weights = bytes(2_000_000, 4);
    let hub = Hub::start(&[("m-Q4_K_M.gguf", weights.clone())]);
    let cache = tempfile::tempdir().expect("a folder");
    let model = name("owner/model");
    let settings = settings(&hub, cache.path());
    let mut seen = 0;
    let mut refuse = |beginning: &Beginning<'_>| {
        if let Beginning::Head(path, whole) = beginning {
            assert_eq!(*whole, weights.len() as u64);
            let head = fs::read(path).expect("a file");
            assert!(head.len() < weights.len() && weights.starts_with(&head));
            seen = head.len();
        }
        Err("it is not for us".to_owned())
    };
    let refused = pull_looking(&settings, &model, &mut refuse);
    let refused = refused.expect_err("refused").to_string();
    assert!(refused.starts_with("owner/model: it is not for us"), "{refused}");
    assert!(seen >= 60_000);
    // The received bytes are kept.
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(pulled.bytes_downloaded, (weights.len() - seen) as u64);
    assert_eq!(fs::read(&pulled.path).expect("a file"), weights);
}

#[test]
fn the_settings_of_a_folder_are_shown_before_its_weights_come() {
    let hub = Hub::start(&[
        ("config.json", b"{\"a\": 1}".to_vec()),
        ("model.safetensors", bytes(5000, 1)),
    ]);
    let cache = tempfile::tempdir().expect("a folder");
    let mut refuse = |beginning: &Beginning<'_>| match beginning {
        Beginning::Settings(path, 5000) => Err(fs::read_to_string(path).expect("a file")),
        _ => Ok(()),
    };
    let settings = settings(&hub, cache.path());
    let refused = pull_looking(&settings, &name("owner/model"), &mut refuse);
    assert!(refused.expect_err("refused").to_string().contains("{\"a\": 1}"));
    assert!(hub.asked_for("model.safetensors").is_empty());
}

#[test]
fn of_a_folder_the_weights_and_what_belongs_to_them_is_pulled() {
    let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let hub = Hub::start(&[
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", bytes(5000, 1)),
        ("chat_template.jinja", b"{{ x }}".to_vec()),
        ("modeling.py", b"import os".to_vec()),
        ("pytorch_model.bin", bytes(5000, 2)),
        ("model.safetensors.index.json", index.into()),
        ("model-00001-of-00002.safetensors", bytes(5000, 3)),
        ("model-00002-of-00002.safetensors", bytes(6000, 4)),
        ("other-00001-of-00001.safetensors", bytes(6000, 5)),
    ]);
    let cache = tempfile::tempdir().expect("a folder");
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert_eq!(pulled.quantisation, None);
    let mut files: Vec<String> = fs::read_dir(&pulled.path)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "chat_template.jinja",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
        ]
    );
    assert_eq!(find(cache.path(), &name("owner/model")).expect("found"), pulled.path);
}

#[test]
fn shards_in_a_folder_of_the_repository_are_pulled_together() {
    let hub = Hub::start(&[
        ("big one/m-Q8_0-00001-of-00003.gguf", bytes(4000, 1)),
        ("big one/m-Q8_0-00002-of-00003.gguf", bytes(4000, 2)),
        ("big one/m-Q8_0-00003-of-00003.gguf", bytes(400, 3)),
    ]);
    let cache = tempfile::tempdir().expect("a folder");
    let pulled = pull_named(&hub, cache.path(), "owner/model:Q8_0").expect("pulled");
    assert!(pulled.path.ends_with("big one/m-Q8_0-00001-of-00003.gguf"));
    for (number, length, seed) in [(1, 4000, 1), (2, 4000, 2), (3, 400, 3)] {
        let shard = pulled.path.with_file_name(format!("m-Q8_0-0000{number}-of-00003.gguf"));
        assert_eq!(fs::read(shard).expect("a shard"), bytes(length, seed));
    }
}

#[test]
fn a_list_of_many_pages_is_read_to_its_end() {
    let mut files: Vec<(String, Vec<u8>)> = (0..5000)
        .map(|number| (format!("notes/{number}.txt"), vec![1]))
        .collect();
    files.push(("z-Q4_0.gguf".to_owned(), bytes(2000, 1)));
    let files: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(path, bytes)| (path.as_str(), bytes.clone()))
        .collect();
    let hub = Hub::start(&files);
    hub.state().page = 400;
    let cache = tempfile::tempdir().expect("a folder");
    let pulled = pull_named(&hub, cache.path(), "owner/model").expect("pulled");
    assert!(pulled.path.ends_with("z-Q4_0.gguf"));
}

#[test]
fn an_interrupted_pull_goes_on_where_it_was() {
    let weights = bytes(3_000_000, 1);
    let hub = Hub::start(&[("m-Q4_0.gguf", weights.clone())]);
    let cache = tempfile::tempdir().expect("a folder");
    hub.faults(|asked, _| asked.is_for("m-Q4_0.gguf").then_some(Fault::Slow(50_000)));
    let settings = settings(&hub, cache.path());
    let stop = pull(&settings, &name("owner/model"), &mut |progress| {
        if progress.bytes_done > 500_000 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(matches!(stop, Err(HubError::Interrupted)), "{stop:?}");
    let missing = find(cache.path(), &name("owner/model"))
        .expect_err("not whole")
        .to_string();
    assert!(missing.contains("riffle pull owner/model"), "{missing}");
    hub.faults(|_, _| None);
    let mut found = None;
    let pulled = pull(&settings, &name("owner/model"), &mut |progress| {
        if progress.activity == Activity::Downloading {
            found.get_or_insert(progress.bytes_found);
        }
        ControlFlow::Continue(())
    });
    let pulled = pulled.expect("pulled");
    let (asked, found) = (hub.asked_for("m-Q4_0.gguf"), found.expect("a download"));
    assert!(found > 500_000 && found < 3_000_000, "{found}");
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].header("range"), Some(format!("bytes={found}-").as_str()));
    assert_eq!(pulled.bytes_downloaded, 3_000_000 - found);
    assert_eq!(fs::read(pulled.path).expect("a file"), weights);
}

#[test]
fn two_pulls_of_one_file_write_it_once() {
    let weights = bytes(600_000, 1);
    let hub = Hub::start(&[("m-Q4_0.gguf", weights.clone())]);
    hub.faults(|asked, _| asked.is_for("m-Q4_0.gguf").then_some(Fault::Slow(20_000)));
    let cache = tempfile::tempdir().expect("a folder");
    let waited = AtomicBool::new(false);
    let pulled = thread::scope(|scope| {
        let both = [(); 2].map(|()| {
            scope.spawn(|| {
                pull(&settings(&hub, cache.path()), &name("owner/model"), &mut |progress| {
                    waited.fetch_or(progress.activity == Activity::WaitingForProcess, Ordering::Relaxed);
                    ControlFlow::Continue(())
                })
            })
        });
        both.map(|pull| pull.join().expect("no panic").expect("pulled"))
    });
    assert!(waited.into_inner(), "one waits for the other");
    assert_eq!(hub.asked_for("m-Q4_0.gguf").len(), 1);
    assert_eq!(
        pulled.iter().map(|pulled| pulled.bytes_downloaded).sum::<u64>(),
        600_000
    );
    assert_eq!(fs::read(&pulled[0].path).expect("a file"), weights);
}

#[test]
fn progress_grows_to_the_number_of_bytes() {
    let hub = Hub::start(&[
        ("config.json", b"{}".to_vec()),
        ("model.safetensors", bytes(500_000, 1)),
    ]);
    let cache = tempfile::tempdir().expect("a folder");
    let mut told = Vec::new();
    pull(&settings(&hub, cache.path()), &name("owner/model"), &mut |progress| {
        told.push(progress.clone());
        ControlFlow::Continue(())
    })
    .expect("pulled");
    assert!(told.is_sorted_by_key(|progress| progress.bytes_done), "{told:?}");
    let last = told.last().expect("progress");
    assert_eq!((last.bytes_done, last.bytes), (500_002, 500_002));
    assert_eq!(told[0].activity, Activity::Asking);
}
