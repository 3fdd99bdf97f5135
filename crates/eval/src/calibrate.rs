//! Calibration: audits a text to find, for each head, the cheapest policy that keeps its attention.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use riffle_engine::{AuditReport, Engine, EngineOptions, HeadAudit, Profile, Session, policy_shapes};
use riffle_policy::{CostModel, Phase, PolicyRule, PolicyRules, PolicyShape, PolicySpec};

use crate::EvalError;

/// Candidates and goal of a calibration.
#[derive(Debug, Clone)]
pub struct CalibrateOptions {
    /// Candidate prefill policies. Full attention is always a candidate.
    pub candidates: Vec<PolicySpec>,
    /// Attention mass that the profile must keep.
    pub keep: Keep,
    /// Tokens of the text to read; `None` reads as many as fit in the context.
    pub length: Option<usize>,
    /// Costs on this machine, to find the cheapest policy.
    pub cost: CostModel,
}

/// Share of the exact attention mass that a profile must keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// In each head, 99 of 100 queries must keep this share.
    FirstPercentile(f64),
    /// All heads together must keep this share in the mean. Expensive heads may keep less.
    Mean(f64),
}

/// A profile and the attention mass that it keeps on its calibration text.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Calibration {
    /// The profile.
    pub profile: Profile,
    /// The audit of a run with the profile.
    pub audit: AuditReport,
}

/// (layer, KV head)
type HeadPlace = (usize, usize);

/// Cost and kept mass of one policy for one KV head.
#[derive(Debug, Clone)]
struct Offer {
    policy: PolicySpec,
    /// Cost relative to full attention.
    cost: f64,
    mean_mass: f64,
    /// First percentile of the group's query head that keeps the least mass.
    first_percentile_mass: f64,
}

/// Audits each candidate on the text, and gives every KV head the cheapest policy that meets the goal. The cost
/// counts the pairs read and the policy's estimate. A last audit measures the whole profile. `show` receives each
/// step.
///
/// Each candidate is audited alone, in all heads. The mass that a head keeps in the profile depends on the other
/// heads, so only the last audit counts. A head that misses its first percentile there gets full attention. If the
/// mean misses the goal, calibration repeats with a higher goal.
///
/// # Errors
/// [`EvalError::Option`] for a goal outside 0 to 1, and any error of a run.
pub fn calibrate(
    model: &Path,
    options: &EngineOptions,
    text: &str,
    calibration: &CalibrateOptions,
    show: &mut dyn FnMut(&str),
) -> Result<Calibration, EvalError> {
    let (flag, goal) = match calibration.keep {
        Keep::FirstPercentile(goal) => ("--target", goal),
        Keep::Mean(goal) => ("--mean", goal),
    };
    if !(0.0..=1.0).contains(&goal) {
        return Err(EvalError::Option(format!(
            "{flag} is {goal}, but must be a share from 0 to 1"
        )));
    }
    let run = |prefill: PolicyRules| audited(model, options, text, calibration, prefill);
    let offers = offers(calibration, &run, show)?;
    let mut aim = goal;
    let mut chosen = match calibration.keep {
        Keep::FirstPercentile(goal) => cheapest_each(&offers, goal),
        Keep::Mean(_) => cheapest_on_average(&offers, aim),
    };
    loop {
        let rules = rules(&chosen);
        let (audit, ..) = run(rules.clone())?;
        show(&format!("{} heads sparse: {}", rules.rules.len(), kept(&audit)));
        let met = match calibration.keep {
            Keep::Mean(goal) => {
                let met = audit.mean_mass >= goal || rules.rules.is_empty();
                aim = (aim + (goal - audit.mean_mass).max(0.001)).min(1.0);
                if !met {
                    chosen = cheapest_on_average(&offers, aim);
                }
                met
            }
            Keep::FirstPercentile(goal) => {
                let before = chosen.len();
                for (place, heads) in by_kv_head(&audit) {
                    if heads.iter().any(|head| head.first_percentile_mass < goal) {
                        chosen.remove(&place);
                    }
                }
                chosen.len() == before
            }
        };
        if met {
            let profile = Profile {
                prefill: rules,
                decode: options.sequence.decode.clone(),
                cost: calibration.cost,
            };
            return Ok(Calibration { profile, audit });
        }
    }
}

/// The audit of a run over the text, the shapes of its layers, and the number of tokens.
type Audited = (AuditReport, Vec<PolicyShape>, usize);

/// Costs and kept mass of every candidate for each KV head, full attention included.
fn offers(
    calibration: &CalibrateOptions,
    run: &dyn Fn(PolicyRules) -> Result<Audited, EvalError>,
    show: &mut dyn FnMut(&str),
) -> Result<BTreeMap<HeadPlace, Vec<Offer>>, EvalError> {
    let mut offers: BTreeMap<HeadPlace, Vec<Offer>> = BTreeMap::new();
    for candidate in &calibration.candidates {
        let (audit, shapes, tokens) = run(candidate.clone().into())?;
        show(&format!("{candidate}: {}", kept(&audit)));
        for (place, heads) in by_kv_head(&audit) {
            let share = Some(heads[0].density);
            let cost = &calibration.cost;
            let offer = Offer {
                policy: candidate.clone(),
                cost: cost.relative_cost(candidate, Phase::Prefill, &shapes[place.0], tokens, share),
                mean_mass: heads.iter().map(|head| head.mean_mass).sum::<f64>() / heads.len() as f64,
                first_percentile_mass: heads.iter().map(|head| head.first_percentile_mass).fold(1.0, f64::min),
            };
            offers.entry(place).or_default().push(offer);
        }
    }
    for offers in offers.values_mut() {
        // A policy that costs more than full attention can never be the cheapest.
        offers.retain(|offer| offer.cost < 1.0);
        offers.push(Offer {
            policy: PolicySpec::full(),
            cost: 1.0,
            mean_mass: 1.0,
            first_percentile_mass: 1.0,
        });
    }
    Ok(offers)
}

