//! `riffle policies`: what can be chosen with --prefill and --decode.

use serde_json::json;

use super::{print, print_json};
use crate::args::PoliciesArguments;
use crate::failure::Failure;

pub(crate) fn policies(arguments: &PoliciesArguments) -> Result<(), Failure> {
    let catalogue = riffle_policy::catalogue();
    if arguments.json {
        let list: Vec<_> = catalogue
            .iter()
            .map(|policy| {
                json!({
                    "name": policy.name,
                    "prefill": policy.supports_prefill,
                    "decode": policy.supports_decode,
                    "saves": policy.saves,
                    "source": policy.source,
                    "parameters": policy.parameters.iter().map(|parameter| json!({
                        "name": parameter.name,
                        "default": parameter.default,
                        "meaning": parameter.meaning,
                    })).collect::<Vec<_>>(),
                })
            })
            .collect();
        return print_json(&list);
    }
    let mut text = String::new();
    for policy in catalogue {
        let phases = match (policy.supports_prefill, policy.supports_decode) {
            (true, true) => "prefill, decode",
            (true, false) => "prefill",
            _ => "decode",
        };
        text += &format!(
            "{} ({phases}; saves {})\n    {}\n",
            policy.name, policy.saves, policy.source
        );
        for parameter in policy.parameters {
            text += &format!("    {}={}  {}\n", parameter.name, parameter.default, parameter.meaning);
        }
    }
    text += "every policy\n    from=auto  contexts shorter than this many tokens are read densely; auto is its break-even length\n";
    print(&text)
}
