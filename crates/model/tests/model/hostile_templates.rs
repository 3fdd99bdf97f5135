//! Hostile or faulty chat templates: every one ends soon, with an error that gives the reason.

use std::ops::ControlFlow;

use riffle_model::{ChatMessage, ChatTemplate, ModelError, TemplateLimit};

/// The fate of a template: refused when opened, or when rendered.
fn outcome(source: &str) -> Result<String, ModelError> {
    let messages = [ChatMessage::new("user", "hello")];
    let template = ChatTemplate::new(source, vec![("bos_token".into(), "<s>".into())])?;
    Ok(template.render(&messages, true)?.into_text())
}

#[track_caller]
fn limit(source: &str) -> TemplateLimit {
    match outcome(source) {
        Err(ModelError::TemplateLimit { file, limit }) => {
            assert_eq!(file.to_str(), Some("chat_template.jinja"));
            limit
        }
        Err(other) => panic!("{}: {other}", start(source)),
        Ok(text) => panic!("{}: rendered {} bytes", start(source), text.len()),
    }
}

/// The template stays within its limits, or is refused as broken.
#[track_caller]
fn harmless(source: &str) {
    match outcome(source) {
        Ok(_) | Err(ModelError::Template { .. }) => {}
        Err(other) => panic!("{}: {other}", start(source)),
    }
}

fn start(source: &str) -> String {
    source.chars().take(80).collect()
}

#[test]
fn an_empty_tag_is_refused_as_broken() {
    for source in ["{%%}", "{%}", "{%", "{%-%}", "{% %}", "{{}}", "{#", "a {%%} b {%%}"] {
        harmless(source);
    }
    assert!(matches!(outcome("{%%}"), Err(ModelError::Template { .. })));
}

#[test]
fn long_chains_of_operators_do_not_overflow_the_stack() {
    let chains = [
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "1+", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "1 if 1 else ", "1 }}"),
        ("{{ x", ".a", " }}"),
        ("{{ x", "[0]", " }}"),
        ("{{ x", "()", " }}"),
        ("{{ 'x'", "|upper", " }}"),
        ("{{ x", " is defined", " }}"),
        ("{{ 1", " and 1", " }}"),
        ("{{ 1", " < 2", " }}"),
        ("{{ ", "(", " }}"),
        ("{{ ", "[", " }}"),
        ("{{ ", "{1:", " }}"),
        ("{% if 1 %}", "{% elif 1 %}", "{% endif %}"),
        ("", "{% if 1 %}", ""),
        ("", "{% for a in b %}", ""),
        ("{% set x", "|upper", " %}{% endset %}"),
        ("{% set ", "(", "x = 1 %}"),
    ];
    for (before, link, after) in chains {
        for count in [100, 2_000, 50_000] {
            let source = format!("{before}{}{after}", link.repeat(count));
            match outcome(&source) {
                Ok(_) | Err(ModelError::Template { .. } | ModelError::TemplateLimit { .. }) => {}
                Err(other) => panic!("{}: {other}", start(&source)),
            }
        }
    }
    let found = limit(&format!("\n{{{{ {}1 }}}}", "not ".repeat(50_000)));
    assert!(matches!(found, TemplateLimit::TagTokens { line: 2, .. }), "{found:?}");
    let found = limit(&format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(5_000)));
    assert!(matches!(found, TemplateLimit::Branches { .. }), "{found:?}");
}

#[test]
fn the_longest_chain_that_is_allowed_renders() {
    assert_eq!(
        outcome(&format!("{{{{ {}1 }}}}", "not ".repeat(2_000))).unwrap(),
        "True"
    );
    assert_eq!(outcome(&format!("{{{{ {}1 }}}}", "1+".repeat(1_000))).unwrap(), "1001");
    assert_eq!(
        outcome(&format!("{{{{ 'a'{} }}}}", "~'a'".repeat(1_000)))
            .unwrap()
            .len(),
        1001
    );
    assert_eq!(
        outcome(&format!("{{{{ 'a'{} }}}}", "|upper".repeat(1_000))).unwrap(),
        "A"
    );
    let branches = "{% elif 0 %}".repeat(1_000);
    assert_eq!(
        outcome(&format!("{{% if 0 %}}{branches}{{% else %}}b{{% endif %}}")).unwrap(),
        "b"
    );
}

#[test]
fn a_long_source_is_refused() {
    let found = limit(&"a".repeat(10 << 20));
    assert!(matches!(found, TemplateLimit::SourceBytes { .. }), "{found:?}");
    assert_eq!(outcome(&"a".repeat(100_000)).unwrap().len(), 100_000);
}

