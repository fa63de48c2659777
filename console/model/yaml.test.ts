import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { parse } from 'yaml';
import { formatYAML } from './yaml.ts';

it('writes YAML from which a reader gets the same value', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      const plain = JSON.parse(JSON.stringify(value)) as unknown;
      expect(parse(formatYAML(plain))).toEqual(plain);
    }),
  );
});

it('writes an object as people know it', () => {
  const vm = {
    apiVersion: 'berth.dev/v1alpha1',
    metadata: { name: 'build-1', labels: {}, uid: '0e10' },
    spec: { cpu: 2, memory: '4Gi', ports: ['8080:80', { a: 'on', b: [1] }] },
  };
  expect(formatYAML(vm)).toBe(`apiVersion: berth.dev/v1alpha1
metadata:
  name: build-1
  labels: {}
  uid: "0e10"
spec:
  cpu: 2
  memory: "4Gi"
  ports:
    - "8080:80"
    - a: "on"
      b:
        - 1
`);
});
