import { describe, expect, it } from 'vitest';
import { SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { type HostWithPools, planYield } from './yielding.ts';

function pod(name: string, cpu: number): Pod {
  const resources = { requests: { [SLOT_RESOURCE]: '1', cpu: String(cpu) } };
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace: 'platform-a' },
    spec: { containers: [{ name: 'machine', image: '', resources }] },
  };
}

function idle(name: string, minute: number, cpu = 1): { vm: VM; pod: Pod } {
  const creationTimestamp = `2030-01-01T00:${String(minute).padStart(2, '0')}:00Z`;
  const metadata = { name, creationTimestamp };
  return { vm: { apiVersion: '', kind: 'VM', metadata, spec: {} }, pod: pod(name, cpu) };
}

function host(name: string, idleMembers: HostWithPools['idle'], staying: Pod[] = []): HostWithPools {
  const node: Node = {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name },
    status: { allocatable: { [SLOT_RESOURCE]: '2', cpu: '4' } },
  };
  return { node, staying, idle: idleMembers };
}

function goes(waiting: readonly Pod[], hosts: readonly HostWithPools[]): string | undefined {
  return planYield(waiting, hosts)?.metadata.name;
}

describe('a VM of a pool', () => {
  const full = host('a', [idle('younger', 2), idle('youngest', 3)]);

  it('makes room for a VM that waits, the oldest first', () => {
    const other = host('b', [idle('oldest', 1), idle('young', 9)]);
    expect(goes([pod('waits', 1)], [full, other])).toBe('oldest');
  });

  it('stays if a place is free, or becomes free, for each VM that waits', () => {
    const leaving = host('b', [], [pod('stays', 1)]);
    expect(goes([pod('waits', 1)], [full, leaving])).toBeUndefined();
    expect(goes([pod('waits', 1), pod('also', 1)], [full, leaving])).toBe('younger');
  });

  it('stays if its place would not be enough, and goes with others if that is', () => {
    expect(goes([pod('large', 5)], [full])).toBeUndefined();
    expect(goes([pod('large', 4)], [full])).toBe('younger');
  });
});