#[test]
fn values_nest_only_so_deep() {
    let list = "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    assert!(matches!(limit(list), TemplateLimit::Depth { .. }));
    let map = "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}";
    assert!(matches!(limit(map), TemplateLimit::Depth { .. }));
    let batches =
        "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x|batch(1) %}{% endfor %}";
    assert!(matches!(limit(batches), TemplateLimit::Depth { .. }));
    let chained = "{% set ns = namespace(x={'a': 1}) %}{% for i in range(100000) %}\
                   {% set ns.x = ns.x|chain({'a': ns.x}) %}{% endfor %}";
    assert!(matches!(limit(chained), TemplateLimit::Depth { .. }));
}

#[test]
fn a_namespace_that_holds_itself_is_not_followed_for_ever() {
    for (source, reads) in [
        ("{% set ns = namespace() %}{% set ns.a = ns %}", "{{ ns }}"),
        ("{% set ns = namespace() %}{% set ns.a = [ns] %}", "{{ ns.a|string }}"),
        (
            "{% set ns = namespace() %}{% set ns.a = [ns, ns, ns] %}",
            "{{ ns|tojson }}",
        ),
        (
            "{% set ns = namespace() %}{% set ns.a = {'b': ns} %}",
            "{{ ns.a == ns.a.b.a }}",
        ),
        (
            "{% set ns = namespace() %}{% set ns.a = dict(b=ns) %}",
            "{{ 1 in [ns] }}",
        ),
        (
            "{% set ns = namespace() %}{% set ns.a %}{% endset %}{% set ns.b, x = ns, 1 %}",
            "{{ [ns, ns]|sort }}",
        ),
        (
            "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = [0]|map('d', b, true)|list %}",
            "{{ b ~ '' }}",
        ),
        (
            "{% macro m(n) %}{% set n.a = namespace(b=n) %}{% endmacro %}{% set ns = namespace() %}{{ m(ns) }}",
            "{{ [ns]|unique|list }}",
        ),
    ] {
        assert_eq!(outcome(source).unwrap(), "", "{source}");
        let found = limit(&format!("{source}{reads}"));
        assert!(
            matches!(found, TemplateLimit::Depth { .. } | TemplateLimit::Bytes { .. }),
            "{source}{reads}: {found:?}"
        );
    }
    let error = outcome("{% set ns = namespace() %}{% for i in [1] %}{% set ns.a = loop %}{% endfor %}").unwrap_err();
    assert!(error.to_string().contains("cannot hold a loop"), "{error}");
    let error = outcome("{% set ns = {} %}{% set ns.a = 1 %}").unwrap_err();
    assert!(error.to_string().contains("can only assign to namespaces"), "{error}");
}

#[test]
fn a_list_or_map_that_holds_itself_is_not_followed_for_ever() {
    for source in [
        "{% set a = [] %}{% do a.append(a) %}",
        "{% set a = [1, 2] %}{% do a.insert(1, a) %}{% do a.append(3) %}",
        "{% set a = [] %}{% set b = [a] %}{% do a.extend([b, b]) %}",
        "{% set a = {} %}{% do a.update(b=a) %}",
        "{% set a = {} %}{% do a.setdefault('b', [a]) %}",
        "{% set ns = namespace(x={'b': []}) %}{% set a = ns.x %}{% do a.b.append(a) %}",
    ] {
        assert_eq!(outcome(source).unwrap(), "", "{source}");
        for reads in [
            "{{ a }}",
            "{{ a|string }}",
            "{{ a|tojson }}",
            "{{ a|pprint }}",
            "{{ a ~ '' }}",
            "{{ [a, a]|sort }}",
            "{{ [a]|unique|list }}",
            "{{ [a]|join }}",
            "{{ a == [a] }}",
            "{{ a in [[a]] }}",
            "{{ [a]|groupby(0)|list }}",
            "{{ [[a]].index([a]) }}",
            "{% set b = [a, a] %}{% do b.sort() %}",
            "{% set b = [a] %}",
            "{{ raise_exception(a) }}",
            "{% for x in [1] %}{{ loop.changed(a) }}{% endfor %}",
            "{{ '%s'|format(a) }}",
        ] {
            let found = limit(&format!("{source}{reads}"));
            assert!(
                matches!(found, TemplateLimit::Depth { .. } | TemplateLimit::Bytes { .. }),
                "{source}{reads}: {found:?}"
            );
        }
        // Reading the direct parts of the value does not walk through it, so it is allowed.
        outcome(&format!("{source}{{{{ a|length }}}}{{% for x in a %}}{{% endfor %}}")).unwrap();
        for broken in [
            "{{ a - a }}",
            "{{ a / a }}",
            "{{ -a }}",
            "{{ a ** a }}",
            "{{ a.b.c.d() }}",
            "{{ {}[a] }}",
        ] {
            harmless(&format!("{source}{broken}"));
        }
    }
    let error = outcome("{% set a = [] %}{% for i in [1] %}{% do a.append(loop) %}{% endfor %}").unwrap_err();
    assert!(error.to_string().contains("cannot hold a loop"), "{error}");
}

