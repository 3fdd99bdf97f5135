"""Writes deploy/compose/grafana/dashboards/riffle.json: the panels that stand in PANELS below."""

import json
import pathlib

TARGET = pathlib.Path(__file__).resolve().parent / "compose/grafana/dashboards/riffle.json"

# Title, unit, width of 24, and what is drawn: expression and legend.
PANELS = [
    ("Requests that run and wait", "short", 12, [
        ("vllm:num_requests_running{job=\"riffle\"}", "{{instance}} runs"),
        ("vllm:num_requests_waiting{job=\"riffle\"}", "{{instance}} waits"),
    ]),
    ("Share of prompts that had been read before", "percentunit", 12, [
        ("rate(vllm:prefix_cache_hits_total[1m]) / rate(vllm:prefix_cache_queries_total[1m])", "{{instance}}"),
        ("sum(rate(vllm:prefix_cache_hits_total[1m])) / sum(rate(vllm:prefix_cache_queries_total[1m]))", "all"),
    ]),
    ("Time to the first token", "s", 12, [
        ("histogram_quantile(0.5, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))", "median"),
        ("histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))", "95th percentile"),
    ]),
    ("Time between tokens", "s", 12, [
        ("histogram_quantile(0.5, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[1m])))", "median"),
        ("histogram_quantile(0.99, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[1m])))", "99th percentile"),
    ]),
    ("Tokens a second", "short", 12, [
        ("sum(rate(vllm:prompt_tokens_total[1m]))", "of prompts"),
        ("sum(rate(vllm:generation_tokens_total[1m]))", "of answers"),
    ]),
    ("Requests a second, by how they end", "short", 12, [
        ("sum by (finished_reason) (rate(vllm:request_success_total[1m]))", "{{finished_reason}}"),
    ]),
    ("Time from arrival to the end", "s", 12, [
        ("histogram_quantile(0.5, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[1m])))", "median"),
        ("histogram_quantile(0.95, sum by (le) (rate(vllm:request_queue_time_seconds_bucket[1m])))", "waiting, 95th percentile"),
    ]),
    ("KV cache", "percentunit", 12, [("vllm:kv_cache_usage_perc{job=\"riffle\"}", "{{instance}}")]),
    ("Bytes of the KV cache, by where they lie", "bytes", 12, [("riffle:kv_bytes", "{{instance}} {{tier}}")]),
    ("Share of query-key pairs that attention read", "percentunit", 12, [
        ("rate(riffle:attention_pairs_read_total[1m]) / rate(riffle:attention_pairs_causal_total[1m])", "{{instance}}"),
    ]),
    ("KV events", "short", 12, [
        ("rate(riffle:kv_event_batches_total[1m])", "{{instance}} batches"),
        ("rate(riffle:kv_events_dropped_total[1m])", "{{instance}} dropped"),
        ("rate(riffle:kv_event_replays_total[1m])", "{{instance}} replays"),
    ]),
    ("Pauses of over a second between two tokens", "short", 12, [("increase(riffle:stalls_total[5m])", "{{instance}}")]),
]


def panel(number, title, unit, width, targets):
    source = {"type": "prometheus", "uid": "prometheus"}
    drawn = [
        {"datasource": source, "refId": chr(65 + at), "expr": expression, "legendFormat": legend}
        for at, (expression, legend) in enumerate(targets)
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "gridPos": {"h": 8, "w": width, "x": number % 2 * 12, "y": number // 2 * 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}},
        "targets": drawn,
    }


dashboard = {
    "uid": "riffle",
    "title": "Riffle",
    "schemaVersion": 41,
    "tags": ["riffle"],
    "timezone": "browser",
    "refresh": "5s",
    "time": {"from": "now-30m", "to": "now"},
    "templating": {"list": []},
    "annotations": {"list": []},
    "panels": [panel(number, *row) for number, row in enumerate(PANELS)],
}
TARGET.parent.mkdir(parents=True, exist_ok=True)
TARGET.write_text(json.dumps(dashboard, indent=1) + "\n")
