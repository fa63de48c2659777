/** The HTTPS server of an agent without an agent: everybody has all rights, and all streams lead to one target. */
import { PassThrough } from 'node:stream';
import { pino } from 'pino';
import type { Registry } from 'prom-client';
import { KubeletServer } from '../../../agent/kubelet/server.ts';
import type { StreamTarget } from '../../../agent/kubelet/streams/exec.ts';
import { createAuthority, issue } from '../../../hack/cluster/authority.ts';
import { createKey } from '../../../kube/certificates/certificate.ts';
import type { Authorizer } from '../../../kube/serving/authorization.ts';

/** Starts the server on a port of 127.0.0.1. Its consoles and ports are silent, and `execute` runs the commands. */
export async function startOpenKubelet(
  execute: StreamTarget['execute'],
  metrics: Registry,
): Promise<{ server: KubeletServer; port: number }> {
  const [authority, key] = [await createAuthority('clients'), await createKey()];
  const certificate = await issue(authority, { key, commonName: 'host', ipAddresses: ['127.0.0.1'] });
  const target = { console: async () => new PassThrough(), port: async () => new PassThrough(), execute };
  const server = new KubeletServer({
    nodeName: 'host',
    listenAddress: '127.0.0.1',
    port: 0,
    clientCAFile: undefined,
    certificate: { certificate, key: key.pem },
    // Rights are tested elsewhere. Here everybody has them.
    authorizer: { identify: async () => ({}), authorize: async () => true } as unknown as Authorizer,
    logs: async () => new PassThrough(),
    transfers: () => () => undefined,
    streams: () => target,
    unready: () => undefined,
    metrics,
    resources: { text: async () => '' },
    logger: pino({ level: 'silent' }),
  });
  return { server, port: await server.listen() };
}
