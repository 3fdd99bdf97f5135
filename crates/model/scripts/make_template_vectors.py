"""What `transformers` renders for the template features that chat templates use: tests/vectors/templates.json."""

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
]


def render(template):
    try:
        text = _compile_jinja_template(template).render(messages=MESSAGES, add_generation_prompt=True, bos_token="<s>")
        return {"template": template, "text": text}
    except Exception as error:
        return {"template": template, "error": str(error)}


def main():
    lines = ",\n".join("  " + json.dumps(render(template)) for template in TEMPLATES)
    OUT.write_text(f'{{"messages": {json.dumps(MESSAGES)},\n "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
