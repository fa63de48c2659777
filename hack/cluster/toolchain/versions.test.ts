import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import {
  CHART_TOOL_GROUPS,
  METRICS_TOOL_GROUPS,
  moduleDirectory,
  SIMULATION_TOOL_GROUPS,
  TOOL_GROUPS,
  type ToolGroup,
} from './tools.ts';

/** Groups in the order in which a whole test run builds them. */
const GROUPS = [...TOOL_GROUPS, ...SIMULATION_TOOL_GROUPS, ...CHART_TOOL_GROUPS, ...METRICS_TOOL_GROUPS];
const REQUIREMENT = /^(?:require )?\t?([\w./~-]+) (v\S+)/gm;
const REPLACEMENT = /^(?:replace )?\t?([\w./~-]+)(?: v\S+)? => \1 (v\S+)/gm;
/** Modules that make up half of kwok, helm, helm-unittest and metrics-server. */
const LARGEST = ['k8s.io/api', 'k8s.io/apimachinery', 'k8s.io/client-go'];

interface Versions {
  /** Version of each module, after replacements. */
  taken: ReadonlyMap<string, string>;
  replaced: ReadonlyMap<string, string>;
}

function versionsOf(group: ToolGroup): Versions {
  const text = readFileSync(join(moduleDirectory(group), 'go.mod'), 'utf8');
  const pairs = (pattern: RegExp): [string, string][] =>
    [...text.matchAll(pattern)].map(([, module = '', version = '']) => [module, version]);
  const replaced = pairs(REPLACEMENT);
  return { taken: new Map([...pairs(REQUIREMENT), ...replaced]), replaced: new Map(replaced) };
}

describe('the modules of the toolchain', () => {
  const versions = GROUPS.map((group) => ({ name: group.name, ...versionsOf(group) }));

  it('are of one version where groups share the largest of them', () => {
    for (const module of LARGEST) {
      const taken = versions.filter((group) => group.taken.has(module));
      expect(taken.map(({ name }) => name)).toEqual([
        'kubernetes',
        'kwok',
        'helm',
        'helm-unittest',
        'metrics-server',
      ]);
      expect(new Set(taken.map((group) => `${module} ${group.taken.get(module)}`))).toHaveLength(1);
    }
  });

  it.each(versions.map(({ name }, index) => [name, index] as const))(
    'are replaced in %s by versions that an earlier group takes',
    (_, index) => {
      const earlier = versions.slice(0, index);
      const strange = [...(versions[index]?.replaced ?? [])].filter(([module, version]) => {
        const others = earlier.map(({ taken }) => taken.get(module)).filter((one) => one !== undefined);
        return others.length > 0 && !others.includes(version);
      });
      expect(strange).toEqual([]);
    },
  );
});
