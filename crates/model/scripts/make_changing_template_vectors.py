"""Renders templates that change lists and maps with jinja2: tests/vectors/changing_templates.json.

`transformers` refuses such templates, so that the environment here is jinja2's own with the same settings.
"""

import json
import pathlib

import jinja2

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "vectors" / "changing_templates.json"
MESSAGES = [
    {"role": "user", "content": " Hi there "},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": ""},
]
TEMPLATES = [
    "{% set xs = [] %}{% for m in messages %}{% set _ = xs.append(m.role) %}{% endfor %}{{ xs }} {{ xs|length }} {{ xs[-1] }}",
    "{% set xs = [1] %}{% for m in messages %}{% do xs.append(m) %}{% endfor %}{{ xs|tojson }}",
    "{% set a = [1] %}{% set b = a %}{% do b.append(2) %}{{ a }} {{ b }} {{ a == b }} {{ a == [1, 2] }} {{ a != [1] }}",
    "{% set ns = namespace(xs=[]) %}{% for m in messages %}{% do ns.xs.append(loop.index) %}{% endfor %}{{ ns.xs }}",
    "{% set d = {'xs': []} %}{% do d.xs.append(1) %}{% do d['xs'].append(2) %}{{ d }} {{ d|tojson }}",
    "{{ [].append(1) }}",
    "{% for i in [1, 2] %}{% set xs = [] %}{% do xs.append(i) %}{{ xs }}{% endfor %}",
    "{% set xs = [1] %}{% do xs.extend([2, 3]) %}{% do xs.extend('ab') %}{% do xs.extend((4,)) %}{% do xs.extend(xs) %}{{ xs }}",
    "{% set xs = [1, 2] %}{% do xs.insert(0, 'a') %}{% do xs.insert(-1, 'b') %}{% do xs.insert(99, 'c') %}{% do xs.insert(-99, 'd') %}{{ xs }}",
    "{% set xs = [1, 2, 3, 4] %}{{ xs.pop() }}{{ xs.pop(0) }}{{ xs.pop(-1) }}{{ xs }}",
    "{% set xs = [3, 1] %}{% set ys = xs.copy() %}{% do ys.reverse() %}{{ xs }}{{ ys }}{% do xs.clear() %}{{ xs }}",
    "{{ [].pop() }}", "{{ [1].pop(5) }}", "{{ {}.pop('a') }}",
    "{% set d = {'a': 1} %}{% set e = d %}{% do e.update({'b': 2, 'a': 3}) %}{% do d.update(c=4) %}{% do d.update([('d', 5)]) %}{{ d }}{{ e == d }}{{ d|tojson }}",
    "{% set d = {'a': 1, 'b': 2} %}{{ d.pop('a') }} {{ d.pop('x', 'none') }} {{ d }} {{ d.setdefault('c', []) }} {{ d.setdefault('b', 7) }} {{ d }}",
    "{% set d = {} %}{% for i in range(20) %}{% do d.update({i: i * i}) %}{% endfor %}{% for i in range(0, 20, 2) %}{% do d.pop(i) %}{% endfor %}{{ d }} {{ 3 in d }} {{ 4 in d }} {{ d[5] }}",
    "{% set d = dict(a=1) %}{% set e = dict(d) %}{% do e.update(b=2) %}{{ d }} {{ e }}",
    "{% set xs = [1] %}{% do xs.append('b') %}{{ 'b' in xs }} {{ 2 in xs }} {{ xs + [3] }} {{ xs }} {{ xs * 2 }}",
    "{% set xs = [1, 2, 3] %}{% set ys = xs[1:] %}{% do ys.append(4) %}{{ xs }} {{ ys }} {{ ys[::-1] }}",
    "{% set xs = [2, 1]|sort %}{% do xs.append(9) %}{% set ys = xs|list %}{% do ys.append(0) %}{{ xs }} {{ ys }}",
    "{% set xs = 'a b'.split() %}{% do xs.append('c') %}{{ xs|join('-') }}",
    "{% set xs = [1] + [2] %}{% do xs.append(3) %}{{ xs }}",
    "{% set xs = [1, 2] %}{% for x in xs %}{{ x }}{% endfor %}{% do xs.append(3) %}{% for x in xs %}{{ x }}{{ loop.last }}{% endfor %}",
    "{% do messages.append({'role': 'tool'}) %}{{ messages|length }}{{ messages[-1].role }}{% do messages[0].update(role='x') %}{{ messages[0] }}",
    "{% macro add(xs) %}{% do xs.append('m') %}{% endmacro %}{% set xs = [] %}{{ add(xs) }}{{ add(xs) }}{{ xs }}",
    "{{ (1, 2).append(3) }}", "{{ {'items': 1}.items()|list }}",
    "{% set xs = [1] %}{% for x in xs %}{{ x }}{% if x < 4 %}{% do xs.append(x + 1) %}{% endif %}{% endfor %}{{ xs }}",
    "{% set xs = [1, 2, 3] %}{% for x in xs %}{{ x }}{% do xs.remove(x) %}{% endfor %}{{ xs }}",
    "{% set xs = [1, 2] %}{% for x in xs if x %}{{ x }}{{ loop.index }}{{ loop.length }}{{ loop.last }}{% endfor %}",
    "{% set xs = [1, 2, 3]|batch(2)|list %}{% do xs[0].append(9) %}{{ xs }}",
    "{% set xs = [1, 2, 3]|slice(2)|list %}{% do xs[1].append(9) %}{{ xs }}",
    "{% set xs = [3, 1, 2.5, true] %}{% do xs.sort() %}{{ xs }}{% do xs.sort(reverse=true) %}{{ xs }}",
    "{% set xs = ['b', 'B', 'a', 'é'] %}{% do xs.sort() %}{{ xs }}",
    "{% set xs = [[2, 'a'], [1, 'b']] %}{% do xs.sort() %}{{ xs }}",
    "{% set xs = [1, 'a'] %}{% do xs.sort() %}{{ xs }}",
    "{% set xs = [{}, {}] %}{% do xs.sort() %}{{ xs }}",
    "{% set xs = [] %}{% do xs.sort() %}{{ xs }}",
    "{% set xs = [1, 2, 1] %}{{ xs.index(1) }}{{ xs.index(2) }}{{ xs.count(1) }}{% do xs.remove(1) %}{{ xs }}",
    "{% set xs = ['a', [1], {'k': 2}] %}{{ xs.index([1]) }}{{ xs.index({'k': 2}) }}",
    "{{ [1].index(2) }}",
    "{{ [1].remove(2) }}",
    "{{ [1].append(x=1) }}",
    "{{ [1].append() }}",
    "{{ [1].pop('a') }}",
    "{{ {}.pop(key='a') }}",
    "{{ {'a': 1}.update(1) }}",
    "{{ {'a': 1}.update([[1]]) }}",
    "{% set d = {'a': 1} %}{% do d.update({'b': 2}, c=3) %}{{ d }}{% set e = d.copy() %}{% do e.clear() %}{{ d }}{{ e }}",
    "{% set d = {} %}{% do d.update({1: 'a'}) %}{% do d.update({1.0: 'b'}) %}{{ d[1] }} {{ d|length }}",
    "{% set d = {'a': [1]} %}{% set e = d.copy() %}{% do e.a.append(2) %}{{ d }}{{ e }}",
    "{% set d = {'a': 1} %}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}{{ d.get('a') }}{{ d.get('b', 3) }}{{ d.keys()|list }}",
    "{% set a = {'k': []} %}{% set b = [a, a] %}{% do b[0].k.append(7) %}{{ b }}",
    "{% set xs = range(3)|list %}{% do xs.append(3) %}{{ xs }}{{ xs|sum }}{{ xs|max }}{{ xs|first }}{{ xs|last }}",
    "{% set xs = messages|map(attribute='role')|list %}{% do xs.append('z') %}{{ xs }}{{ messages|length }}",
    "{% set xs = [1, 2] %}{% set ys = xs|reverse|list %}{% do ys.append(0) %}{{ xs }}{{ ys }}",
    "{% set a, b = [1], [2] %}{% do a.extend(b) %}{{ a }}{{ b }}",
]


def render(environment, template):
    try:
        text = environment.from_string(template).render(messages=json.loads(json.dumps(MESSAGES)))
        return {"template": template, "text": text}
    except Exception as error:
        return {"template": template, "error": str(error)}


def main():
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    lines = ",\n".join("  " + json.dumps(render(environment, template)) for template in TEMPLATES)
    OUT.write_text(f'{{"messages": {json.dumps(MESSAGES)},\n "variables": {{}},\n "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