/// Describes an audit's result in words.
fn kept(audit: &AuditReport) -> String {
    format!(
        "mean mass {:.4}, first percentile {:.3}, {:.1}% of the pairs",
        audit.mean_mass,
        audit.first_percentile_mass,
        audit.density * 100.0
    )
}

/// For each KV head, the cheapest sparse policy with which every query head keeps the first percentile, if one
/// exists.
fn cheapest_each(offers: &BTreeMap<HeadPlace, Vec<Offer>>, first_percentile: f64) -> BTreeMap<HeadPlace, PolicySpec> {
    let cheapest = |offers: &[Offer]| {
        let keep = offers
            .iter()
            .filter(|offer| offer.first_percentile_mass >= first_percentile);
        let best = keep.min_by(|a, b| a.cost.total_cmp(&b.cost))?;
        (best.cost < 1.0).then(|| best.policy.clone())
    };
    let places = offers
        .iter()
        .filter_map(|(place, offers)| Some((*place, cheapest(offers)?)));
    places.collect()
}

/// Policies that keep `mean` of the mass on average. Each KV head starts with its cheapest policy; the greedy search
/// takes the step with the most mass per cost first. The result is optimal except for the last step.
fn cheapest_on_average(offers: &BTreeMap<HeadPlace, Vec<Offer>>, mean: f64) -> BTreeMap<HeadPlace, PolicySpec> {
    let cheapest = |offers: &'_ [Offer]| {
        let numbers = (0..offers.len()).min_by(|a, b| offers[*a].cost.total_cmp(&offers[*b].cost));
        numbers.expect("full attention is among them")
    };
    let mut now: BTreeMap<HeadPlace, usize> = offers
        .iter()
        .map(|(place, offers)| (*place, cheapest(offers)))
        .collect();
    let wanted = mean * offers.len() as f64;
    let mut held: f64 = now.iter().map(|(place, number)| offers[place][*number].mean_mass).sum();
    while held < wanted {
        let steps = now.iter().flat_map(|(place, number)| {
            let from = &offers[place][*number];
            let better = offers[place]
                .iter()
                .enumerate()
                .filter(|(_, to)| to.mean_mass > from.mean_mass);
            better.map(|(number, to)| {
                let gain = to.mean_mass - from.mean_mass;
                (gain / (to.cost - from.cost).max(1e-9), gain, *place, number)
            })
        });
        let Some((_, gain, place, number)) = steps.max_by(|a, b| a.0.total_cmp(&b.0)) else {
            break;
        };
        held += gain;
        now.insert(place, number);
    }
    let chosen = now
        .into_iter()
        .map(|(place, number)| (place, offers[&place][number].policy.clone()));
    chosen.filter(|(_, policy)| *policy != PolicySpec::full()).collect()
}

/// Audits a run over the text.
fn audited(
    model: &Path,
    options: &EngineOptions,
    text: &str,
    calibration: &CalibrateOptions,
    prefill: PolicyRules,
) -> Result<Audited, EvalError> {
    let options = options
        .clone()
        .with_prefill(prefill)
        .with_cost(calibration.cost)
        .with_audit(true);
    let engine = Engine::load(model, options)?;
    let mut tokens = engine.tokenizer().map_err(EvalError::Engine)?.encode(text, true)?;
    let most = calibration
        .length
        .unwrap_or(usize::MAX)
        .min(engine.plan().context_tokens);
    tokens.truncate(most);
    let mut session = Session::new(&engine)?;
    session.prefill(&tokens, &mut |_| ControlFlow::Continue(()))?;
    let shapes = policy_shapes(engine.model().config(), engine.options());
    let audit = session
        .sequence()
        .audit()
        .ok_or_else(|| EvalError::Option("nothing was audited".to_owned()))?;
    Ok((audit, shapes, tokens.len()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(policy: &str, cost: f64, mean_mass: f64) -> Offer {
        Offer {
            policy: policy.parse().unwrap(),
            cost,
            mean_mass,
            first_percentile_mass: mean_mass - 0.1,
        }
    }

    #[test]
    fn a_mean_is_reached_where_mass_is_cheapest() {
        let full = || offer("full", 1.0, 1.0);
        let offers = BTreeMap::from([
            (
                (0, 0),
                vec![offer("streaming", 0.1, 0.9), offer("xattention", 0.2, 0.99), full()],
            ),
            (
                (0, 1),
                vec![offer("streaming", 0.1, 0.2), offer("xattention", 0.6, 0.9), full()],
            ),
        ]);
        let names = |mean: f64| {
            let chosen = cheapest_on_average(&offers, mean);
            [(0, 0), (0, 1)].map(|place| chosen.get(&place).map_or("full", PolicySpec::name))
        };
        assert_eq!(names(0.5), ["streaming", "streaming"]);
        assert_eq!(names(0.89), ["streaming", "xattention"]);
        assert_eq!(names(0.93), ["xattention", "xattention"]);
        assert_eq!(names(0.99), ["xattention", "full"]);
        assert_eq!(names(1.0), ["full", "full"]);
        let each = cheapest_each(&offers, 0.85);
        assert_eq!(each.get(&(0, 0)).map(PolicySpec::name), Some("xattention"));
        assert_eq!(each.get(&(0, 1)), None);
    }
}
