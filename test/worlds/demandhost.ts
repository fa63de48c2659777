/** The Node and the Server of a simulated host, as both are before anything happens. */
import { DEDICATED_KEY, HOST_KEY, HOST_MARK, HOST_VALUE, SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import type { Node } from '../../kube/core.ts';

/** Start of virtual time, in milliseconds since the epoch. */
export const START = Date.parse('2030-01-07T00:00:00Z');

export interface Host {
  readonly name: string;
  readonly architecture: 'amd64' | 'arm64';
  readonly slots: number;
  readonly namespace?: string | undefined;
  /** Time in milliseconds that the host needs from power until it reports. If it is undefined, the host never reports. */
  bootMilliseconds: number | undefined;
  /** Time in milliseconds that the controller needs for a request. If it is undefined, the controller refuses every request. */
  acceptMilliseconds: number | undefined;
}

export function nodeOf({ name, architecture, slots, namespace }: Host): Node {
  const dedication = namespace === undefined ? {} : { [DEDICATED_KEY]: namespace };
  const taints = [{ key: HOST_KEY, value: HOST_VALUE, effect: 'NoSchedule' as const }];
  const dedicated =
    namespace === undefined ? [] : [{ key: DEDICATED_KEY, value: namespace, effect: 'NoSchedule' as const }];
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name,
      uid: name,
      labels: { [HOST_MARK]: HOST_VALUE, 'kubernetes.io/arch': architecture, ...dedication },
    },
    spec: { taints: [...taints, ...dedicated] },
    status: {
      allocatable: { [SLOT_RESOURCE]: String(slots), cpu: '64', memory: '256Gi' },
      conditions: [{ type: 'Ready', status: 'True', lastTransitionTime: timestamp(START) }],
    },
  };
}

export function serverOf({ name }: Host): Server {
  const url = 'https://controller.example';
  const webhook = { onURL: url, offURL: url, statusURL: url, pattern: '(on|off)' };
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Server',
    metadata: { name, uid: name },
    spec: {
      addresses: ['10.0.0.1'],
      nodeName: name,
      controller: { webhook },
    },
    status: {
      power: 'On',
      conditions: [
        {
          type: 'Reachable',
          status: 'True',
          reason: 'ControllerAnswers',
          message: '',
          lastTransitionTime: timestamp(START),
        },
      ],
    },
  };
}