#[test]
fn lists_and_maps_do_not_grow_without_end() {
    let outer = "{% for i in range(100000) %}{% for j in range(100000) %}";
    let ends = "{% endfor %}{% endfor %}";
    for (first, next) in [
        ("[]", "a.append(1)"),
        ("[]", "a.append([])"),
        ("[]", "a.insert(0, 1)"),
        ("[1]", "a.extend(a)"),
        ("[1]", "a.extend('ab' * 1000)"),
        ("[1] * 1000", "a.copy()"),
        ("[1] * 1000", "a.reverse()"),
        ("[1] * 1000", "a.sort()"),
        ("[1] * 1000", "a.index(1)"),
        ("range(1000)|list", "a.index(999)"),
        ("[1] * 1000", "a.append(a.pop(0))"),
        ("{}", "a.update({i * 100000 + j: 1})"),
        ("{}", "a.setdefault(i * 100000 + j, [])"),
        ("{'a': [1] * 1000}", "a.copy()"),
    ] {
        let found = limit(&format!("{{% set a = {first} %}}{outer}{{% do {next} %}}{ends}"));
        assert!(
            matches!(found, TemplateLimit::Bytes { .. } | TemplateLimit::Steps { .. }),
            "{next}: {found:?}"
        );
    }
    for endless in [
        "{% set a = [1] %}{% for x in a %}{% do a.append(x) %}{% endfor %}",
        "{% set a = [1] %}{% for x in a if a.append(x) is none %}{% endfor %}",
        "{% set a = [1] %}{% for x in a %}{% do a.insert(0, x) %}{% endfor %}",
        "{% for x in messages %}{% do messages.append(x) %}{% endfor %}",
    ] {
        let found = limit(endless);
        assert!(matches!(found, TemplateLimit::Bytes { .. }), "{endless}: {found:?}");
    }
}

#[test]
fn long_chains_of_lists_are_dropped_without_recursion() {
    for (first, next) in [
        (
            "[]",
            "{% set next = [] %}{% do ns.last.append(next) %}{% set ns.last = next %}",
        ),
        (
            "{}",
            "{% set next = {} %}{% do ns.last.update(a=next) %}{% set ns.last = next %}",
        ),
    ] {
        let source = format!(
            "{{% set top = {first} %}}{{% set ns = namespace(last=top) %}}{{% for i in range(50000) %}}{next}{{% endfor %}}"
        );
        assert_eq!(outcome(&source).unwrap(), "", "{source}");
        for reads in [
            "{{ top }}",
            "{{ top == top|list }}",
            "{{ [top]|sort }}",
            "{{ top|pprint }}",
        ] {
            let found = limit(&format!("{source}{reads}"));
            assert!(matches!(found, TemplateLimit::Depth { .. }), "{reads}: {found:?}");
        }
    }
}

#[test]
fn a_render_changes_none_of_the_messages_that_it_was_given() {
    let template = ChatTemplate::new(
        "{% do messages.append(1) %}{% do messages[0].clear() %}{{ messages }}",
        vec![],
    );
    let template = template.unwrap();
    for _ in 0..2 {
        let text = template.render(&[ChatMessage::new("user", "hello")], true).unwrap();
        assert_eq!(text.text(), "[{}, 1]");
    }
}

#[test]
fn long_chains_of_namespaces_are_dropped_without_recursion() {
    let from_the_top = "{% set top = namespace() %}{% set ns = namespace(last=top) %}{% for i in range(90000) %}\
                        {% set next = namespace() %}{% set ns.last.next = next %}{% set ns.last = next %}{% endfor %}";
    let from_the_bottom = "{% set ns = namespace(last=1) %}{% for i in range(90000) %}\
                           {% set ns.last = namespace(next=[ns.last]) %}{% endfor %}";
    for source in [from_the_top, from_the_bottom] {
        assert_eq!(outcome(source).unwrap(), "", "{source}");
        assert!(matches!(
            limit(&format!("{source}{{{{ top or ns }}}}")),
            TemplateLimit::Depth { .. }
        ));
    }
}

