"""Renders the features of chat templates with `transformers`: tests/vectors/templates.json."""

import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors" / "templates.json"
MESSAGES = [
    {"role": "user", "content": " Hi there "},
    {"role": "assistant", "content": "yes\n\"q\" <b>"},
    {"role": "user", "content": ""},
]
TEMPLATES = [
    '{{ true }} {{ none }} {{ false }}',
    "{{ [1,'a',true,none] }}",
    "{{ {'a': true, 'b': [1.0]} }}",
    '{{ 1.0 }} {{ 3/2 }} {{ 7//2 }} {{ 2**3 }}',
    "{{ 'x' ~ true ~ none }}",
    "{{ 'a' + 'b' }}",
    "{{ messages[::-1]|map(attribute='role')|list }}",
    '{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}',
    '{{ dict(a=1) }}',
    "{% for k, v in {'a':1,'b':2}.items() %}{{k}}={{v}};{% endfor %}",
    "{{ messages[0] is mapping }} {{ 'a' is string }} {{ messages is iterable }} {{ x is defined }}",
    '{{ messages|tojson(indent=2) }}',
    "{{ messages|selectattr('role','equalto','user')|list|length }}",
    '{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}',
    '{% macro f(x, y=2) %}<{{x}}{{y}}>{% endmacro %}{{ f(1) }}{{ f(1,y=3) }}',
    '{% generation %}hi{% endgeneration %}',
    "{{- messages[0].content.strip().split(' ')[-1].upper() }}",
    "{{ messages[0]['content'][:3] }} {{ messages[-1].role }}",
    "{{ '  a '|trim }}|{{ 'a b'.title() }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.replace('b','x') }}",
    "{{ x }}|{{ x|default('d') }}|{{ messages[0].foo }}",
    '{{ messages|length }} {{ messages|first }}',
    "{% if not x and messages[0].role == 'user' %}y{% else %}n{% endif %}",
    'a\n  {% if true %}\n  b\n  {% endif %}\nc\n',
    "{{ 'a\\nb'|indent(2) }}",
    "{{ ['a','b']|join(', ') }} {{ (1,2) }}",
    '{{ "it\'s" }} {{ ["it\'s", \'q"\'] }}',
    '{{ \'é\\n\' | tojson }} {{ ["é\\n"] }}',
    "{{ raise_exception('bad') }}",
    '{{ none.foo }}',
    "{{ 'abc'|replace('a','b')|upper|lower|capitalize }}",
    "{{ messages|map(attribute='content')|join('|') }}",
    "{{ 5 % 3 }} {{ -7 // 2 }} {{ 10|string + 'a' }} {{ '5'|int + 1 }}",
    "{{ 'x' in 'xyz' }} {{ 'role' in messages[0] }} {{ 1 in [1,2] }}",
    '{%- for m in messages -%}\n {{ m.role }}\n{%- endfor %}',
    "{{ messages[0].get('role') }} {{ messages[0].get('q','z') }}",
    '{{ messages[0].items()|list }}',
    '{{ messages[0]|items|list }}',
    "{{ {'b':1,'a':2}|dictsort }}",
    "{{ 'a,b'.split(',') }} {{ 'x'.join(['a','b']) }}",
    "{{ not true }} {{ true and 'a' or 'b' }}",
    "{{ 'a' if x else 'b' }}{{ 'a' if x }}",
    "{{ 'abc'|list }} {{ 'abc'[::-1] }} {{ [3,1,2]|sort }} {{ [1,2,3]|sum }} {{ [1,1,2]|unique|list }}",
    "{{ 'a'|e }} {{ '<b>' }} {{ '<b>'|escape }}",
    '{{ messages | tojson }}',
    "{{ range(3)|list }} {{ 'ab' * 2 }} {{ 'x'.rstrip('x') == '' }}",
    "{# c #}{{ '{{' }}{% raw %}{{ x }}{% endraw %}",
    '{{ messages[5].role }}',
    '{{ tools is none }} {{ documents is none }} {{ tools }} {{ tools|tojson }} {{ unknown is defined }}',
    "{% if tools is not none and tools|length > 0 %}TOOLS{% endif %}{{ messages[0].content }}",
    "{% for m in messages %}\r\n<{{ m.role }}>\r{{ m.content }}\r\n{% endfor %}\r\n",
    "a\r\nb\rc\n\n",
    "a\n\r",
    "{{ 'a\r\nb'|tojson }}",
    '{{ small }} {{ small|tojson }} {{ large }} {{ [small, large, 1.0, -0.0, true, none] }} {{ {"a": small} }}',
    "{{ small ~ '|' ~ large ~ '|' ~ [large] }} {{ large|string + 'x' }} {{ [small, 1, 'a', none, [2.5e-9]]|join(',') }}",
    '{{ [small, large, whole, 1.0, -0.0, 123456789.123, 1e22, 5e-324, true, none]|tojson }}',
    '{{ whole }} {{ whole|tojson }} {{ 2**70 }} {{ (2**62)|tojson }} {{ 0.1 + 0.2 }} {{ 1e15 }} {{ 1e16 }} {{ 0.0001 }} {{ 0.00001 }}',
    '{{ {1: 2, "b": {2.5: none}}|tojson }} {{ {"é": "\\u2028"}|tojson(ensure_ascii=true) }}',
    '{{ unknown|tojson }}',
    '{{ {"b": [1, {"c": small}], "a": ()}|tojson(indent=1, sort_keys=true) }} {{ [1,[2]]|tojson(separators=(",",":")) }}',
    '{% set s = namespace(role="system", content="S") %}{% for m in [s] + messages %}{{ m.role }}:{{ m.content }} {% endfor %}',
    '{% set ns = namespace(xs=[], last=none) %}{% for m in messages %}{% set one = namespace(m=m, n=loop.index) %}{% set ns.xs = ns.xs + [one] %}{% set ns.last = one %}{% endfor %}{% for x in ns.xs %}{{ x.n }}{{ x.m.role }}{% endfor %}{{ ns.last.n }}',
    '{% set a = namespace(n=1) %}{% set b = [a] %}{% set a.n = 2 %}{{ b[0].n }}{% set c = {"a": a} %}{% set a.n = 3 %}{{ c.a.n }}{{ b[0].n }}',
    '{{ "it\'s a1b x-ray éa".title() }} {{ "a-b-c".rsplit("-", 1) }} {{ "a-b".rsplit("-")[0] }} {{ "a-b-c".rsplit("-", -1)|length }} {{ "abc".rsplit("-", 0) }}',
    '{{ "<a>b".removeprefix("<a>") }} {{ "b</a>".removesuffix("</a>") }} {{ "b".removeprefix("c").removesuffix("") }}',
    '{{ "a=b=c".partition("=")[2] }} {{ "a=b=c".rpartition("=")|first }} {{ "abc".partition("=")|join("|") }} {{ "abc".rpartition("=")|join("|") }}',
    '{{ "abc".rsplit("") }}',
    '{{ "abc".partition("") }}',
]
VARIABLES = {"small": 1e-07, "large": 1e16, "whole": 9007199254740993}


def render(template):
    try:
        text = _compile_jinja_template(template).render(
            messages=MESSAGES, tools=None, documents=None, add_generation_prompt=True, bos_token="<s>", **VARIABLES
        )
        return {"template": template, "text": text}
    except Exception as error:
        return {"template": template, "error": str(error)}


def main():
    lines = ",\n".join("  " + json.dumps(render(template)) for template in TEMPLATES)
    OUT.write_text(f'{{"messages": {json.dumps(MESSAGES)},\n "variables": {json.dumps(VARIABLES)},\n "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
