//! Tests of the catalogue's entries, and of policies from other crates.

mod testing;

use std::sync::atomic::{AtomicUsize, Ordering};

use riffle_attention::{QueryTile, Selection, Span};
use riffle_policy::{
    ColumnMass, Estimate, EstimateKind, Estimated, Evict, KeyUse, Learn, LentScan, ParameterInfo, Persist, Phase,
    PolicyError, PolicyInfo, PolicySpec, SelectContext, SparsePolicy, Summarize, Traits, build, catalogue,
};
use testing::{Scene, make};

/// A chunk of 64 queries late in a long prompt, with its keys.
fn far_scene(phase: Phase) -> Scene {
    let mut scene = Scene::new(3, 3000, 64, 1, 64);
    (scene.layer, scene.phase, scene.after) = (3, phase, 9000);
    scene
}

fn phases(info: &PolicyInfo) -> impl Iterator<Item = Phase> {
    [Phase::Prefill, Phase::Decode]
        .into_iter()
        .filter(|phase| info.supports(*phase))
}

#[test]
fn the_estimate_that_an_entry_names_is_the_one_its_policy_asks_for() {
    for info in catalogue() {
        for phase in phases(info) {
            let scene = far_scene(phase);
            let asked = make(info.name, phase).estimate(&scene.tile(0, 64), &scene.context(&[]));
            let kind = asked.map(|estimate| match estimate {
                Estimate::Blocks { .. } => EstimateKind::Blocks,
                Estimate::Lines { .. } => EstimateKind::Lines,
                Estimate::Bounds { .. } => EstimateKind::Bounds,
            });
            assert_eq!(kind, info.traits.estimate, "{}", info.name);
        }
    }
}

#[test]
fn a_policy_that_leaves_keys_unread_selects_the_same_without_pages() {
    for info in catalogue().iter().filter(|info| info.traits.keys == KeyUse::Unread) {
        for phase in phases(info) {
            let scene = far_scene(phase);
            let pages = scene.pages();
            let select = |context: &SelectContext<'_>| {
                let mut policy = make(info.name, phase);
                assert_eq!(policy.keys_from(context), context.tokens, "{}", info.name);
                policy.prepare(&scene.tile(0, 64), context);
                policy.select(&scene.tile(0, 64), context)
            };
            assert_eq!(
                select(&scene.context(&[])),
                select(&scene.context(&pages)),
                "{}",
                info.name
            );
        }
    }
}

#[test]
fn a_policy_that_follows_from_keys_selects_the_same_whatever_it_selected_before() {
    for info in catalogue().iter().filter(|info| info.traits.follows_from_keys) {
        assert!(!info.traits.learns && !info.traits.evicts, "{}", info.name);
        for phase in phases(info) {
            let scene = far_scene(phase);
            let (pages, earlier) = (scene.pages(), Scene::new(3, 3000, 64, 1, 64));
            let context = scene.context(&pages);
            let mut fresh = make(info.name, phase);
            let mut used = make(info.name, phase);
            // Other queries on the same keys.
            used.prepare(&earlier.tile(7, 40), &context);
            used.select(&earlier.tile(7, 40), &context);
            for policy in [&mut fresh, &mut used] {
                policy.prepare(&scene.tile(0, 64), &context);
            }
            let tile = scene.tile(0, 64);
            assert_eq!(
                fresh.select(&tile, &context),
                used.select(&tile, &context),
                "{}",
                info.name
            );
        }
    }
}

#[test]
fn one_policy_is_dense_and_it_reads_everything() {
    let dense: Vec<&str> = catalogue()
        .iter()
        .filter(|info| info.traits.dense)
        .map(|info| info.name)
        .collect();
    assert_eq!(dense, ["full"]);
    assert!(PolicySpec::full().info().traits.dense);
}

