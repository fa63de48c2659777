/** Tells from the Server of a host whether Berth switched the host off. All functions are pure. */
import type { Server } from '../../api/v1alpha1/server.ts';
import { equal } from '../../kube/mergepatch.ts';
import type { Informer } from '../../kube/informer.ts';
import type { HostReach, PoweredHost } from './observe.ts';

/** Index of Servers by `spec.nodeName`. */
export const SERVERS_BY_NODE = 'node';

/** Returns the keys of a Server for the index {@link SERVERS_BY_NODE}. */
export function nodeOfServer({ spec }: Readonly<Server>): string[] {
  return spec.nodeName === undefined ? [] : [spec.nodeName];
}

/** Returns the state of the host of a Server. The result is undefined if Berth has not switched the host off, or if it has returned. */
function poweredHost({ metadata, status }: Readonly<Server>): PoweredHost | undefined {
  const { host } = status ?? {};
  if (host === undefined) {
    return undefined;
  }
  const state = host.offAt === undefined ? 'Leaving' : host.onAt === undefined ? 'Off' : 'Starting';
  return { server: metadata.name, state };
}

/**
 * Adds to the reach of a host what its Servers say. A host that Berth switched off is silent at once, although its Node can still be Ready.
 * After the host is on again, its silence counts from that time on.
 */
export function withPower(reach: HostReach, servers: readonly Readonly<Server>[]): HostReach {
  const server = servers.find(({ status }) => status?.host !== undefined);
  const powered = server && poweredHost(server);
  if (powered === undefined || powered.state === 'Leaving') {
    return { ...reach, powered };
  }
  const { offAt = '', onAt } = server?.status?.host ?? {};
  return { ...reach, powered, silentSince: Date.parse(onAt ?? offAt) };
}

/** Calls `enqueue` with the name of a Node when Berth begins to switch off its host, or when the host returns. */
export function onPowerChange({ cache }: Informer<Server>, enqueue: (nodeName: string) => void): void {
  cache.onChange(({ type, object, previous }) => {
    const before = type === 'updated' ? previous?.status?.host : undefined;
    if (type === 'deleted' || !equal(before ?? {}, object.status?.host ?? {})) {
      nodeOfServer(object).forEach(enqueue);
    }
  });
}
