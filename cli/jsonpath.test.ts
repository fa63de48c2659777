import { expect, it } from 'vitest';
import { render, templateIn } from './jsonpath.ts';

const ITEMS = [
  { name: 'a', ip: '10.0.0.1', labels: { 'app/part': 'x' }, ports: [{ host: 1 }, { host: 2 }] },
  { name: 'b', ip: undefined, ports: [] },
  { name: 'c', ip: '10.0.0.3' },
];

it.each([
  ['{[0].name}', 'a'],
  ['{[-1].name}', 'c'],
  ['{[*].name}', 'a b c'],
  ['{.[*].name}', 'a b c'],
  ['{[*].ip}', '10.0.0.1 10.0.0.3'],
  ['{[1].*}', 'b []'],
  ['{[1].ip}', ''],
  ['{$[0].ports[*].host}', '1 2'],
  ['{[9].name}{[0].absent.field}', ''],
  [`{[0].labels['app/part']}`, 'x'],
  ['{[0].ports[0]}', '{"host":1}'],
  ['{range [*]}{.name}{"\\t"}{.ip}{"\\n"}{end}', 'a\t10.0.0.1\nb\t\nc\t10.0.0.3\n'],
  ['{range [*]}{.name}:{range .ports[*]}{@.host},{end};{end}', 'a:1,2,;b:;c:;'],
  ['name={[0].name}{"}"}', 'name=a}'],
  ['{[0].constructor}{[0].__proto__}', ''],
])('writes %s as kubectl does', (template, text) => {
  expect(render(templateIn(template), ITEMS)).toBe(text);
});

it.each([
  ['{[?(@.name=="a")]}', `[?(@.name=="a")] is not supported`],
  ['{..name}', '..name is not supported'],
  ['{[0:2]}', '[0:2] is not supported'],
  ['{name}', 'name is not supported'],
  ['{range [*]}{.name}', '{range} has no {end}'],
  ['{.name}{end}', '{end} has no {range}'],
  ['{.name', 'the brace { has no matching brace'],
])('refuses %s by name', (template, words) => {
  expect(() => templateIn(template)).toThrow(words);
});