#[test]
fn every_policy_but_full_has_a_budget_whose_values_it_takes() {
    for info in catalogue() {
        let Some(budget) = info.traits.budget else {
            assert!(info.traits.dense, "{}", info.name);
            continue;
        };
        let (budget, spec) = (budget.at(8192), info.name.parse::<PolicySpec>().unwrap());
        for value in [budget.low, budget.scale.middle(budget.low, budget.high), budget.high] {
            spec.with(budget.name, &budget.scale.text(value)).unwrap();
        }
    }
}

/// Remembers the token with the most mass, and reads only this token and the latest `window` tokens.
struct Favourite {
    window: usize,
    favourite: Option<usize>,
}

impl SparsePolicy for Favourite {
    fn select(&self, _tile: &QueryTile<'_>, _context: &SelectContext<'_>) -> Selection {
        let favourite = self.favourite.map(|position| Span::new(position, position + 1));
        Selection::from_spans(favourite).with_row_window(self.window)
    }

    fn truncate(&mut self, tokens: usize) {
        self.favourite = self.favourite.filter(|position| *position < tokens);
    }

    fn learn(&mut self) -> Option<&mut dyn Learn> {
        Some(self)
    }

    fn evict(&mut self) -> Option<&mut dyn Evict> {
        Some(self)
    }

    fn persist(&self) -> Option<&dyn Persist> {
        Some(self)
    }
}

impl Learn for Favourite {
    fn observes_from(&self, context: &SelectContext<'_>) -> usize {
        context.chunk_start
    }

    fn observe(&mut self, mass: &ColumnMass<'_>) {
        let best = mass.mass.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        self.favourite = best.map(|(position, _)| position);
    }
}

impl Evict for Favourite {
    fn retained(&self, tokens: usize) -> Vec<Span> {
        let latest = Span::new(tokens.saturating_sub(self.window), tokens);
        let favourite = self.favourite.map(|position| Span::new(position, position + 1));
        Selection::from_spans(favourite.into_iter().chain([latest]))
            .spans()
            .to_vec()
    }

    fn close_gaps(&mut self) {
        self.favourite = self.favourite.map(|_| 0);
    }
}

impl Persist for Favourite {
    fn save(&self) -> Vec<u8> {
        self.favourite
            .iter()
            .flat_map(|position| position.to_le_bytes())
            .collect()
    }

    fn restored(&self, state: &[u8]) -> Result<Box<dyn SparsePolicy>, PolicyError> {
        let favourite = match state {
            [] => None,
            _ => Some(usize::from_le_bytes(
                state.try_into().map_err(|_| PolicyError::BadState)?,
            )),
        };
        let window = self.window;
        Ok(Box::new(Self { window, favourite }))
    }
}

/// Counts the selections of another policy. With `FORWARDS` it forwards the accessors.
struct Counted<const FORWARDS: bool>(Box<dyn SparsePolicy>);

static SELECTED: AtomicUsize = AtomicUsize::new(0);

impl<const FORWARDS: bool> SparsePolicy for Counted<FORWARDS> {
    fn select(&self, tile: &QueryTile<'_>, context: &SelectContext<'_>) -> Selection {
        SELECTED.fetch_add(1, Ordering::Relaxed);
        self.0.select(tile, context)
    }

    fn prepare(&mut self, chunk: &QueryTile<'_>, context: &SelectContext<'_>, estimated: Option<Estimated>) {
        self.0.prepare(chunk, context, estimated);
    }

    fn estimate(&self, chunk: &QueryTile<'_>, context: &SelectContext<'_>) -> Option<Estimate> {
        self.0.estimate(chunk, context)
    }

    fn take_scan(&mut self) -> Option<LentScan> {
        self.0.take_scan()
    }

    fn truncate(&mut self, tokens: usize) {
        self.0.truncate(tokens);
    }

    fn summarize(&mut self) -> Option<&mut dyn Summarize> {
        self.0.summarize().filter(|_| FORWARDS)
    }

