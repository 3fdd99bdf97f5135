//! What holds for every policy that looks at keys.

mod testing;

use riffle_attention::Span;
use riffle_policy::Phase;
use testing::{Scene, make, scenes};

/// Every policy that looks at keys, in its phase.
const SPECS: [(&str, Phase); 9] = [
    ("blasst:factor=20,block=16", Phase::Prefill),
    ("blasst:factor=20,block=16", Phase::Decode),
    ("twilight:block=16,least=3,candidates=0.2", Phase::Decode),
    ("certified:epsilon=0.2", Phase::Decode),
    ("vertical-slash:budget=0.3,sinks=3,recent=5", Phase::Prefill),
    ("flex:block=16,min_budget=20,gamma=0.7,tau=0", Phase::Prefill),
    ("flex:block=16,min_budget=20,gamma=0.7,tau=1", Phase::Prefill),
    ("xattention:stride=8,block=16,threshold=0.7,tail=0", Phase::Prefill),
    ("quest:block=16,topk=3,threshold=0", Phase::Decode),
];

#[test]
fn selections_do_not_depend_on_the_page_size() {
    for (spec, phase) in SPECS {
        for (mut scene, tile) in scenes() {
            scene.phase = phase;
            let selected: Vec<_> = scene.select(spec, tile);
            for page_tokens in [16, 80, 512] {
                scene = scene.paged(page_tokens);
                assert_eq!(scene.select(spec, tile), selected, "{spec}");
            }
        }
    }
}

#[test]
fn selections_name_only_tokens_that_are_there_and_all_but_pure_thresholds_read_the_query_itself() {
    for (spec, phase) in SPECS {
        for (mut scene, tile) in scenes() {
            scene.phase = phase;
            let tiles = scene.select(spec, tile);
            for (_, _, selection) in &tiles {
                assert!(
                    selection
                        .spans()
                        .iter()
                        .all(|span| *span == span.intersect(&Span::new(0, scene.tokens)))
                );
            }
            let (from, to, selection) = tiles.last().unwrap();
            for row in (*from..*to).filter(|_| !spec.starts_with("certified") && !spec.starts_with("blasst")) {
                assert!(
                    selection.contains(scene.start + row, scene.start + row),
                    "{spec}: a query reads itself"
                );
            }
        }
    }
}

#[test]
fn an_empty_tile_or_cache_is_no_fault() {
    for (spec, phase) in SPECS {
        let mut scene = Scene::new(1, 0, 1, 1, 16);
        scene.phase = phase;
        (scene.rows, scene.tokens) = (0, 0);
        scene.queries.clear();
        scene.keys.clear();
        let scene = scene.paged(16);
        let mut policy = make(spec, phase);
        policy.prepare(&scene.tile(0, 0), &scene.context(&[]));
        assert_eq!(policy.select(&scene.tile(0, 0), &scene.context(&[])).spans(), []);
    }
}