#[test]
fn numbers_do_not_allocate_without_end() {
    for source in [
        "{{ messages|tojson(indent=100000000000) }}",
        "{{ 'a'|indent(100000000000) }}",
        "{{ 'a\n'|indent(width=100000000000, first=true) }}",
        "{{ '%99999999999d'|format(1) }}",
        "{{ '%*d'|format(99999999999, 1) }}",
        "{{ '%.99999999999f'|format(1.5) }}",
        "{{ '{:>99999999999}'.format('a') }}",
        "{{ '{:.99999999999f}'.format(1.5) }}",
        "{{ [1]|slice(100000000000)|list }}",
        "{{ [1]|batch(100000000000, 0)|list }}",
        "{{ 'ab' * 100000000 * 100000000 }}",
        "{{ 'abc' * 99999999 }}",
        "{{ 99999999 * 'abc' }}",
        "{{ ([1] * 99999999)|length }}",
        "{{ ((1,) * 99999999)|length }}",
        "{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list }}",
        "{{ 'a'.strip('b' * 100000) }}",
        "{{ 'a'|trim('b' * 100000) }}",
        "{{ strftime_now('%Y' * 10000) }}",
    ] {
        let found = limit(source);
        assert!(
            matches!(found, TemplateLimit::Argument { .. } | TemplateLimit::Bytes { .. }),
            "{source}: {found:?}"
        );
    }
    let message = limit("{{ 'a'|indent(100000000000) }}").to_string();
    assert!(
        message.contains("indent") && message.contains("100000000000"),
        "{message}"
    );
}

#[test]
fn loops_without_end_are_stopped() {
    let nested = "{% for a in range(100000) %}".repeat(4) + &"{% endfor %}".repeat(4);
    assert!(matches!(
        limit(&nested),
        TemplateLimit::Steps { .. } | TemplateLimit::Bytes { .. }
    ));
    // Without an inner loop only steps are counted.
    let names = "{% set a = messages %}".repeat(500);
    let plain = format!("{{% for a in range(100000) %}}{names}{{% endfor %}}");
    assert!(matches!(limit(&plain), TemplateLimit::Steps { .. }));
    let calls = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    harmless(calls);
    harmless("{% for x in [[[[]]]] recursive %}{{ loop([x]) }}{% endfor %}");
    harmless("{% block a %}{{ self.a() }}{% endblock %}");
    let both = "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    harmless(both);
}

#[test]
fn values_do_not_grow_without_end() {
    let grow = |first: &str, next: &str| {
        format!(
            "{{% set ns = namespace(x={first}) %}}{{% for i in range(90000) %}}{{% set ns.x = {next} %}}{{% endfor %}}"
        )
    };
    for (first, next) in [
        ("'a'", "ns.x ~ ns.x"),
        ("'a'", "ns.x + ns.x"),
        ("'a'", "ns.x * 2"),
        ("[1]", "ns.x + ns.x"),
        ("[1]", "ns.x * 2"),
        ("(1,)", "ns.x + ns.x"),
        ("[1]", "(ns.x + ns.x)[0:]"),
        ("[1]", "ns.x|chain(ns.x)"),
        ("[1]", "ns.x|chain(ns.x)|list"),
        ("'aa'", "ns.x|replace('a', 'aa')"),
        ("'aa'", "ns.x.replace('a', 'aa')"),
        ("'aa'", "ns.x|replace('', ns.x)"),
        ("'aa'", "ns.x.join([ns.x, ns.x])"),
        ("'aa'", "[ns.x, ns.x]|join(ns.x)"),
        ("'aa'", "ns.x|join(ns.x)"),
        ("'aa'", "'%s%s'|format(ns.x, ns.x)"),
        ("'aa'", "'{0}{0}'.format(ns.x)"),
        ("'aa'", "[ns.x, ns.x]|string"),
        ("'aa'", "[ns.x, ns.x]|tojson"),
        ("'aa'", "[ns.x, ns.x]|pprint"),
        ("'aa'", "[ns.x, ns.x]|sum(start='')"),
        ("'\\n\\n'", "ns.x|indent(1000, true, true)"),
        ("'<<'", "ns.x ~ ns.x|escape"),
        ("['a']", "ns.x + ['a']"),
        ("''", "ns.x ~ messages"),
    ] {
        let found = limit(&grow(first, next));
        assert!(matches!(found, TemplateLimit::Bytes { .. }), "{next}: {found:?}");
    }
    let captured = "{% set ns = namespace(x='a') %}{% for i in range(90000) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}\
                    {% set ns.x = y %}{% endfor %}";
    assert!(matches!(limit(captured), TemplateLimit::Bytes { .. }));
    let literal = format!("{{% for i in range(90000) %}}{}{{% endfor %}}", "text ".repeat(20_000));
    assert!(matches!(limit(&literal), TemplateLimit::Bytes { .. }));
}

