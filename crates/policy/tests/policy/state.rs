//! Tests that a session stores a policy's state and restores it.

use crate::testing::{Scene, make};
use riffle_policy::{Phase, Policy, PolicyError, catalogue};

fn decode_scene(start: usize, page_tokens: usize) -> Scene {
    let mut scene = Scene::new(7, start, 1, 2, page_tokens);
    scene.phase = Phase::Decode;
    scene
}

#[test]
fn a_restored_policy_selects_as_the_saved_one() {
    for info in catalogue().iter().filter(|info| info.traits.decode) {
        let mut scene = decode_scene(333, 32);
        let mut saved = make(info.name, Phase::Decode);
        let pages = scene.pages();
        saved.prepare(&scene.tile(0, 1), &scene.context(&pages));
        let mut restored = make(info.name, Phase::Decode);
        restored.restore_state(&saved.save_state()).unwrap();
        assert_eq!(restored.save_state(), saved.save_state(), "{}", info.name);

        // The sequence grows by 100 tokens.
        drop(pages);
        scene = decode_scene(433, 32);
        let pages = scene.pages();
        let select = |policy: &mut Policy| {
            policy.prepare(&scene.tile(0, 1), &scene.context(&pages));
            policy.select(&scene.tile(0, 1), &scene.context(&pages))
        };
        assert_eq!(select(&mut restored), select(&mut saved), "{}", info.name);
    }
}

#[test]
fn a_policy_takes_its_summaries_back_without_reading_keys_again() {
    let spec = "quest:block=16,topk=3,threshold=0,dense_layers=0";
    let scene = decode_scene(320, 32);
    let pages = scene.pages();
    let context = scene.context(&pages);
    let mut saved = make(spec, Phase::Decode);
    saved.prepare(&scene.tile(0, 1), &context);
    let mut restored = make(spec, Phase::Decode);
    restored.restore_state(&saved.save_state()).unwrap();
    assert!(restored.keys_from(&context) >= 320, "{spec}");
    let blind = riffle_policy::SelectContext { pages: &[], ..context };
    let selection = restored.select(&scene.tile(0, 1), &blind);
    assert_eq!(selection, saved.select(&scene.tile(0, 1), &context), "{spec}");
    assert!(selection.pair_count(320, 1) < 321, "{spec} reads a part");
}

#[test]
fn state_that_cannot_be_the_policys_is_refused_and_leaves_nothing() {
    for info in catalogue().iter().filter(|info| info.traits.decode) {
        let mut policy = make(info.name, Phase::Decode);
        let result = policy.restore_state(&[1, 2, 3]);
        assert_eq!(result, Err(PolicyError::BadState));
        assert_eq!(policy.save_state(), make(info.name, Phase::Decode).save_state());
    }
}
