//! Tests of every policy that reads keys.

use crate::testing::{Scene, make, scenes};
use riffle_attention::{Format, PageView, PlaneBuf, Selection, Span, write_keys};
use riffle_policy::Phase;

/// Every policy that reads keys, in its phase.
const SPECS: [(&str, Phase); 13] = [
    ("blasst:factor=20,block=16", Phase::Prefill),
    ("blasst:factor=20,block=16", Phase::Decode),
    ("twilight:block=16,least=3,candidates=0.2", Phase::Decode),
    ("certified:epsilon=0.2", Phase::Decode),
    ("vertical-slash:budget=0.3,sinks=3,recent=5", Phase::Prefill),
    ("flex:block=16,min_budget=20,gamma=0.7,tau=0", Phase::Prefill),
    ("flex:block=16,min_budget=20,gamma=0.7,tau=1", Phase::Prefill),
    ("xattention:stride=8,block=16,threshold=0.7,tail=0", Phase::Prefill),
    ("peaks:block=16,peak=0.05,tail=0", Phase::Prefill),
    ("quest:block=16,topk=3,threshold=0", Phase::Decode),
    ("signs:peak=0.2,tail=0", Phase::Prefill),
    ("signs:peak=1,block=32", Phase::Decode),
    ("signs:peak=1,means=32", Phase::Decode),
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

/// Keys of the scene in another format, in one page.
fn plane(scene: &Scene, format: Format) -> PlaneBuf {
    let (tokens, width) = (scene.tokens, scene.head_dim);
    let mut plane = PlaneBuf::new(format, tokens.next_multiple_of(16), width);
    write_keys(&mut plane.plane_mut(), width, 0, tokens, &scene.keys, width).unwrap();
    plane
}

#[test]
fn selections_are_the_same_for_the_same_keys_in_other_formats() {
    for (spec, phase) in SPECS {
        for (mut scene, tile_rows) in scenes() {
            scene.phase = phase;
            // Multiples of 1/16 below 8: every format represents them exactly.
            for key in &mut scene.keys {
                *key = (key.clamp(-7.9, 7.9) * 16.0).round() / 16.0;
            }
            let select = |format: Format| -> Vec<Selection> {
                let plane = plane(&scene, format);
                let keys = plane.plane();
                let (start, tokens) = (0, scene.tokens);
                let pages = [PageView {
                    start,
                    tokens,
                    keys,
                    values: keys,
                }];
                let mut policy = make(spec, phase);
                policy.prepare(&scene.tile(0, scene.rows), &scene.context(&pages));
                let tiles = (0..scene.rows).step_by(tile_rows);
                let tiles = tiles.map(|from| scene.tile(from, (from + tile_rows).min(scene.rows)));
                tiles.map(|tile| policy.select(&tile, &scene.context(&pages))).collect()
            };
            let expected = select(Format::F32);
            assert_eq!(select(Format::F16), expected, "{spec}");
            assert_eq!(select(Format::Bf16), expected, "{spec}");
        }
    }
}

#[test]
fn selections_do_not_depend_on_which_tile_comes_first_nor_on_the_thread() {
    for (spec, phase) in SPECS {
        for (mut scene, tile_rows) in scenes() {
            scene.phase = phase;
            let expected = scene.select(spec, tile_rows);
            let pages = scene.pages();
            let mut policy = make(spec, phase);
            policy.prepare(&scene.tile(0, scene.rows), &scene.context(&pages));
            let policy = &policy;
            std::thread::scope(|scope| {
                let (scene, pages) = (&scene, &pages);
                let threads: Vec<_> = expected
                    .iter()
                    .rev()
                    .map(|(from, to, _)| {
                        scope.spawn(move || policy.select(&scene.tile(*from, *to), &scene.context(pages)))
                    })
                    .collect();
                for (thread, (_, _, selection)) in threads.into_iter().zip(expected.iter().rev()) {
                    assert_eq!(thread.join().unwrap(), *selection, "{spec}");
                }
            });
        }
    }
}