#[test]
fn values_that_share_parts_are_not_walked_without_end() {
    let tree = "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    assert!(matches!(limit(tree), TemplateLimit::Bytes { .. }));
    // Sixteen levels are 65,536 lists: within the budget once, but not repeatedly.
    let tree = "{% set ns = namespace(x=[]) %}{% for i in range(16) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for used in [
        "{{ ns.x }}",
        "{{ ns.x == ns.x }}",
        "{{ ns.x < ns.x }}",
        "{{ ns.x in [ns.x] }}",
        "{{ ns.x|tojson }}",
        "{{ [ns.x]|sort }}",
        "{{ loop.changed(ns.x) }}",
    ] {
        let source = format!("{tree}{{% for i in range(90000) %}}{used}{{% endfor %}}");
        assert!(matches!(limit(&source), TemplateLimit::Bytes { .. }), "{used}");
    }
    let error = outcome(&format!("{tree}{{{{ {{}}[ns.x] }}}}")).unwrap_err().to_string();
    assert!(error.contains("cannot be the key of a map"), "{error}");
}

#[test]
fn slow_searches_are_stopped() {
    let text = "{% set s = 'a' * 9000000 %}";
    for used in [
        "{{ s[8999999] }}",
        "{% set t = s[8999999] %}",
        "{% set t = 'b' in s %}",
        "{% set t = s == s %}",
        "{% set t = s.find('b') %}",
        "{% set t = s is lower %}",
        "{% set t = {}[s] %}",
        "{% for c in s %}{% break %}{% endfor %}",
    ] {
        let source = format!("{text}{{% for i in range(90000) %}}{used}{{% endfor %}}");
        assert!(matches!(limit(&source), TemplateLimit::Bytes { .. }), "{used}");
    }
}

#[test]
fn messages_of_a_template_are_cut() {
    let error = outcome("{{ raise_exception('x' * 100000) }}").unwrap_err().to_string();
    assert!(error.len() < 2_000 && error.contains("(100000 characters)"), "{error}");
}

#[test]
fn the_engine_beneath_fails_as_an_error() {
    harmless("{% for i in [1] %}{{ loop.cycle() }}{% endfor %}");
    harmless("{% for i in [1] %}{{ loop.cycle(*[]) }}{% endfor %}");
    harmless("{% include 'chat_template' %}");
    harmless("{% import 'chat_template' as x %}");
    harmless("{% extends 'chat_template' %}");
    harmless("{{ debug() }}");
    harmless("{{ [1, 2, 3][0:5:-1] }}");
    harmless("{{ [1, 2, 3][:: -9223372036854775808] }}");
}

#[test]
fn a_render_stops_when_the_caller_asks_for_it() {
    let loops = "{% for a in range(100000) %}".repeat(4) + "{% set x = bos_token ~ 1 %}" + &"{% endfor %}".repeat(4);
    let template = ChatTemplate::new(&loops, vec![("bos_token".into(), "<s>".into())]).unwrap();
    let mut polls = 0;
    let stopped = template.render_messages_until(&[ChatMessage::new("user", "hello")], true, &mut || {
        polls += 1;
        ControlFlow::Break(())
    });
    assert!(
        matches!(stopped, Err(ModelError::TemplateInterrupted { .. })),
        "{stopped:?}"
    );
    assert!(polls > 0);
}

#[test]
fn errors_name_the_file_of_the_template() {
    let directory = tempfile::tempdir().unwrap();
    let shipped = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/model");
    for entry in std::fs::read_dir(shipped).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
    }
    let path = directory.path().join("chat_template.jinja");
    std::fs::write(&path, format!("{{{{ {}1 }}}}", "not ".repeat(50_000))).unwrap();
    let error = riffle_model::inspect(directory.path()).unwrap_err();
    assert!(
        matches!(&error, ModelError::TemplateLimit { file, .. } if *file == path),
        "{error}"
    );
    assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
}
