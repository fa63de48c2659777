import { describe, expect, it } from 'vitest';
import { parseReference } from '../../../api/v1alpha1/reference.ts';
import { Keyring } from '../oci/credentials.ts';
import type { Registries } from '../oci/repository.ts';
import { Access } from './access.ts';

const REFERENCE = parseReference('old.example:5000/team/base:1');
const OTHER = parseReference('registry.example/team/base:1');

describe('the permission of a registry that proves nothing', () => {
  const registries = { repository: () => ({}) } as unknown as Registries;
  const marked = (namespace: string): Keyring => {
    return Keyring.parse([], { namespace, servers: [{ scheme: 'http', registry: 'old.example:5000' }] });
  };

  it('counts for the namespace that asked, and for nobody else', async () => {
    const access = new Access(registries, () => 0);
    await access.ask(REFERENCE, marked('platform-a'), () => Promise.resolve('yes'));
    expect(access.isKnown(REFERENCE, marked('platform-a'))).toBe(true);
    expect(access.isKnown(REFERENCE, marked('platform-b'))).toBe(false);
    expect(access.isKnown(REFERENCE, Keyring.parse([]))).toBe(false);
    expect(access.isKnown(REFERENCE)).toBe(false);
  });

  it('is not needed for other registries', async () => {
    const access = new Access(registries, () => 0);
    await access.ask(OTHER, marked('platform-a'), () => Promise.resolve('yes'));
    expect(access.isKnown(OTHER)).toBe(true);
  });
});
