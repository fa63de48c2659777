import { expect, test } from 'vitest';
import type { Pod } from './core.ts';
import { MESSAGE_LENGTH, parkedStatus } from './podstatus.ts';

const POD: Pod = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'x', namespace: 'ns', uid: 'u' },
  spec: { containers: [{ name: 'x', image: 'x' }] },
};

/** The API server refuses a Pod that is too large, so the Pod would keep an old status. */
test('no message in the status of a Pod is longer than the messages of a kubelet', () => {
  const why = { reason: 'Refused', message: `${'x'.repeat(10_000)}the end` };
  const { conditions = [], containerStatuses = [] } = parkedStatus(
    POD,
    why,
    '192.0.2.1',
    '2030-01-01T00:00:00Z',
  );
  const waiting = containerStatuses.map(({ state }) => state?.waiting?.message);
  const messages = [...conditions.map(({ message }) => message), ...waiting].filter(
    (one) => one !== undefined,
  );
  expect(messages).toHaveLength(3);
  for (const message of messages) {
    expect(message.length).toBeLessThanOrEqual(MESSAGE_LENGTH);
    expect(message).toMatch(/the end$/);
  }
});