    fn learn(&mut self) -> Option<&mut dyn Learn> {
        self.0.learn().filter(|_| FORWARDS)
    }

    fn evict(&mut self) -> Option<&mut dyn Evict> {
        self.0.evict().filter(|_| FORWARDS)
    }

    fn persist(&self) -> Option<&dyn Persist> {
        self.0.persist().filter(|_| FORWARDS)
    }
}

fn favourite(window: usize) -> Box<dyn SparsePolicy> {
    Box::new(Favourite {
        window,
        favourite: None,
    })
}

const TRAITS: Traits = Traits::DECODE.with_learning().with_eviction().with_persistence();

const WINDOW: &[ParameterInfo] = &[ParameterInfo::tokens("window", "2", "latest tokens")];

static OUTSIDE: [PolicyInfo; 4] = [
    PolicyInfo::outside("favourite", TRAITS, WINDOW, |parameters| {
        favourite(parameters.count("window"))
    }),
    PolicyInfo::outside("counted", TRAITS, WINDOW, |parameters| {
        Box::new(Counted::<true>(favourite(parameters.count("window"))))
    }),
    PolicyInfo::outside("forgetful", TRAITS, WINDOW, |parameters| {
        Box::new(Counted::<false>(favourite(parameters.count("window"))))
    }),
    PolicyInfo::outside("modest", Traits::DECODE, WINDOW, |parameters| {
        favourite(parameters.count("window"))
    }),
];

#[test]
fn a_policy_from_outside_the_crate_is_named_built_and_asked_what_it_is() {
    let spec = PolicySpec::parse_among("favourite:window=1", &OUTSIDE).unwrap();
    assert_eq!(spec.to_string(), "favourite:window=1");
    let refused = PolicySpec::parse_among("favorite", &OUTSIDE).unwrap_err().to_string();
    assert!(refused.contains("snapkv, favourite"), "{refused}");
    assert!(matches!(
        build(&spec, Phase::Prefill),
        Err(PolicyError::UnsupportedPhase { .. })
    ));
    for name in ["favourite:window=1", "counted:window=1"] {
        let spec = PolicySpec::parse_among(name, &OUTSIDE).unwrap();
        let mut policy = build(&spec, Phase::Decode).unwrap();
        assert_eq!(policy.info().name, spec.name());
        assert!(policy.traits().learns && policy.traits().evicts && !policy.traits().follows_from_keys);
        let scene = far_scene(Phase::Decode);
        let context = scene.context(&[]);
        assert_eq!(policy.observes_from(&context), 3000);
        let mut mass = vec![0.0; 3064];
        mass[17] = 1.0;
        let queries = Span::new(3000, 3064);
        policy.observe(&ColumnMass {
            queries,
            group: 1,
            mass: &mass,
        });
        let expected = [Span::new(17, 18), Span::new(3063, 3064)];
        assert_eq!(policy.retained(3064).as_deref(), Some(&expected[..]));
        let mut restored = build(&spec, Phase::Decode).unwrap();
        restored.restore_state(&policy.save_state()).unwrap();
        assert_eq!(
            restored.select(&scene.tile(0, 64), &context),
            policy.select(&scene.tile(0, 64), &context)
        );
        assert_eq!(restored.restore_state(&[1]), Err(PolicyError::BadState));
        assert!(restored.save_state().is_empty(), "it has forgotten its sequence");
    }
    assert!(SELECTED.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_policy_that_does_something_else_than_its_traits_say_is_refused() {
    for (name, said, accessor) in [("forgetful", true, "learn"), ("modest", false, "learn")] {
        let spec = PolicySpec::parse_among(name, &OUTSIDE).unwrap();
        let error = build(&spec, Phase::Decode).err().unwrap();
        assert!(
            matches!(error, PolicyError::WrongTraits { said: s, accessor: a, .. } if s == said && a == accessor),
            "{error}"
        );
        assert!(error.to_string().contains(name), "{error}");
    }
}
