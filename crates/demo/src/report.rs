//! Lines about what a run read and kept.

use riffle_engine::{AuditReport, RunReport, human_bytes};
use riffle_files::grouped;

use crate::DemoError;

pub(crate) fn audit(report: &RunReport) -> Result<&AuditReport, DemoError> {
    report.audit.as_ref().ok_or(DemoError::NotAudited)
}

/// Describes the pairs that the policy read, and their share of the attention mass.
pub(crate) fn findings(policy: &str, report: &RunReport, audit: &AuditReport) -> String {
    let worst = audit.worst_head.map_or(audit.mean_mass, |head| head.mean_mass);
    format!(
        "read      {prompt} tokens in {first:.1} s under {policy}:\n          {density:.1}% of the pairs of tokens that full attention reads\nkept      {mean:.1}% of the true attention on average, by an audit of this run:\n          {samples} samples, each a token in one of {heads} heads, compared with full attention;\n          one sample in 100 kept less than {first_percentile:.0}%; the worst head kept {worst:.0}% on average\nmemory    {kv} for keys and values, {weights} for the model, {scratch} to compute; {threads} threads\n",
        prompt = grouped(report.prompt_tokens),
        first = report.time_to_first_token_ms / 1e3,
        density = report.density * 100.0,
        mean = audit.mean_mass * 100.0,
        samples = grouped(audit.samples as usize),
        heads = audit.heads.len(),
        first_percentile = audit.first_percentile_mass * 100.0,
        worst = worst * 100.0,
        kv = human_bytes(report.kv.device_bytes + report.kv.ram_bytes + report.kv.disk_bytes),
        weights = human_bytes(report.plan.weights_bytes),
        scratch = human_bytes(report.plan.scratch_bytes),
        threads = report.threads,
    )
}

/// Compares two audited runs, each with the name of its policy, in columns.
pub(crate) fn comparison(sparse: (&str, &RunReport), dense: (&str, &RunReport)) -> String {
    let row = |name: &str, cell: &dyn Fn(&RunReport) -> String| {
        format!("{name:<26}{:<26}{}\n", cell(sparse.1), cell(dense.1))
    };
    let percent = |share: f64| format!("{:.1}%", share * 100.0);
    [
        format!("\n{:<26}{:<26}{} attention\n", "compared", sparse.0, dense.0),
        row("answer", &|report| report.text.trim().to_owned()),
        row("seconds to first token", &|report| {
            format!("{:.1}", report.time_to_first_token_ms / 1e3)
        }),
        row("pairs of tokens read", &|report| percent(report.density)),
        row("attention kept", &|report| {
            let audit = report.audit.as_ref();
            audit.map_or_else(|| "not audited".to_owned(), |audit| percent(audit.mean_mass))
        }),
        "\n".to_owned(),
    ]
    .concat()
}
