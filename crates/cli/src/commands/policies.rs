//! `riffle policies`: the policies for --prefill and --decode.

use riffle_policy::{CostModel, Phase, PolicyInfo, PolicyRules, PolicyShape, PolicySpec, Recall};
use serde_json::{Value, json};

use super::{heads, print, print_json};
use crate::args::PoliciesArguments;
use crate::failure::Failure;

pub(crate) fn policies(arguments: &PoliciesArguments) -> Result<(), Failure> {
    let catalogue = riffle_policy::catalogue();
    let [heads, kv_heads, head_dim] = heads(&arguments.heads)?;
    let shape = PolicyShape {
        kv_heads,
        group: heads / kv_heads,
        head_dim,
        chunk_tokens: 512,
    };
    if arguments.json {
        let list: Vec<Value> = catalogue.iter().map(|policy| described(policy, &shape)).collect();
        return print_json(&list);
    }
    let mut text: String = catalogue.iter().map(|policy| paragraph(policy, &shape)).collect();
    text += "every policy\n    from=auto  contexts shorter than this many tokens are read densely; auto is its break-even length\n";
    text += "every sparse policy for prefill\n    Delta Attention, Willette et al. 2025, arXiv:2505.11254\n    delta=off  \
             every delta-th query also reads everything; what this changes in its output corrects the outputs of the queries after it; 64 is usual\n";
    text += "every policy that leaves out tokens without evicting them, in one phase\n    after CEDAR, 2026, arXiv:2609.07237\n    means=off  \
             tokens in a block; a query reads the mean of each block in place of the block's unread tokens\n";
    print(&text)
}

/// Warning for policies that evict.
const EVICTS: &str =
    "    evicts tokens for good before a later question is known: what such a question asks for is lost as a rule\n";

/// Note for policies whose selections depend on chunks.
const DEPENDS_ON_CHUNKS: &str = "    its selections depend on chunks: another -ub or --page-tokens, or a prompt read in two parts, may give another answer\n";

/// A policy as data.
fn described(policy: &PolicyInfo, shape: &PolicyShape) -> Value {
    let parameters = policy.parameters.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "default": parameter.default,
            "meaning": parameter.meaning,
        })
    });
    json!({
        "name": policy.name,
        "prefill": policy.supports(Phase::Prefill),
        "decode": policy.supports(Phase::Decode),
        "saves": policy.saves,
        "recalls": match policy.traits.recall {
            Recall::None => None,
            Recall::AtTheEnd => Some("at-the-end"),
            Recall::Distinct => Some("distinct"),
            Recall::Anywhere => Some("anywhere"),
        },
        "evicts": policy.traits.evicts,
        "depends_on_chunks": policy.traits.depends_on_chunks,
        "source": policy.source,
        "break_even_tokens": {
            "prefill": break_even(policy, Phase::Prefill, shape),
            "decode": break_even(policy, Phase::Decode, shape),
        },
        "parameters": parameters.collect::<Vec<_>>(),
    })
}

/// A policy in words.
fn paragraph(policy: &PolicyInfo, shape: &PolicyShape) -> String {
    let phases = match (policy.supports(Phase::Prefill), policy.supports(Phase::Decode)) {
        (true, true) => "prefill, decode",
        (true, false) => "prefill",
        _ => "decode",
    };
    let recalls = match policy.traits.recall {
        Recall::None => "",
        Recall::AtTheEnd => "; recalls facts that the end of a prompt asks for",
        Recall::Distinct => "; recalls facts unlike the rest of the text",
        Recall::Anywhere => "; recalls facts anywhere",
    };
    let mut text = format!(
        "{} ({phases}; saves {}{recalls})\n    {}\n",
        policy.name, policy.saves, policy.source
    );
    if policy.traits.evicts {
        text += EVICTS;
    }
    if policy.traits.depends_on_chunks {
        text += DEPENDS_ON_CHUNKS;
    }
    for phase in [Phase::Prefill, Phase::Decode] {
        if !policy.supports(phase) || policy.traits.dense {
            continue;
        }
        text += &match break_even(policy, phase, shape) {
            Some(0) => format!("    faster than full in {phase} from the first token\n"),
            Some(tokens) => format!("    faster than full in {phase} from {tokens} tokens\n"),
            None => format!("    never faster than full in {phase}\n"),
        };
    }
    for parameter in policy.parameters {
        text += &format!("    {}={}  {}\n", parameter.name, parameter.default, parameter.meaning);
    }
    text
}

/// Context length from which the policy is faster with its defaults, by the stored constants. `None` if it never is,
/// or if the policy lacks this phase.
fn break_even(policy: &PolicyInfo, phase: Phase, shape: &PolicyShape) -> Option<usize> {
    let spec: PolicySpec = policy.name.parse().ok().filter(|_| policy.supports(phase))?;
    let rules = PolicyRules::from(spec.clone());
    let chunk_tokens = rules.preferred_chunk_tokens().unwrap_or(shape.chunk_tokens);
    CostModel::default().break_even_tokens(&spec, phase, &PolicyShape { chunk_tokens, ..*shape })
}
