import { expect, test } from 'vitest';
import type { Attachment, NamespaceAttachment } from './attachments.ts';
import { peerMatches } from './namespacerules.ts';

const PROGRAM: NamespaceAttachment = {
  uid: 'emulator',
  address: '198.18.213.20',
  device: 'bn1',
  exposedPort: 5555,
  peer: 'desk',
  ports: [],
};

function machine(uid: string, address: string): Attachment {
  return { uid, address, macAddress: '52:54:00:00:00:01', tap: `bt-${uid}`, ports: [] };
}

test('a peer is let in by its present address alone, and a peer that is away by none', () => {
  const first = [machine('other', '10.213.0.20'), machine('desk', '10.213.0.21')];
  const matches = (machines: Attachment[]): string[] => peerMatches({ machines, namespaces: [PROGRAM] });
  expect(matches(first)).toEqual(['ip saddr 10.213.0.21 ip daddr 198.18.213.20 tcp dport 5555']);
  const away = [machine('other', '10.213.0.20'), machine('heir', '10.213.0.21')];
  expect(matches(away)).toEqual([]);
  const back = [machine('heir', '10.213.0.21'), machine('desk', '10.213.0.30')];
  expect(matches(back)).toEqual(['ip saddr 10.213.0.30 ip daddr 198.18.213.20 tcp dport 5555']);
});

test('a program without a peer is reached by no machine', () => {
  const { peer: _none, ...alone } = PROGRAM;
  expect(peerMatches({ machines: [machine('desk', '10.213.0.21')], namespaces: [alone] })).toEqual([]);
});
