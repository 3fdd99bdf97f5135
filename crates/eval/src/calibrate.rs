//! Which policy each head needs: the cheapest that keeps its attention, found by auditing a text.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use riffle_engine::{AuditReport, Engine, EngineOptions, HeadAudit, Profile, Session};
use riffle_policy::{CostModel, Phase, PolicyRule, PolicyRules, PolicyShape, PolicySpec};

use crate::EvalError;

/// What to choose from and what must be kept.
#[derive(Debug, Clone)]
pub struct CalibrateOptions {
    /// Prefill policies to choose from; full attention is always among them.
    pub candidates: Vec<PolicySpec>,
    /// Mass that all but one in a hundred queries of each head must keep.
    pub target: f64,
    /// Tokens of the text to read; `None` takes all that the context holds.
    pub length: Option<usize>,
    /// Costs on this machine, for which is cheapest.
    pub cost: CostModel,
}

/// A profile and what it keeps of the text it was made on.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// The profile.
    pub profile: Profile,
    /// The audit of a run under it.
    pub audit: AuditReport,
}

/// Audits each candidate on the text and gives every KV head the cheapest that meets the target, by the pairs it read
/// and the cost of its estimate; then audits the whole. `show` hears of each step.
///
/// Candidates are audited one by one, each in all heads: what a head keeps then depends on what the others did, so the
/// last audit is the one that counts. A head that misses the target there, by its neighbours' doing, is made full.
///
/// # Errors
/// [`EvalError::Option`] for a target that is no share, and whatever a run can fail with.
pub fn calibrate(
    model: &Path,
    options: &EngineOptions,
    text: &str,
    calibration: &CalibrateOptions,
    show: &mut dyn FnMut(&str),
) -> Result<Calibration, EvalError> {
    if !(0.0..=1.0).contains(&calibration.target) {
        return Err(EvalError::Option(format!(
            "--target is {}, but must be a share from 0 to 1",
            calibration.target
        )));
    }
    let run = |prefill: PolicyRules| -> Result<(AuditReport, PolicyShape, usize), EvalError> {
        let options = EngineOptions {
            prefill,
            cost: calibration.cost,
            audit: true,
            ..options.clone()
        };
        let engine = Engine::load(model, options)?;
        let mut tokens = engine.tokenizer().map_err(EvalError::Engine)?.encode(text, true)?;
        let most = calibration
            .length
            .unwrap_or(usize::MAX)
            .min(engine.plan().context_tokens);
        tokens.truncate(most);
        let mut session = Session::new(&engine)?;
        session.prefill(&tokens, &mut |_| ControlFlow::Continue(()))?;
        let config = engine.model().config();
        let shape = PolicyShape {
            layers: config.attention_layers(),
            kv_heads: config.kv_heads,
            group: config.heads / config.kv_heads,
            head_dim: config.head_dim,
            chunk_tokens: engine.options().chunk_tokens,
        };
        let audit = session
            .audit()
            .ok_or_else(|| EvalError::Option("nothing was audited".to_owned()))?;
        Ok((audit, shape, tokens.len()))
    };

    // The cheapest that meets the target so far, and its cost, by (layer, KV head).
    let mut best: BTreeMap<(usize, usize), (f64, PolicySpec)> = BTreeMap::new();
    for candidate in &calibration.candidates {
        let (audit, shape, tokens) = run(candidate.clone().into())?;
        show(&format!(
            "{candidate}: mean mass {:.4}, first percentile {:.3}, {:.1}% of the pairs",
            audit.mean_mass,
            audit.first_percentile_mass,
            audit.density * 100.0
        ));
        for (place, heads) in by_kv_head(&audit) {
            let keeps = heads
                .iter()
                .all(|head| head.first_percentile_mass >= calibration.target);
            let share = heads[0].density;
            let cost = &calibration.cost;
            let relative = cost.relative_cost(candidate, Phase::Prefill, &shape, tokens, Some(share));
            let cheapest = best.get(&place).map_or(1.0, |(cost, _)| *cost);
            if keeps && relative < cheapest {
                best.insert(place, (relative, candidate.clone()));
            }
        }
    }
    let mut chosen: BTreeMap<(usize, usize), PolicySpec> =
        best.into_iter().map(|(place, (_, spec))| (place, spec)).collect();
    loop {
        let rules = rules(&chosen);
        let (audit, ..) = run(rules.clone())?;
        let missed: Vec<(usize, usize)> = by_kv_head(&audit)
            .into_iter()
            .filter(|(_, heads)| heads.iter().any(|head| head.first_percentile_mass < calibration.target))
            .map(|(place, _)| place)
            .filter(|place| chosen.contains_key(place))
            .collect();
        show(&format!(
            "{} heads sparse: first percentile {:.3}, {:.1}% of the pairs, {} heads missed",
            chosen.len(),
            audit.first_percentile_mass,
            audit.density * 100.0,
            missed.len()
        ));
        if missed.is_empty() {
            return Ok(Calibration {
                profile: Profile {
                    prefill: rules,
                    decode: options.decode.clone(),
                    cost: calibration.cost,
                },
                audit,
            });
        }
        for place in missed {
            chosen.remove(&place);
        }
    }
}

/// The query heads of each (layer, KV head).
fn by_kv_head(audit: &AuditReport) -> BTreeMap<(usize, usize), Vec<HeadAudit>> {
    let mut heads: BTreeMap<_, Vec<HeadAudit>> = BTreeMap::new();
    for head in &audit.heads {
        heads.entry((head.layer, head.kv_head)).or_default().push(*head);
    }
    heads
}

/// Full attention, with a rule for each sparse head.
fn rules(chosen: &BTreeMap<(usize, usize), PolicySpec>) -> PolicyRules {
    let rule = |((layer, kv_head), policy): (&(usize, usize), &PolicySpec)| PolicyRule {
        layers: vec![*layer..=*layer],
        kv_heads: vec![*kv_head..=*kv_head],
        policy: policy.clone(),
    };
    PolicyRules {
        base: PolicySpec::full(),
        rules: chosen.iter().map(rule).collect(),
    }
}
