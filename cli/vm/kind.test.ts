import { expect, it } from 'vitest';
import type { StoredContent } from '../../api/http/imageitem.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Column } from '../output.ts';
import { IMAGE_KIND } from '../image.ts';
import { VM_KIND } from './kind.ts';

const condition = (type: string, status: string, message: string) => ({ type, status, reason: 'A', message });

function linesOf(spec: object, status: object): Record<string, unknown> {
  const vm = { metadata: { name: 'desk', namespace: 'platform-a' }, spec, status } as unknown as VM;
  const lines = VM_KIND.pageOf?.(vm, 'kubectl berth') ?? [];
  return Object.fromEntries(lines.filter(([, value]) => value !== undefined && value !== ''));
}

it('says of a running VM whether it is ready, where it is, how to log in and how large it is', () => {
  const status = {
    phase: 'Running',
    nodeName: 'host-1',
    hostAddress: '192.0.2.1',
    conditions: [condition('Ready', 'False', 'The guest has no SSH server')],
    endpoints: [
      { name: 'ssh', purpose: 'ssh', protocol: 'TCP', hostPort: 8822, guestPort: 22 },
      { name: 'vnc', purpose: 'vnc', protocol: 'TCP', hostPort: 5901 },
      { name: '8080-tcp', protocol: 'TCP', hostPort: 8080, guestPort: 80 },
    ],
    image: { name: 'debian', digest: 'sha256:1' },
    resources: { cpu: 2, memory: '1536Mi', diskSize: 20_415_376 },
  };
  expect(linesOf({ image: 'debian' }, status)).toEqual({
    Name: 'desk',
    Namespace: 'platform-a',
    Phase: 'Running',
    Ready: 'False: The guest has no SSH server',
    Host: 'host-1 at 192.0.2.1',
    Login: 'kubectl berth vm ssh desk, or ssh -p 8822 USER@192.0.2.1',
    Ports: '8080:80/tcp',
    Screen: 'kubectl berth vm vnc desk, or 192.0.2.1:5901 with the password in Secret desk-vnc',
    Image: 'debian sha256:1',
    CPU: 2,
    Memory: '1.5Gi',
    Disk: '19.5Mi',
  });
});

it('says of a VM without a host only what is known', () => {
  const spec = { image: 'debian', iso: 'tools', memory: '2Gi', vnc: { enabled: false } };
  expect(linesOf(spec, {})).toEqual({
    Name: 'desk',
    Namespace: 'platform-a',
    Phase: 'Pending',
    Login: 'kubectl berth vm ssh desk',
    Screen: 'off',
    Image: 'debian',
    ISO: 'tools',
    Memory: '2Gi',
  });
});

it.each([
  ['True', 'Stopped', {}, undefined],
  ['False', 'NoSSHServer', {}, 'NoSSHServer'],
  ['False', 'Terminating', { failure: { reason: 'ImageNotFound', message: '' } }, 'ImageNotFound'],
])(
  'shows the reason of a VM and of an image in lists unless they are ready: %s, %s, %j',
  (ready, reason, more, shown) => {
    const status = { ...more, conditions: [{ type: 'Ready', status: ready, reason, message: '' }] };
    const vm = { metadata: { name: 'desk' }, spec: {}, status } as unknown as VM;
    const image = { metadata: { name: 'base' }, spec: { source: {} }, status } as unknown as StoredContent;
    const reasonIn = <T>(columns: readonly Column<T>[], object: T) =>
      columns.find(({ header, isWide }) => header === 'REASON' && isWide !== true)?.value(object);
    expect(reasonIn(VM_KIND.columns, vm)).toBe(shown);
    expect(reasonIn(IMAGE_KIND.columns, image)).toBe(ready === 'True' ? undefined : reason);
  },
);
