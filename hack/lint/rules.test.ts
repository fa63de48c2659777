import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { layersOf, ORDER, WINGS } from './layers.ts';
import plugin from './rules.ts';

const ROOT = join(import.meta.dirname, '..', '..');

/** Returns how often a rule reports a node of this type in a file of the project. */
function complaints(rule: keyof typeof plugin.rules, file: string, node: { type: string }): number {
  let count = 0;
  const report = (): void => void (count += 1);
  plugin.rules[rule].create({ filename: join(ROOT, file), report })[node.type]?.(node);
  return count;
}

test.each([
  ['agent/pods/plan.ts', '../../test/support/properties.ts', 1],
  ['agent/pods/plan.ts', '../../hack/cluster/authority.ts', 1],
  ['agent/pods/plan.test.ts', '../../test/support/properties.ts', 0],
  ['agent/pods/plan.ts', '../../base/time.ts', 0],
  ['agent/pods/plan.ts', 'node:test', 0],
  ['hack/demo.ts', './wait.ts', 0],
  ['hack/demo.ts', '../test/support/cluster.ts', 1],
  ['base/time.ts', '../api/v1alpha1/names.ts', 1],
  ['base/time.test.ts', '../api/v1alpha1/names.ts', 1],
  ['operator/operator.ts', '../agent/agent.ts', 1],
  ['operator/main.ts', './operator.ts', 0],
  ['operator/image/plan.ts', '../vm/plan.ts', 1],
  ['operator/vm/plan.ts', '../image/plan.ts', 0],
  ['operator/image/plan.ts', '../host/plan.ts', 1],
  ['kube/client.ts', './certificates/der.ts', 0],
  ['kube/client.ts', './serving/httpserver.ts', 1],
  ['kube/nosuch/file.ts', '../client.ts', 1],
  ['api/v1alpha1/reasons.ts', './reasons/host.ts', 0],
  ['api/v1alpha1/reasons/host.ts', '../vm.ts', 1],
])('%s imports %s: %i complaints', (file, value, count) => {
  for (const type of [
    'ImportDeclaration',
    'ImportExpression',
    'ExportNamedDeclaration',
    'ExportAllDeclaration',
  ]) {
    const node = { type, source: { type: 'Literal', value } };
    expect(complaints('layers', file, node)).toBe(count);
  }
});

test.each([
  ['warn', 'err', 'error', 0],
  ['warn', 'error', 'error', 1],
  ['info', 'reason', 'error', 1],
  ['warn', 'uid', 'uid', 0],
  ['set', 'error', 'error', 0],
])('.%s({ %s: %s }): %i complaints', (method, key, value, count) => {
  const name = (text: string) => ({ type: 'Identifier', name: text });
  const property = { type: 'Property', key: name(key), value: name(value) };
  const callee = { type: 'MemberExpression', property: name(method) };
  const node = {
    type: 'CallExpression',
    callee,
    arguments: [{ type: 'ObjectExpression', properties: [property] }],
  };
  expect(complaints('logged-errors', 'agent/main.ts', node)).toBe(count);
});

test.each([
  ['agent/drivers/qemu/qmp.ts', 'JSON', 'parse', 1, 1],
  ['cli/login/target.ts', 'answer', 'json', 0, 1],
  ['base/json.ts', 'JSON', 'parse', 1, 0],
  ['server/http/app.ts', 'response', 'json', 1, 0],
  ['server/http/app.ts', 'schema', 'parse', 1, 0],
  ['agent/drivers/qemu/qmp.test.ts', 'JSON', 'parse', 1, 0],
])('%s calls %s.%s with %i arguments: %i complaints', (file, object, property, count, expected) => {
  const name = (text: string) => ({ type: 'Identifier', name: text });
  const callee = { type: 'MemberExpression', object: name(object), property: name(property) };
  const node = {
    type: 'CallExpression',
    callee,
    arguments: Array.from({ length: count }, () => name('text')),
  };
  expect(complaints('bounded-json', file, node)).toBe(expected);
});

test.each([
  ['spawn', 'timeout', 1],
  ['spawn', 'cwd', 0],
  ['spawnSync', 'timeout', 0],
])('%s(…, { %s }): %i complaints', (callee, key, count) => {
  const name = (text: string) => ({ type: 'Identifier', name: text });
  const options = { type: 'ObjectExpression', properties: [{ type: 'Property', key: name(key) }] };
  const node = { type: 'CallExpression', callee: name(callee), arguments: [name('program'), options] };
  expect(complaints('spawn-timeout', 'agent/main.ts', node)).toBe(count);
});

test.each([
  ['ForStatement', 'actions/power.ts', 'attempt', 'isNotFound', 1],
  ['ForStatement', 'actions/power.ts', 'index', 'isConflict', 1],
  ['ForStatement', 'actions/power.ts', 'index', 'isNotFound', 0],
  ['ForStatement', 'agent/processes/cgroup.ts', 'attempt', 'isNotFound', 0],
  ['ForStatement', 'agent/node/keeper.ts', 'index', 'isConflict', 1],
  ['ForStatement', 'kube/transport.ts', 'attempt', 'isNotFound', 0],
  ['ForStatement', 'actions/power.test.ts', 'attempt', 'isConflict', 0],
  ['WhileStatement', 'kube/members.ts', undefined, 'isAlreadyExists', 1],
  ['DoWhileStatement', 'kube/members.ts', undefined, 'isNotFound', 0],
  ['ForOfStatement', 'operator/uninstall.ts', undefined, 'isConflict', 0],
])('a %s in %s that counts %s and asks %s: %i complaints', (type, file, counter, asked, count) => {
  const name = (text: string) => ({ type: 'Identifier', name: text });
  const init =
    counter === undefined ? null : { type: 'VariableDeclaration', declarations: [{ id: name(counter) }] };
  const call = { type: 'CallExpression', callee: name('undefinedIf'), arguments: [name(asked)] };
  const body = { type: 'BlockStatement', body: [{ type: 'ExpressionStatement', expression: call }] };
  const node: { type: string; init: object | null; body: object; parent?: unknown } = { type, init, body };
  node.parent = node;
  expect(complaints('bounded-retries', file, node)).toBe(count);
});

test.each([
  ['words', 1],
  ['lastWords', 1],
  ['LAST_WORDS', 1],
  ['isTurnOver', 1],
  ['untilTold', 1],
  ['word', 0],
  ['settled', 0],
  ['allSettled', 0],
  ['returns', 0],
  ['understood', 0],
])('the name %s: %i complaints', (name, count) => {
  for (const type of ['Identifier', 'PrivateIdentifier']) {
    expect(complaints('standard-terms', 'agent/main.ts', { type, name } as { type: string })).toBe(count);
  }
});

test('the layers name only folders and files that exist', () => {
  const inside = Object.keys(ORDER).flatMap((folder) =>
    layersOf(folder)
      .flat()
      .map((name) => join(folder, name)),
  );
  expect(inside.length).toBeGreaterThan(50);
  expect([...Object.keys(WINGS), ...inside].filter((path) => !existsSync(join(ROOT, path)))).toEqual([]);
});
