//! The counters as text for Prometheus.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

pub(super) fn text_of(registry: &Registry) -> String {
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => text,
        // Writing into a text does not fail.
        Err(error) => format!("# {error}\n"),
    }
}

/// Several texts as one, with adjacent samples of each metric, as Prometheus needs them.
pub(crate) fn merged(texts: impl Iterator<Item = String>) -> String {
    /// Lines about a metric, and its samples.
    #[derive(Default)]
    struct Metric {
        name: String,
        head: String,
        samples: String,
    }
    let mut metrics: Vec<Metric> = Vec::new();
    for text in texts {
        let (mut at, mut is_new) = (0, false);
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let name = rest.split(' ').next().unwrap_or_default();
                let known = metrics.iter().position(|metric| metric.name == name);
                is_new = known.is_none();
                at = known.unwrap_or(metrics.len());
                if is_new {
                    metrics.push(Metric {
                        name: name.to_owned(),
                        ..Metric::default()
                    });
                }
            }
            let Some(metric) = metrics.get_mut(at) else {
                continue;
            };
            let is_head = line.starts_with('#');
            if is_head && !is_new {
                continue;
            }
            let to = if is_head { &mut metric.head } else { &mut metric.samples };
            to.push_str(line);
            to.push('\n');
        }
    }
    let lines = metrics.into_iter().map(|metric| metric.head + &metric.samples);
    lines.collect::<String>() + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn the_samples_of_several_models_stand_together_with_their_names() {
        let (first, second) = (Metrics::new(Some("a")), Metrics::new(Some("b")));
        first.count_load(1.0);
        second.count_end("stop");
        let text = merged([first.text(), second.text()].into_iter());
        assert_eq!(text.matches("# TYPE riffle:model_loads counter").count(), 1);
        let loads = "riffle:model_loads_total{model=\"a\"} 1\nriffle:model_loads_total{model=\"b\"} 0\n";
        assert!(text.contains(loads), "{text}");
        assert!(
            text.contains("vllm:request_success_total{model=\"b\",finished_reason=\"stop\"} 1"),
            "{text}"
        );
        assert_eq!(text.matches("# EOF").count(), 1);
        let alone = Metrics::new(None).text();
        assert_eq!(merged([alone.clone()].into_iter()), alone);
        assert!(!alone.contains("model_loads"));
    }
}
