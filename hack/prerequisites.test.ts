import { expect, test } from 'vitest';
import { wantedPackages } from './prerequisites.ts';

test.each([
  { asRoot: true, nft: 'nft' },
  { asRoot: false, nft: undefined },
])('the demo needs nftables only where its host is root: $asRoot', async ({ asRoot, nft }) => {
  const wanted = await wantedPackages({ kind: 'demo', architecture: 'amd64' }, asRoot);
  expect(wanted['nftables']).toBe(nft);
  expect(wanted['qemu-system-x86']).toBe('qemu-system-x86_64');
  // The README types commands of both, and a small Debian has neither.
  expect(wanted).toMatchObject({ 'openssh-client': 'ssh', curl: 'curl' });
});
