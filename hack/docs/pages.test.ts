import { expect, test } from 'vitest';
import { changelogFeed, configurationPage, drawSvg, kindsPage, lifecycleDot, valuesPage } from './pages.ts';
import { httpRightsPage } from './httprights.ts';
import { between, fieldsOf, table, typeOf } from './table.ts';

test('a schema is described by field, with the constants of alternatives together', () => {
  const schema = {
    properties: {
      size: { type: 'integer', minimum: 1, maximum: 9 },
      list: { items: { properties: { name: { type: 'string' } } }, description: 'Names.' },
    },
    oneOf: [
      { properties: { driver: { const: 'user' } } },
      { properties: { driver: { const: 'nat' }, bridge: { type: 'string' } } },
    ],
  };
  expect(fieldsOf(schema).map((field) => [field.path, typeOf(field.schema)])).toEqual([
    ['size', 'integer, from 1 to 9'],
    ['list', 'list'],
    ['list[].name', 'string'],
    ['driver', '`user`, `nat`'],
    ['bridge', 'string'],
  ]);
});

test('bars and line breaks do not break a table', () => {
  expect(table(['a'], [['x|y\nz']])).toBe('| a |\n| --- |\n| x\\|y z |');
});

test('a page without a place for its table is refused', () => {
  expect(between('<!-- a -->\nold\n<!-- end -->\n', 'a', 'new')).toBe('<!-- a -->\n\nnew\n\n<!-- end -->\n');
  expect(() => between('', 'a', 'new')).toThrow('the page has no place for a');
});

test('every key of a configuration needs a description', () => {
  expect(() => configurationPage('<!-- operator -->\n<!-- end -->\n<!-- agent -->\n<!-- end -->\n')).toThrow(
    'describe these keys of the operator: namespaces.system, ',
  );
});

test('the description of a value is the comment right above it', () => {
  const page = valuesPage(
    '# Head of the file.\n\n# The images.\nimage:\n  # Where from.\n  # Second line.\n  tag: ""\n  # other: 1\n\n  size: 3\n  # end: 1\n\n# Top.\ntop: 1\n',
  );
  expect(page).toContain('## image\n\nThe images.\n');
  expect(page).toContain('| `image.tag` | `""` | Where from. Second line. |');
  expect(page).toContain('| `image.size` | `3` |  |');
  expect(page).toContain('| `top` | `1` | Top. |');
});

test('fields of a spec say whether they can be changed', () => {
  const [vm = ''] = kindsPage().split('## VMConfig');
  expect(vm).toMatch(/^\| `image` \| string \| no \|/m);
  expect(vm).toMatch(/^\| `powerState` \| `Running`, `Stopped`, `Suspended` \| yes \|/m);
});

test('an operation of the HTTP API has a dot for each role that may use it', () => {
  const operation = { summary: 'does something', 'x-berth-roles': ['dev', 'admin', 'viewer'] };
  const paths = {
    '/vms': { get: operation },
    '/info': { get: { ...operation, 'x-berth-roles': 'no token' } },
  };
  const page = httpRightsPage(JSON.stringify({ paths }));
  expect(page).toMatch(/^\| GET `\/vms` \| does something \| • \| • \|  \| • \|  \|$/m);
  expect(page).toMatch(/^\| GET `\/info` \| does something \| • \| • \| • \| • \| no token needed \|$/m);
});

test('the feed has one entry for each version that is out, with its date', () => {
  const feed = changelogFeed(
    '# Changelog\n\n## 0.3.0 (unreleased, 2026-03-01)\n\n- New.\n\n## 0.2.0 (2026-02-01)\n\n- A & *b*\n\n## 0.1.0 (2026-01-01)\n\nFirst.\n',
  );
  expect(feed).toContain('<updated>2026-02-01T00:00:00Z</updated>\n  <author>');
  const entries = [
    ...feed.matchAll(/<entry>\s+<title>Berth (\S+)<\/title>\s+<id>\S+<\/id>\s+<updated>(\S+)<\/updated>/g),
  ];
  expect(entries.map(([, version, date]) => [version, date])).toEqual([
    ['0.2.0', '2026-02-01T00:00:00Z'],
    ['0.1.0', '2026-01-01T00:00:00Z'],
  ]);
  expect(feed).toContain('&lt;li&gt;A &amp;amp; &lt;em&gt;b&lt;/em&gt;&lt;/li&gt;');
  expect(() => changelogFeed('## 0.3.0\n')).toThrow('"## 0.3.0" is not like');
});

test('the life of a VM is drawn from the table of its phases', async () => {
  expect(lifecycleDot()).toContain('  Suspended -> Resuming [label="  powerState Running  "];\n');
  expect(await drawSvg(lifecycleDot())).toContain('>Resuming</text>');
  await expect(drawSvg('digraph {')).rejects.toThrow(/syntax error/);
});
